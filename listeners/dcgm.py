"""Activity of NVIDIA GPUs through a running DCGM host engine, on Volta and later.

The host engine is queried through ``dcgmi dmon``, which works wherever DCGM is installed; this
listener never starts an engine. Each card has one watch, which includes the GPU instances that runs
use; device fields describe the whole card, also under MIG.

Before Hopper, performance counters have a single user at a time: while a run on a card is under a
profiler that needs them, that card's profiling fields are released, and their values are PAUSED.
``dcgmi profile --pause`` would stop them for all users of the host engine. From Hopper on (compute
capability 9), DCGM reads them through NVML's GPM, which has no such limit
(https://docs.nvidia.com/datacenter/dcgm/latest/reference/dcgm-api/dcgm-api-profiling.html).

A lost host engine is retried at increasing intervals (`DmonWatch`); until it is back, values are
LOST. (The collector does not retry a listener whose `probe` fails.)

Ratios above 1, which users report for SM activity under MIG on A100, are recorded unchanged. If GPU
instances of different sizes are watched together, DCGM limits the activity of the larger ones to
the size of the smallest (NVIDIA/DCGM issues 138 and 248): those values are missing.

Energy is read through NVML, which is also DCGM's source, because dmon prints no row in a run's
first seconds.
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
    FieldValue,
    HostengineError,
    Key,
    WatchedValues,
)
from radt.listeners.dcgm_fields import ALL, COUNTERS_REMEDY, FIELDS, METRICS, PROFILING, XID, Field
from radt.listeners.nvidia import DeviceHandles, GpuHandle, MigHandle, Named, missing, probe_nvml
from radt.listeners.smi_card import ENERGY, EnergyCounters, Value
from radt.listeners.smi_events import LossWatch, error_of
from radt.model import MissingReason

#: A value older than this many intervals is lost; until then it may just be late.
_LATE_INTERVALS = 3
#: Additional time for the first value of a watch.
_START_S = 5.0
PROBLEM = "DCGM does not answer"
_LIMITED = (
    "DCGM is wrong for instances larger than others it reads (its issues 138, 248); gpm is not"
)


@dataclass(slots=True)
class CardPlan:
    """Fields of a card to read at this instant, and the names that runs have for the card."""

    card: GpuHandle
    names: dict[str, MigHandle | None] = field(default_factory=dict)
    profiled: bool = False

    @property
    def instances(self) -> frozenset[int]:
        return frozenset(mig.gpu_id for mig in self.names.values() if mig is not None)

    def limited(self, nvml: Any) -> frozenset[int]:
        """Return the GPU instances whose activity DCGM limits to that of a smaller one."""
        migs = [mig for mig in self.names.values() if mig is not None]
        sizes = {mig.gpu_id: _size(nvml, mig) for mig in migs}
        least = min((size for size in sizes.values() if size is not None), default=None)
        if len(sizes) == 1:
            return frozenset()
        return frozenset(gpu_id for gpu_id, size in sizes.items() if size is None or size != least)


@dataclass(slots=True)
class CardState:
    """The state of a card's watch."""

    watch: DmonWatch
    instances: frozenset[int]
    paused: bool
    begun_ns: int
    #: The time of the newest value that was yielded, by place and field.
    given_ns: dict[Key, int] = field(default_factory=dict)
    #: The time of the newest value that is not missing, likewise.
    valued_ns: dict[Key, int] = field(default_factory=dict)
    #: GPU instances whose values are wrong.
    limited: frozenset[int] = frozenset()
    xid: float | None = None
    #: The last snapshot.
    snapshot: WatchedValues = field(default_factory=WatchedValues)
    problem: str = ""


def _size(nvml: Any, mig: MigHandle) -> tuple[int, int] | None:
    """Return the compute slices and the memory of a GPU instance; None if they are unknown."""
    try:
        attributes = nvml.nvmlDeviceGetAttributes(mig.handle)
    except nvml.NVMLError as error:
        missing(nvml, error)
        return None
    return int(attributes.gpuInstanceSliceCount), int(attributes.memorySizeMB)


def plans_of(targets: Sequence[Target], devices: Mapping[str, Named | None]) -> dict[int, CardPlan]:
    """Return the plans by card."""
    plans: dict[int, CardPlan] = {}
    for target in targets:
        for name in target.gpus:
            named = devices[name]
            if named is None:
                continue
            plan = plans.setdefault(named.card.index, CardPlan(named.card))
            plan.names[name] = named.mig
            plan.profiled |= bool(target.profiler)
    return plans


@dataclass(frozen=True, slots=True)
class Judge:
    """Decides whether a value is new, still to come, or missing and why."""

    state: CardState
    snapshot: WatchedValues
    now_ns: int
    interval_s: float

    def of(self, gpu_id: int | None, entry: Field) -> FieldValue | MissingReason | None:
        """Return a new value or why it is missing; None if none is expected yet."""
        number, key = entry.number, (gpu_id, entry.number)
        if entry.profiling and self.state.paused:
            return MissingReason.PAUSED
        if (why := self.snapshot.refused.get(number)) is not None:
            return why.reason
        taken = self.snapshot.values.get(key)
        late_ns = round(_LATE_INTERVALS * self.interval_s * 1e9)
        begun_ns = max(self.state.begun_ns, self.snapshot.begun_ns)
        starting = self.now_ns - begun_ns < late_ns + round(_START_S * 1e9)
        if taken is None:
            return None if starting else MissingReason.LOST
        given_ns = self.state.given_ns.get(key)
        if self.now_ns - taken.at_ns > late_ns:
            # At first, the value may be from before the watch.
            return None if starting and given_ns is None else MissingReason.LOST
        if given_ns is not None and taken.at_ns <= given_ns:
            return None
        self.state.given_ns[key] = taken.at_ns
        if taken.value is not None:
            if not isinstance(taken.value, MissingReason):
                self.state.valued_ns[key] = taken.at_ns
            return taken
        valued_ns = self.state.valued_ns.get(key)
        if starting and (valued_ns is None or valued_ns < begun_ns):
            return None  # the first values of a watch are blank, also after a restart of dmon
        if valued_ns is None:
            return MissingReason.UNSUPPORTED
        # It had values before: profiling was paused (dcgmi profile --pause).
        return MissingReason.PAUSED if entry.profiling else MissingReason.LOST


def readings_of(card: GpuHandle, gpu_id: int | None, judge: Judge) -> Iterator[Reading]:
    """Yield the readings of a card, or of a GPU instance of it."""
    entity = card.entity if gpu_id is None else f"{card.entity}/gi{gpu_id}"
    for entry in FIELDS:
        metric = entry.metric if gpu_id is None else entry.mig
        if metric is None:
            continue
        if gpu_id in judge.state.limited:
            yield Reading(metric.name, MissingReason.UNSUPPORTED, entity, method=_LIMITED)
            continue
        judged = judge.of(gpu_id, entry)
        if judged is None:
            continue
        value, at_ns = (
            (judged.value, judged.at_ns) if isinstance(judged, FieldValue) else (judged, None)
        )
        assert value is not None
        if isinstance(value, MissingReason):
            refused = entry.profiling and value is MissingReason.PERMISSION
            method = COUNTERS_REMEDY if refused else ""
            yield Reading(metric.name, value, entity, method=method)
        else:
            yield Reading(metric.name, value * entry.scale, entity, at_ns=at_ns)


def all_lost(names: Mapping[str, MigHandle | None], entity: str) -> Iterator[Reading]:
    """Yield lost values of a card under these names, and of its MIG devices."""
    for name, mig in names.items():
        for entry in FIELDS:
            yield Reading(entry.metric.name, MissingReason.LOST, entity, gpu=name)
            if mig is not None and entry.mig is not None:
                place = f"{entity}/gi{mig.gpu_id}"
                yield Reading(entry.mig.name, MissingReason.LOST, place, gpu=name)


def occurrences(plan: CardPlan, state: CardState, snapshot: WatchedValues) -> Iterator[Occurrence]:
    """Yield a new XID error, and problems of DCGM."""
    if snapshot.problem and snapshot.problem != state.problem:
        for name in plan.names:
            yield Occurrence(PROBLEM, snapshot.problem, gpu=name)
    state.problem = snapshot.problem
    taken = snapshot.values.get((None, XID))
    if taken is None or isinstance(taken.value, MissingReason):
        return  # unknown
    number = 0.0 if taken.value is None else float(taken.value)
    # DCGM reports the last error, so the first one read is from before the watch.
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
#: Delay until a field that was refused for a temporary reason is retried.
_RETRY_NS = 60 * 10**9
#: Time that DCGM takes to notice new GPU instances.
_NOTICE_NS = 15 * 10**9


class DcgmListener(Listener):
    """NVIDIA GPUs through DCGM.

    Not by default: ``gpm`` reads the same counters without a daemon on Hopper and later, and on
    older GPUs reading them takes them from all other users of the machine.
    """

    name: ClassVar[str] = "dcgm"
    reads: ClassVar[Sequence[Metric]] = METRICS

    def __init__(self) -> None:
        self._devices = DeviceHandles()
        self._engine: DmonEngine | None = None
        self._states: dict[int, CardState] = {}
        self._shared_counters: dict[int, bool] = {}
        self._counters: EnergyCounters | None = None
        self._losses = LossWatch()

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

    def open(self) -> None:
        dcgmi = dcgm_dmon.find()
        if dcgmi is None:
            raise ListenerUnavailableError("dcgmi is not installed", _INSTALL)
        self._engine = DmonEngine(dcgmi, self.interval_s)
        self._devices.open()
        self._counters = EnergyCounters(self._devices.nvml)

    def close(self) -> None:
        self._states.clear()
        engine, self._engine = self._engine, None
        try:
            if engine is not None:
                engine.close()
        finally:
            self._devices.close()

    # Sampling --------------------------------------------------------------------------------

    def sample(self, targets: Sequence[Target]) -> Iterator[Reading | Occurrence]:
        devices = self._devices.find(gpu for target in targets for gpu in target.gpus)
        yield from self._energy(targets, devices)
        for name, named in devices.items():
            if named is None:  # yield under the last known entity
                last = self._devices.last(name)
                entity = name if last is None else last.card.entity
                yield from all_lost({name: None if last is None else last.mig}, entity)
        plans = plans_of(targets, devices)
        for index in self._states.keys() - plans.keys():
            self._drop(index)
        for plan in plans.values():
            yield from self._card(plan)

    def counters(self, targets: Sequence[Target]) -> Iterator[Reading | Occurrence]:
        devices = self._devices.find(gpu for target in targets for gpu in target.gpus)
        return self._energy(targets, devices)

    def _energy(
        self, targets: Sequence[Target], devices: Mapping[str, Named | None]
    ) -> Iterator[Reading | Occurrence]:
        nvml = self._devices.nvml
        assert self._counters is not None
        for name, named in devices.items():
            if (last := named or self._devices.last(name)) is None:
                yield Reading(ENERGY, MissingReason.LOST, name, gpu=name)
                continue
            card = last.card
            value: Value = MissingReason.LOST if named is None else self._counters.read(card)
            yield Reading(ENERGY, value, card.entity, gpu=name)
            if isinstance(value, float):
                self._losses.found(card)
            elif named is None or error_of(nvml, card):
                users = (target.run_id for target in targets if name in target.gpus)
                yield from self._losses.take(nvml, card, users)
                self._devices.forget(card)  # after a reset, it has another handle

    def _card(self, plan: CardPlan) -> Iterator[Reading | Occurrence]:
        """Yield all readings of a card, read once, under each of its names."""
        state = self._state(plan)
        snapshot = state.snapshot = state.watch.read()
        now_ns = time.monotonic_ns()
        yield from occurrences(plan, state, snapshot)
        judge = Judge(state, snapshot, now_ns, max(self.interval_s, MIN_INTERVAL_S))
        readings = {
            gpu_id: list(readings_of(plan.card, gpu_id, judge))
            for gpu_id in (None, *sorted(plan.instances))
        }
        for name, mig in plan.names.items():
            for place in dict.fromkeys((None, None if mig is None else mig.gpu_id)):
                for reading in readings[place]:
                    yield replace(reading, gpu=name)

    def _state(self, plan: CardPlan) -> CardState:
        """Return the card's watch, recreated if it does not fit."""
        index, now_ns = plan.card.index, time.monotonic_ns()
        paused = plan.profiled and not self._counters_are_shared(plan.card)
        before = self._states.get(index)
        if before is not None and not _outdated(before, plan, paused, now_ns):
            return before
        self._drop(index)
        fields = tuple(number for number in ALL if not (paused and number in PROFILING))
        assert self._engine is not None
        watch = self._engine.watch(plan.card.uuid, plan.instances, fields)
        state = CardState(watch, plan.instances, paused, now_ns)
        state.limited = plan.limited(self._devices.nvml)
        if before is not None:
            state.xid, state.given_ns = before.xid, before.given_ns
            state.valued_ns = before.valued_ns
        self._states[index] = state
        return state

    def _drop(self, index: int) -> None:
        if (state := self._states.pop(index, None)) is not None:
            state.watch.close()

    def _counters_are_shared(self, card: GpuHandle) -> bool:
        """Return whether profilers and DCGM can read the card's counters at the same time."""
        if card.index not in self._shared_counters:
            nvml: Any = self._devices.nvml
            try:
                major, _ = nvml.nvmlDeviceGetCudaComputeCapability(card.handle)
            except nvml.NVMLError as error:
                log.info("compute capability of %s: %s", card.entity, error)
                major = 0  # if in doubt, pause: that costs values, the opposite costs a profile
            self._shared_counters[card.index] = int(major) >= _HOPPER
        return self._shared_counters[card.index]


def _outdated(state: CardState, plan: CardPlan, paused: bool, now_ns: int) -> bool:
    """Return whether the card's watch has to change, or could cover more."""
    if state.paused != paused or not plan.instances <= state.instances:
        return True
    if state.limited and plan.instances != state.instances:
        return True
    age_ns = now_ns - state.begun_ns
    if age_ns < _NOTICE_NS:
        return False
    if plan.instances & state.snapshot.unknown:
        return True
    return age_ns > _RETRY_NS and any(not why.lasting for why in state.snapshot.refused.values())
