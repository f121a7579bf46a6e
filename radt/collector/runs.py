"""A run that is being recorded, in memory and on disk.

Listener threads and client threads write to an `ActiveRun`; the store's thread takes the data out.
No method waits for a store; times are monotonic until they are taken out. `RunStates` keeps a small
file per run below the runtime folder, without the run's environment, from which a restarted worker
continues.
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from radt.collector.ledger import Account, ListenerState
from radt.collector.protocol import LiveView, Registration, StandaloneRun
from radt.collector.routing import (
    Column,
    Event,
    LiveState,
    LogUpdate,
    Missing,
    OpenGap,
    SeriesKey,
    SortedReadings,
    Taken,
)
from radt.listeners.api import Metric, Occurrence, Target
from radt.model import MissingReason, RunStatus
from radt.procfs import ExitWatch, ProcessId, boot_id, signal_name
from radt.store.records import LedgerRecord

#: How often open gaps are stored.
_GAP_STORE_NS = 5_000_000_000
#: End of a script of which nobody knows more.
NO_WORD = "its process ended without a word, and its exit code is unknown"


@dataclass(frozen=True, slots=True)
class Ending:
    """Outcome of a run. ``status`` is None for the journal's, or else ``fallback``."""

    ended_ns: int
    status: RunStatus | None = None
    exit_code: int | None = None
    reason: str = ""
    fallback: RunStatus = RunStatus.FINISHED

    @classmethod
    def of_exit(cls, code: int | None) -> Ending:
        """Return the end, now, of a script whose process exited before it ended the run.

        It may have become another program (``os.execv``), so its exit code says how the run ended,
        as that of a row does. ``code`` is negative for a signal, None if unknown.
        """
        reason, fallback = "", RunStatus.FINISHED
        if code is None:
            reason, fallback = NO_WORD, RunStatus.KILLED
        elif code < 0:
            reason, fallback = f"killed by {signal_name(-code)}", RunStatus.KILLED
        elif code > 0:
            reason, fallback = f"exit code {code}", RunStatus.FAILED
        return cls(time.monotonic_ns(), exit_code=code, reason=reason, fallback=fallback)


@dataclass(frozen=True, slots=True)
class Resumed:
    """A listener's ledger row, and the monotonic time of its last reading, if known."""

    ledger: LedgerRecord
    last_ns: int | None


class ActiveRun:
    """One registered run. Thread-safe."""

    def __init__(
        self,
        registration: Registration,
        owner: ProcessId | None,
        *,
        standalone: StandaloneRun | None = None,
        buffered_points: int,
    ) -> None:
        self.registration = registration
        self.owner = owner
        self.standalone = standalone
        self.pid: int | None = None
        #: The run's GPUs: final when it starts, as MIG instances may be new.
        self.devices = registration.devices
        self.started_ns: int | None = None
        self.ending: Ending | None = None
        #: Of a script that ends its run itself.
        self.exit_watch: ExitWatch | None = None
        #: CPU time of the tracker while the run ran, in seconds; None if unknown.
        self.tracker_cpu_s: float | None = None
        self._tracker_began_s: float | None = None
        #: Whether its owner died and its processes are being stopped.
        self.orphaned = False
        #: Set when the store has all of the run, or never will: ``failure`` gives the reason.
        self.done = threading.Event()
        self.failure = ""
        #: Set when the store first has the run's rows and start.
        self.recorded = threading.Event()
        self._lock = threading.Lock()
        self._buffered_points = buffered_points
        self._points = 0
        self._columns: dict[SeriesKey, Column] = {}
        self._gaps: dict[SeriesKey, OpenGap] = {}
        self._valued: set[SeriesKey] = set()
        self._missing: list[Missing] = []
        self._events: list[Event] = []
        self._accounts: dict[str, Account] = {}
        self._live = LiveState()
        self._resumed = False

    @property
    def run_id(self) -> str:
        return self.registration.run_id

    @property
    def parent_id(self) -> str:
        """Return the run whose processes this one shares, which are measured there; or empty."""
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
        """Record that a listener does not work here, or no longer."""
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
        self.trouble(listener, f"listener {listener} dropped", reason)
        with self._lock:
            self._live.silent(listener)
            account = self._accounts[listener]
            account.state, account.reason = ListenerState.DROPPED, reason
            account.changed = True

    def trouble(self, listener: str, name: str, reason: str) -> None:
        """Mark that a listener was restarted or dropped."""
        with self._lock:
            self._events.append(Event(name, time.monotonic_ns(), reason))
            if (account := self._accounts.get(listener)) is not None:
                account.explanation = reason

    def started(self, pid: int, monotonic_ns: int, devices: tuple[str, ...] | None = None) -> None:
        """Record that the run passed its barrier; expect readings from now on.

        Args:
            devices: The run's GPUs, if they differ from those at registration.
        """
        with self._lock:
            self.devices = self.devices if devices is None else devices
            self.pid, self.started_ns = pid, monotonic_ns
            now_ns = time.monotonic_ns()
            for account in self._accounts.values():
                account.start(now_ns)

    def tracker_begins(self, cpu_s: float) -> None:
        """Record the CPU time of the tracker's processes at the run's start."""
        self._tracker_began_s = cpu_s

    def tracker_ends(self, cpu_s: float) -> None:
        """Record their CPU time at the run's end; that of an earlier collector is unknown."""
        if self._tracker_began_s is not None and self.ending is None:
            self.tracker_cpu_s = max(0.0, cpu_s - self._tracker_began_s)

    def end(self, ending: Ending) -> bool:
        """Accept no more readings; return False if the run has already ended."""
        with self._lock:
            if self.ending is not None:
                return False
            # A reading taken while the end was being reported still belongs to the run.
            last_ns = max((account.last_ns for account in self._accounts.values()), default=0)
            ending = replace(ending, ended_ns=max(ending.ended_ns, last_ns))
            self.ending = ending
            for account in self._accounts.values():
                account.end(ending.ended_ns)
            for key in list(self._gaps):
                self._close_gap(key, ending.ended_ns)
            return True

    def target(self, pids: tuple[int, ...]) -> Target:
        return Target(self.run_id, self.devices, pids, self.registration.profiler)

    def record(
        self,
        listener: str,
        interval_s: float,
        at_ns: int,
        took_ns: int,
        readings: SortedReadings,
        metrics: Mapping[str, Metric],
    ) -> None:
        """Keep the values of one reading that belong to this run."""
        with self._lock:
            account = self._accounts.get(listener)
            if self.ending is not None or account is None or account.start_ns is None:
                return
            if self._points >= self._buffered_points:
                account.explanation = "the store could not be written and memory was full"
                return
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
                    self._without(
                        key, OpenGap(metric, spacing_s, value_ns, value_ns, reason, reading.method)
                    )
                    self._live.missing(listener, reading.metric, reading.entity)
                    continue
                if key in self._gaps:
                    self._close_gap(key, value_ns)
                column = self._columns.get(key)
                if column is None:
                    column = self._columns[key] = Column(
                        metric, spacing_s, reading.method or metric.method
                    )
                    self._valued.add(key)
                column.times_ns.append(value_ns)
                column.values.append(value)
                self._points += 1
                self._live.hardware(listener, reading.metric, reading.entity, value)

    def record_counters(
        self,
        listener: str,
        interval_s: float,
        at_ns: int,
        readings: SortedReadings,
        metrics: Mapping[str, Metric],
    ) -> None:
        """Keep the unscheduled values of counters at the run's beginning or end."""
        with self._lock:
            if self.ending is not None or self._points >= self._buffered_points:
                return
            for reading in readings.concerning(self.run_id, self.devices):
                if isinstance(reading, Occurrence) or isinstance(reading.value, MissingReason):
                    continue
                metric = metrics[reading.metric]
                if reading.wraps_at is not None:
                    metric = replace(metric, wraps_at=reading.wraps_at)
                key = SeriesKey(listener, reading.metric, reading.entity)
                self._valued.add(key)
                column = self._columns.setdefault(
                    key, Column(metric, interval_s, reading.method or metric.method)
                )
                column.times_ns.append(reading.at_ns or at_ns)
                column.values.append(reading.value)
                self._points += 1

    def _without(self, key: SeriesKey, new: OpenGap) -> None:
        gap = self._gaps.get(key)
        if gap is not None and gap.reason is new.reason:
            gap.last_ns = new.last_ns
            return
        if gap is not None:
            self._close_gap(key, new.start_ns)
        self._gaps[key] = new

    def _close_gap(self, key: SeriesKey, end_ns: int) -> None:
        self._missing.append(self._gaps.pop(key).until(key, end_ns))

    def _growing_gaps(self) -> Iterator[Missing]:
        """Yield open gaps up to now: a killed collector cannot store them later."""
        for key, gap in self._gaps.items():
            if gap.last_ns == gap.start_ns or gap.last_ns - gap.stored_ns < _GAP_STORE_NS:
                continue
            # The first value decides a series' method, and there is none yet.
            if gap.reason is MissingReason.LOST and key not in self._valued:
                continue
            gap.stored_ns = gap.last_ns
            yield gap.until(key, gap.last_ns)

    # Store -----------------------------------------------------------------------------------

    def resume(self, before: Mapping[str, Resumed]) -> None:
        """Continue from what an earlier collector stored; only the first call counts."""
        with self._lock:
            if self._resumed:
                return
            self._resumed = True
            for listener, resumed in before.items():
                if (account := self._accounts.get(listener)) is not None:
                    account.resume(resumed.ledger, resumed.last_ns)

    def explain(self, listener: str, reason: str) -> None:
        """Note why a listener reads nothing for now."""
        with self._lock:
            if (account := self._accounts.get(listener)) is not None:
                account.explanation = reason

    def note(self, name: str, detail: str) -> None:
        """Add a marker for an event now."""
        with self._lock:
            self._events.append(Event(name, time.monotonic_ns(), detail))

    @property
    def waiting_series(self) -> int:
        """Return the number of series with points for the store."""
        with self._lock:
            return len(self._columns)

    def take(self) -> Taken:
        """Hand over the data for the store; call `stored` when it is written."""
        with self._lock:
            changed = [account for account in self._accounts.values() if account.changed]
            taken = Taken(
                columns=self._columns,
                missing=[*self._missing, *self._growing_gaps()],
                events=self._events,
                ledgers=[account.record(self.run_id) for account in changed],
                stretches={a.listener: s for a in changed if (s := a.take_stretches())},
            )
            self._columns, self._missing, self._events = {}, [], []
            for account in changed:
                account.changed = False
            return taken

    def stored(self, taken: Taken) -> None:
        """Drop data that is now in the store."""
        with self._lock:
            self._points -= taken.points

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
    """Saved state for a worker to continue a run. ``owner`` is None if it cannot be watched."""

    registration: Registration
    owner: ProcessId | None
    standalone: StandaloneRun | None = None
    pid: int | None = None
    started_ns: int | None = None
    ending: Ending | None = None
    boot: str = ""

    def to_json(self) -> dict[str, Any]:
        registration = replace(self.registration, env={})
        standalone = self.standalone and replace(self.standalone, registration=registration)
        return {
            "boot": boot_id(),
            "registration": registration.to_json(),
            "standalone": standalone and standalone.to_json(),
            "owner": self.owner and [self.owner.pid, self.owner.started_ticks],
            "pid": self.pid,
            "started_ns": self.started_ns,
            "ending": self.ending and asdict(self.ending),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RunState:
        """Parse the output of `to_json`; raise ValueError if it is invalid."""
        try:
            ending, owner, standalone = data["ending"], data["owner"], data["standalone"]
            if ending:
                status = RunStatus(ending["status"]) if ending["status"] else None
                ending |= {"status": status, "fallback": RunStatus(ending["fallback"])}
            return cls(
                registration=Registration.from_json(data["registration"]),
                owner=ProcessId(*owner) if owner else None,
                standalone=StandaloneRun.from_json(standalone) if standalone else None,
                pid=data["pid"],
                started_ns=data["started_ns"],
                ending=ending and Ending(**ending),
                boot=data["boot"],
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a remembered run: {error!r}") from error


class RunStates:
    """Folder of the saved states."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, exist_ok=True)

    def keep(self, run: RunState) -> None:
        """Save a run's state."""
        path = self._path(run.registration.run_id)
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(run.to_json()), encoding="utf-8")
        os.replace(temporary, path)  # noqa: PTH105 - atomic, and says so

    def has(self, run_id: str, store: Path) -> bool:
        """Return whether a run of this boot is being recorded into a store.

        The store's folder may be a copy of the one that it is recorded into.
        """
        try:
            known = json.loads(self._path(run_id).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return False
        except (ValueError, OSError):
            return True  # unknown, so no other process may take it
        if not isinstance(known, dict):
            return True
        elsewhere = known.get("registration", {}).get("store_path", str(store)) != str(store)
        return known.get("boot") == boot_id() and not elsewhere

    def owned(self, run_id: str) -> bool:
        """Return whether the process that is to end a run is alive, as far as known."""
        try:
            owner = json.loads(self._path(run_id).read_text(encoding="utf-8"))["owner"]
            return owner is None or ProcessId(*owner).alive
        except (OSError, ValueError, TypeError, KeyError):
            return False

    def forget(self, run_id: str) -> None:
        self._path(run_id).unlink(missing_ok=True)

    def load(self) -> Iterator[RunState]:
        """Yield all runs of this boot; rename files that cannot be parsed."""
        for path in sorted(self._folder.glob("*.json")):
            try:
                run = RunState.from_json(json.loads(path.read_text(encoding="utf-8")))
            except ValueError:
                log.exception("%s", path)
                path.rename(path.with_suffix(".broken"))
                continue
            except OSError:  # the next worker tries again; the run's folder speaks for it too
                log.exception("%s", path)
                continue
            if run.boot != boot_id():
                # All of its processes are gone, and its times belong to another clock: `leftovers`
                # finds it in its store.
                path.unlink()
                continue
            yield run

    def _path(self, run_id: str) -> Path:
        return self._folder / f"{run_id}.json"
