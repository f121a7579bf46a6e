"""A consumer's connection to its server: starts one if needed, receives batches as views."""

from __future__ import annotations

import contextlib
import math
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from radt.errors import LoaderError
from radt.loaders import wire
from radt.loaders.arena import ArenaView
from radt.loaders.layout import Packed
from radt.loaders.scope import scoped
from radt.loaders.shared.cuda import CudaError
from radt.loaders.shared.device import GpuConsumer
from radt.loaders.shared.factory import Factory
from radt.loaders.shared.membership import Ask
from radt.loaders.shared.starting import ServerOptions, start_server
from radt.run.notices import say, warn_once
from radt.units import duration

#: After this time, tell the server that this consumer waits: its script may keep all the slots.
_STARVED_S = 1.0
#: A server that does not answer a question within this time is stopped or hangs.
_ANSWER_S = 10.0
#: A server without consumers ends within this time, whatever its loader is doing.
_END_S = 3.0
#: Retry interval: a server that ends releases its name before its connections, or shortly after.
_RETRY_S = 0.01
_TRIES = 500
#: Maximum number of servers started if each ends at once.
_STARTS = 5


@dataclass(frozen=True, slots=True)
class Begin:
    """An epoch begins for a loop of this consumer."""

    epoch: int
    first: int
    random: wire.Json
    loop: int


@dataclass(frozen=True, slots=True)
class End:
    """The epoch has ended. ``random`` is the state at the start of the next one."""

    epoch: int
    random: wire.Json


@dataclass(frozen=True, slots=True)
class Given:
    """A batch."""

    number: int
    batch: Any
    in_use: int
    lag: int


class Moved(Exception):  # noqa: N818 - an event, not an error
    """The server is gone; another one may continue."""

    def __init__(self, members: int, *, asked_to_end: bool) -> None:
        super().__init__()
        self.members, self.asked_to_end = members, asked_to_end


@dataclass(slots=True)
class _Generation:
    """A mapped arena, and the number of its slots in use here."""

    view: ArenaView
    held: set[int] = field(default_factory=set)


class Session:
    """One connection. After a restart, a new session is created.

    Args:
        factory: Makes the loader, in the server.
        options: Options of the server, if this consumer starts it.
        device: The GPU for batches; None for host memory.
        mutable: See `ArenaView`; on a GPU, whether batches are copies.
        stall_warning_s: Report the cause of a wait after this time.
        expected: Number of consumers of the previous server; 0 if there was none.

    Raises:
        LoaderError: There is no server and none can be started, or it has another factory.
    """

    def __init__(
        self,
        factory: Factory,
        options: ServerOptions,
        *,
        device: torch.device | None,
        mutable: bool,
        stall_warning_s: float,
        expected: int = 0,
    ) -> None:
        self._gpu = GpuConsumer(device, self._free) if device is not None else None
        self._factory, self._options, self._mutable = factory, options, mutable
        self._stall_warning_s, self._expected = stall_warning_s, expected
        self._generations: dict[int, _Generation] = {}
        self._copies = False
        #: Number of consumers of the server, as last reported.
        self.members = 0
        self._base = 0  # the server's number of the epoch's first batch
        self._taken = -1
        #: Numbers of batches and samples of an epoch; None if the loader does not know.
        self.batches: int | None = None
        self.rows: int | None = None
        self._ready = False
        self.server_pid = 0
        self._own_server: threading.Thread | None = None
        self._connection = self._connected()

    def _connected(self) -> wire.LoaderConnection:
        name = scoped(self._options.name)
        starts = 0
        for _ in range(_TRIES):
            if starts < _STARTS and (listening := wire.listener(name)) is not None:
                starts += 1
                self._own_server = start_server(self._factory, self._options, listening)
            connection = wire.connect(name)
            if connection is not None:
                self._connection = connection
                with contextlib.suppress(wire.Closed):  # it ended before it accepted us
                    self._greet()
                    return connection
                connection.close()
            time.sleep(_RETRY_S)
        raise LoaderError(
            f"the server of the shared loader {self._options.name!r} ends again and again as soon "
            "as it has started",
            f"Run `{sys.executable} -m radt.loaders.serve` with this factory to see why",
        )

    def _greet(self) -> None:
        who = f"{os.environ.get('RADT_NAME') or Path(sys.argv[0]).name} (process {os.getpid()})"
        hello = {"hello": self._factory.to_json(), "consumer": who, "expected": self._expected}
        self._connection.send({**hello, "gpu": self._gpu.identity if self._gpu else None})
        answer = self._connection.receive()
        assert answer is not None
        if "refused" in answer.json:
            self._connection.close()
            raise self._factory.refusal(
                self._options.name, Factory.from_json(answer.json["refused"]), "script"
            )
        self.server_pid, self._buffer = answer.json["welcome"], answer.json["buffer"]
        self.members = answer.json["members"]
        if self.server_pid == os.getpid():
            self._connection.close()
            raise LoaderError(
                f"the server of the shared loader {self._options.name!r} imports this script to "
                "find its factory, and the script opens the loader again",
                'Put what trains under `if __name__ == "__main__":`',
            )

    # Messages -------------------------------------------------------------------------------------

    def ask(self, ask: Ask) -> None:
        """Ask for an epoch. `next` returns its `Begin` when it begins."""
        self._send({"ask": asdict(ask)})

    def leave(self) -> None:
        """Give up the rest of the current epoch. Batches in transit are released."""
        if self._gpu is not None:
            self._gpu.release(wait=True)
        self._send({"leave": self._taken})

    def wait_until_ready(self) -> None:
        """Wait until the server's loader is created.

        Raises:
            LoaderError, Moved: See `next`.
        """
        while not self._ready:
            self._dispatch(self._message())

    def next(self) -> Begin | End | wire.Slot:
        """Return the next event.

        Raises:
            LoaderError: The server's loader failed, or this consumer was evicted.
            Moved: The server is gone.
        """
        while True:
            if (event := self._dispatch(self._message())) is not None:
                return event

    def _message(self) -> wire.Message:
        """Wait for the next message. After a while, ask the server for the cause and report it."""
        if self._gpu is not None:
            self._gpu.release(wait=not _readable(self._connection, 0))
        began, timeout_s = time.monotonic(), self._options.stall_timeout_s
        warning_due_s, starved_due_s = self._stall_warning_s, _STARVED_S
        timeout_due_s = math.inf if timeout_s is None else timeout_s
        waited_s = 0.0
        while True:
            due_s = min(starved_due_s, warning_due_s, timeout_due_s)
            if _readable(self._connection, due_s - waited_s):
                return self._received()
            waited_s = time.monotonic() - began
            self._send({"waiting": waited_s, "taken": self._taken})
            starved_due_s = math.inf
            if _readable(self._connection, _ANSWER_S):
                message = self._received()
                because = message.json.get("because")
                if because is None:  # the message it waited for
                    return message
            elif waited_s >= timeout_due_s:
                raise self._stalled(waited_s)
            else:
                because = f"its server (process {self.server_pid}) does not answer"
            if waited_s >= warning_due_s:
                warning_due_s = math.inf
                self._warn(because, waited_s)
            if timeout_s is not None and waited_s >= timeout_due_s:
                timeout_due_s = waited_s + timeout_s

    def _stalled(self, waited_s: float) -> LoaderError:
        return LoaderError(
            f"the server of the shared loader {self._options.name!r} (process {self.server_pid}) "
            f"has not answered for {duration(waited_s)}",
            f"If it is stopped, `kill -CONT {self.server_pid}` lets it go on",
        )

    def _warn(self, because: str, waited_s: float) -> None:
        if because:
            say(
                f"the shared loader {self._options.name!r} has waited for {duration(waited_s)}: "
                f"{because}"
            )

    def _received(self) -> wire.Message:
        try:
            message = self._connection.receive()
        except wire.Closed:
            raise Moved(0, asked_to_end=False) from None
        assert message is not None
        return message

    def _send(self, message: wire.Json) -> None:
        with contextlib.suppress(wire.Closed):  # earlier messages can still be read
            self._connection.send(message)

    def _dispatch(self, message: wire.Message) -> Begin | End | wire.Slot | None:
        said = message.json
        if "batches" in said:
            self.batches, self.rows, self._ready = said["batches"], said["rows"], True
        match said:
            case {"slot": values}:
                return wire.Slot(*values)
            case {"arena": generation, "slots": slots, "slot_bytes": slot_bytes}:
                view = ArenaView(message.descriptor, slots, slot_bytes, mutable=self._mutable)
                self._generations = {generation: _Generation(view)}
            case {"begin": epoch, "first": first, "random": random}:
                self._base = said["base"]
                return Begin(epoch, first, random, said["loop"])
            case {"end": epoch, "random": random}:
                return End(epoch, random)
            case {"places": _} | {"no_gpu": _}:
                self._hear_of_gpu(message)
            case {"members": members}:
                self.members = members
            case {"copy": True}:
                self._copies = True
            case {"moved": members}:
                raise Moved(members, asked_to_end=True)
            case {"failed": text, "remedy": remedy, "traceback": trace}:
                self.close()
                raise self._failure(text, remedy, trace)
            case {"evicted": why}:
                self.close()
                raise LoaderError(
                    f"the shared loader {self._options.name!r} goes on without this process: {why}",
                    "Raise stall_timeout_s, or see what stopped the process",
                )
        return None

    def _hear_of_gpu(self, message: wire.Message) -> None:
        assert self._gpu is not None
        match message.json:
            case {"no_gpu": why}:
                self._note_no_gpu(why)
            case {"places": sizes}:
                try:
                    self._gpu.open(message.descriptor, **sizes)
                except CudaError as error:
                    self._use_no_places(f"this process cannot map the server's memory: {error}")

    def _use_no_places(self, why: str) -> None:
        assert self._gpu is not None
        self._gpu.close()
        self._note_no_gpu(why)
        self._send({"no_gpu": True})

    def _note_no_gpu(self, why: str) -> None:
        warn_once(
            f"the shared loader {self._options.name!r} keeps no batches on the GPU, to which each "
            f"process copies its own: {why}"
        )

    def _failure(self, text: str, remedy: str | None, trace: str) -> LoaderError:
        name = self._options.name
        what = text or f"the shared loader {name!r} failed in its server"
        return LoaderError(
            f"{what}. The server's traceback:\n\n{trace}".rstrip(),
            remedy or f"Correct the loader of {self._factory}",
        )

    # Batches --------------------------------------------------------------------------------------

    def given(self, slot: wire.Slot) -> Given:
        """Return the batch of a slot, as views unless this process holds too many."""
        generation = self._generations[slot.generation]
        generation.held.add(slot.slot)
        self._taken = slot.number
        gpu, process = self._gpu, os.getpid()

        def gone() -> bool:
            generation.held.discard(slot.slot)
            return os.getpid() == process  # a forked process has copies of all views

        def released() -> None:
            if gone():
                self._free(slot)

        too_many = self._copies or len(generation.held) > self._buffer
        if too_many:
            warn_once(
                f"the shared loader {self._options.name!r} copies batches, since this script keeps "
                "some of them; a larger buffer avoids it"
            )
        place = self._place(slot, gone)
        bytes_ = generation.view.slot(slot.slot, released if place is None else lambda: None)
        packed = Packed.in_slot(bytes_, slot.description_bytes)
        if place is not None:
            change = torch.Tensor.clone if self._mutable or too_many else lambda tensor: tensor
            batch = packed.read(change, np.ndarray.copy, place)
        elif gpu is not None:
            batch = packed.read(gpu.moved, np.ndarray.copy)
        else:
            batch = packed.copy() if too_many else packed.read()
        return Given(slot.number - self._base, batch, slot.in_use, slot.lag)

    def _place(self, slot: wire.Slot, gone: Callable[[], bool]) -> torch.Tensor | None:
        """Return the bytes of a batch on the GPU; None if it is only in host memory."""
        if self._gpu is None or not self._gpu.is_open or slot.place is None:
            return None
        try:
            return self._gpu.read(slot, gone)
        except CudaError as error:
            self._use_no_places(f"this process cannot read the server's memory: {error}")
            return None

    def _free(self, slot: wire.Slot) -> None:
        with contextlib.suppress(wire.Closed, OSError):
            self._connection.send_slot(slot)

    def close(self) -> None:
        """Leave the server. Batches in use stay unchanged."""
        if self._connection.fileno() < 0:
            return
        if self._gpu is not None:
            self._gpu.release(wait=True)  # before the server takes the connection's slots back
        if any(generation.held for generation in self._generations.values()):
            self._send({"bye": True})
        with contextlib.suppress(wire.Closed):
            while _readable(self._connection, 0) and (message := self._connection.receive()):
                if message.descriptor >= 0:
                    os.close(message.descriptor)
                self.members = message.json.get("members", self.members)
        self._connection.close()

    def wait_for_own_server(self) -> None:
        """Wait for a server to end that this process started, unless other processes use it.

        radt kills and reports processes that a run leaves behind.
        """
        linger_s = self._options.linger_s
        if self._own_server is None or self.members > 1 or linger_s is None or linger_s > _END_S:
            return
        self._own_server.join(linger_s + _END_S)


def _readable(connection: wire.LoaderConnection, timeout_s: float) -> bool:
    poller = select.poll()
    poller.register(connection.fileno(), select.POLLIN)
    wait_ms = None if timeout_s == math.inf else max(0.0, timeout_s) * 1000
    return bool(poller.poll(wait_ms))
