"""What DCGM's values are worth: new, still to come, or missing and why; and as readings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from radt.listeners.api import Occurrence, Reading, Target
from radt.listeners.dcgm_dmon import DmonWatch, Key, Snapshot, Taken
from radt.listeners.dcgm_fields import COUNTERS_REMEDY, FIELDS, XID, Field
from radt.listeners.nvidia import Card, Named
from radt.model import MissingReason

#: A value this many intervals old is lost; a newer one may just be late.
_LATE_INTERVALS = 3
#: The first value of a watch may take this long besides.
_START_S = 5.0
PROBLEM = "DCGM does not answer"


@dataclass(slots=True)
class Plan:
    """What is to be read of a card at this instant, and under which names runs have it."""

    card: Card
    names: dict[str, int | None] = field(default_factory=dict)
    profiled: bool = False

    @property
    def instances(self) -> frozenset[int]:
        return frozenset(gpu_id for gpu_id in self.names.values() if gpu_id is not None)


@dataclass(slots=True)
class State:
    """What is known of a card since it was watched first like this."""

    watch: DmonWatch
    instances: frozenset[int]
    paused: bool
    begun_ns: int
    #: When the newest value given out was taken, by place and field.
    given_ns: dict[Key, int] = field(default_factory=dict)
    #: What had a value once.
    seen: set[Key] = field(default_factory=set)
    xid: float | None = None
    #: What was read last.
    snapshot: Snapshot = field(default_factory=Snapshot)
    problem: str = ""


def plans_of(targets: Sequence[Target], found: Mapping[str, Named | None]) -> dict[int, Plan]:
    """What is to be read, by card."""
    plans: dict[int, Plan] = {}
    for target in targets:
        for name in target.gpus:
            named = found[name]
            if named is None:
                continue
            plan = plans.setdefault(named.card.index, Plan(named.card))
            plan.names[name] = None if named.mig is None else named.mig.gpu_id
            plan.profiled |= bool(target.profiler)
    return plans


@dataclass(frozen=True, slots=True)
class Judge:
    """Decides what a value is worth: new, to be waited for, or missing and why."""

    state: State
    snapshot: Snapshot
    now_ns: int
    interval_s: float

    def of(self, gpu_id: int | None, entry: Field) -> Taken | MissingReason | None:
        """None where there is nothing new and that is no wonder."""
        number, key = entry.number, (gpu_id, entry.number)
        if entry.profiling and self.state.paused:
            return MissingReason.PAUSED
        if (why := self.snapshot.refused.get(number)) is not None:
            return why.reason
        taken = self.snapshot.values.get(key)
        late_ns = round(_LATE_INTERVALS * self.interval_s * 1e9)
        starting = self.now_ns - self.state.begun_ns < late_ns + round(_START_S * 1e9)
        if taken is None:
            return None if starting else MissingReason.LOST
        given_ns = self.state.given_ns.get(key)
        if self.now_ns - taken.at_ns > late_ns:
            # At first it may be what the host engine has kept from before we watched.
            return None if starting and given_ns is None else MissingReason.LOST
        if given_ns is not None and taken.at_ns <= given_ns:
            return None
        self.state.given_ns[key] = taken.at_ns
        if taken.value is not None:
            if not isinstance(taken.value, MissingReason):
                self.state.seen.add(key)
            return taken
        if key not in self.state.seen:  # the first value of a new watch is blank, too
            return None if starting else MissingReason.UNSUPPORTED
        # What had values and has none: somebody paused profiling (dcgmi profile --pause).
        return MissingReason.PAUSED if entry.profiling else MissingReason.LOST


def readings_of(card: Card, gpu_id: int | None, judge: Judge) -> Iterator[Reading]:
    """Of a card, or of a GPU instance of it."""
    entity = card.entity if gpu_id is None else f"{card.entity}/gi{gpu_id}"
    for entry in FIELDS:
        metric = entry.metric if gpu_id is None else entry.mig
        if metric is None:
            continue
        judged = judge.of(gpu_id, entry)
        if judged is None:
            continue
        value, at_ns = (judged.value, judged.at_ns) if isinstance(judged, Taken) else (judged, None)
        assert value is not None
        if isinstance(value, MissingReason):
            refused = entry.profiling and value is MissingReason.PERMISSION
            method = COUNTERS_REMEDY if refused else ""
            yield Reading(metric.name, value, entity, method=method)
        else:
            yield Reading(metric.name, value * entry.scale, entity, at_ns=at_ns)


def renamed(reading: Reading, name: str) -> Reading:
    """The reading under the name that a run has for the device."""
    return Reading(
        reading.metric,
        reading.value,
        reading.entity,
        gpu=name,
        method=reading.method,
        at_ns=reading.at_ns,
    )


def all_lost(plan: Plan) -> Iterator[Reading]:
    for name, gpu_id in plan.names.items():
        for entry in FIELDS:
            entity = plan.card.entity
            yield Reading(entry.metric.name, MissingReason.LOST, entity, gpu=name)
            if gpu_id is not None and entry.mig is not None:
                entity = f"{entity}/gi{gpu_id}"
                yield Reading(entry.mig.name, MissingReason.LOST, entity, gpu=name)


def unknown(name: str, last: Named | None) -> Iterator[Reading]:
    """A device that is not there, or not any longer: then, what it was last."""
    if last is not None:
        plan = Plan(last.card, {name: None if last.mig is None else last.mig.gpu_id})
        yield from all_lost(plan)
        return
    for entry in FIELDS:
        yield Reading(entry.metric.name, MissingReason.LOST, name, gpu=name)


def occurrences(plan: Plan, state: State, snapshot: Snapshot) -> Iterator[Occurrence]:
    """An XID error that was not there before, and problems of DCGM."""
    if snapshot.problem and snapshot.problem != state.problem:
        for name in plan.names:
            yield Occurrence(PROBLEM, snapshot.problem, gpu=name)
    state.problem = snapshot.problem
    taken = snapshot.values.get((None, XID))
    if taken is None or isinstance(taken.value, MissingReason):
        return  # which says nothing of errors
    number = 0.0 if taken.value is None else float(taken.value)
    # DCGM keeps the last error: what it has at first is of earlier.
    if state.xid is not None and number and number != state.xid:
        for name in plan.names:
            what, where = f"XID {number:.0f}", f"on {plan.card.entity}"
            yield Occurrence(what, where, gpu=name, at_ns=taken.at_ns)
    state.xid = number
