"""A run that is being recorded, in memory and on disk.

Listener threads and client threads write to a `RegisteredRun`; the store's thread takes the data
out. No method waits for a store; times are monotonic until they are taken out. `RunStates` keeps a
small file per run in the runtime folder, without the run's environment, from which a restarted
worker continues.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from radt.collector.ledger import Account, ListenerState
from radt.collector.protocol import LiveView, Registration, RunRequest, from_json
from radt.collector.routing import (
    Event,
    Gap,
    LiveState,
    LogUpdate,
    PendingPoints,
    PendingSamples,
    SeriesKey,
    SortedReadings,
)
from radt.files import write_whole
from radt.listeners.api import Metric, Occurrence, Target
from radt.model import MissingReason, RunStatus
from radt.procfs import ExitWatch, ProcessId, boot_id, signal_name
from radt.store.records import LedgerRecord

#: How often open gaps are stored.
_GAP_STORE_NS = 5_000_000_000
#: End reason of a script if nothing else is known.
NO_REPORT = "its process ended without reporting, and its exit code is unknown"


@dataclass(frozen=True, slots=True)
class RunEnding:
    """Outcome of a run. ``status`` is None to use the journal's outcome, or else ``fallback``."""

    ended_ns: int
    status: RunStatus | None = None
    exit_code: int | None = None
    reason: str = ""
    fallback: RunStatus = RunStatus.FINISHED

    @classmethod
    def of_exit(cls, code: int | None) -> RunEnding:
        """Return the outcome, as of now, of a script whose process exited before it ended the run.

        The process may have become another program (``os.execv``), so its exit code determines the
        outcome, as for a row of an experiment. ``code`` is negative for a signal, None if unknown.
        """
        reason, fallback = "", RunStatus.FINISHED
        if code is None:
            reason, fallback = NO_REPORT, RunStatus.KILLED
        elif code < 0:
            reason, fallback = f"killed by {signal_name(-code)}", RunStatus.KILLED
        elif code > 0:
            reason, fallback = f"exit code {code}", RunStatus.FAILED
        return cls(time.monotonic_ns(), exit_code=code, reason=reason, fallback=fallback)


class RegisteredRun:
    """One registered run. Thread-safe."""

    def __init__(
        self,
        registration: Registration,
        owner: ProcessId | None,
        *,
        standalone: RunRequest | None = None,
        buffered_points: int,
    ) -> None:
        self.registration = registration
        self.owner = owner
        self.standalone = standalone
        self.pid: int | None = None
        #: The run's GPUs. Final once it has started, because MIG instances may be created until
        #: then.
        self.devices = registration.devices
        self.started_ns: int | None = None
        self.ending: RunEnding | None = None
        #: Watches the process of a script that ends its run itself.
        self.exit_watch: ExitWatch | None = None
        #: CPU seconds of the tracker during the run; None if unknown.
        self.tracker_cpu_s: float | None = None
        #: CPU seconds of the tracker at the run's start; None if an earlier collector began it.
        self.tracker_began_s: float | None = None
        #: Whether the owner has died and the run's processes are being stopped.
        self.orphaned = False
        #: Set when the store has all of the run, or never will: ``failure`` gives the reason.
        self.done = threading.Event()
        self.failure = ""
        #: Set when the store has the run's rows and start.
        self.recorded = threading.Event()
        self._lock = threading.Lock()
        self._buffered_points = buffered_points
        self._points = 0
        self._columns: dict[SeriesKey, PendingPoints] = {}
        self._gaps: dict[SeriesKey, Gap] = {}
        self._valued: set[SeriesKey] = set()
        self._missing: list[Gap] = []
        self._events: list[Event] = []
        self._accounts: dict[str, Account] = {}
        self._live = LiveState()
        self._resumed = False

    @property
    def run_id(self) -> str:
        return self.registration.run_id

    @property
    def parent_id(self) -> str:
        """Return the id of the run that shares this one's processes; empty for none."""
        return "" if self.standalone is None else self.standalone.parent_id

    @property
    def sampling(self) -> bool:
        """Return whether listeners must read for this run."""
        return self.started_ns is not None and self.ending is None

    # Listeners -------------------------------------------------------------------------------

    def expect(self, listener: str, interval_s: float) -> None:
        """Open an account for a listener. Idempotent."""
        with self._lock:
            account = self._accounts.setdefault(
                listener, Account(listener, round(interval_s * 1e9))
            )
            if self.started_ns is not None:
                account.start(time.monotonic_ns())

    def unavailable(self, listener: str, reason: str) -> None:
        """Record that a listener does not work here, or no longer does."""
        with self._lock:
            account = self._accounts[listener]
            self._live.silent(listener)
            if account.received:
                name = f"listener {listener} unavailable"
                self._events.append(Event(name, time.monotonic_ns(), reason))
            account.state, account.reason = ListenerState.UNAVAILABLE, reason
            account.changed = True

    def dropped(self, listener: str, reason: str) -> None:
        """Record that a listener was dropped."""
        self.note(f"listener {listener} dropped", reason)
        self.explain(listener, reason)
        with self._lock:
            self._live.silent(listener)
            account = self._accounts[listener]
            account.state, account.reason = ListenerState.DROPPED, reason
            account.changed = True

    def started(
        self, pid: int | None, monotonic_ns: int, devices: tuple[str, ...] | None = None
    ) -> None:
        """Record that the run passed its barrier; expect readings from now on.

        Args:
            pid: The run's process, if it is known.
            monotonic_ns: The time of its start.
            devices: The run's GPUs, if they differ from those at registration.
        """
        with self._lock:
            self.devices = self.devices if devices is None else devices
            self.pid, self.started_ns = pid, monotonic_ns
            now_ns = time.monotonic_ns()
            for account in self._accounts.values():
                account.start(now_ns)

    def tracker_ends(self, cpu_s: float) -> None:
        """Record the tracker's CPU time at the run's end, unless an earlier collector began it."""
        if self.tracker_began_s is not None and self.ending is None:
            self.tracker_cpu_s = max(0.0, cpu_s - self.tracker_began_s)

    def end(self, ending: RunEnding) -> bool:
        """Accept no more readings; return False if the run has already ended."""
        with self._lock:
            if self.ending is not None:
                return False
            self.ending = ending
            for account in self._accounts.values():
                account.started_by(ending.ended_ns)
            # Readings taken while the end was being reported count, but do not prolong the run.
            last_ns = max((account.last_ns for account in self._accounts.values()), default=0)
            until_ns = max(ending.ended_ns, last_ns)
            for account in self._accounts.values():
                account.end(until_ns)
            for key, gap in list(self._gaps.items()):
                self._close_gap(key, max(gap.start_ns, ending.ended_ns))
            return True

    def target(self, pids: tuple[int, ...]) -> Target:
        return Target(self.run_id, self.devices, pids, self.registration.profiler)

    def record(
        self,
        listener: str,
        interval_s: float,
        at_ns: int,
        took_ns: int | None,
        readings: SortedReadings,
        metrics: Mapping[str, Metric],
    ) -> None:
        """Keep the values of one reading that belong to this run.

        Args:
            listener: The listener.
            interval_s: Seconds between its readings.
            at_ns: Monotonic time of the reading.
            took_ns: How long it took; None for an unscheduled reading at the run's beginning or
                end, which the account does not count.
            readings: The values, of all runs.
            metrics: The listener's metrics by name.
        """
        with self._lock:
            account = self._accounts.get(listener)
            if self.ending is not None or account is None or account.start_ns is None:
                return
            if self._points >= self._buffered_points:
                account.explanation = "the store could not be written and memory was full"
                return
            if took_ns is not None:
                account.reading(at_ns, took_ns)
            for reading in readings.concerning(self.run_id, self.devices):
                if isinstance(reading, Occurrence):
                    self._events.append(Event(reading.name, reading.at_ns or at_ns, reading.detail))
                    continue
                metric = metrics[reading.metric]
                if reading.wraps_at is not None:
                    metric = replace(metric, wraps_at=reading.wraps_at)
                spacing_s = interval_s if metric.regular else None
                key = SeriesKey(listener, reading.metric, reading.entity)
                value, value_ns = reading.value, reading.at_ns or at_ns
                if isinstance(value, MissingReason) or math.isnan(value):
                    reason = value if isinstance(value, MissingReason) else MissingReason.LOST
                    method = reading.method
                    self._without(Gap(key, metric, spacing_s, value_ns, value_ns, reason, method))
                    self._live.missing(listener, reading.metric, reading.entity)
                    continue
                if key in self._gaps:
                    self._close_gap(key, value_ns)
                column = self._columns.get(key)
                if column is None:
                    method = reading.method or metric.method
                    column = self._columns[key] = PendingPoints(metric, spacing_s, method)
                    self._valued.add(key)
                column.times_ns.append(value_ns)
                column.values.append(value)
                self._points += 1
                self._live.hardware(listener, reading.metric, reading.entity, value)

    def _without(self, new: Gap) -> None:
        gap = self._gaps.get(new.key)
        if gap is not None and gap.reason is new.reason:
            gap.end_ns = new.end_ns
            return
        if gap is not None:
            self._close_gap(new.key, new.start_ns)
        self._gaps[new.key] = new

    def _close_gap(self, key: SeriesKey, end_ns: int) -> None:
        self._missing.append(replace(self._gaps.pop(key), end_ns=end_ns))

    def _growing_gaps(self) -> Iterator[Gap]:
        """Yield open gaps up to now, because a killed collector could not store them later."""
        for key, gap in self._gaps.items():
            if gap.end_ns == gap.start_ns or gap.end_ns - gap.stored_ns < _GAP_STORE_NS:
                continue
            # A series gets its method from its first value, which does not exist yet.
            if gap.reason is MissingReason.LOST and key not in self._valued:
                continue
            gap.stored_ns = gap.end_ns
            yield replace(gap)

    # Store -----------------------------------------------------------------------------------

    def resume(self, before: Mapping[str, tuple[LedgerRecord, int | None]]) -> None:
        """Continue from an earlier collector's data in the store; only the first call counts.

        Args:
            before: For each listener, its ledger row and the monotonic time of its last reading, if
                known.
        """
        with self._lock:
            if self._resumed:
                return
            self._resumed = True
            for listener, (ledger, last_ns) in before.items():
                if (account := self._accounts.get(listener)) is not None:
                    account.resume(ledger, last_ns)

    def explain(self, listener: str, reason: str) -> None:
        """Record why a listener has not read anything since its last reading."""
        with self._lock:
            if (account := self._accounts.get(listener)) is not None:
                account.explanation = reason

    def note(self, name: str, detail: str) -> None:
        """Add an event marker at the current time."""
        with self._lock:
            self._events.append(Event(name, time.monotonic_ns(), detail))

    @property
    def waiting_series(self) -> int:
        """Return the number of series with points to store."""
        with self._lock:
            return len(self._columns)

    def take(self) -> PendingSamples:
        """Hand over the data to store; call `stored` once it is written."""
        with self._lock:
            changed = [account for account in self._accounts.values() if account.changed]
            samples = PendingSamples(
                columns=self._columns,
                missing=[*self._missing, *self._growing_gaps()],
                events=self._events,
                ledgers=[account.record(self.run_id) for account in changed],
                stretches={a.listener: s for a in changed if (s := a.take_stretches())},
            )
            self._columns, self._missing, self._events = {}, [], []
            for account in changed:
                account.changed = False
            return samples

    def stored(self, samples: PendingSamples) -> None:
        """Drop data that is now in the store."""
        with self._lock:
            self._points -= samples.points

    # Live ------------------------------------------------------------------------------------

    def logged(self, update: LogUpdate) -> None:
        """Record the newest values that the script has logged."""
        with self._lock:
            self._live.software(update)

    def live(self) -> LiveView:
        with self._lock:
            return self._live.view()


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunState:
    """Saved state from which a worker can continue a run.

    ``owner`` is None if that process cannot be watched.
    """

    registration: Registration
    owner: ProcessId | None
    standalone: RunRequest | None = None
    pid: int | None = None
    started_ns: int | None = None
    ending: RunEnding | None = None
    boot: str = field(default_factory=boot_id)

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON, without the run's environment."""
        registration = replace(self.registration, env={})
        standalone = self.standalone and replace(self.standalone, registration=registration)
        return asdict(replace(self, registration=registration, standalone=standalone))


def _optional(cls: type[Any]) -> Callable[[Any], Any]:
    return lambda value: value and from_json(cls, value, _READERS)


#: Readers for the field types of `RunState` and `RunEnding` that the protocol does not have.
_READERS: Mapping[str, Callable[[Any], Any]] = {
    **{f"{cls.__name__} | None": _optional(cls) for cls in (ProcessId, RunRequest, RunEnding)},
    f"{RunStatus.__name__} | None": lambda value: value and RunStatus(value),
}


class RunStates:
    """Folder of the saved states."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, exist_ok=True)

    def keep(self, run: RunState) -> None:
        """Save a run's state."""
        write_whole(self._path(run.registration.run_id), json.dumps(run.to_json()))

    def has(self, run_id: str, store: Path) -> bool:
        """Return whether a run of this boot is being recorded into a store.

        The store's folder may be a copy of the one that the run is recorded into.
        """
        try:
            known = _read_state(self._path(run_id))
        except FileNotFoundError:
            return False
        except (ValueError, OSError):
            return True  # unknown, so no other process may store the run
        return known.boot == boot_id() and known.registration.store_path == str(store)

    def owned(self, run_id: str) -> bool:
        """Return whether the process that has to end a run is alive, as far as known."""
        try:
            owner = _read_state(self._path(run_id)).owner
        except (OSError, ValueError):
            return False
        return owner is None or owner.alive

    def forget(self, run_id: str) -> None:
        self._path(run_id).unlink(missing_ok=True)

    def load(self) -> Iterator[RunState]:
        """Yield all runs of this boot; rename files that cannot be parsed."""
        for path in sorted(self._folder.glob("*.json")):
            try:
                run = _read_state(path)
            except ValueError:
                log.exception("%s", path)
                path.rename(path.with_suffix(".broken"))
                continue
            except OSError:  # the next worker retries, and the run's folder has its manifest
                log.exception("%s", path)
                continue
            if run.boot != boot_id():
                # All of its processes are gone, and its times belong to another clock. `recovery`
                # finds the run in its store.
                path.unlink()
                continue
            yield run

    def _path(self, run_id: str) -> Path:
        return self._folder / f"{run_id}.json"


def _read_state(path: Path) -> RunState:
    return from_json(RunState, json.loads(path.read_bytes()), _READERS)
