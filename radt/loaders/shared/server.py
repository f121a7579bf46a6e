"""The loader server: loads each batch once and hands it to all consumers.

It has two threads. The main one calls the factory and loads, as data loaders expect of a main
thread; it may be inside somebody's code for long. The other one answers consumers, and ends the
process when nobody is left. Both share the state of this class under one lock.

::

    consumer                                    server
    {"hello": factory, ...}               ──▶   welcome, or refused
    {"ask": epoch, ...}                   ──▶   begin, when all consumers have asked
                                          ◀──   members, whenever their number changes
                                          ◀──   arena with its descriptor, when it is new
                                          ◀──   16 bytes for each batch
    16 bytes when it has done with one    ──▶   the slot is free when all have
    {"leave": number}  (loop was left)    ──▶
                                          ◀──   end, with the next epoch's random state
    bye  (its script keeps batches)       ──▶
    {"waiting": seconds, ...}             ──▶   because: who or what it waits for
    {"replace": factory}  (a service)     ──▶   the listening socket; all others are moved
                                          ◀──   failed, evicted, moved: the last message
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import selectors
import signal
import socket
import threading
import time
import traceback
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from radt.errors import LoaderError, cut
from radt.loaders import wire
from radt.loaders.arena import Arena, page_aligned
from radt.loaders.shared.factory import Factory
from radt.loaders.shared.loaded import set_epoch, sizes
from radt.loaders.shared.membership import (
    WINDOW_HOLDER,
    Ask,
    Filled,
    Join,
    Member,
    Members,
    Plan,
    Ring,
)
from radt.loaders.shared.options import ServerOptions
from radt.loaders.shared.processes import die_with_parent, ignore_workers, main_thread
from radt.units import duration

if TYPE_CHECKING:  # it imports torch
    from radt.loaders.shared.collating import Collated, Offers

#: Of a traceback in a message: the end says what went wrong.
_MOST_TRACEBACK = 10_000
#: Consumers that a server before this one had come back within this time.
_RETURN_S = 10.0
#: What is in somebody's code when the server is to end has this long to come back.
_END_S = 2.0
_TICK_S = 1.0


class _Ending(BaseException):
    """The server ends: raised in the main thread where it waits."""


class Server:
    """See the module's text.

    Args:
        factory: Makes the loader.
        options: See there.
        listening: The socket that consumers connect to.
        is_service: It was not started by a consumer, and is not replaced by another service.
    """

    def __init__(
        self,
        factory: Factory,
        options: ServerOptions,
        listening: socket.socket,
        *,
        is_service: bool,
    ) -> None:
        self._factory, self._options, self._listening = factory, options, listening
        self._is_service = is_service
        self._listening.setblocking(False)
        self._changed = threading.Condition()
        self._connections: dict[int, wire.Connection] = {}
        self._members = Members()
        self._count = 0
        self._ring = Ring(0)
        self._arena: Arena | None = None
        self._generation = 0
        #: Arenas before it in which workers may still put batches, by generation.
        self._earlier: dict[int, Arena] = {}
        self._offers: Offers | None = None
        #: Messages that every consumer gets, also one that comes later.
        self._announced: list[wire.Json] = []
        self._randoms: dict[int, wire.Json] = {}
        #: The epoch that follows the one that was loaded last.
        self._after = 0
        self._plan: Plan | None = None
        self._sizes: wire.Json = {}
        self._number = 0  # of the batch that comes next
        self._base = 0  # how many batches were before the epoch
        self._window_open = False
        #: Whether somebody who is gone still uses slots of the arena, which must not be filled.
        self._retired = False
        self._loading_since: float | None = None
        self._ready = self._ending = self._failed = self._terminated = self._replaced = False
        self._return_deadline = 0.0
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)

    def run(self) -> int:
        """Serve until nobody is left; return the exit code."""
        self._wake.setblocking(False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._terminate)
        os.register_at_fork(after_in_child=die_with_parent)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        control = threading.Thread(target=self._control, name="control", daemon=True)
        control.start()
        try:
            self._serve_epochs()
        except _Ending:
            pass
        except BaseException as error:  # noqa: BLE001 - every consumer raises it
            ignore_workers()
            if not self._terminated:  # else its workers have been told to end, too
                self._fail(error)
            with self._changed:
                while not self._ending:
                    self._changed.wait()
        return 1 if self._failed else 0

    def _terminate(self, *_: object) -> None:
        """Note that the process is to end; the other thread hears of it, too, and acts."""
        self._terminated = True

    # The main thread: loading ---------------------------------------------------------------------

    def _serve_epochs(self) -> None:
        # They import torch: consumers are answered meanwhile.
        from radt.loaders.shared import randomness
        from radt.loaders.shared.collating import Offers

        self._loading_since = time.monotonic()
        loader = self._factory()
        self._offers = Offers.to_workers_of(loader)
        self._loading_since = None
        self._ready = True
        if callable(close := getattr(loader, "close", None)):
            atexit.register(close)  # of a loader of radt's, which has processes and memory
        self._announce({"ready": True, **sizes(loader)})
        while True:
            with self._changed:
                while (plan := self._next_plan()) is None:
                    self._wait()
                self._begin(plan, loader)
            if not self._load(plan, loader):
                self._withdraw_offers()
            with self._changed:
                self._end(plan, randomness.state_of(loader), sizes(loader))

    def _next_plan(self) -> Plan | None:
        if self._members.expected and time.monotonic() >= self._return_deadline:
            self._members.expected = 0
        return self._members.plan()

    def _begin(self, plan: Plan, loader: object) -> None:
        from radt.loaders.shared import randomness

        set_epoch(loader, plan.epoch)
        state = plan.random or self._randoms.get(plan.epoch)
        if state is not None and (plan.epoch != self._after or plan.random):
            randomness.restore(state, loader)
        self._randoms[plan.epoch] = randomness.state_of(loader)
        self._sizes = sizes(loader)
        self._base += self._number
        self._plan, self._number = plan, 0
        self._members.begin(plan)
        self._window_open = self._options.window_bytes > 0
        for member in self._members.in_epoch():
            self._send_begin(member)

    def _load(self, plan: Plan, loader: Iterable[Any]) -> bool:
        """Load an epoch, and return whether it came to its end: somebody needed all of it."""
        self._loading_since = time.monotonic()
        batches = iter(loader)
        while True:
            self._loading_since = time.monotonic()
            batch = next(batches, self)
            self._loading_since = None
            if batch is self:
                return True
            with self._changed:
                # Who joined since it began may need what nobody needed then.
                taking = any(member.takes(self._number) for member in self._members.in_epoch())
                if not (given := taking or self._number >= plan.first):
                    self._number += 1
                    self._offer_again(batch)
            if given:
                self._give(batch)
            with self._changed:
                if self._ending:
                    raise _Ending
                if not self._members.in_epoch():
                    self._plan = None  # nobody joins what ends here
                    return False

    def _give(self, batch: object) -> None:
        from radt.loaders.layout import LaidOut
        from radt.loaders.shared.collating import Collated

        if isinstance(batch, Collated):
            if batch.json_bytes:
                with self._changed:
                    self._slot_for(0)
                    if batch.generation == self._generation:
                        self._hand_out(batch.slot, batch.json_bytes)
                        return
            batch = self._taken_out(batch)
        laid_out = LaidOut(batch)
        with self._changed:
            arena, slot = self._slot_for(laid_out.nbytes)
        json_bytes = laid_out.write_described(arena.slot(slot))
        with self._changed:
            self._hand_out(slot, json_bytes)

    def _hand_out(self, slot: int, json_bytes: int) -> None:
        filled = Filled(slot, self._base + self._number, json_bytes)
        takers = [m for m in self._members.in_epoch() if m.takes(self._number)]
        holders = {member.number for member in takers}
        if self._window_open:
            holders.add(WINDOW_HOLDER)
        self._ring.fill(filled, holders)
        for member in takers:
            self._send_slot(member, filled)
        self._number += 1  # here: who joins now does not miss a batch that was just given
        self._offer()

    # Slots that workers fill ----------------------------------------------------------------------

    def _offer(self) -> None:
        """Offer workers as many slots as they can fill."""
        if self._offers is None or self._arena is None or self._retired:
            return
        while (slot := self._ring.offer()) is not None:
            if not self._offers.send(self._generation, slot, self._arena):
                self._ring.withdraw(slot)
                return

    def _offer_again(self, batch: object) -> None:
        """Offer the slot of a batch again, which nobody is given."""
        from radt.loaders.shared.collating import Collated

        if isinstance(batch, Collated) and batch.generation == self._generation:
            self._ring.withdraw(batch.slot)
            self._offer()

    def _taken_out(self, collated: Collated) -> object:
        """Return a batch that is not in a slot of the arena, but where the worker left it."""
        from radt.loaders import layout

        if not collated.json_bytes:
            with self._changed:
                self._offer_again(collated)
            return collated.batch
        view = self._earlier[collated.generation].slot(collated.slot)
        described = layout.Layout.from_json(view[len(view) - collated.json_bytes :])
        return layout.read(described, view)

    def _withdraw_offers(self) -> None:
        """After an epoch that was left: what its workers had is lost to them."""
        with self._changed:
            if self._offers is None:
                return
            self._offers.withdraw()
            if multiprocessing.active_children():  # they may still write there
                self._retired = True
            else:
                self._ring.withdraw_all()
                self._offer()

    def _slot_for(self, needed: int) -> tuple[Arena, int]:
        """Wait for a slot of so many bytes."""
        while True:
            arena = self._arena
            if arena is None or needed > arena.slot_bytes:
                arena = self._new_arena(page_aligned(needed))
            elif self._retired:
                arena = self._new_arena(arena.slot_bytes)
            first = self._plan.first if self._plan is not None else 0
            if self._number - first >= self._window_slots(arena.slot_bytes):
                self._close_window()
            if (slot := self._free_slot()) is not None:
                return arena, slot
            if self._stuck:
                self._have_copies_kept()
                self._retired = True
            else:
                self._wait()

    def _free_slot(self) -> int | None:
        """Return a slot to be written now: no consumer may get further ahead of another."""
        held = (len(self._ring.held_by(m.number)) for m in self._members.in_epoch())
        return self._ring.free() if all(n <= self._options.buffer for n in held) else None

    @property
    def _stuck(self) -> bool:
        """Whether all consumers wait: their scripts keep a batch each, not the same."""
        taking = self._members.in_epoch()
        return bool(taking) and all(member.starved for member in taking)

    def _have_copies_kept(self) -> None:
        """Tell consumers that keep slots which others need to keep copies from now on."""
        for member in self._members.in_epoch():
            member.starved = False
            if self._ring.held_by(member.number):
                self._send(member, {"copy": True})

    def _window_slots(self, slot_bytes: int) -> int:
        """Return how many batches are kept for who comes late: no more than an epoch has."""
        slots = self._options.window_bytes // slot_bytes
        return min(slots, self._sizes["batches"] or slots)

    def _new_arena(self, slot_bytes: int) -> Arena:
        """Make an arena; the memory of the one before stays for as long as somebody has views."""
        self._close_window()
        if self._arena is not None:
            self._arena.close()
            if self._offers is not None:
                self._offers.withdraw()
                self._earlier[self._generation] = self._arena
        most = self._options.buffer + 1 + self._window_slots(slot_bytes)
        self._ring = Ring(most, self._offers.most if self._offers is not None else 0)
        self._arena = Arena(self._ring.slots, slot_bytes)
        self._generation += 1
        if self._number == 0:
            self._window_open = self._options.window_bytes > 0
        self._retired = False
        for member in self._members.in_epoch():
            self._send_arena(member)
        self._offer()
        return self._arena

    def _close_window(self) -> None:
        self._window_open = False
        self._ring.drop(WINDOW_HOLDER)

    def _end(self, plan: Plan, random: wire.Json, sizes: wire.Json) -> None:
        self._close_window()
        self._earlier.clear()
        self._after = plan.epoch + 1
        self._randoms[self._after] = random
        for member in self._members.in_epoch():
            self._send(member, {"end": plan.epoch, "random": random, **sizes})
        self._members.end(plan)
        self._plan = None

    def _wait(self) -> None:
        """Wait for a consumer's message."""
        if self._ending:
            raise _Ending
        self._changed.wait(_TICK_S)

    def _fail(self, error: BaseException) -> None:
        text = "".join(traceback.format_exception(error))
        message = error.message if isinstance(error, LoaderError) else ""
        remedy = error.remedy if isinstance(error, LoaderError) else None
        self._fail_with(message, remedy, text[-_MOST_TRACEBACK:])

    def _fail_with(self, message: str, remedy: str | None, trace: str) -> None:
        failed = {"failed": cut(message), "remedy": remedy, "traceback": trace}
        with self._changed:
            self._failed = True
        self._announce(failed)
        self._wake.send(b"\0")

    # The other thread: consumers ------------------------------------------------------------------

    def _control(self) -> None:
        """Answer consumers, and end the process."""
        try:
            self._answer()
        except BaseException:  # noqa: BLE001 - without this thread, nobody would ever be answered
            traceback.print_exc()
            self._end_process()

    def _answer(self) -> None:
        with selectors.DefaultSelector() as self._selector:
            self._selector.register(self._listening, selectors.EVENT_READ, None)
            self._selector.register(self._woken, selectors.EVENT_READ, None)
            alone_since = time.monotonic()
            while True:
                wait_s = _TICK_S
                with self._changed:
                    if self._connections:
                        alone_since = time.monotonic()
                    elif self._failed:
                        break
                    elif self._options.linger_s is not None:
                        wait_s = alone_since + self._options.linger_s - time.monotonic()
                        if wait_s <= 0:
                            break
                for key, _ in self._selector.select(wait_s):
                    if key.fileobj is self._listening:
                        self._accept()
                    elif key.fileobj is self._woken:
                        if {signal.SIGTERM, signal.SIGINT} & set(self._woken.recv(4096)):
                            self._move()
                            return self._end_process()
                    else:
                        self._receive(key.data)
                if self._replaced:
                    self._move()
                    return self._end_process()
        self._listening.close()  # a consumer that comes now starts another server
        return self._end_process()

    def _end_process(self) -> None:
        """Ask the main thread to end; end the process and its workers if it does not."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        time.sleep(_END_S)  # this thread is a daemon: usually the process ends meanwhile
        if os.getpid() == os.getpgrp():
            os.killpg(os.getpgrp(), signal.SIGKILL)
        os._exit(1)

    def _move(self) -> None:
        """The process is asked to end: consumers go on with another server."""
        self._listening.close()
        with self._changed:
            moved = {"moved": len(self._connections)}
            for member in self._members.all():
                self._send(member, moved)

    def _accept(self) -> None:
        connection = wire.accept(self._listening)
        if connection is None:
            return
        with self._changed:
            self._count += 1
            self._connections[self._count] = connection
        self._selector.register(connection.fileno(), selectors.EVENT_READ, self._count)

    def _receive(self, number: int) -> None:
        """Deal with all that a consumer has sent."""
        with self._changed:
            try:
                while (connection := self._connections.get(number)) is not None:
                    message = connection.receive()
                    if message is None:
                        break
                    if message.slot is not None:
                        self._released(number, message.slot)
                    else:
                        self._obey(number, message.json)
                if connection is not None:
                    connection.flush()  # it has read: there is room again
            except wire.Closed:
                self._remove(number)
            except (KeyError, TypeError, ValueError):  # not a message of ours; the others go on
                traceback.print_exc()
                self._remove(number)
            self._changed.notify_all()

    def _released(self, number: int, slot: wire.Slot) -> None:
        if slot.generation == self._generation:
            self._ring.release(slot.slot, number)

    def _obey(self, number: int, message: wire.Json) -> None:
        match message:
            case {"hello": factory, "consumer": name, "expected": expected}:
                self._welcome(number, Factory.from_json(factory), name, expected)
            case {"ask": ask}:
                member = self._members.by_number[number]
                member.ask = Ask(**{**ask, "join": Join(ask["join"])})
                member.loop = member.ask.loop
                self._join(member)
            case {"leave": taken}:
                member = self._members.by_number[number]
                member.first = member.ask = None
                member.sent = taken
                self._ring.drop(number, after=taken)
            case {"bye": True}:
                self._retired = True
            case {"replace": factory}:
                self._hand_over(number, Factory.from_json(factory))
            case {"waiting": waited_s, "taken": taken}:
                member = self._members.by_number[number]
                member.starved = taken == member.sent  # else a batch is on its way
                self._explain(member, waited_s)

    def _welcome(self, number: int, factory: Factory, name: str, expected: int) -> None:
        if not factory.same_as(self._factory):
            self._connections[number].send({"refused": self._factory.to_json()})
            self._remove(number)
            return
        member = Member(number, name)
        self._say_members(1)
        self._members.by_number[number] = member
        if expected and not self._plan:
            self._members.expected = max(self._members.expected, expected)
            self._return_deadline = self._return_deadline or time.monotonic() + _RETURN_S
        self._send(member, {"welcome": os.getpid(), "buffer": self._options.buffer})
        self._send(member, {"members": len(self._members.by_number)})
        for message in self._announced:
            self._send(member, message)

    def _hand_over(self, number: int, factory: Factory) -> None:
        """Give a service the socket that consumers connect to; they follow it."""
        connection = self._connections[number]
        if not factory.same_as(self._factory):
            connection.send({"refused": self._factory.to_json()})
        elif self._is_service or self._replaced:
            connection.send({"refused": None})
        else:
            connection.send({"replaced": True}, self._listening.fileno())
            self._replaced = True
        self._remove(number)

    def _join(self, member: Member) -> None:
        """Let a consumer into the epoch under way, if it may."""
        ask, plan = member.ask, self._plan
        if ask is None or plan is None:
            return
        if ask.epoch == plan.epoch and ask.batch >= self._number:
            first = ask.batch
        elif ask.join is Join.WINDOW and self._window_open:
            first = ask.batch if ask.epoch == plan.epoch else plan.first
        elif ask.join is Join.NOW:
            first = self._number
        else:
            return
        member.ask, member.first = None, first
        self._send_begin(member)
        for filled in self._ring.held_by(WINDOW_HOLDER):
            if filled.number >= self._base + first:
                self._ring.hold(filled.slot, member.number)
                self._send_slot(member, filled)

    def _explain(self, member: Member, waited_s: float) -> None:
        """Say what a consumer waits for; evict it if it holds up others for too long."""
        timeout_s = self._options.stall_timeout_s
        culprits = self._culprits(member)
        too_long = timeout_s is not None and waited_s >= timeout_s
        since = self._loading_since
        if since is not None:
            what = f"loading batch {self._number}" if self._ready else "made"
            because = f"the loader has been {what} for {duration(time.monotonic() - since)}"
            if too_long and time.monotonic() - since >= (timeout_s or 0.0):
                self._fail_with(because, "Look where it waits", main_thread())
                return
        elif culprits:
            names = ", ".join(culprit.name for culprit in culprits)
            because = f"it waits for {names}"
        else:
            because = ""
        self._send(member, {"because": because, "server": os.getpid()})
        if too_long:
            for culprit in culprits:
                self._send(culprit, {"evicted": f"others waited for it for {duration(waited_s)}"})
                self._retired = True
                self._remove(culprit.number)

    def _culprits(self, waiting: Member) -> list[Member]:
        """Return who holds up this consumer."""
        if not self._ready:
            return []
        if self._plan is None:
            return [m for m in self._members.waited_for() if m is not waiting]
        if waiting.first is None:
            return self._members.in_epoch()
        oldest = self._ring.holders_of_oldest() - {waiting.number}
        return [m for m in self._members.in_epoch() if m.number in oldest]

    def _remove(self, number: int) -> None:
        connection = self._connections.pop(number, None)
        if connection is not None:
            self._selector.unregister(connection.fileno())
            connection.close()
        if self._members.by_number.pop(number, None) is not None:
            self._say_members()
        self._ring.drop(number)

    # Messages to consumers, under the lock --------------------------------------------------------

    def _announce(self, message: wire.Json) -> None:
        with self._changed:
            self._announced.append(message)
            for member in self._members.all():
                self._send(member, message)

    def _say_members(self, more: int = 0) -> None:
        for member in self._members.all():
            self._send(member, {"members": len(self._members.by_number) + more})

    def _send_begin(self, member: Member) -> None:
        assert self._plan is not None
        epoch = self._plan.epoch
        random = self._randoms[epoch]
        begin = {"begin": epoch, "first": member.first, "random": random, "base": self._base}
        self._send(member, {**begin, "loop": member.loop, **self._sizes})
        if self._arena is not None:
            self._send_arena(member)

    def _send_arena(self, member: Member) -> None:
        assert self._arena is not None
        if member.generation == self._generation:
            return
        member.generation = self._generation
        sizes = {"slots": self._arena.slots, "slot_bytes": self._arena.slot_bytes}
        self._send(member, {"arena": self._generation, **sizes}, self._arena.descriptor)

    def _send_slot(self, member: Member, filled: Filled) -> None:
        lag = filled.number - min(
            (held.number for m in self._members.in_epoch() for held in self._held(m)),
            default=filled.number,
        )
        member.sent, member.starved = filled.number, False
        number, json_bytes = filled.number, filled.json_bytes
        slot = wire.Slot(
            self._generation, filled.slot, number, json_bytes, self._ring.in_use, max(0, lag)
        )
        try:
            self._connections[member.number].send_slot(slot)
        except wire.Closed:
            pass  # the other thread removes it

    def _held(self, member: Member) -> list[Filled]:
        return self._ring.held_by(member.number)[:1]

    def _send(self, member: Member, message: wire.Json, descriptor: int = -1) -> None:
        try:
            self._connections[member.number].send(message, descriptor)
        except wire.Closed:
            pass  # the other thread removes it
