"""Attribute a card's energy above its idle power to runs, by their share of SM time.

Idle power is kept in a file of the runtime folder, so that a run on a busy card can use a value of
the same day. After a reboot it is measured again.

The rule: of the energy above idle in a stretch of about a second, a run gets the share that its
processes have in the SM time of all processes on the card. Alone on the card, that is all of it.
If the share is not known, the run gets no value, and its series says why.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from radt.errors import UsageError
from radt.home import runtime_dir
from radt.listeners.smi_card import Value
from radt.listeners.smi_processes import Processes, SmTime, merged
from radt.model import MissingReason

# Idle power: measured when nobody uses the card, and kept -----------------------------------------


log = logging.getLogger(__name__)

FILE_NAME = "gpu-idle-power.json"
_MAX_AGE_S = 24 * 3600.0
#: A stretch this long replaces earlier ones. Of shorter ones the lowest counts: after work, a card
#: takes a while to reach idle power.
_LONG_S = 30.0
#: The file is rewritten for a change of this share, or at this age.
_NOTABLE = 0.01
_REFRESH_S = 60.0


@dataclass(frozen=True, slots=True)
class IdlePower:
    """Mean power of a card over a stretch without compute processes; times in s since 1970."""

    watts: float
    seconds: float
    started_at: float
    measured_at: float


class IdlePowers:
    """The newest idle power of each card, by its UUID."""

    def __init__(self, wall_s: Callable[[], float] = time.time) -> None:
        self._wall_s = wall_s
        self._known: dict[str, IdlePower] = {}
        self._written: dict[str, IdlePower] = {}
        self._path: Path | None = None

    def open(self) -> None:
        """Read earlier measurements."""
        try:
            self._path = runtime_dir() / FILE_NAME
        except UsageError as error:
            log.warning("idle power of GPUs is not kept: %s", error.message)
            return
        self._known = _read(self._path)
        self._written = dict(self._known)

    def watts(self, uuid: str) -> float | None:
        """Return the idle power of this card; None if it was not measured within a day."""
        known = self._recent(uuid)
        return None if known is None else known.watts

    def measured(self, uuid: str, watts: float, seconds: float) -> None:
        """Note an idle stretch until now."""
        now_s = self._wall_s()
        new = IdlePower(watts, seconds, now_s - seconds, now_s)
        known = self._recent(uuid)
        same = known is not None and new.started_at < known.measured_at
        if known is None or same or seconds >= _LONG_S or watts < known.watts:
            self._known[uuid] = new
            self._write(uuid, new)

    def _recent(self, uuid: str) -> IdlePower | None:
        known = self._known.get(uuid)
        if known is None or self._wall_s() - known.measured_at > _MAX_AGE_S:
            return None
        return known

    def _write(self, uuid: str, new: IdlePower) -> None:
        old = self._written.get(uuid)
        if (
            old is not None
            and new.measured_at - old.measured_at < _REFRESH_S
            and abs(new.watts - old.watts) <= _NOTABLE * old.watts
        ):
            return
        self._written[uuid] = new
        if self._path is None:
            return
        # Other listeners may have measured other cards meanwhile.
        content = {key: asdict(power) for key, power in (_read(self._path) | {uuid: new}).items()}
        # Named after this thread: there is a listener for each interval of runs.
        temporary = self._path.with_name(f"{FILE_NAME}.{os.getpid()}-{threading.get_ident()}")
        try:
            temporary.write_text(json.dumps(content), encoding="utf-8")
            temporary.replace(self._path)
        except OSError as error:
            log.warning("idle power of GPUs cannot be kept in %s: %s", self._path, error)
            with suppress(OSError):
                temporary.unlink()
            self._path = None


def _read(path: Path) -> dict[str, IdlePower]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {uuid: IdlePower(**power) for uuid, power in content.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        log.warning("%s is damaged and ignored: %s", path, error)
        return {}


#: The least stretch that is split: the driver has a sample of processes every second or faster.
STRETCH_NS = 900_000_000
#: How long a card takes to reach idle power after work.
_CALM_NS = 10_000_000_000

METHOD = (
    "energy of the card above its measured idle power, by the share of SM time of the run's "
    "processes among all processes on the card (alone: all of it; without any SM time: none), "
    "in stretches of at least 0.9 s"
)


@dataclass(frozen=True, slots=True)
class Moment:
    """A card at one end of a stretch. ``energy_j`` is its counter; ``mig``: MIG is on."""

    at_ns: int
    energy_j: Value
    processes: Processes | MissingReason
    mig: bool = False

    @property
    def unused(self) -> bool:
        """Whether no compute process uses the card."""
        return isinstance(self.processes, Processes) and not self.processes.memory


@dataclass(slots=True)
class _Account:
    """A run's part of a card."""

    pids: frozenset[int]
    joules: float = 0.0


@dataclass(slots=True)
class EnergySplit:
    """Splits the energy of one card among runs."""

    uuid: str
    idle: IdlePowers
    before: Moment | None = None
    _accounts: dict[str, _Account] = field(default_factory=dict)
    _carry_j: float = 0.0
    _idle_w: float | None = None
    _idle_since: tuple[int, float] | None = None
    _busy_ns: int | None = None

    def begin(self, now: Moment) -> None:
        """Begin a stretch."""
        self.before = now

    def due(self, at_ns: int) -> bool:
        """Return whether a stretch is over, or none has begun."""
        return self.before is None or at_ns - self.before.at_ns >= STRETCH_NS

    def account(
        self, now: Moment, sm: SmTime | MissingReason, runs: Mapping[str, frozenset[int]]
    ) -> dict[str, Value]:
        """End a stretch; return what each run has used of the card until now, in J.

        Args:
            now: The end of the stretch, and the beginning of the next.
            sm: SM time of all processes within it, or why it is not known.
            runs: Processes of the runs that have this card.
        """
        before, self.before = self.before, now
        # Processes that have ended meanwhile count too.
        own = {
            run: pids | (self._accounts[run].pids if run in self._accounts else frozenset())
            for run, pids in runs.items()
        }
        new = runs.keys() - self._accounts.keys()
        if new == runs.keys():
            self._idle_w = None
        self._accounts = {
            run: _Account(pids, 0.0 if run in new else self._accounts[run].joules)
            for run, pids in runs.items()
        }
        if isinstance(now.energy_j, MissingReason):
            self._idle_since = None
            return dict.fromkeys(runs, now.energy_j)
        above_j = self._above_idle(before, now, sm)
        values: dict[str, Value] = {}
        for run, pids in own.items():
            share = _share(before, now, sm, pids)
            if isinstance(share, MissingReason):
                values[run] = share
            elif above_j is None:
                values[run] = MissingReason.UNATTRIBUTABLE
            else:
                if run not in new:  # energy from before the run is not the run's
                    self._accounts[run].joules += share * above_j
                values[run] = self._accounts[run].joules
        return values

    def _above_idle(
        self, before: Moment | None, now: Moment, sm: SmTime | MissingReason
    ) -> float | None:
        """Return the energy above idle in J; None while the idle power is not known."""
        assert isinstance(now.energy_j, float)
        used = isinstance(sm, SmTime) and sm.of_the_gone()
        if before is None or isinstance(before.energy_j, MissingReason):
            used_j = seconds = 0.0
        elif now.energy_j < before.energy_j:  # the driver was loaded again
            self._idle_since, used_j, seconds = None, 0.0, 0.0
        else:
            used_j = now.energy_j - before.energy_j
            seconds = (now.at_ns - before.at_ns) / 1e9
            self._watch_idle(before, now, used=used)
        # A run of several days keeps its first value, as its card is never idle meanwhile.
        idle_w = self._idle_w = self.idle.watts(self.uuid) or self._idle_w
        if idle_w is None:
            return None
        # The counter moves in steps: what one stretch lacks, the next has in excess. Without the
        # carry an idle card would accumulate the steps that are too large.
        above_j = self._carry_j + used_j - idle_w * seconds
        self._carry_j = max(-idle_w, min(0.0, above_j))
        return max(0.0, above_j)

    def _watch_idle(self, before: Moment, now: Moment, *, used: bool) -> None:
        assert isinstance(before.energy_j, float)
        assert isinstance(now.energy_j, float)
        if used or not (before.unused and now.unused):
            self._idle_since = None
            self._busy_ns = now.at_ns
            return
        if self._busy_ns is not None and before.at_ns - self._busy_ns < _CALM_NS:
            return
        if self._idle_since is None:
            self._idle_since = before.at_ns, before.energy_j
        since_ns, since_j = self._idle_since
        seconds = (now.at_ns - since_ns) / 1e9
        if now.energy_j > since_j and now.at_ns - since_ns >= STRETCH_NS:
            self.idle.measured(self.uuid, (now.energy_j - since_j) / seconds, seconds)


def _share(
    before: Moment | None, now: Moment, sm: SmTime | MissingReason, own: frozenset[int]
) -> float | MissingReason:
    """Return the part of the card's work that the given processes did."""
    if now.mig:
        return MissingReason.UNATTRIBUTABLE
    if isinstance(now.processes, MissingReason):
        return now.processes
    was = before.processes if before is not None else now.processes
    if isinstance(was, MissingReason):
        return was
    both = merged(was, now.processes)
    if isinstance(sm, SmTime) and sm.total > 0:
        used = sm.of(own, both)
        return used if isinstance(used, MissingReason) else used / sm.total
    if not both.pids & own:
        return MissingReason.PERMISSION if now.processes.unknown() else 0.0
    if both.pids - both.servers() <= own:
        return 1.0
    return 0.0 if isinstance(sm, SmTime) else MissingReason.UNATTRIBUTABLE
