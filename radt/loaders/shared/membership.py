"""Who takes part in an epoch, and who still has which slot. No sockets, no threads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum


class Join(StrEnum):
    """From where a consumer takes part that comes while an epoch is under way."""

    EPOCH = "epoch"
    WINDOW = "window"
    NOW = "now"


#: Holds slots for consumers that may still come (`Join.WINDOW`).
WINDOW_HOLDER = -1


@dataclass(frozen=True, slots=True)
class Filled:
    """A batch in a slot, and in a place on each GPU that consumers asked for."""

    slot: int
    number: int
    json_bytes: int
    place: int = 0


class Ring:
    """Slots of an arena: each is free once everybody who was given its batch has released it.

    Args:
        most: How many may have batches that somebody holds.
        offers: How many more there are, to be offered to workers.
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
        """Return a free slot; None if there is none, or as many batches as there may be."""
        if len(self._filled) >= self.most:
            return None
        used = self._filled.keys() | self._offered
        return next((slot for slot in range(self.slots) if slot not in used), None)

    def free_place(self) -> int:
        """Return a place on GPUs that is free when a slot is; places are as many as ``most``."""
        used = {filled.place for filled in self._filled.values()}
        return next(place for place in range(self.most) if place not in used)

    def offer(self) -> int | None:
        """Return a slot that now is a worker's to fill; None if they have enough."""
        if len(self._offered) >= self._offers:
            return None
        used = self._filled.keys() | self._offered
        slot = next(slot for slot in range(self.slots) if slot not in used)
        self._offered.add(slot)
        return slot

    def withdraw(self, slot: int) -> None:
        """A slot is no worker's any more."""
        self._offered.discard(slot)

    def withdraw_all(self) -> None:
        """No slot is a worker's any more."""
        self._offered.clear()

    def fill(self, filled: Filled, holders: Iterable[int]) -> None:
        """Note that a slot has a batch that these have been given; free again if they are none."""
        self._offered.discard(filled.slot)
        holders = set(holders)
        if holders:
            self._filled[filled.slot], self._holders[filled.slot] = filled, holders

    def held_by(self, holder: int) -> list[Filled]:
        """Return what somebody has, in the order of batches."""
        held = (f for slot, f in self._filled.items() if holder in self._holders[slot])
        return sorted(held, key=lambda filled: filled.number)

    def holders_of_oldest(self) -> set[int]:
        """Return who has the batch that has been held for the longest; nobody if none is held."""
        oldest = min(self._filled.values(), key=lambda filled: filled.number, default=None)
        return set() if oldest is None else set(self._holders[oldest.slot])

    def hold(self, slot: int, holder: int) -> None:
        """Give somebody a batch that others have already."""
        self._holders[slot].add(holder)

    def release(self, slot: int, holder: int) -> None:
        """Somebody has done with a slot; harmless if it does not hold it."""
        holders = self._holders.get(slot, set())
        holders.discard(holder)
        if not holders and slot in self._filled:
            del self._filled[slot], self._holders[slot]

    def drop(self, holder: int, after: int = -1) -> None:
        """Release all that somebody holds, or only the batches after a number."""
        for filled in self.held_by(holder):
            if filled.number > after:
                self.release(filled.slot, holder)


@dataclass(frozen=True, slots=True)
class Ask:
    """A consumer wants an epoch.

    Args:
        epoch: Its number, as far as the consumer knows.
        named: Whether the script named it, by `set_epoch` or a state.
        batch: The first batch that it needs.
        random: `randomness.state_of` of the epoch's beginning, if it knows it.
        join: What to do if an epoch is under way.
        loop: Which of the consumer's loops asks, counted by it.
        cut_off: Whether the server before ended in the middle of this epoch.
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
    #: Of its last ask.
    loop: int = 0
    #: Takes part in the epoch under way, from this batch on; None if it does not.
    first: int | None = None
    #: The arena that it has mapped, and the one whose places on its GPU it has.
    generation: int = 0
    places_of: int = 0
    #: UUID of the GPU where it wants batches; None for the machine's memory.
    gpu: str | None = None
    #: The batch that it was sent last, and whether it has done with that and waits for another.
    sent: int = -1
    starved: bool = False

    def takes(self, number: int) -> bool:
        """Whether it takes part, and needs a batch of this number."""
        return self.first is not None and self.first <= number


@dataclass(frozen=True, slots=True)
class Plan:
    """An epoch that begins: its number and the first batch that anybody needs.

    ``rest`` says that it is for those only who were cut off in it.
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
    #: How many consumers a server before this one had, which come here one after another.
    expected: int = 0

    def all(self) -> list[Member]:
        return list(self.by_number.values())

    def in_epoch(self) -> list[Member]:
        return [member for member in self.all() if member.first is not None]

    def waited_for(self) -> list[Member]:
        """Return those that hold up the next epoch: connected, and not asking for it."""
        return [member for member in self.all() if member.ask is None]

    def plan(self) -> Plan | None:
        """Return the next epoch if all consumers want it; None if one does not yet.

        It has the number that all of them name. Where they differ it is the one after the last, or
        the largest if there was none, and they follow. But who was cut off in an epoch goes on
        there first, and the others wait.
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
            first = 0  # who follows needs all of it
        states = (ask.random for ask in fitting if ask.random is not None)
        return Plan(epoch, first, next(states, None), rest)

    def begin(self, plan: Plan) -> None:
        """All who asked take part; in a rest those who asked for it."""
        self.expected = 0
        for member in self.all():
            assert member.ask is not None
            fits = member.ask.epoch == plan.epoch
            if fits or not plan.rest:
                member.first = member.ask.batch if fits else 0
                member.ask = None

    def end(self, plan: Plan) -> None:
        """Nobody takes part any more."""
        after = plan.epoch + 1
        self.next_epoch = max(self.next_epoch, after) if plan.rest else after
        for member in self.all():
            member.first = None
