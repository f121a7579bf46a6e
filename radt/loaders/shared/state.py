"""State that the two threads of a server share under one lock, and messages to consumers."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

from radt.errors import cut
from radt.loaders import wire
from radt.loaders.arena import Arena
from radt.loaders.shared.membership import WINDOW_HOLDER, EpochPlan, Filled, Member, Members, Ring
from radt.loaders.shared.starting import ServerOptions

if TYPE_CHECKING:  # it imports torch
    from radt.loaders.shared.device import Places

#: Interval at which waiting threads check if the server ends.
TICK_S = 1.0


class ServerEndError(BaseException):
    """Raised in the main thread, where it waits, when the server ends."""


class ServerState:
    """Shared state, read and written under ``changed`` except for ``loading_since``."""

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        self.changed = threading.Condition()
        self.connections: dict[int, wire.LoaderConnection] = {}
        self.members = Members()
        #: Deadline for consumers of a previous server to reconnect.
        self.return_deadline = 0.0
        self.ring = Ring(0)
        self.arena: Arena | None = None
        self.generation = 0  # generation of the arena
        #: Places for batches on GPUs, by UUID.
        self.gpus: dict[str, Places] = {}
        #: True while the first batches are kept for late consumers.
        self.window_open = False
        #: True if a departed consumer still uses slots of the arena, which must not be filled.
        self.retired = False
        #: The current epoch.
        self.plan: EpochPlan | None = None
        self.sizes: wire.Json = {}
        self.number = 0  # number of the next batch
        self.base = 0  # number of batches before the epoch
        #: States of random numbers at the starts of epochs.
        self.randoms: dict[int, wire.Json] = {}
        #: Time at which the main thread entered user code; None outside of it.
        self.loading_since: float | None = None
        self.ready = self.ending = self.failed = False
        #: Messages that every consumer gets, including later ones.
        self.announced: list[wire.Json] = []
        kind = socket.SOCK_STREAM | socket.SOCK_NONBLOCK
        self.wake, self.woken = socket.socketpair(socket.AF_UNIX, kind)

    def wait(self) -> None:
        """Wait for a consumer's message. Raise `ServerEndError` if the server ends."""
        if self.ending:
            raise ServerEndError
        self.changed.wait(TICK_S)

    def close_window(self) -> None:
        self.window_open = False
        self.ring.drop(WINDOW_HOLDER)

    def fail(self, message: str, remedy: str | None, trace: str) -> None:
        """Make every consumer raise an error, and end the server."""
        with self.changed:
            self.failed = True
            self.announce({"failed": cut(message), "remedy": remedy, "traceback": trace})
        self.wake.send(b"\0")

    # Messages to consumers ------------------------------------------------------------------------

    def announce(self, message: wire.Json) -> None:
        """Send a message to all consumers, including later ones."""
        with self.changed:
            self.announced.append(message)
            self.send_all(message)

    def send_begin(self, member: Member) -> None:
        assert self.plan is not None
        epoch = self.plan.epoch
        begin = {"begin": epoch, "random": self.randoms[epoch], "base": self.base, **self.sizes}
        self.send(member, {**begin, "first": member.first, "loop": member.loop})
        self.send_arena(member)

    def send_arena(self, member: Member) -> None:
        """Send a consumer the arena, unless it already has it or there is none."""
        if self.arena is not None and member.generation != self.generation:
            member.generation = self.generation
            sizes = {"slots": self.arena.slots, "slot_bytes": self.arena.slot_bytes}
            self.send(member, {"arena": self.generation, **sizes}, self.arena.descriptor)

    def send_slot(self, member: Member, filled: Filled) -> None:
        lag = filled.number - min(
            (held.number for m in self.members.in_epoch() for held in self.ring.held_by(m.number)),
            default=filled.number,
        )
        member.sent, member.starved = filled.number, False
        ids = (self.generation, filled.slot, filled.number, filled.description_bytes)
        places, place = self.gpus.get(member.gpu or ""), None
        if places is not None and places.has(filled):
            place = filled.place
            if member.places_of != self.generation:
                member.places_of = self.generation
                sizes = {"place_bytes": places.place_bytes, "nbytes": places.nbytes}
                self.send(member, {"places": sizes}, places.descriptor)
        slot = wire.Slot(*ids, self.ring.in_use, max(0, lag), place)
        with contextlib.suppress(wire.Closed):  # the other thread removes it
            self.connections[member.number].send_slot(slot)

    def send_all(self, message: wire.Json) -> None:
        for member in self.members.all():
            self.send(member, message)

    def send(self, member: Member, message: wire.Json, descriptor: int = -1) -> None:
        with contextlib.suppress(wire.Closed):  # the other thread removes it
            self.connections[member.number].send(message, descriptor)
