"""Which consumers take part in an epoch, and which hold each slot. No sockets, no threads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum


class Join(StrEnum):
    """Where a consumer joins an epoch in progress."""

    EPOCH = "epoch"
    WINDOW = "window"
    NOW = "now"


#: Pseudo-consumer that holds slots for consumers that may still come (`Join.WINDOW`).
WINDOW_HOLDER = -1


@dataclass(frozen=True, slots=True)
class Filled:
    """A batch in a slot, and in a place on each GPU that consumers asked for."""

    slot: int
    number: int
    description_bytes: int
    place: int = 0


class Ring:
    """Slots of an arena. A slot is free once all consumers of its batch have released it.

    Args:
        most: Maximum number of slots with batches in use.
        offers: Number of additional slots to offer to workers.
    """

    def __init__(self, most: int, offers: int = 0) -> None:
        self.most, self._offers = most, offers
        self.slots = most + offers
        self._filled: dict[int, Filled] = {}
        self._holders: dict[int, set[int]] = {}
        self._offered: set[int] = set()

    @property
    def in_use(self) -> int:
        return len(self._filled)

    def free(self) -> int | None:
        """Return a free slot; None if there is none, or if ``most`` slots have batches."""
        if len(self._filled) >= self.most:
            return None
        used = self._filled.keys() | self._offered
        return next((slot for slot in range(self.slots) if slot not in used), None)

    def free_place(self) -> int:
        """Return a free place on GPUs. There is one if a slot is free, as there are ``most``."""
        used = {filled.place for filled in self._filled.values()}
        return next(place for place in range(self.most) if place not in used)

    def offer(self) -> int | None:
        """Reserve a slot for a worker and return it; None if they have enough."""
        if len(self._offered) >= self._offers:
            return None
        used = self._filled.keys() | self._offered
        slot = next(slot for slot in range(self.slots) if slot not in used)
        self._offered.add(slot)
        return slot

    def withdraw(self, slot: int) -> None:
        """End a worker's reservation of a slot."""
        self._offered.discard(slot)

    def withdraw_all(self) -> None:
        """End all reservations of workers."""
        self._offered.clear()

    def fill(self, filled: Filled, holders: Iterable[int]) -> None:
        """Note a slot's batch and its holders. Without holders, the slot is free again."""
        self._offered.discard(filled.slot)
        holders = set(holders)
        if holders:
            self._filled[filled.slot], self._holders[filled.slot] = filled, holders

    def held_by(self, holder: int) -> list[Filled]:
        """Return the batches of a holder, in order."""
        held = (f for slot, f in self._filled.items() if holder in self._holders[slot])
        return sorted(held, key=lambda filled: filled.number)

    def holders_of_oldest(self) -> set[int]:
        """Return the holders of the oldest batch in use."""
        oldest = min(self._filled.values(), key=lambda filled: filled.number, default=None)
        return set() if oldest is None else set(self._holders[oldest.slot])

    def hold(self, slot: int, holder: int) -> None:
        """Add a holder to a batch that others already hold."""
        self._holders[slot].add(holder)

    def release(self, slot: int, holder: int) -> None:
        """Release a holder's slot. Harmless if it does not hold it."""
        holders = self._holders.get(slot, set())
        holders.discard(holder)
        if not holders and slot in self._filled:
            del self._filled[slot], self._holders[slot]

    def drop(self, holder: int, after: int = -1) -> None:
        """Release all slots of a holder, or only those with batches after a number."""
        for filled in self.held_by(holder):
            if filled.number > after:
                self.release(filled.slot, holder)


@dataclass(frozen=True, slots=True)
class Ask:
    """A consumer's request for an epoch.

    Args:
        epoch: Its number, as far as the consumer knows.
        named: Whether the script chose it, by `set_epoch` or a state.
        batch: The first batch that it needs.
        random: `randomness.state_of` the epoch's start, if known.
        join: How to join if an epoch is in progress.
        loop: Number of the consumer's loop that asks.
        cut_off: Whether the previous server ended in the middle of this epoch.
    """

    epoch: int
    named: bool = False
    batch: int = 0
    random: dict[str, object] | None = None
    join: Join = Join.EPOCH
    loop: int = 0
    cut_off: bool = False


@dataclass(slots=True)
class Member:
    """A consumer, as the server knows it."""

    number: int
    name: str
    ask: Ask | None = None
    #: Loop of its last request.
    loop: int = 0
    #: First batch for it in the current epoch; None if it does not take part.
    first: int | None = None
    #: Generation of the arena that it has mapped, and of that whose places on its GPU it has.
    generation: int = 0
    places_of: int = 0
    #: UUID of the GPU for its batches; None for host memory.
    gpu: str | None = None
    #: The last batch sent to it, and whether it is done with that and waits for another.
    sent: int = -1
    starved: bool = False

    def takes(self, number: int) -> bool:
        """Return True if it takes part and needs the batch of this number."""
        return self.first is not None and self.first <= number


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """An epoch that begins: its number and the first batch that any consumer needs.

    ``rest`` says that it is only for consumers that were cut off in it.
    """

    epoch: int
    first: int
    random: dict[str, object] | None
    rest: bool = False


@dataclass(slots=True)
class Members:
    """All consumers of a server."""

    by_number: dict[int, Member] = field(default_factory=dict)
    #: The epoch after the last one.
    next_epoch: int = 0
    #: Number of consumers of a previous server, which arrive here one after another.
    expected: int = 0

    def all(self) -> list[Member]:
        return list(self.by_number.values())

    def in_epoch(self) -> list[Member]:
        return [member for member in self.all() if member.first is not None]

    def waited_for(self) -> list[Member]:
        """Return the consumers that delay the next epoch: connected, but not asking for it."""
        return [member for member in self.all() if member.ask is None]

    def plan(self) -> EpochPlan | None:
        """Return the next epoch if all consumers have asked for one; otherwise None.

        If all ask for the same number, that is used. If they differ, it is the one after the last
        epoch, or the largest for the first epoch, and they follow. But consumers that were cut off
        in an epoch first continue there, while the others wait.
        """
        asks = [member.ask for member in self.all() if member.ask is not None]
        if not asks or len(asks) < max(len(self.by_number), self.expected):
            return None
        numbers = {ask.epoch for ask in asks}
        cut_off = {ask.epoch for ask in asks if ask.cut_off}
        rest = bool(cut_off) and len(numbers) > 1
        if rest:
            epoch = min(cut_off)
        else:
            epoch = numbers.pop() if len(numbers) == 1 else self.next_epoch or max(numbers)
        fitting = [ask for ask in asks if ask.epoch == epoch]
        first = min((ask.batch for ask in fitting), default=0)
        if len(fitting) < len(asks) and not rest:
            first = 0  # consumers that follow need all of it
        states = (ask.random for ask in fitting if ask.random is not None)
        return EpochPlan(epoch, first, next(states, None), rest)

    def begin(self, plan: EpochPlan) -> None:
        """Add all consumers that asked to the epoch; for a rest, only those that asked for it."""
        self.expected = 0
        for member in self.all():
            assert member.ask is not None
            fits = member.ask.epoch == plan.epoch
            if fits or not plan.rest:
                member.first = member.ask.batch if fits else 0
                member.ask = None

    def end(self, plan: EpochPlan) -> None:
        """End the epoch for all consumers."""
        after = plan.epoch + 1
        self.next_epoch = max(self.next_epoch, after) if plan.rest else after
        for member in self.all():
            member.first = None
