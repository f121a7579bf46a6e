"""NVIDIA GPUs through NVML: load, memory, power, energy, clocks, traffic, errors; per run.

Most values describe a whole card, as their scope says: under MIG, and if runs share a card, they
are the same for all of its runs. Values of a single run have the scope of its processes or of its
MIG device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from radt.listeners.api import Availability, Listener, Metric, Occurrence, Reading, Target
from radt.listeners.nvidia import DeviceHandles, GpuHandle, probe_nvml
from radt.listeners.smi_card import ENERGY, CardReader, CardValue, Snapshot
from radt.listeners.smi_energy import IdlePowers
from radt.listeners.smi_events import LossWatch, ThrottleWatch, User, XidWatch, error_of
from radt.listeners.smi_runs import METRICS, MIG_MEMORY_USED, XID_ERRORS, CardRuns
from radt.model import MissingReason, Scope


@dataclass(slots=True)
class _Watched:
    """A card of runs, and its state between readings."""

    card: GpuHandle
    reader: CardReader
    runs: CardRuns
    throttles: ThrottleWatch = field(default_factory=ThrottleWatch)
    known: frozenset[str] = frozenset()


class SmiListener(Listener):
    """NVIDIA GPUs through NVML."""

    name: ClassVar[str] = "smi"
    reads: ClassVar[Sequence[Metric]] = METRICS
    by_default: ClassVar[bool] = True

    def __init__(self, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._now_ns = now_ns
        self._devices = DeviceHandles()
        self._idle = IdlePowers()
        self._xids = XidWatch()
        self._losses = LossWatch()
        self._watched: dict[int, _Watched] = {}
        #: The runs of the last sample, by card.
        self._groups: Sequence[Sequence[User]] = ()
        #: XID errors of runs, kept until the next sample.
        self._pending: list[Occurrence] = []

    @classmethod
    def probe(cls) -> Availability:
        return probe_nvml(cls.name)

    def open(self) -> None:
        """Open NVML, and note which cards are idle before any run starts."""
        self._devices.open()
        self._xids.open(self._devices.nvml)
        self._idle.open()
        for card in self._devices.all_cards():
            watched = self._watch(card)
            watched.runs.begin(self._now_ns(), watched.reader.energy_counter().value)

    def close(self) -> None:
        if self._devices.is_open:
            self._xids.close()
        self._devices.close()
        self._watched.clear()

    def sample(self, targets: Sequence[Target]) -> Iterator[Reading | Occurrence]:
        devices = self._devices.find(gpu for target in targets for gpu in target.gpus)
        pids = {target.run_id: frozenset(target.pids) for target in targets}
        groups: dict[int, list[User]] = {}
        for target in targets:
            for name in target.gpus:
                if (named := devices[name] or self._devices.last(name)) is not None:
                    groups.setdefault(named.card.index, []).append(User(target.run_id, named))
        for name in devices:
            if self._devices.last(name) is None:
                yield from _unknown(name, self._now_ns())
        self._groups = list(groups.values())
        # Errors come first: one may be the last record of a run.
        yield from self._pending
        self._pending = []
        yield from self._xids.take(self._groups)
        for index, users in groups.items():
            present = [user for user in users if devices[user.named.name] is not None]
            gone = [user for user in users if devices[user.named.name] is None]
            if present:
                watched = self._watch(present[0].named.card)
                yield from self._card(watched, present, gone, pids)
            else:
                yield from self._unreachable(self._watched[index], gone)

    def counters(self, targets: Sequence[Target]) -> Iterator[Reading | Occurrence]:
        devices = self._devices.find(gpu for target in targets for gpu in target.gpus)
        ends = {target.run_id for target in targets}
        for xid in self._xids.take(self._groups):
            if xid.run_id in ends:
                yield xid
            else:
                self._pending.append(xid)
        for name in devices:
            named = devices[name] or self._devices.last(name)
            if named is None:
                continue
            watched, at_ns = self._watch(named.card), self._now_ns()
            read = watched.reader.energy_counter()
            place = named.card.entity, None, name
            yield Reading(ENERGY, read.value, *place, read.method, at_ns)
            users = [User(t.run_id, named) for t in targets if name in t.gpus]
            if read.value is MissingReason.LOST and error_of(self._devices.nvml, named.card):
                yield from self._lost(watched, users)
            for user in users:
                yield from watched.runs.last(user.run_id, at_ns, read.value)

    def _watch(self, card: GpuHandle) -> _Watched:
        watched = self._watched.get(card.index)
        if watched is None or watched.card.uuid != card.uuid:
            nvml = self._devices.nvml
            watched = self._watched[card.index] = _Watched(
                card, CardReader(nvml, card), CardRuns(nvml, card, self._idle)
            )
        elif watched.card is not card:  # it was lost and has come back
            watched.card = card
            watched.reader.relearn(card)
            watched.runs.relearn(card)
        return watched

    def _card(
        self,
        watched: _Watched,
        users: Sequence[User],
        gone: Sequence[User],
        pids: Mapping[str, frozenset[int]],
    ) -> Iterator[Reading | Occurrence]:
        """Read one card once for all its runs; the MIG devices of some may be gone."""
        card = watched.card
        if {user.run_id for user in users} - watched.known:
            watched.reader.relearn(card)
            watched.runs.relearn(card)
        watched.known = frozenset(user.run_id for user in users)
        snapshot = watched.reader.read(self._now_ns())
        lost = snapshot.lost
        xids = MissingReason.LOST if lost else self._xids.count(card)
        snapshot.values[XID_ERRORS] = CardValue(XID_ERRORS, xids)
        yield from _for_all(snapshot, card, [*users, *gone])
        yield from watched.runs.lost(snapshot.at_ns, gone)
        own = list(watched.runs.read(snapshot, users, pids))
        yield from own
        reasons = snapshot.number("gpu.clock.event_reasons")
        if reasons is not None:
            yield from watched.throttles.take(card, int(reasons), snapshot.at_ns, users)
        mig_lost = any(
            reading.metric == MIG_MEMORY_USED and reading.value is MissingReason.LOST
            for reading in own
        )
        if lost:
            yield from self._lost(watched, [*users, *gone])
        else:
            self._losses.found(card)
        if lost or mig_lost:
            # After a reset or when recreated, it has another handle.
            self._devices.forget(card)
            self._xids.forget(card)

    def _lost(self, watched: _Watched, users: Sequence[User]) -> Iterator[Occurrence]:
        return self._losses.take(self._devices.nvml, watched.card, (u.run_id for u in users))

    def _unreachable(
        self, watched: _Watched, users: Sequence[User]
    ) -> Iterator[Reading | Occurrence]:
        """Yield the missing values of a card that was present before."""
        yield from self._lost(watched, users)
        snapshot = watched.reader.unreachable(self._now_ns())
        snapshot.values[XID_ERRORS] = CardValue(XID_ERRORS, MissingReason.LOST)
        yield from _for_all(snapshot, watched.card, users)
        yield from watched.runs.lost(snapshot.at_ns, users)
        watched.runs.interrupted(snapshot.at_ns)


def _for_all(snapshot: Snapshot, card: GpuHandle, users: Sequence[User]) -> Iterator[Reading]:
    """Yield the values of a card under each name that runs have for it."""
    for name in dict.fromkeys(user.named.name for user in users):
        for read in snapshot.values.values():
            place = card.entity, None, name
            yield Reading(read.metric, read.value, *place, read.method, snapshot.at_ns)


def _unknown(name: str, at_ns: int) -> Iterator[Reading]:
    """Yield lost values of a device that has never been present."""
    scope = Scope.MIG if name.startswith("MIG-") else Scope.GPU
    for metric in METRICS:
        if metric.scope is scope:
            yield Reading(metric.name, MissingReason.LOST, name, gpu=name, at_ns=at_ns)
