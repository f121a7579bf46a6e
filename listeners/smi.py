"""NVIDIA GPUs through NVML: load, memory, power, energy, clocks, traffic, errors; run by run.

Most of it is of a whole card, whoever uses it, and says so by its scope: under MIG, and where runs
share a card, it is the same for all of them. What belongs to one run has the scope of its
processes or of its MIG device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from radt.listeners.api import Availability, Listener, Metric, Occurrence, Reading, Target
from radt.listeners.nvidia import Card, Devices, probe_nvml
from radt.listeners.smi_card import CardReader, CardValue, Snapshot
from radt.listeners.smi_energy import IdlePowers
from radt.listeners.smi_events import ThrottleWatch, User, XidWatch
from radt.listeners.smi_runs import METRICS, MIG_MEMORY_USED, XID_ERRORS, CardRuns
from radt.model import MissingReason, Scope


@dataclass(slots=True)
class _Watched:
    """A card that runs have, and what is remembered of it from reading to reading."""

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
        """Whether there is a driver and a GPU."""
        return probe_nvml(cls.name)

    @classmethod
    def metrics(cls) -> Sequence[Metric]:
        return METRICS

    def open(self) -> None:
        """Open NVML, and look which cards are idle before any run starts."""
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
        found = self._devices.find(gpu for target in targets for gpu in target.gpus)
        pids = {target.run_id: frozenset(target.pids) for target in targets}
        here: dict[int, list[User]] = {}
        gone: dict[int, list[User]] = {}
        for target in targets:
            for name in target.gpus:
                named = found[name] or self._devices.last(name)
                if named is None:
                    continue
                users = here if found[name] is not None else gone
                users.setdefault(named.card.index, []).append(User(target.run_id, named))
        for name in found:
            if self._devices.last(name) is None:
                yield from _unknown(name, self._now_ns())
        # Before they are counted: an error may be the last that is heard of a run.
        yield from self._xids.take(
            {users[0].named.card.uuid: (users[0].named.card, users) for users in here.values()}
        )
        for index in gone.keys() - here.keys():
            yield from self._unreachable(self._watched[index], gone[index])
        for index, users_here in here.items():
            watched = self._watch(users_here[0].named.card)
            yield from self._card(watched, users_here, gone.get(index, ()), pids)

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
        """One card, read once for all its runs; of some of them the MIG devices may be gone."""
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
            one.metric == MIG_MEMORY_USED and one.value is MissingReason.LOST for one in own
        )
        if lost or mig_lost:
            # It may come back with another handle, after a reset or made anew.
            self._devices.forget(card)
            self._xids.forget(card)

    def _unreachable(self, watched: _Watched, users: Sequence[User]) -> Iterator[Reading]:
        """A card that was there before."""
        snapshot = watched.reader.unreachable(self._now_ns())
        snapshot.values[XID_ERRORS] = CardValue(XID_ERRORS, MissingReason.LOST)
        yield from _for_all(snapshot, watched.card, users)
        yield from watched.runs.lost(snapshot.at_ns, users)
        watched.runs.interrupted(snapshot.at_ns)


def _for_all(snapshot: Snapshot, card: Card, users: Sequence[User]) -> Iterator[Reading]:
    """What was read of a card, under each name that runs have for it."""
    for name in dict.fromkeys(user.named.name for user in users):
        for one in snapshot.values.values():
            yield Reading(
                one.metric, one.value, card.entity, None, name, one.method, snapshot.at_ns
            )


def _unknown(name: str, at_ns: int) -> Iterator[Reading]:
    """A device that has never been there."""
    scope = Scope.MIG if name.startswith("MIG-") else Scope.GPU
    for metric in METRICS:
        if metric.scope is scope:
            yield Reading(metric.name, MissingReason.LOST, name, gpu=name, at_ns=at_ns)
