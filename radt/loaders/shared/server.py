"""The loader server: loads each batch once and hands it to all consumers.

It has two threads. The main thread (`loading`) calls the factory and loads, as data loaders expect
to run in a main thread; it may spend long in user code. The other one (here) answers consumers, and
ends the process when no consumer is left. They share a `ServerState`, under one lock.

::

    consumer                                    server
    {"hello": factory, ...}               ──▶   welcome, or refused
    {"ask": epoch, ...}                   ──▶   begin, when all consumers have asked
                                          ◀──   members, whenever their number changes
                                          ◀──   arena with its descriptor, when it is new
                                          ◀──   slot: each batch
                                          ◀──   places with their descriptor, and each batch's
                                                place, if it wants them on its GPU; or no_gpu: why
    {"slot": values}, when done with it   ──▶   the slot is free when all are done
    {"leave": number}  (loop was left)    ──▶
                                          ◀──   end, with the next epoch's random state
    bye  (its script keeps batches)       ──▶
    {"waiting": seconds, ...}             ──▶   because: why it waits
    {"replace": factory}  (a service)     ──▶   the listening socket; all others are moved
                                          ◀──   failed, evicted, moved: the last message
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
import threading
import time
import traceback

from radt.errors import LoaderError
from radt.lazy import large_import
from radt.loaders import wire
from radt.loaders.shared.factory import Factory
from radt.loaders.shared.membership import WINDOW_HOLDER, Ask, Join, Member
from radt.loaders.shared.starting import ServerOptions
from radt.loaders.shared.state import TICK_S, ServerEndError, ServerState
from radt.processes import die_with_parent
from radt.units import duration

#: Maximum length of a traceback in a message. Its end says what went wrong.
_MOST_TRACEBACK = 10_000
#: Time within which a previous server's consumers reconnect.
_RETURN_S = 10.0
#: Time for user code to return before the server is killed.
_END_S = 2.0


class LoaderServer:
    """A loader server; see the module's docstring.

    Args:
        factory: Makes the loader.
        options: Its options.
        listening: The socket that consumers connect to.
        is_service: It was not started by a consumer, and is not replaced by another service.
    """

    def __init__(
        self, factory: Factory, options: ServerOptions, listening: socket.socket, is_service: bool
    ) -> None:
        self._factory, self._state, self._listening = factory, ServerState(options), listening
        self._listening.setblocking(False)
        self._is_service, self._terminated, self._replaced = is_service, False, False
        self._count = 0  # number of connections so far

    def run(self) -> int:
        """Serve until no consumer is left. Return the exit code."""
        state = self._state
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._terminate)
        os.register_at_fork(after_in_child=_end_with_server)
        signal.set_wakeup_fd(state.wake.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._control, name="control", daemon=True).start()
        try:
            with large_import():
                from radt.loaders.shared.loading import Loading  # imports torch

            Loading(state, self._factory).run()
        except ServerEndError:
            pass
        except BaseException as error:  # noqa: BLE001 - every consumer raises it
            _ignore_workers()
            if not self._terminated:  # else its workers were told to end, too
                text = "".join(traceback.format_exception(error))[-_MOST_TRACEBACK:]
                known = error if isinstance(error, LoaderError) else LoaderError("")
                state.fail(known.message, known.remedy, text)
            with state.changed:
                while not state.ending:
                    state.changed.wait()
        return 1 if state.failed else 0

    def _terminate(self, *_: object) -> None:
        """Note that the process must end. The wake-up descriptor also tells the other thread."""
        self._terminated = True

    # The other thread: consumers ------------------------------------------------------------------

    def _control(self) -> None:
        """Answer consumers, and end the process."""
        try:
            self._answer()
        except BaseException:  # noqa: BLE001 - without this thread, consumers would get no answer
            traceback.print_exc()
        self._end_process()

    def _answer(self) -> None:
        state = self._state
        with selectors.DefaultSelector() as self._selector:
            self._selector.register(self._listening, selectors.EVENT_READ, None)
            self._selector.register(state.woken, selectors.EVENT_READ, None)
            alone_since = time.monotonic()
            while True:
                wait_s = TICK_S
                with state.changed:
                    if state.connections:
                        alone_since = time.monotonic()
                    elif state.failed:
                        break
                    elif state.options.linger_s is not None:
                        wait_s = alone_since + state.options.linger_s - time.monotonic()
                        if wait_s <= 0:
                            break
                for key, _ in self._selector.select(wait_s):
                    if key.fileobj is self._listening:
                        self._accept()
                    elif key.fileobj is state.woken:
                        if {signal.SIGTERM, signal.SIGINT} & set(state.woken.recv(4096)):
                            return self._move()
                    else:
                        self._receive(key.data)
                if self._replaced:
                    return self._move()
        return self._listening.close()  # a consumer that arrives now starts another server

    def _end_process(self) -> None:
        """Ask the main thread to end. If it does not, kill the process and its workers."""
        state = self._state
        with state.changed:
            state.ending = True
            state.changed.notify_all()
        time.sleep(_END_S)  # a daemon thread: usually the process ends during this sleep
        if os.getpid() == os.getpgrp():
            os.killpg(os.getpgrp(), signal.SIGKILL)
        os._exit(1)

    def _move(self) -> None:
        """Tell consumers to continue with another server, as this process must end."""
        state = self._state
        self._listening.close()
        with state.changed:
            state.send_all({"moved": len(state.connections)})

    def _accept(self) -> None:
        if (connection := wire.accept(self._listening)) is None:
            return
        with self._state.changed:
            self._count += 1
            self._state.connections[self._count] = connection
        self._selector.register(connection.fileno(), selectors.EVENT_READ, self._count)

    def _receive(self, number: int) -> None:
        """Handle all messages that a consumer has sent."""
        state = self._state
        with state.changed:
            try:
                while (connection := state.connections.get(number)) is not None:
                    message = connection.receive()
                    if message is None:
                        break
                    self._obey(number, message.json)
                if connection is not None:
                    connection.flush()  # it has read, so its socket has space again
            except wire.Closed:
                self._remove(number)
            except (KeyError, TypeError, ValueError):  # not our message; others continue
                traceback.print_exc()
                self._remove(number)
            state.changed.notify_all()

    def _obey(self, number: int, message: wire.Json) -> None:
        state = self._state
        match message:
            case {"slot": values}:
                slot = wire.Slot(*values)
                if slot.generation == state.generation:
                    state.ring.release(slot.slot, number)
            case {"hello": factory} | {"replace": factory} if not self._factory.same_as(
                Factory.from_json(factory)
            ):
                state.connections[number].send({"refused": self._factory.to_json()})
                self._remove(number)
            case {"hello": _, "consumer": name, "expected": expected, "gpu": gpu}:
                self._welcome(Member(number, name, gpu=gpu), expected)
            case {"no_gpu": True}:
                state.members.by_number[number].gpu = None
            case {"ask": ask}:
                member = state.members.by_number[number]
                member.ask = Ask(**{**ask, "join": Join(ask["join"])})
                member.loop = member.ask.loop
                self._join(member)
            case {"leave": taken}:
                member = state.members.by_number[number]
                member.first = member.ask = None
                member.sent = taken
                state.ring.drop(number, after=taken)
            case {"bye": True}:
                state.retired = True
            case {"replace": _}:
                self._hand_over(number)
            case {"waiting": waited_s, "taken": taken}:
                member = state.members.by_number[number]
                member.starved = taken == member.sent  # otherwise a batch is in transit
                self._explain(member, waited_s)

    def _welcome(self, member: Member, expected: int) -> None:
        state = self._state
        state.members.by_number[member.number] = member
        if expected and not state.plan:
            state.members.expected = max(state.members.expected, expected)
            state.return_deadline = state.return_deadline or time.monotonic() + _RETURN_S
        members = len(state.members.by_number)
        for other in state.members.all():  # others learn of it before it can act on their knowing
            if other is not member:
                state.send(other, {"members": members})
        welcome = {"welcome": os.getpid(), "buffer": state.options.buffer, "members": members}
        state.send(member, welcome)
        for message in state.announced:
            state.send(member, message)

    def _hand_over(self, number: int) -> None:
        """Give a service the socket that consumers connect to. They follow it."""
        connection = self._state.connections[number]
        if self._is_service or self._replaced:
            connection.send({"refused": None})
        else:
            connection.send({"replaced": True}, self._listening.fileno())
            self._replaced = True
        self._remove(number)

    def _join(self, member: Member) -> None:
        """Let a consumer join the current epoch, if it may."""
        state = self._state
        ask, plan = member.ask, state.plan
        if ask is None or plan is None:
            return
        if ask.epoch == plan.epoch and ask.batch >= state.number:
            first = ask.batch
        elif ask.join is Join.WINDOW and state.window_open:
            first = ask.batch if ask.epoch == plan.epoch else plan.first
        elif ask.join is Join.NOW:
            first = state.number
        else:
            return
        member.ask, member.first = None, first
        state.send_begin(member)
        for filled in state.ring.held_by(WINDOW_HOLDER):
            if filled.number >= state.base + first:
                state.ring.hold(filled.slot, member.number)
                state.send_slot(member, filled)

    def _explain(self, member: Member, waited_s: float) -> None:
        """Tell a consumer what it waits for. After the timeout, evict consumers that block it."""
        state = self._state
        timeout_s = state.options.stall_timeout_s
        culprits = self._culprits(member)
        too_long = timeout_s is not None and waited_s >= timeout_s
        since = state.loading_since
        if since is not None:
            what = f"loading batch {state.number}" if state.ready else "made"
            because = f"the loader has been {what} for {duration(time.monotonic() - since)}"
            if too_long and time.monotonic() - since >= (timeout_s or 0.0):
                state.fail(because, "Look where it waits", _main_thread())
                return
        elif culprits:
            names = ", ".join(culprit.name for culprit in culprits)
            because = f"it waits for {names}"
        else:
            because = ""
        state.send(member, {"because": because, "server": os.getpid()})
        if too_long:
            for culprit in culprits:
                state.send(culprit, {"evicted": f"others waited for it for {duration(waited_s)}"})
                state.retired = True
                self._remove(culprit.number)

    def _culprits(self, waiting: Member) -> list[Member]:
        """Return the consumers that block this one."""
        state = self._state
        if not state.ready:
            return []
        if state.plan is None:
            return [m for m in state.members.waited_for() if m is not waiting]
        if waiting.first is None:
            return state.members.in_epoch()
        oldest = state.ring.holders_of_oldest() - {waiting.number}
        return [m for m in state.members.in_epoch() if m.number in oldest]

    def _remove(self, number: int) -> None:
        state = self._state
        connection = state.connections.pop(number, None)
        if connection is not None:
            self._selector.unregister(connection.fileno())
            connection.close()
        if state.members.by_number.pop(number, None) is not None:
            state.send_all({"members": len(state.members.by_number)})
        state.ring.drop(number)


def _ignore_workers() -> None:
    """Stop torch's handler from raising an error for the end of each worker."""
    with contextlib.suppress(RuntimeError):  # raised for a worker that has just ended
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _end_with_server() -> None:
    """Make a forked worker end with the server: the kernel kills it, whatever it is doing."""
    die_with_parent()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


def _main_thread() -> str:
    """Return the main thread's current stack as a traceback."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001
    return "".join(traceback.format_stack(frame)) if frame is not None else ""
