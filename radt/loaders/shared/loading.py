"""The main thread of a server: it loads batches into slots, and hands them out.

Importing it imports torch, which takes long; consumers are answered meanwhile.
"""

from __future__ import annotations

import atexit
import multiprocessing
import time
from typing import Any

from radt.loaders import layout
from radt.loaders.arena import Arena, page_aligned
from radt.loaders.layout import LaidOut
from radt.loaders.shared import cuda, randomness
from radt.loaders.shared.collating import Collated, Offers
from radt.loaders.shared.device import Places
from radt.loaders.shared.factory import Factory
from radt.loaders.shared.loaded import set_epoch, sizes
from radt.loaders.shared.membership import WINDOW_HOLDER, Filled, Plan, Ring
from radt.loaders.shared.state import Ending, State


class Loading:
    """Calls the factory; `run` loads one epoch after another. Both raise whatever that raises."""

    def __init__(self, state: State, factory: Factory) -> None:
        self._state = state
        state.loading_since = time.monotonic()
        self._loader = loader = factory()
        self._offers = Offers.to_workers_of(loader)
        state.loading_since = None
        state.ready = True
        if callable(close := getattr(loader, "close", None)):
            atexit.register(close)  # of a loader of radt's, which has processes and memory
        state.announce({"ready": True, **sizes(loader)})
        #: The epoch that follows the one that was loaded last.
        self._after = 0
        #: Arenas before this one in which workers may still put batches, by generation.
        self._earlier: dict[int, Arena] = {}

    def run(self) -> None:
        """Load until the server ends, which raises `Ending`."""
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

    def _begin(self, plan: Plan) -> None:
        state = self._state
        set_epoch(self._loader, plan.epoch)
        random = plan.random or state.randoms.get(plan.epoch)
        if random is not None and (plan.epoch != self._after or plan.random):
            randomness.restore(random, self._loader)
        else:
            random = randomness.state_of(self._loader)
        state.randoms[plan.epoch] = random
        state.sizes = sizes(self._loader)
        state.base += state.number
        state.plan, state.number = plan, 0
        state.members.begin(plan)
        state.window_open = state.options.window_bytes > 0
        for member in state.members.in_epoch():
            state.send_begin(member)

    def _load(self, plan: Plan) -> bool:
        """Load an epoch, and return whether it came to its end: somebody needed all of it."""
        state = self._state
        state.loading_since = time.monotonic()
        batches = randomness.begun(self._loader, state.randoms[plan.epoch])
        while True:
            state.loading_since = time.monotonic()
            batch = next(batches, self)
            state.loading_since = None
            if batch is self:
                return True
            with state.changed:
                # Who joined since it began may need what nobody needed then.
                taking = any(member.takes(state.number) for member in state.members.in_epoch())
                if not (given := taking or state.number >= plan.first):
                    state.number += 1
                    self._offer_again(batch)
            if given:
                self._give(batch)
            with state.changed:
                if state.ending:
                    raise Ending
                if not state.members.in_epoch():
                    state.plan = None  # nobody joins what ends here
                    return False

    def _end(self, plan: Plan) -> None:
        state = self._state
        state.close_window()
        self._earlier.clear()
        self._after = plan.epoch + 1
        random = state.randoms[self._after] = randomness.state_of(self._loader)
        for member in state.members.in_epoch():
            state.send(member, {"end": plan.epoch, "random": random, **sizes(self._loader)})
        state.members.end(plan)
        state.plan = None

    # Batches --------------------------------------------------------------------------------------

    def _give(self, batch: object) -> None:
        state = self._state
        if isinstance(batch, Collated):
            if batch.json_bytes:
                with state.changed:
                    arena, _ = self._slot_for(0)
                    place = state.ring.free_place()
                if batch.generation == state.generation:
                    self._hand_out(arena, batch.slot, batch.json_bytes, place)
                    return
            batch = self._taken_out(batch)
        laid_out = LaidOut(batch)
        with state.changed:
            arena, slot = self._slot_for(laid_out.nbytes)
            place = state.ring.free_place()
        self._hand_out(arena, slot, laid_out.write_described(arena.slot(slot)), place)

    def _hand_out(self, arena: Arena, slot: int, json_bytes: int, place: int) -> None:
        state = self._state
        filled = Filled(slot, state.base + state.number, json_bytes, place)
        for places in self._gpus(arena):
            places.fill(filled, arena.slot(slot))
        with state.changed:
            takers = [m for m in state.members.in_epoch() if m.takes(state.number)]
            holders = {member.number for member in takers}
            if state.window_open:
                holders.add(WINDOW_HOLDER)
            state.ring.fill(filled, holders)
            for member in takers:
                state.send_slot(member, filled)
            state.number += 1  # here: who joins now does not miss a batch that was just given
            self._offer()

    def _gpus(self, arena: Arena) -> list[Places]:
        """Return places on each GPU that consumers want; tell those who cannot have them."""
        state = self._state
        with state.changed:
            wanted = {member.gpu for member in state.members.all() if member.gpu is not None}
            for gpu in state.gpus.keys() - wanted:
                del state.gpus[gpu]
            missing = wanted - state.gpus.keys()
        for gpu in missing:
            try:
                made = Places(gpu, state.ring.most, arena.slot_bytes)
            except cuda.CudaError as error:
                with state.changed:
                    for member in state.members.all():
                        if member.gpu == gpu:
                            member.gpu = None
                            state.send(member, {"no_gpu": f"the server cannot use it: {error}"})
            else:
                with state.changed:
                    state.gpus[gpu] = made
        return list(state.gpus.values())

    def _taken_out(self, collated: Collated) -> object:
        """Return a batch that is not in a slot of the arena, but where the worker left it."""
        if not collated.json_bytes:
            with self._state.changed:
                self._offer_again(collated)
            return collated.batch
        view = self._earlier[collated.generation].slot(collated.slot)
        described = layout.Layout.from_json(view[len(view) - collated.json_bytes :])
        return layout.read(described, view)

    # Slots, under the lock ------------------------------------------------------------------------

    def _slot_for(self, needed: int) -> tuple[Arena, int]:
        """Wait for a slot of so many bytes."""
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
            # All wait, as their scripts keep a batch each, not the same: they are to keep copies.
            for member in taking:
                member.starved = False
                if state.ring.held_by(member.number):
                    state.send(member, {"copy": True})
            state.retired = True

    def _window_slots(self, slot_bytes: int) -> int:
        """Return how many batches are kept for who comes late: no more than an epoch has."""
        slots = self._state.options.window_bytes // slot_bytes
        return min(slots, self._state.sizes["batches"] or slots)

    def _new_arena(self, slot_bytes: int) -> Arena:
        """Make an arena; the memory of the one before stays for as long as somebody has views."""
        state = self._state
        state.close_window()
        if state.arena is not None:
            state.arena.close()
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
        """Offer the slot of a batch again, which nobody is given."""
        if isinstance(batch, Collated) and batch.generation == self._state.generation:
            self._state.ring.withdraw(batch.slot)
            self._offer()

    def _withdraw_offers(self) -> None:
        """After an epoch that was left: what its workers had is lost to them."""
        with self._state.changed:
            if self._offers is None:
                return
            self._offers.withdraw()
            if multiprocessing.active_children():  # they may still write there
                self._state.retired = True
            else:
                self._state.ring.withdraw_all()
                self._offer()
