"""Whose energy it was: what a card draws above its idle power, split by the SMs' time.

The rule: of the energy above idle in a stretch of about a second, a run gets the share that its
processes have in the SM time of all processes on the card. Alone on the card, that is all of it.
Where the share cannot be told, nothing is given, and the run's series says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from radt.listeners.smi_idle import IdlePowers
from radt.listeners.smi_processes import Processes, SmTime, merged
from radt.listeners.smi_sources import Value
from radt.model import MissingReason

#: The least stretch that is split: the driver has a sample of processes every second or faster.
STRETCH_NS = 900_000_000
#: How long a card that has worked takes to calm down; not idle yet.
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
        """Whether no compute process is on the card."""
        return isinstance(self.processes, Processes) and not self.processes.memory


@dataclass(slots=True)
class _Account:
    """What a run has of a card."""

    pids: frozenset[int]
    joules: float = 0.0


@dataclass(slots=True)
class EnergySplit:
    """The energy of one card, run by run."""

    uuid: str
    idle: IdlePowers
    before: Moment | None = None
    _accounts: dict[str, _Account] = field(default_factory=dict)
    _carry_j: float = 0.0
    _idle_w: float | None = None
    _idle_since: tuple[int, float] | None = None
    _busy_ns: int | None = None

    def begin(self, now: Moment) -> None:
        """A stretch begins."""
        self.before = now

    def due(self, at_ns: int) -> bool:
        """Whether a stretch is over, or none has begun."""
        return self.before is None or at_ns - self.before.at_ns >= STRETCH_NS

    def account(
        self, now: Moment, sm: SmTime | MissingReason, runs: Mapping[str, frozenset[int]]
    ) -> dict[str, Value]:
        """End a stretch: what each run has used of the card until now, in J.

        Args:
            now: The end of the stretch, and the beginning of the next.
            sm: SM time of all processes within it, or why it is not known.
            runs: Processes of the runs that have this card.
        """
        before, self.before = self.before, now
        # Processes that have ended meanwhile were the run's, too.
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
                if run not in new:  # what was before the run's time is not the run's
                    self._accounts[run].joules += share * above_j
                values[run] = self._accounts[run].joules
        return values

    def _above_idle(
        self, before: Moment | None, now: Moment, sm: SmTime | MissingReason
    ) -> float | None:
        """Energy above idle in J; None while the idle power is not known."""
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
        # A run of several days ends with what it began with, as its card is never idle meanwhile.
        idle_w = self._idle_w = self.idle.watts(self.uuid) or self._idle_w
        if idle_w is None:
            return None
        # The counter moves in steps: what one stretch lacks, the next has too much. Without the
        # carry an idle card would collect the steps that are too large.
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
    """Which part of the card's work was done by the given processes."""
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
