"""The main thread of a server: loads batches into slots, and hands them out.

Importing this module imports torch, which takes long; the other thread answers consumers meanwhile.
"""

from __future__ import annotations

import atexit
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from radt.loaders.arena import Arena, page_aligned
from radt.loaders.layout import LaidOut, Packed
from radt.loaders.shared import cuda, randomness
from radt.loaders.shared.collating import Collated, Offers
from radt.loaders.shared.device import Places
from radt.loaders.shared.factory import Factory
from radt.loaders.shared.membership import WINDOW_HOLDER, EpochPlan, Filled, Ring
from radt.loaders.shared.state import ServerEndError, ServerState
from radt.run.notices import warn_once


class Loading:
    """Calls the factory; `run` loads one epoch after another. Both raise the loader's errors."""

    def __init__(self, state: ServerState, factory: Factory) -> None:
        self._state = state
        state.loading_since = time.monotonic()
        self._loader = loader = factory()
        self._offers = Offers.to_workers_of(loader)
        state.loading_since = None
        state.ready = True
        if callable(close := getattr(loader, "close", None)):
            atexit.register(close)  # radt's own loaders have processes and memory
        state.announce({"ready": True, **_sizes(loader)})
        #: The epoch after the last loaded one.
        self._after = 0
        #: Earlier arenas into which workers may still write batches, by generation.
        self._earlier: dict[int, Arena] = {}
        #: The memory of the arena if it is pinned for GPUs.
        self._pinned: Tensor | None = None
        #: Waits for copies to GPUs while the main thread loads the next batch.
        self._copier = ThreadPoolExecutor(1, "copies")
        self._copying: Future[None] | None = None

    def run(self) -> None:
        """Load until the server ends, which raises `ServerEndError`."""
        state, members = self._state, self._state.members
        while True:
            with state.changed:
                while (plan := members.plan()) is None:
                    state.wait()
                    if time.monotonic() >= state.return_deadline:
                        members.expected = 0
                self._begin(plan)
            if not self._load(plan):
                self._withdraw_offers()
            with state.changed:
                self._end(plan)

    def _begin(self, plan: EpochPlan) -> None:
        state = self._state
        _set_epoch(self._loader, plan.epoch)
        random = plan.random or state.randoms.get(plan.epoch)
        if random is not None and (plan.epoch != self._after or plan.random):
            randomness.restore(random, self._loader)
        else:
            random = randomness.state_of(self._loader)
        state.randoms[plan.epoch] = random
        state.sizes = _sizes(self._loader)
        state.base += state.number
        state.plan, state.number = plan, 0
        state.members.begin(plan)
        state.window_open = state.options.window_bytes > 0
        for member in state.members.in_epoch():
            state.send_begin(member)

    def _load(self, plan: EpochPlan) -> bool:
        """Load an epoch. Return False if all consumers left it before its end."""
        state = self._state
        state.loading_since = time.monotonic()
        batches = randomness.begun(self._loader, state.randoms[plan.epoch])
        while True:
            state.loading_since = time.monotonic()
            try:
                batch = next(batches, self)
            finally:
                state.loading_since = None
                self._wait_for_copies()
            if batch is self:
                return True
            with state.changed:
                # Consumers that joined after the start may need batches that were not needed then.
                taking = any(member.takes(state.number) for member in state.members.in_epoch())
                if not (given := taking or state.number >= plan.first):
                    state.number += 1
                    self._offer_again(batch)
            if given:
                self._give(batch)
            with state.changed:
                if state.ending:
                    raise ServerEndError
                if is_left := not state.members.in_epoch():
                    state.plan = None  # no consumer may join this epoch any more
            if is_left:
                self._wait_for_copies()
                return False

    def _end(self, plan: EpochPlan) -> None:
        state = self._state
        state.close_window()
        self._earlier.clear()
        self._after = plan.epoch + 1
        random = state.randoms[self._after] = randomness.state_of(self._loader)
        for member in state.members.in_epoch():
            state.send(member, {"end": plan.epoch, "random": random, **_sizes(self._loader)})
        state.members.end(plan)
        state.plan = None

    # Batches --------------------------------------------------------------------------------------

    def _give(self, batch: object) -> None:
        state = self._state
        if isinstance(batch, Collated):
            if batch.description_bytes:
                with state.changed:
                    arena, _ = self._slot_for(0)
                    place = state.ring.free_place()
                if batch.generation == state.generation:
                    self._hand_out(arena, batch.slot, batch.description_bytes, place)
                    return
            batch = self._taken_out(batch)
        laid_out = LaidOut(batch)
        with state.changed:
            arena, slot = self._slot_for(laid_out.nbytes)
            place = state.ring.free_place()
        described = laid_out.write_described(arena.slot(slot))
        self._hand_out(arena, slot, described, place, laid_out)

    def _hand_out(
        self,
        arena: Arena,
        slot: int,
        description_bytes: int,
        place: int,
        batch: LaidOut | None = None,
    ) -> None:
        state = self._state
        filled = Filled(slot, state.base + state.number, description_bytes, place)
        if begun := self._begin_copies(arena, filled, batch):
            self._copying = self._copier.submit(self._finish, filled, begun, batch)
        else:
            self._finish(filled, begun, batch)

    def _wait_for_copies(self) -> None:
        """Wait until the last batch has been handed out."""
        if (copying := self._copying) is not None:
            self._copying = None
            copying.result()

    def _finish(self, filled: Filled, begun: list[Places], _source: LaidOut | None) -> None:
        """Hand a batch out once it is on all GPUs. ``_source`` is kept alive until then."""
        state = self._state
        for places in begun:
            with self._unless_it_fails(places.gpu):
                places.finish(filled)
        with state.changed:
            takers = [m for m in state.members.in_epoch() if m.takes(state.number)]
            holders = {member.number for member in takers}
            if state.window_open:
                holders.add(WINDOW_HOLDER)
            state.ring.fill(filled, holders)
            for member in takers:
                state.send_slot(member, filled)
            state.number += 1  # now, so that a consumer that joins does not miss this batch
            self._offer()

    def _begin_copies(self, arena: Arena, filled: Filled, batch: LaidOut | None) -> list[Places]:
        """Start copying a batch to each GPU that consumers want. Return the places there.

        Consumers whose GPU fails are notified.
        """
        state = self._state
        with state.changed:
            wanted = {member.gpu for member in state.members.all() if member.gpu is not None}
            for gpu in state.gpus.keys() - wanted:
                del state.gpus[gpu]
        there: list[Places] = []
        for gpu in sorted(wanted):
            with self._unless_it_fails(gpu):
                there.append(state.gpus.get(gpu) or self._new_places(gpu, arena))
        if batch is not None:  # copy first from the GPU that made it
            there.sort(key=lambda places: not batch.is_on(places.device))
        begun: list[Places] = []
        for places in there:
            with self._unless_it_fails(places.gpu):
                places.begin(filled, arena.slot(filled.slot), batch, begun)
                begun.append(places)
        return begun

    def _new_places(self, gpu: str, arena: Arena) -> Places:
        places = Places(gpu, self._state.ring.most, arena.slot_bytes)
        if self._pinned is None:
            try:
                self._pinned = cuda.pin(arena.memory)
            except cuda.CudaError as error:
                warn_once(f"copies to GPUs are slow, as batches cannot be pinned: {error}")
        with self._state.changed:
            self._state.gpus[gpu] = places
        return places

    @contextmanager
    def _unless_it_fails(self, gpu: str) -> Iterator[None]:
        """Continue without a GPU that fails: its consumers copy batches themselves."""
        state = self._state
        try:
            yield
        except cuda.CudaError as error:
            with state.changed:
                state.gpus.pop(gpu, None)
                for member in state.members.all():
                    if member.gpu == gpu:
                        member.gpu = None
                        state.send(member, {"no_gpu": f"the server cannot use it: {error}"})

    def _taken_out(self, collated: Collated) -> object:
        """Return a batch that is not in a slot of the arena, from where the worker left it."""
        if not collated.description_bytes:
            with self._state.changed:
                self._offer_again(collated)
            return collated.batch
        view = self._earlier[collated.generation].slot(collated.slot)
        return Packed.in_slot(view, collated.description_bytes).read()

    # Slots, under the lock ------------------------------------------------------------------------

    def _slot_for(self, needed: int) -> tuple[Arena, int]:
        """Wait for a slot of at least this size."""
        state = self._state
        while True:
            arena = state.arena
            if arena is None or needed > arena.slot_bytes:
                arena = self._new_arena(page_aligned(needed))
            elif state.retired:
                arena = self._new_arena(arena.slot_bytes)
            first = state.plan.first if state.plan is not None else 0
            if state.number - first >= self._window_slots(arena.slot_bytes):
                state.close_window()
            taking = state.members.in_epoch()
            held = max((len(state.ring.held_by(member.number)) for member in taking), default=0)
            # No consumer may get further ahead of another.
            if held <= state.options.buffer and (slot := state.ring.free()) is not None:
                return arena, slot
            if not taking or not all(member.starved for member in taking):
                state.wait()
                continue
            # All wait because their scripts each keep a different batch, so tell them to keep
            # copies.
            for member in taking:
                member.starved = False
                if state.ring.held_by(member.number):
                    state.send(member, {"copy": True})
            state.retired = True

    def _window_slots(self, slot_bytes: int) -> int:
        """Return the number of batches kept for late consumers, at most an epoch's."""
        slots = self._state.options.window_bytes // slot_bytes
        return min(slots, self._state.sizes["batches"] or slots)

    def _new_arena(self, slot_bytes: int) -> Arena:
        """Create an arena. The memory of the previous one stays while there are views of it."""
        state = self._state
        state.close_window()
        if state.arena is not None:
            state.arena.close()
            if self._pinned is not None:
                cuda.unpin(self._pinned)
                self._pinned = None
            if self._offers is not None:
                self._offers.withdraw()
                self._earlier[state.generation] = state.arena
        most = state.options.buffer + 1 + self._window_slots(slot_bytes)
        state.ring = Ring(most, self._offers.most if self._offers is not None else 0)
        arena = state.arena = Arena(state.ring.slots, slot_bytes)
        state.gpus.clear()
        state.generation += 1
        if state.number == 0:
            state.window_open = state.options.window_bytes > 0
        state.retired = False
        for member in state.members.in_epoch():
            state.send_arena(member)
        self._offer()
        return arena

    # Slots that workers fill, under the lock ------------------------------------------------------

    def _offer(self) -> None:
        """Offer workers as many slots as they can fill."""
        state = self._state
        if self._offers is None or state.arena is None or state.retired:
            return
        while (slot := state.ring.offer()) is not None:
            if not self._offers.send(state.generation, slot, state.arena):
                state.ring.withdraw(slot)
                return

    def _offer_again(self, batch: Any) -> None:
        """Offer the slot of a batch that is not handed out again."""
        if isinstance(batch, Collated) and batch.generation == self._state.generation:
            self._state.ring.withdraw(batch.slot)
            self._offer()

    def _withdraw_offers(self) -> None:
        """Withdraw all offers after an abandoned epoch, whose workers' batches are lost."""
        with self._state.changed:
            if self._offers is None:
                return
            self._offers.withdraw()
            if multiprocessing.active_children():  # they may still write there
                self._state.retired = True
            else:
                self._state.ring.withdraw_all()
                self._offer()


# Other calls of the user's loader -----------------------------------------------------------------


def _set_epoch(loader: object, epoch: int) -> None:
    """Pass the number of the next epoch to a loader and its samplers, if they accept it."""
    for owner in (loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)):
        if callable(method := getattr(owner, "set_epoch", None)):
            method(epoch)


def _sizes(loader: object) -> dict[str, Any]:
    """Return the numbers of batches and samples of the current or next epoch."""
    return {"batches": _length(loader), "rows": _rows(loader)}


def _length(loader: object) -> int | None:
    """Return the number of batches of an epoch; None if the loader does not know."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except TypeError:
        return None


def _rows(loader: object) -> int | None:
    """Return the number of samples in an epoch of a DataLoader; None if unknown."""
    batches, sampler = _length(loader), getattr(loader, "sampler", None)
    batch_size = getattr(loader, "batch_size", None)
    if batches is None or batch_size is None:
        return None
    if getattr(loader, "drop_last", False):
        return batches * int(batch_size)
    return _length(sampler)
