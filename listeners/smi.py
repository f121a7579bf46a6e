"""NVIDIA GPUs through NVML: load, memory, power, energy, clocks, traffic, errors; per run.

Most values are of a whole card, whoever uses it, as their scope says: under MIG, and if runs share
a card, they are the same for all of them. Values of one run have the scope of its processes or of
its MIG device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from radt.listeners.api import Availability, Listener, Metric, Occurrence, Reading, Target
from radt.listeners.nvidia import Card, Devices, probe_nvml
from radt.listeners.smi_card import ENERGY, CardReader, CardValue, Snapshot
from radt.listeners.smi_energy import IdlePowers
from radt.listeners.smi_events import ThrottleWatch, User, XidWatch
from radt.listeners.smi_runs import METRICS, MIG_MEMORY_USED, XID_ERRORS, CardRuns
from radt.model import MissingReason, Scope


@dataclass(slots=True)
class _Watched:
    """A card of runs, and its state between readings."""

    card: Card
    reader: CardReader
    runs: CardRuns
    throttles: ThrottleWatch = field(default_factory=ThrottleWatch)
    known: frozenset[str] = frozenset()


class SmiListener(Listener):
    """NVIDIA GPUs through NVML."""

    name: ClassVar[str] = "smi"
    by_default: ClassVar[bool] = True

    def __init__(self, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._now_ns = now_ns
        self._devices = Devices()
        self._idle = IdlePowers()
        self._xids = XidWatch()
        self._watched: dict[int, _Watched] = {}

    @classmethod
    def probe(cls) -> Availability:
        return probe_nvml(cls.name)

    @classmethod
    def metrics(cls) -> Sequence[Metric]:
        return METRICS

    def open(self) -> None:
        """Open NVML, and note which cards are idle before any run starts."""
        self._devices.open()
        self._xids.open(self._devices.nvml)
        self._idle.open()
        for card in self._devices.all_cards():
            watched = self._watch(card)
            watched.runs.begin(self._now_ns(), watched.reader.energy())

    def close(self) -> None:
        if self._devices.nvml is not None:
            self._xids.close()
        self._devices.close()
        self._watched.clear()

    def sample(self, targets: Sequence[Target]) -> Iterator[Reading | Occurrence]:
        devices = self._devices.find(gpu for target in targets for gpu in target.gpus)
        pids = {target.run_id: frozenset(target.pids) for target in targets}
        present: dict[int, list[User]] = {}
        gone: dict[int, list[User]] = {}
        for target in targets:
            for name in target.gpus:
                named = devices[name] or self._devices.last(name)
                if named is None:
                    continue
                group = present if devices[name] is not None else gone
                group.setdefault(named.card.index, []).append(User(target.run_id, named))
        for name in devices:
            if self._devices.last(name) is None:
                yield from _unknown(name, self._now_ns())
        # Before they are counted: an error may be the last record of a run.
        yield from self._xids.take(
            {users[0].named.card.uuid: (users[0].named.card, users) for users in present.values()}
        )
        for index in gone.keys() - present.keys():
            yield from self._unreachable(self._watched[index], gone[index])
        for index, users in present.items():
            watched = self._watch(users[0].named.card)
            yield from self._card(watched, users, gone.get(index, ()), pids)

    def counters(self, targets: Sequence[Target]) -> Iterator[Reading]:
        names = dict.fromkeys(gpu for target in targets for gpu in target.gpus)
        for name, named in self._devices.find(names).items():
            if named is None:
                continue
            read = self._watch(named.card).reader.energy_counter()
            # A counter that stands at 0 does not count; `sample` finds that out.
            if not isinstance(read.value, MissingReason) and read.value > 0:
                place = named.card.entity, None, name
                yield Reading(ENERGY, read.value, *place, read.method, self._now_ns())

    def _watch(self, card: Card) -> _Watched:
        watched = self._watched.get(card.index)
        if watched is None or watched.card.uuid != card.uuid:
            nvml = self._devices.nvml
            watched = self._watched[card.index] = _Watched(
                card, CardReader(nvml, card), CardRuns(nvml, card, self._idle)
            )
        elif watched.card is not card:  # it was lost and is back
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
        if lost or mig_lost:
            # After a reset or when recreated, it has another handle.
            self._devices.forget(card)
            self._xids.forget(card)

    def _unreachable(self, watched: _Watched, users: Sequence[User]) -> Iterator[Reading]:
        """Yield the missing values of a card that was present before."""
        snapshot = watched.reader.unreachable(self._now_ns())
        snapshot.values[XID_ERRORS] = CardValue(XID_ERRORS, MissingReason.LOST)
        yield from _for_all(snapshot, watched.card, users)
        yield from watched.runs.lost(snapshot.at_ns, users)
        watched.runs.interrupted(snapshot.at_ns)


def _for_all(snapshot: Snapshot, card: Card, users: Sequence[User]) -> Iterator[Reading]:
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
