"""NVIDIA GPUs through a running DCGM host engine: what their units do, on Volta and later.

The host engine is asked through DCGM's Python bindings where they are installed (the option
``dmon`` says otherwise), else through ``dcgmi dmon``. It is never started here. Per card there is
one watch, with the GPU instances on it that runs have; device fields are those of the whole card,
also under MIG.

Performance counters have one user at a time on GPUs before Hopper: while a profiler that takes
them has a run on a card, we let go of that card's profiling fields, and they are PAUSED. ``dcgmi
profile --pause`` would stop them for all users of the host engine. From Hopper on (compute
capability 9), DCGM reads them through NVML's GPM, which has no such limit
(https://docs.nvidia.com/datacenter/dcgm/latest/reference/dcgm-api/dcgm-api-profiling.html).

Ratios above 1, which users report of SM activity under MIG on A100, are passed on as they are.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from radt.errors import ListenerUnavailableError
from radt.listeners import dcgm_bindings, dcgm_command
from radt.listeners.api import Availability, Listener, Metric, Occurrence, Reading, Target
from radt.listeners.dcgm_command import HostengineError
from radt.listeners.dcgm_engine import MIN_INTERVAL_S, Engine, Snapshot, Taken, Watch
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

log = logging.getLogger(__name__)

DMON = "dmon"
#: Compute capability from which counters can be shared.
_HOPPER = 9
#: A value this many intervals old is lost; a newer one may just be late.
_LATE_INTERVALS = 3
#: The first value of a watch may take this long besides.
_START_S = 5.0
#: After this time, fields are tried again that were refused for a reason that may pass.
_RETRY_S = 60.0
_PROBE_S = 2.0
#: Where nv-hostengine listens unless told otherwise.
_ADDRESS = ("127.0.0.1", 5555)
_NO_ENGINE = "Start it (systemctl start nvidia-dcgm, or nv-hostengine)"
_INSTALL = "Install datacenter-gpu-manager and start nv-hostengine"
_OR_GPM = "; on Hopper and later, the listener gpm needs no daemon"


@dataclass(slots=True)
class _Plan:
    """What is to be read of a card at this instant, and under which names runs have it."""

    card: Card
    names: dict[str, int | None] = field(default_factory=dict)
    profiled: bool = False

    @property
    def instances(self) -> frozenset[int]:
        return frozenset(gpu_id for gpu_id in self.names.values() if gpu_id is not None)


@dataclass(slots=True)
class _State:
    """What is known of a card since it was watched first like this."""

    watch: Watch
    instances: frozenset[int]
    paused: bool
    begun_ns: int
    #: When the newest value given out was taken, by place and field.
    given_ns: dict[tuple[int | None, int], int] = field(default_factory=dict)
    #: What had a value once.
    seen: set[tuple[int | None, int]] = field(default_factory=set)
    xid: float | None = None
    trouble: str = ""


class DcgmListener(Listener):
    """NVIDIA GPUs through DCGM.

    Not by default: where ``gpm`` works it reads the same counters without a daemon, and before
    Hopper to read them takes them from everybody else on the machine.
    """

    name: ClassVar[str] = "dcgm"
    accepts: ClassVar[Mapping[str, str]] = {
        DMON: "through the command dcgmi dmon, also where DCGM's Python bindings are installed"
    }

    def __init__(self) -> None:
        self._devices = Devices()
        self._engine: Engine | None = None
        self._states: dict[int, _State] = {}
        self._shared_counters: dict[int, bool] = {}
        #: When a card may be tried again that DCGM did not let us watch.
        self._retry_ns: dict[int, int] = {}

    @classmethod
    def probe(cls) -> Availability:
        """Whether there is a GPU, and a host engine that answers."""
        cards = probe_nvml(cls.name)
        if not cards.available:
            return cards
        dcgmi = dcgm_command.find()
        if dcgmi is None and dcgm_bindings.find() is None:
            reason = "neither dcgmi nor DCGM's Python bindings are installed"
            return Availability(False, reason, _INSTALL + _OR_GPM)
        try:
            if dcgmi is None:
                socket.create_connection(_ADDRESS, timeout=_PROBE_S).close()
                return Availability(True)
            code, text = dcgm_command.ask(dcgmi, "discovery", "-l", timeout_s=_PROBE_S)
        except (OSError, HostengineError) as error:
            cause = error.message if isinstance(error, HostengineError) else str(error)
            return Availability(False, f"no DCGM host engine: {cause}", _NO_ENGINE + _OR_GPM)
        if code != 0:
            return Availability(False, dcgm_command.said(text)[0], _NO_ENGINE + _OR_GPM)
        return Availability(True)

    @classmethod
    def metrics(cls) -> Sequence[Metric]:
        return METRICS

    def open(self) -> None:
        """Connect to the host engine.

        Raises:
            ListenerUnavailableError: Neither the bindings nor dcgmi can be used.
            NVMLError: NVML cannot be initialised.
        """
        self._engine = self._connected()
        self._devices.open()

    def _connected(self) -> Engine:
        from radt.listeners.dcgm_dmon import DmonEngine

        dcgmi, path = dcgm_command.find(), dcgm_bindings.find()
        cause = "DCGM's Python bindings are not installed"
        if path is not None and not (DMON in self.options and dcgmi is not None):
            try:
                return dcgm_bindings.BindingsEngine(path, self.interval_s)
            except (ImportError, OSError, HostengineError) as error:
                cause = f"DCGM's Python bindings in {path}: {error}"
                log.info("%s", cause)
        if dcgmi is None:
            raise ListenerUnavailableError(f"{cause}, and there is no dcgmi", _INSTALL)
        return DmonEngine(dcgmi, self.interval_s)

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
        found = self._devices.find(gpu for target in targets for gpu in target.gpus)
        for name, named in found.items():
            if named is None:
                for entry in FIELDS:
                    yield Reading(entry.metric.name, MissingReason.LOST, name, gpu=name)
        plans = _plans(targets, found)
        for index in self._states.keys() - plans.keys():
            self._states.pop(index).watch.close()
        for plan in plans.values():
            yield from self._card(plan)

    def _card(self, plan: _Plan) -> Iterator[Reading | Occurrence]:
        """Everything of one card, read once, for all names that it has."""
        try:
            state = self._state(plan)
            snapshot = Snapshot() if state is None else state.watch.read()
        except HostengineError as error:
            if error.status == Status.CONNECTION_NOT_VALID:
                raise  # the host engine is gone: to be opened again
            state, snapshot = None, Snapshot(trouble=error.message)
            self._drop(plan.card.index)
        if state is None:
            yield from _all_lost(plan)
            return
        now_ns = time.monotonic_ns()
        yield from _occurrences(plan, state, snapshot)
        judge = _Judge(state, snapshot, now_ns, max(self.interval_s, MIN_INTERVAL_S))
        readings = {
            gpu_id: list(_readings(plan.card, gpu_id, judge))
            for gpu_id in (None, *sorted(plan.instances))
        }
        for name, gpu_id in plan.names.items():
            for place in dict.fromkeys((None, gpu_id)):
                for reading in readings[place]:
                    yield _for(reading, name)

    def _state(self, plan: _Plan) -> _State | None:
        """The card's watch, made anew if it is not what is wanted; None if it has to wait."""
        assert self._engine is not None
        index, now_ns = plan.card.index, time.monotonic_ns()
        paused = plan.profiled and not self._counters_are_shared(plan.card)
        state = self._states.get(index)
        if state is not None and not self._outdated(state, plan, paused, now_ns):
            return state
        if now_ns < self._retry_ns.get(index, 0):
            return None
        if state is not None:
            self._states.pop(index).watch.close()
        fields = tuple(number for number in ALL if not (paused and number in PROFILING))
        self._retry_ns[index] = now_ns + round(_RETRY_S * 1e9)  # unless it succeeds
        watch = self._engine.watch(plan.card.uuid, plan.instances, fields)
        del self._retry_ns[index]
        made = _State(watch, plan.instances, paused, now_ns)
        if state is not None:
            made.xid = state.xid
        self._states[index] = made
        return made

    @staticmethod
    def _outdated(state: _State, plan: _Plan, paused: bool, now_ns: int) -> bool:
        if state.paused != paused or not plan.instances <= state.instances:
            return True
        if now_ns - state.begun_ns < _RETRY_S * 1e9:
            return False
        return any(not why.lasting for why in state.watch.read().refused.values())

    def _drop(self, index: int) -> None:
        if (state := self._states.pop(index, None)) is not None:
            state.watch.close()

    def _counters_are_shared(self, card: Card) -> bool:
        """Whether profilers and DCGM can read the counters of this card at once."""
        if card.index not in self._shared_counters:
            nvml: Any = self._devices.nvml
            try:
                major, _ = nvml.nvmlDeviceGetCudaComputeCapability(card.handle)
            except nvml.NVMLError as error:
                log.info("compute capability of %s: %s", card.entity, error)
                major = 0  # to pause for nothing costs values, not to pause costs a profile
            self._shared_counters[card.index] = int(major) >= _HOPPER
        return self._shared_counters[card.index]


def _plans(targets: Sequence[Target], found: Mapping[str, Named | None]) -> dict[int, _Plan]:
    """What is to be read, by card."""
    plans: dict[int, _Plan] = {}
    for target in targets:
        for name in target.gpus:
            named = found[name]
            if named is None:
                continue
            plan = plans.setdefault(named.card.index, _Plan(named.card))
            plan.names[name] = None if named.mig is None else named.mig.gpu_id
            plan.profiled |= bool(target.profiler)
    return plans


@dataclass(frozen=True, slots=True)
class _Judge:
    """Decides what a value is worth: new, to be waited for, or missing and why."""

    state: _State
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
        if taken.at_ns <= self.state.given_ns.get(key, -1):
            return MissingReason.LOST if self.now_ns - taken.at_ns > late_ns else None
        self.state.given_ns[key] = taken.at_ns
        if taken.value is not None:
            if not isinstance(taken.value, MissingReason):
                self.state.seen.add(key)
            return taken
        if key not in self.state.seen:  # the first value of a new watch is blank, too
            return None if starting else MissingReason.UNSUPPORTED
        # What had values and has none: somebody paused profiling (dcgmi profile --pause).
        return MissingReason.PAUSED if entry.profiling else MissingReason.LOST


def _readings(card: Card, gpu_id: int | None, judge: _Judge) -> Iterator[Reading]:
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


def _for(reading: Reading, name: str) -> Reading:
    """The reading under the name that a run has for the device."""
    return Reading(
        reading.metric,
        reading.value,
        reading.entity,
        gpu=name,
        method=reading.method,
        at_ns=reading.at_ns,
    )


def _all_lost(plan: _Plan) -> Iterator[Reading]:
    for name, gpu_id in plan.names.items():
        for entry in FIELDS:
            entity = plan.card.entity
            yield Reading(entry.metric.name, MissingReason.LOST, entity, gpu=name)
            if gpu_id is not None and entry.mig is not None:
                entity = f"{entity}/gi{gpu_id}"
                yield Reading(entry.mig.name, MissingReason.LOST, entity, gpu=name)


def _occurrences(plan: _Plan, state: _State, snapshot: Snapshot) -> Iterator[Occurrence]:
    """An XID error that was not there before, and trouble with DCGM."""
    if snapshot.trouble and snapshot.trouble != state.trouble:
        for name in plan.names:
            yield Occurrence("DCGM does not answer", snapshot.trouble, gpu=name)
    state.trouble = snapshot.trouble
    if not snapshot.values:
        return
    taken = snapshot.values.get((None, XID))
    value = taken.value if taken is not None else None
    number = float(value) if value is not None and not isinstance(value, MissingReason) else 0.0
    # DCGM keeps the last error: what it has at first is of earlier.
    if state.xid is not None and number and number != state.xid:
        for name in plan.names:
            at_ns = None if taken is None else taken.at_ns
            yield Occurrence(f"XID {number:.0f}", f"on {plan.card.entity}", gpu=name, at_ns=at_ns)
    state.xid = number
