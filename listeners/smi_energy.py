"""Attributes a card's energy above its idle power to runs, by their share of SM time.

Idle power is kept in a file of the runtime folder, so that a run on a busy card can use a value
from the same day. After a reboot it is measured again.

The rule: of the energy above idle in a stretch of about a second, a run gets the share that its
processes have in the SM time of all processes on the card. Alone on the card, it gets all of it. If
the share is unknown, the run gets no value, and its series says why.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from radt.errors import UsageError
from radt.files import write_whole
from radt.home import runtime_dir
from radt.listeners.smi_card import Value
from radt.listeners.smi_processes import Processes, SmTime, merged
from radt.model import MissingReason

# Idle power: measured while the card is unused, and kept -----------------------------------------


log = logging.getLogger(__name__)

FILE_NAME = "gpu-idle-power.json"
_MAX_AGE_S = 24 * 3600.0
#: A stretch this long replaces earlier ones. Of shorter stretches the lowest counts, because a card
#: takes a while to reach idle power after work.
_LONG_S = 30.0
#: The file is rewritten when the power changes by this fraction, or the file is this old.
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
        """Record an idle stretch that ends now."""
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
        # Read again: other listeners may have measured other cards meanwhile.
        content = {key: asdict(power) for key, power in (_read(self._path) | {uuid: new}).items()}
        try:
            write_whole(self._path, json.dumps(content))
        except OSError as error:
            log.warning("idle power of GPUs cannot be kept in %s: %s", self._path, error)
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


#: Minimum length of a stretch: the driver samples processes at least once a second.
STRETCH_NS = 900_000_000
#: Time that a card takes to reach idle power after work.
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
        """Return True if no compute process uses the card."""
        return isinstance(self.processes, Processes) and not self.processes.memory

    def processes_since(self, before: Moment | None) -> Processes | MissingReason:
        """Return the processes that were on the card during the stretch between two moments."""
        if before is None or isinstance(self.processes, MissingReason):
            return self.processes
        if isinstance(before.processes, MissingReason):
            return before.processes
        return merged(before.processes, self.processes)


@dataclass(slots=True)
class EnergySplit:
    """Splits the energy of one card among runs."""

    uuid: str
    idle: IdlePowers
    before: Moment | None = None
    #: The energy that each run has used on the card, in J.
    _joules: dict[str, float] = field(default_factory=dict)
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

    def is_alone(self, now: Moment, pids: frozenset[int]) -> bool:
        """Return whether only these processes used the card since the stretch began."""
        return _share(self.before, now, MissingReason.LOST, pids) == 1.0

    def account(
        self, now: Moment, sm: SmTime | MissingReason, runs: Mapping[str, frozenset[int]]
    ) -> dict[str, Value]:
        """End a stretch; return the energy that each run has used so far on the card, in J.

        Args:
            now: The end of the stretch, and the beginning of the next.
            sm: SM time of all processes during the stretch, or why it is unknown.
            runs: The runs on this card, with their processes during the stretch.
        """
        before, self.before = self.before, now
        new = runs.keys() - self._joules.keys()
        if new == runs.keys():
            self._idle_w = None
        self._joules = {run: self._joules.get(run, 0.0) for run in runs}
        if isinstance(now.energy_j, MissingReason):
            self._idle_since = None
            return dict.fromkeys(runs, now.energy_j)
        above_j = self._above_idle(before, now, sm)
        values: dict[str, Value] = {}
        for run, pids in runs.items():
            share = _share(before, now, sm, pids)
            if isinstance(share, MissingReason):
                values[run] = share
            elif above_j is None:
                values[run] = MissingReason.UNATTRIBUTABLE
            else:
                if run not in new:  # a new run must not get energy from before its start
                    self._joules[run] += share * above_j
                values[run] = self._joules[run]
        return values

    def _above_idle(
        self, before: Moment | None, now: Moment, sm: SmTime | MissingReason
    ) -> float | None:
        """Return the energy above idle in J; None while the idle power is unknown."""
        assert isinstance(now.energy_j, float)
        used = isinstance(sm, SmTime) and sm.of_the_gone()
        if before is None or isinstance(before.energy_j, MissingReason):
            used_j = seconds = 0.0
        elif now.energy_j < before.energy_j:  # the counter restarted: the driver was loaded again
            self._idle_since, used_j, seconds = None, 0.0, 0.0
        else:
            used_j = now.energy_j - before.energy_j
            seconds = (now.at_ns - before.at_ns) / 1e9
            self._watch_idle(before, now, used=used)
        # A run of several days keeps its first value, as its card is not idle in that time.
        idle_w = self._idle_w = self.idle.watts(self.uuid) or self._idle_w
        if idle_w is None:
            return None
        # The counter moves in steps: one stretch has too little, the next too much. Without the
        # carry, an idle card would accumulate only the excess.
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
    """Return the fraction of the card's work that the given processes did."""
    both = MissingReason.UNATTRIBUTABLE if now.mig else now.processes_since(before)
    if isinstance(both, MissingReason):
        return both
    if isinstance(sm, SmTime) and sm.total > 0:
        used = sm.of(own, both)
        return used if isinstance(used, MissingReason) else used / sm.total
    if not both.pids & own:
        return MissingReason.PERMISSION if both.unknown else 0.0
    if both.pids - both.servers <= own:
        return 1.0
    return 0.0 if isinstance(sm, SmTime) else MissingReason.UNATTRIBUTABLE
