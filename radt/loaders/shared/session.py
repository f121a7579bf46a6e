"""A consumer's connection to its server: starts one if there is none, receives batches as views."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from radt.errors import LoaderError
from radt.home import HOME_VARIABLE, RUNTIME_VARIABLE
from radt.loaders import layout, wire
from radt.loaders.arena import ArenaView
from radt.loaders.layout import Layout
from radt.loaders.shared.cuda import CudaError
from radt.loaders.shared.device import Gpu
from radt.loaders.shared.factory import Factory
from radt.loaders.shared.membership import Ask
from radt.loaders.shared.options import ServerOptions
from radt.run.notices import say, warn_once
from radt.units import duration

#: The server outlives the run that starts it; these are the run's.
_OF_THE_RUN = ("RADT_", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT")
_KEPT = frozenset({HOME_VARIABLE, RUNTIME_VARIABLE, "RADT_EXPERIMENT", "RADT_WORKLOAD"})
#: After so long the server hears that this consumer waits: it may be for slots that scripts keep.
_STARVED_S = 1.0
#: A server that says nothing for this long when it is asked what it does is stopped or hangs.
_ANSWER_S = 10.0
#: A server ends within this time when nobody is left, whatever its loader is at.
_END_S = 3.0
#: A server that has just ended gives its name back before its connections; else this soon.
_RETRY_S = 0.01
_TRIES = 500
#: Servers that end at once are started no more often than this.
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
    """The epoch has ended; ``random`` is the state at the next one's beginning."""

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
    """The server is gone; another one may go on."""

    def __init__(self, members: int, *, asked_to_end: bool) -> None:
        super().__init__()
        self.members, self.asked_to_end = members, asked_to_end


@dataclass(slots=True)
class _Generation:
    """A mapped arena, and how many of its slots somebody here still uses."""

    view: ArenaView
    held: set[int] = field(default_factory=set)


class Session:
    """One connection; a restart makes another.

    Args:
        factory: Makes the loader, in the server.
        options: Of the server, if this consumer starts it.
        device: The GPU where batches are to be; None for the machine's memory.
        mutable: See `ArenaView`; on a GPU, whether batches are copies.
        stall_warning_s: Say what is waited for after so long.
        expected: How many consumers the server before had; 0 if there was none.

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
        self._gpu = Gpu(device, self._free) if device is not None else None
        self._factory, self._options, self._mutable = factory, options, mutable
        self._stall_warning_s, self._expected = stall_warning_s, expected
        self._generations: dict[int, _Generation] = {}
        self._current = 0
        self._copies = False
        #: How many consumers the server has, as far as it has said.
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

    def _connected(self) -> wire.Connection:
        name = self._options.scoped_name()
        starts = 0
        for _ in range(_TRIES):
            if starts < _STARTS and (listening := wire.listener(name)) is not None:
                starts += 1
                self._own_server = _start_server(self._factory, self._options, listening)
            connection = wire.connect(name)
            if connection is not None:
                self._connection = connection
                with contextlib.suppress(wire.Closed):  # it ended before it took us in
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
            raise self._refused(Factory.from_json(answer.json["refused"]))
        self.server_pid, self._buffer = answer.json["welcome"], answer.json["buffer"]
        self.members = answer.json["members"]
        if self.server_pid == os.getpid():
            self._connection.close()
            raise LoaderError(
                f"the server of the shared loader {self._options.name!r} imports this script to "
                "find its factory, and the script opens the loader again",
                'Put what trains under `if __name__ == "__main__":`',
            )

    def _refused(self, other: Factory) -> LoaderError:
        name, own = self._options.name, self._factory
        if (own.file, own.function, own.arguments) == (other.file, other.function, other.arguments):
            return LoaderError(
                f"the shared loader {name!r} is served by {other}, whose file has changed since",
                "Wait until its other consumers have ended, or choose another name",
            )
        return LoaderError(
            f"the shared loader {name!r} is served by {other}, and this script wants {own}",
            "Give them different names, or the same factory with the same arguments",
        )

    # Messages -------------------------------------------------------------------------------------

    def ask(self, ask: Ask) -> None:
        """Ask for an epoch; `next` returns its `Begin` when it begins."""
        self._send({"ask": asdict(ask)})

    def leave(self) -> None:
        """Take no more batches of the epoch under way; those that were sent are released."""
        if self._gpu is not None:
            self._gpu.release(wait=True)
        self._send({"leave": self._taken})

    def wait_until_ready(self) -> None:
        """Return when the server's loader is made.

        Raises:
            LoaderError, Moved: See `next`.
        """
        while not self._ready:
            self._dispatch(self._message())

    def next(self) -> Begin | End | wire.Slot:
        """Return what comes next.

        Raises:
            LoaderError: The server's loader failed, or this consumer was evicted.
            Moved: The server is gone.
        """
        while True:
            if (event := self._dispatch(self._message())) is not None:
                return event

    def _message(self) -> wire.Message:
        """Wait for the next message; where it takes long, ask the server why and say so."""
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
                if because is None:  # what it has waited for
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
        with contextlib.suppress(wire.Closed):  # what it sent before is still to be read
            self._connection.send(message)

    def _dispatch(self, message: wire.Message) -> Begin | End | wire.Slot | None:
        if message.slot is not None:
            return message.slot
        said = message.json
        if "batches" in said:
            self.batches, self.rows, self._ready = said["batches"], said["rows"], True
        match said:
            case {"arena": generation, "slots": slots, "slot_bytes": slot_bytes}:
                view = ArenaView(message.descriptor, slots, slot_bytes, mutable=self._mutable)
                self._generations = {generation: _Generation(view)}
            case {"begin": epoch, "first": first, "random": random}:
                self._base = said["base"]
                return Begin(epoch, first, random, said["loop"])
            case {"end": epoch, "random": random}:
                return End(epoch, random)
            case {"places": _} | {"placed": _} | {"no_gpu": _}:
                return self._told_of_gpu(message)
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

    def _told_of_gpu(self, message: wire.Message) -> wire.Placed | None:
        assert self._gpu is not None
        match message.json:
            case {"placed": placed}:
                return wire.Placed(**placed)
            case {"no_gpu": why}:
                self._note_no_gpu(why)
            case {"places": sizes}:
                try:
                    self._gpu.open(message.descriptor, **sizes)
                except CudaError as error:
                    self._note_no_gpu(f"this process cannot map the server's memory: {error}")
                    self._send({"no_gpu": True})
        return None

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
        if gpu is not None and gpu.is_open and isinstance(slot, wire.Placed):
            batch = gpu.read(generation.view.slot(slot.slot, lambda: None), slot, gone)
            if self._mutable or too_many:
                batch = layout.mapped(batch, torch.Tensor.clone, lambda array: array)
        else:
            bytes_ = generation.view.slot(slot.slot, released)
            described = Layout.from_json(bytes_[len(bytes_) - slot.json_bytes :])
            batch = (layout.copy if too_many else layout.read)(described, bytes_)
            batch = gpu.moved(batch) if gpu is not None else batch
        return Given(slot.number - self._base, batch, slot.in_use, slot.lag)

    def _free(self, slot: wire.Slot) -> None:
        with contextlib.suppress(wire.Closed, OSError):
            self._connection.send_slot(slot)

    def close(self) -> None:
        """Leave the server; batches that are still held stay as they are."""
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
        """Wait for the end of a server that this process started, if nobody else uses it.

        radt ends what a run leaves behind, and says so.
        """
        linger_s = self._options.linger_s
        if self._own_server is None or self.members > 1 or linger_s is None or linger_s > _END_S:
            return
        self._own_server.join(linger_s + _END_S)


def _start_server(
    factory: Factory, options: ServerOptions, listening: socket.socket
) -> threading.Thread:
    """Start a server that takes over a listening socket; return a thread that ends with it."""
    where = f"{factory.file}:{factory.function}"
    command = [sys.executable, "-P", "-m", "radt.loaders.serve", where, "--name", options.name]
    read_end, write_end = os.pipe()
    try:
        process = subprocess.Popen(
            [*command, "--listener", str(listening.fileno())],
            stdin=read_end,
            env=_server_environment(os.environ),
            pass_fds=[listening.fileno()],
            start_new_session=True,
        )
        os.write(
            write_end,
            json.dumps({"factory": factory.to_json(), "options": asdict(options)}).encode(),
        )
    except OSError as error:
        raise LoaderError(
            f"the server of the shared loader {options.name!r} cannot be started: {error}",
            "Start it yourself with `python -m radt.loaders.serve`",
        ) from error
    finally:
        os.close(read_end)
        os.close(write_end)
        listening.close()
    # Somebody has to take note of its end.
    thread = threading.Thread(target=process.wait, name="radt-loader-server", daemon=True)
    thread.start()
    return thread


def _server_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environ.items()
        if name in _KEPT or not name.startswith(_OF_THE_RUN)
    }


def _readable(connection: wire.Connection, timeout_s: float) -> bool:
    poller = select.poll()
    poller.register(connection.fileno(), select.POLLIN)
    wait_ms = None if timeout_s == math.inf else max(0.0, timeout_s) * 1000
    return bool(poller.poll(wait_ms))
