"""Activity of NVIDIA GPUs through a running DCGM host engine, on Volta and later.

The host engine is queried through ``dcgmi dmon``, which works wherever DCGM is installed, and is
never started here. Each card has one watch, with the GPU instances on it that runs use; device
fields are those of the whole card, also under MIG.

Performance counters have one user at a time on GPUs before Hopper: while a profiler that needs them
has a run on a card, that card's profiling fields are released, and PAUSED. ``dcgmi profile
--pause`` would stop them for all users of the host engine. From Hopper on (compute capability 9),
DCGM reads them through NVML's GPM, which has no such limit
(https://docs.nvidia.com/datacenter/dcgm/latest/reference/dcgm-api/dcgm-api-profiling.html).

A lost host engine is retried at ever longer intervals; until it is back, values are LOST. (The
collector does not retry a listener whose `probe` fails.)

Ratios above 1, which users report of SM activity under MIG on A100, are recorded as they are.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from radt.errors import ListenerUnavailableError
from radt.listeners import dcgm_dmon
from radt.listeners.api import Availability, Listener, Metric, Occurrence, Reading, Target
from radt.listeners.dcgm_dmon import (
    MIN_INTERVAL_S,
    DmonEngine,
    DmonWatch,
    HostengineError,
    Key,
    Snapshot,
    Taken,
)
from radt.listeners.dcgm_fields import (
    ALL,
    COUNTERS_REMEDY,
    FIELDS,
    METRICS,
    PROFILING,
    XID,
    Field,
    Status,
)
from radt.listeners.nvidia import Card, Devices, Named, probe_nvml
from radt.model import MissingReason

#: A value this many intervals old is lost; a newer one may just be late.
_LATE_INTERVALS = 3
#: The first value of a watch may take this long besides.
_START_S = 5.0
PROBLEM = "DCGM does not answer"


@dataclass(slots=True)
class Plan:
    """Fields to read of a card at this instant, and the names that runs have for it."""

    card: Card
    names: dict[str, int | None] = field(default_factory=dict)
    profiled: bool = False

    @property
    def instances(self) -> frozenset[int]:
        return frozenset(gpu_id for gpu_id in self.names.values() if gpu_id is not None)


@dataclass(slots=True)
class State:
    """The state of a card's watch."""

    watch: DmonWatch
    instances: frozenset[int]
    paused: bool
    begun_ns: int
    #: The time of the newest value that was yielded, by place and field.
    given_ns: dict[Key, int] = field(default_factory=dict)
    #: The fields that have had a value, by place.
    seen: set[Key] = field(default_factory=set)
    xid: float | None = None
    #: The last snapshot.
    snapshot: Snapshot = field(default_factory=Snapshot)
    problem: str = ""


def plans_of(targets: Sequence[Target], devices: Mapping[str, Named | None]) -> dict[int, Plan]:
    """Return the plans by card."""
    plans: dict[int, Plan] = {}
    for target in targets:
        for name in target.gpus:
            named = devices[name]
            if named is None:
                continue
            plan = plans.setdefault(named.card.index, Plan(named.card))
            plan.names[name] = None if named.mig is None else named.mig.gpu_id
            plan.profiled |= bool(target.profiler)
    return plans


@dataclass(frozen=True, slots=True)
class Judge:
    """Decides whether a value is new, still to come, or missing and why."""

    state: State
    snapshot: Snapshot
    now_ns: int
    interval_s: float

    def of(self, gpu_id: int | None, entry: Field) -> Taken | MissingReason | None:
        """Return a new value or why it is missing; None if none is expected yet."""
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
            # At first it may be a value from before the watch.
            return None if starting and given_ns is None else MissingReason.LOST
        if given_ns is not None and taken.at_ns <= given_ns:
            return None
        self.state.given_ns[key] = taken.at_ns
        if taken.value is not None:
            if not isinstance(taken.value, MissingReason):
                self.state.seen.add(key)
            return taken
        if key not in self.state.seen:  # the first value of a new watch is blank too
            return None if starting else MissingReason.UNSUPPORTED
        # It had values and has none: profiling was paused (dcgmi profile --pause).
        return MissingReason.PAUSED if entry.profiling else MissingReason.LOST


def readings_of(card: Card, gpu_id: int | None, judge: Judge) -> Iterator[Reading]:
    """Yield the readings of a card, or of a GPU instance of it."""
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


def all_lost(plan: Plan) -> Iterator[Reading]:
    for name, gpu_id in plan.names.items():
        for entry in FIELDS:
            entity = plan.card.entity
            yield Reading(entry.metric.name, MissingReason.LOST, entity, gpu=name)
            if gpu_id is not None and entry.mig is not None:
                entity = f"{entity}/gi{gpu_id}"
                yield Reading(entry.mig.name, MissingReason.LOST, entity, gpu=name)


def unknown(name: str, last: Named | None) -> Iterator[Reading]:
    """Yield lost values of a device that is absent, under its last known entity."""
    if last is not None:
        plan = Plan(last.card, {name: None if last.mig is None else last.mig.gpu_id})
        yield from all_lost(plan)
        return
    for entry in FIELDS:
        yield Reading(entry.metric.name, MissingReason.LOST, name, gpu=name)


def occurrences(plan: Plan, state: State, snapshot: Snapshot) -> Iterator[Occurrence]:
    """Yield a new XID error, and problems of DCGM."""
    if snapshot.problem and snapshot.problem != state.problem:
        for name in plan.names:
            yield Occurrence(PROBLEM, snapshot.problem, gpu=name)
    state.problem = snapshot.problem
    taken = snapshot.values.get((None, XID))
    if taken is None or isinstance(taken.value, MissingReason):
        return  # unknown
    number = 0.0 if taken.value is None else float(taken.value)
    # DCGM keeps the last error: the first one read is older.
    if state.xid is not None and number and number != state.xid:
        for name in plan.names:
            detail = f"on {plan.card.entity}"
            yield Occurrence(f"XID {number:.0f}", detail, gpu=name, at_ns=taken.at_ns)
    state.xid = number


log = logging.getLogger(__name__)

_PROBE_S = 2.0
_INSTALL = "Install datacenter-gpu-manager and start nv-hostengine"
_START = "Start it (systemctl start nvidia-dcgm, or nv-hostengine)"
_OR_GPM = "; on Hopper and later, the listener gpm needs no daemon"
#: Compute capability from which counters can be shared.
_HOPPER = 9
#: Time until a field is retried that was refused for a temporary reason.
_RETRY_NS = 60 * 10**9
#: Time until DCGM notices new GPU instances.
_NOTICE_NS = 15 * 10**9
_FIRST_PAUSE_NS = 10**9
_LONGEST_PAUSE_NS = 60 * 10**9


class DcgmListener(Listener):
    """NVIDIA GPUs through DCGM.

    Not by default: ``gpm`` reads the same counters without a daemon on Hopper and later, and on
    older GPUs reading them takes them from all other users of the machine.
    """

    name: ClassVar[str] = "dcgm"

    def __init__(self) -> None:
        self._devices = Devices()
        self._engine: DmonEngine | None = None
        self._states: dict[int, State] = {}
        self._shared_counters: dict[int, bool] = {}
        #: When to retry a card that DCGM refused to watch.
        self._retry_ns: dict[int, int] = {}
        #: When to reconnect to the host engine, and how long to wait if that fails.
        self._reconnect_ns = 0
        self._pause_ns = _FIRST_PAUSE_NS

    @classmethod
    def probe(cls) -> Availability:
        cards = probe_nvml(cls.name)
        if not cards.available:
            return cards
        dcgmi = dcgm_dmon.find()
        if dcgmi is None:
            return Availability(False, "dcgmi is not installed", _INSTALL + _OR_GPM)
        try:
            code, text = dcgm_dmon.ask(dcgmi, "discovery", "-l", timeout_s=_PROBE_S)
        except HostengineError as error:
            return Availability(False, error.message, (error.remedy or _START) + _OR_GPM)
        if code != 0:
            return Availability(False, dcgm_dmon.complaint(text)[0], _START + _OR_GPM)
        return Availability(True)

    @classmethod
    def metrics(cls) -> Sequence[Metric]:
        return METRICS

    def open(self) -> None:
        self._connect()
        self._devices.open()

    def _connect(self) -> None:
        dcgmi = dcgm_dmon.find()
        if dcgmi is None:
            raise ListenerUnavailableError("dcgmi is not installed", _INSTALL)
        self._engine = DmonEngine(dcgmi, self.interval_s)

    def close(self) -> None:
        try:
            self._disconnect()
        finally:
            self._devices.close()

    def _disconnect(self) -> None:
        self._states.clear()
        self._retry_ns.clear()
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    # Sampling --------------------------------------------------------------------------------

    def sample(self, targets: Sequence[Target]) -> Iterator[Reading | Occurrence]:
        devices = self._devices.find(gpu for target in targets for gpu in target.gpus)
        for name, named in devices.items():
            if named is None:
                yield from unknown(name, self._devices.last(name))
        plans = plans_of(targets, devices)
        for index in self._states.keys() - plans.keys():
            self._drop(index)
        self._reconnect()
        for plan in plans.values():
            try:
                yield from self._card(plan)
            except HostengineError as error:
                yield from all_lost(plan)
                for name in plan.names:
                    yield Occurrence(PROBLEM, error.message, gpu=name)
                if error.status == Status.CONNECTION_NOT_VALID:
                    self._gone()
                else:
                    self._drop(plan.card.index)

    def _reconnect(self) -> None:
        """Reconnect to a lost host engine, if it is time to."""
        if self._engine is not None or time.monotonic_ns() < self._reconnect_ns:
            return
        try:
            self._connect()
        except ListenerUnavailableError as error:
            log.info("%s", error)
            self._gone()

    def _gone(self) -> None:
        self._disconnect()
        self._reconnect_ns = time.monotonic_ns() + self._pause_ns
        self._pause_ns = min(_LONGEST_PAUSE_NS, 2 * self._pause_ns)

    def _card(self, plan: Plan) -> Iterator[Reading | Occurrence]:
        """Yield all readings of a card, read once, under each of its names.

        Raises:
            HostengineError: It cannot be watched or read; nothing was yielded.
        """
        state = self._state(plan)
        if state is None:
            yield from all_lost(plan)
            return
        snapshot = state.snapshot = state.watch.read()
        self._pause_ns = _FIRST_PAUSE_NS
        now_ns = time.monotonic_ns()
        yield from occurrences(plan, state, snapshot)
        judge = Judge(state, snapshot, now_ns, max(self.interval_s, MIN_INTERVAL_S))
        readings = {
            gpu_id: list(readings_of(plan.card, gpu_id, judge))
            for gpu_id in (None, *sorted(plan.instances))
        }
        for name, gpu_id in plan.names.items():
            for place in dict.fromkeys((None, gpu_id)):
                for reading in readings[place]:
                    yield replace(reading, gpu=name)

    def _state(self, plan: Plan) -> State | None:
        """Return the card's watch, recreated if it does not fit; None if it has to wait."""
        index, now_ns = plan.card.index, time.monotonic_ns()
        if self._engine is None or now_ns < self._retry_ns.get(index, 0):
            return None
        paused = plan.profiled and not self._counters_are_shared(plan.card)
        before = self._states.get(index)
        if before is not None and not _outdated(before, plan, paused, now_ns):
            return before
        self._drop(index)
        fields = tuple(number for number in ALL if not (paused and number in PROFILING))
        self._retry_ns[index] = now_ns + _RETRY_NS  # unless it succeeds
        watch = self._engine.watch(plan.card.uuid, plan.instances, fields)
        del self._retry_ns[index]
        state = State(watch, plan.instances, paused, now_ns)
        if before is not None:
            state.xid, state.given_ns, state.seen = before.xid, before.given_ns, before.seen
        self._states[index] = state
        return state

    def _drop(self, index: int) -> None:
        if (state := self._states.pop(index, None)) is not None:
            state.watch.close()

    def _counters_are_shared(self, card: Card) -> bool:
        """Return whether profilers and DCGM can read the card's counters at the same time."""
        if card.index not in self._shared_counters:
            nvml: Any = self._devices.nvml
            try:
                major, _ = nvml.nvmlDeviceGetCudaComputeCapability(card.handle)
            except nvml.NVMLError as error:
                log.info("compute capability of %s: %s", card.entity, error)
                major = 0  # pausing needlessly costs values, not pausing costs a profile
            self._shared_counters[card.index] = int(major) >= _HOPPER
        return self._shared_counters[card.index]


def _outdated(state: State, plan: Plan, paused: bool, now_ns: int) -> bool:
    """Return whether the card's watch has to change, or could cover more."""
    if state.paused != paused or not plan.instances <= state.instances:
        return True
    age_ns = now_ns - state.begun_ns
    if age_ns < _NOTICE_NS:
        return False
    if plan.instances & state.snapshot.unknown:
        return True
    return age_ns > _RETRY_NS and any(not why.lasting for why in state.snapshot.refused.values())
