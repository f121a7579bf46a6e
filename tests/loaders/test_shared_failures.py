"""`SharedLoader` when something fails: one clear error in every consumer, and nobody waits."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from radt.errors import LoaderError, UsageError
from radt.loaders import SharedLoader, wire
from radt.loaders.scope import scoped
from radt.loaders.shared import session
from radt.loaders.shared.starting import start_server
from tests.support.shared_loading import (
    Consumer,
    Taker,
    epoch_of,
    expected,
    make_error,
    make_faulty,
    make_huge,
    make_nothing,
    make_planned,
    make_random,
    message_waits,
    name_of_its_own,
    server_of,
    shared,
)
from tests.support.waiting import TIMEOUT_S, alive, stands_still, wait_until

pytestmark = pytest.mark.usefixtures("forked_servers")


def failing(*arguments: Any, **options: Any) -> tuple[list[Any], LoaderError]:
    """Return what a shared loader gives before it fails, and the error."""
    given = []
    with SharedLoader(*arguments, linger_s=0.1, **options) as loader:
        with pytest.raises(LoaderError) as raised:
            given.extend(loader)
        with pytest.raises(LoaderError) as again:
            next(iter(loader))
        assert again.value is raised.value
    return given, raised.value


def test_a_data_set_that_raises_fails_every_consumer_after_the_batches_before() -> None:
    name, arguments = name_of_its_own(), {"bad": "raises", "workers": 1}
    loaders = [SharedLoader(make_faulty, name=name, arguments=arguments) for _ in range(3)]
    takers = [Taker(loader) for loader in loaders]
    for taker in takers:
        taker.start()
    for taker in takers:
        with pytest.raises(LoaderError) as raised:
            taker.result()
        assert "ZeroDivisionError: the picture is broken" in str(raised.value)
        assert "shared_loading.py" in str(raised.value)  # where: its traceback
        assert taker.indices == [[[0, 1], [2, 3], [4, 5], [6, 7]]]
    wait_until(lambda: not alive(takers[0].server), "the server's end")


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("workers", [0, 1])
def test_what_cannot_be_sent_is_named(workers: int) -> None:
    arguments = {"bad": "generator", "workers": workers}
    given, error = failing(make_faulty, name=name_of_its_own(), arguments=arguments)
    assert "batch[0][0], a generator, cannot be shared" in str(error)
    assert "collate_fn" in str(error)
    assert len(given) == 4


def test_a_worker_that_is_killed_fails_every_consumer() -> None:
    arguments = {"bad": "dies", "workers": 1}
    _, error = failing(make_faulty, name=name_of_its_own(), arguments=arguments)
    # torch has several errors for it; one is raised by a signal handler, wherever the server is.
    assert re.search(r"dataloader\.py|DataLoader worker \(pid", str(error))


def test_a_data_set_that_hangs_fails_after_the_time_given() -> None:
    name, arguments = name_of_its_own(), {"bad": "hangs"}
    with SharedLoader(
        make_faulty, name=name, arguments=arguments, stall_timeout_s=3.0, linger_s=0.1
    ) as loader:
        len(loader)
        server = server_of(loader)
        with pytest.raises(LoaderError, match="has been loading batch 4 for") as raised:
            epoch_of(loader)
    assert "_hang" in str(raised.value)  # where it hangs
    wait_until(lambda: not alive(server), "the server's end")


@pytest.mark.quick_variants(2)
@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (make_error, "FileNotFoundError: no folder of pictures"),
        (make_nothing, "returned a NoneType, which is not a loader"),
        (make_huge, "a shared loader needs 422 TB of memory"),
    ],
)
def test_a_factory_that_fails_fails_every_consumer(factory: Any, message: str) -> None:
    name = name_of_its_own()
    takers = [Taker(SharedLoader(factory, name=name)) for _ in range(2)]
    for taker in takers:
        taker.start()
    for taker in takers:
        with pytest.raises(LoaderError, match=message):
            taker.result()


def test_a_factory_that_another_process_cannot_find_is_refused() -> None:
    def local() -> list[Any]:
        return []

    for factory, arguments in ((local, {}), (make_planned, {"samples": object()})):
        with pytest.raises(LoaderError, match=r"cannot find|not JSON values"):
            SharedLoader(factory, name=name_of_its_own(), arguments=arguments)


def test_another_factory_under_the_same_name_is_refused_with_both() -> None:
    name = name_of_its_own()
    with shared(9, 2, name=name) as loader:
        for factory, arguments in (
            (make_planned, {"samples": 10, "batch_size": 2}),
            (make_error, {}),
        ):
            with pytest.raises(LoaderError) as raised:
                SharedLoader(factory, name=name, arguments=arguments)
            assert "make_planned(batch_size=2, samples=9)" in str(raised.value)
            assert factory.__name__ in str(raised.value)
        assert epoch_of(loader) == expected(9, 2)  # the first one does not notice


def test_a_script_that_changed_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "my_pictures.py"
    script.write_text("def make():\n    return [1, 2]\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    import my_pictures  # type: ignore[import-not-found]

    with SharedLoader(my_pictures.make, name="pictures", linger_s=0.1) as loader:
        assert list(loader) == [1, 2]
        script.write_text("def make():\n    return [1, 2, 3]\n", encoding="utf-8")
        with pytest.raises(LoaderError, match="whose file has changed since"):
            SharedLoader(my_pictures.make, name="pictures")
    sys.modules.pop("my_pictures")


def test_a_script_that_its_server_cannot_import_without_training_is_told(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(
        "from radt.loaders import SharedLoader\n"
        "def make():\n    return [1, 2]\n"
        "with SharedLoader(make, name='unguarded', linger_s=0.1) as loader:\n"
        "    print(list(loader))\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 1
    assert 'Put what trains under `if __name__ == "__main__":`' in done.stderr


def test_a_consumer_that_is_killed_is_not_waited_for() -> None:
    name = name_of_its_own()
    with shared(20, 2, name=name) as loader:
        idle, asked, holding, done = (Consumer(name, 20, 2) for _ in range(4))
        batches = iter(loader)
        for consumer in (asked, holding, done):
            consumer.tell("ask")
            consumer.answer()
        idle.kill()  # before it asks for the epoch
        got = [next(batches)[1].tolist()]
        for consumer in (holding, done):
            consumer.tell("take")
            assert consumer.answer() == got[0]
        done.tell("drop")
        done.answer()
        for consumer in (asked, holding, done):
            consumer.kill()
        got += [batch[1].tolist() for batch in batches]
        assert got == expected(20, 2)
        assert epoch_of(loader) == expected(20, 2, epoch=1)


def test_who_comes_when_all_others_were_killed_starts_anew_and_nothing_is_left() -> None:
    name = name_of_its_own()
    consumer = Consumer(name, 20, 2)
    consumer.tell("ask")
    consumer.answer()
    consumer.tell("take")
    assert consumer.answer() == expected(20, 2)[0]
    [server] = psutil.Process(consumer.process.pid).children()
    consumer.kill()
    wait_until(lambda: not alive(server.pid), "the server's end")
    with shared(20, 2, name=name) as loader:
        assert epoch_of(loader) == expected(20, 2)


def test_who_is_stopped_is_waited_for_and_named(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "start_server", start_server)  # it writes to our descriptors
    name = name_of_its_own()
    loader = shared(20, 2, name=name, stall_warning_s=1.0)
    len(loader)
    consumer = Consumer(name, 20, 2)
    os.kill(consumer.process.pid, signal.SIGSTOP)
    wait_until(lambda: stands_still(consumer.process.pid), "its stop")
    taker = Taker(loader)
    taker.start()
    wanted = f"(process {consumer.process.pid})"
    wait_until(lambda: wanted in _errors(capfd), "the warning")
    assert not taker.indices[0]
    os.kill(consumer.process.pid, signal.SIGCONT)
    consumer.tell("close")
    assert taker.result() == [expected(20, 2)]
    consumer.end()


_read: list[str] = []


def _errors(capfd: pytest.CaptureFixture[str]) -> str:
    _read.append(capfd.readouterr().err)
    return "".join(_read)


def test_who_holds_up_others_for_too_long_is_evicted() -> None:
    name = name_of_its_own()
    with shared(20, 2, name=name, stall_timeout_s=3.0) as slow:
        batches = iter(slow)
        other = Taker(shared(20, 2, name=name, stall_timeout_s=3.0))
        other.start()
        held = next(batches)  # and no more: a debugger, say
        assert other.result() == [expected(20, 2)]
        assert held[1].tolist() == expected(20, 2)[0]
        with pytest.raises(LoaderError, match="goes on without this process"):
            list(batches)


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("taken", [4, 10])
def test_consumers_of_a_killed_server_say_where_they_were(taken: int) -> None:
    with shared(20, 2) as loader:
        batches = iter(loader)
        for _ in range(taken):
            next(batches)
        if taken == 10:
            wait_until(lambda: message_waits(loader), "the end of the epoch")
        server = psutil.Process(server_of(loader))
        server.kill()
        wait_until(lambda: not alive(server.pid), "its end")
        if taken == 10:
            assert list(batches) == []  # the end came before
            batches = iter(loader)
        with pytest.raises(LoaderError, match=r"was killed at epoch \d after \d+ batches"):
            list(batches)


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize(
    ("number", "taken"),
    [(signal.SIGKILL, 0), (signal.SIGKILL, 3), (signal.SIGKILL, 10), (signal.SIGTERM, 4)],
)
def test_consumers_go_on_with_a_new_server_from_the_next_batch(
    number: signal.Signals, taken: int
) -> None:
    name = name_of_its_own()
    # One that is asked to end (its first consumer's run is over) is always followed by another.
    restart = number == signal.SIGKILL
    loaders = [shared(20, 2, name=name, restart=restart, own_size=size) for size in (None, 2, None)]
    orders = [[i for e in range(2) for b in expected(20, 2, e) for i in b]] * 3
    begun = [iter(loader) for loader in loaders]
    got: list[list[int]] = [[], [], []]
    held = None
    for _ in range(taken):
        for indices, batches in zip(got, begun, strict=True):
            held = next(batches, None)
            indices += [] if held is None else held[1].tolist()
    del held
    server = psutil.Process(server_of(loaders[0]))
    server.send_signal(number)
    wait_until(lambda: not alive(server.pid), "its end")
    takers = [
        Taker(loader, 2, batches=batches) for loader, batches in zip(loaders, begun, strict=True)
    ]
    for taker in takers:
        taker.start()
    for indices, taker, order in zip(got, takers, orders, strict=True):
        rest = [i for epoch in taker.result() for batch in epoch for i in batch]
        assert indices + rest == order


def test_a_new_server_does_not_wait_for_who_left_the_one_before() -> None:
    name = name_of_its_own()
    with shared(40, 1, name=name) as first, shared(40, 1, name=name) as second:
        third = shared(40, 1, name=name)
        loops = [iter(loader) for loader in (first, second, third)]
        for batches in loops:
            next(batches)
        third.close()
        os.kill(server_of(first), signal.SIGTERM)
        taker = Taker(second, batches=loops[1])
        taker.start()
        assert [batch[1].tolist() for batch in loops[0]] == expected(40, 1)[1:]
        assert first._session is not None
        assert first._session._expected == 2  # not 3, as when the epoch began
        assert taker.result() == [expected(40, 1)[1:]]


def test_who_comes_back_late_to_a_new_server_goes_on_where_it_was() -> None:
    name, arguments = name_of_its_own(), {"samples": 20, "batch_size": 2}

    def opened() -> SharedLoader:
        return SharedLoader(make_random, name=name, arguments=arguments, linger_s=0.1)

    plain = make_random(**arguments)
    order = [[batch[0].tolist() for batch in plain] for _ in range(2)]
    late = [opened(), opened()]
    loops = [iter(loader) for loader in late]
    for batches in loops:
        assert [next(batches)[0].tolist() for _ in range(3)] == order[0][:3]
    server = server_of(late[0])
    os.kill(server, signal.SIGTERM)
    wait_until(lambda: not alive(server), "its end")
    with opened() as early:  # it has the new server to itself: nobody has come back
        assert [batch[0].tolist() for batch in early] == order[0]
        takers = [Rest(loader, 2, begun) for loader, begun in zip(late, loops, strict=True)]
        for taker in takers:
            taker.start()
        wait_until(lambda: all(server_of(one) != server for one in late), "their coming")
        takers.append(Rest(early, 1))
        takers[-1].start()
        found = [taker.result() for taker in takers]
    rest = [order[0][3:], order[1]]
    assert found == [rest, rest, order[1:]]


class Rest(threading.Thread):
    """Takes some epochs, the first of which may have begun, and closes the loader."""

    def __init__(self, loader: SharedLoader, epochs: int, batches: Any = None) -> None:
        super().__init__(daemon=True)
        self.loader, self.epochs, self.batches = loader, epochs, batches
        self.found: list[list[Any]] = []

    def run(self) -> None:
        with self.loader:
            for _ in range(self.epochs):
                batches = self.loader if self.batches is None else self.batches
                self.found.append([batch[0].tolist() for batch in batches])
                self.batches = None

    def result(self) -> list[list[Any]]:
        self.join(TIMEOUT_S)
        assert not self.is_alive(), "it hangs"
        return self.found


def test_the_end_of_a_server_is_waited_for_if_nobody_else_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "_END_S", TIMEOUT_S)  # a busy machine ends it late
    name = name_of_its_own()
    first, second = shared(20, 2, name=name), shared(20, 2, name=name)
    loops = [iter(first), iter(second)]
    for batches in loops:
        next(batches)
    server = server_of(first)
    second.close()
    assert len(list(loops[0])) == 9  # so the server has noticed
    first.close()
    assert not alive(server)


def test_the_end_of_a_server_that_others_use_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = name_of_its_own()
    first = shared(20, 2, name=name)
    batches = iter(first)
    next(batches)
    with shared(20, 2, name=name) as second:
        assert first._session is not None

        def join(self: threading.Thread, timeout: float | None = None) -> None:
            raise AssertionError("it waits")

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "join", join)
            first.close()
        assert epoch_of(second) == expected(20, 2)


def test_a_loop_that_was_given_up_at_once_leaves_nothing_to_the_next() -> None:
    name = name_of_its_own()
    with shared(20, 2, name=name) as loader:
        len(loader)  # what the server says at first has been read
        for _ in range(3):
            given_up = iter(loader)
            wait_until(lambda: _begun(loader), "the epoch's beginning")
            again = iter(loader)
            assert [batch[1].tolist() for batch in again] == expected(20, 2)
            assert list(given_up) == []
            loader.set_epoch(0)


def _begun(loader: SharedLoader) -> bool:
    """Whether the beginning of an epoch is what the consumer will read next."""
    assert loader._session is not None
    waiting = socket.socket(fileno=os.dup(loader._session._connection.fileno()))
    try:
        return b"begin" in waiting.recv(60_000, socket.MSG_PEEK)
    finally:
        waiting.close()


def test_workers_end_with_their_server_even_if_they_hang() -> None:
    arguments = {"bad": "hangs", "workers": 2}
    with SharedLoader(make_faulty, name=name_of_its_own(), arguments=arguments) as loader:
        batches = iter(loader)
        for _ in range(4):
            next(batches)
        server = psutil.Process(server_of(loader))
        workers = server.children(recursive=True)
        assert len(workers) == 2
        server.kill()
        wait_until(lambda: not any(alive(w.pid) for w in workers), "their end")
        with pytest.raises(LoaderError, match="was killed"):
            list(batches)


def test_a_forked_process_must_open_its_own() -> None:
    with shared(20, 2) as loader:
        batches = iter(loader)
        first = next(batches)
        child = os.fork()
        if not child:
            code = _code_of(lambda: next(batches))
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert first[1].tolist() == expected(20, 2)[0]
        assert [batch[1].tolist() for batch in batches] == expected(20, 2)[1:]
    with pytest.raises(LoaderError, match="is closed"):
        iter(loader)


def test_workers_of_a_consumers_own_loader_do_not_stand_in_for_it() -> None:
    name = name_of_its_own()
    with shared(40, 2, name=name) as loader:
        consumer = Consumer(name, 40, 2)
        consumer.tell("ask")
        consumer.answer()
        taker = Taker(loader)
        taker.start()
        consumer.tell("take")
        assert consumer.answer() == expected(40, 2)[0]
        consumer.tell("fork")
        (worker,) = consumer.answer()
        os.kill(worker, signal.SIGSTOP)  # else it would soon end by itself
        try:
            consumer.kill()
            assert taker.result() == [expected(40, 2)]
            assert alive(worker)
        finally:
            os.kill(worker, signal.SIGKILL)


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize(
    "sent", [b"\1", b"[" * 50_000, b"9" * 5000, b"\xff", b"[]", b'{"ask": NaN}']
)
def test_what_is_not_a_message_ends_its_connection_only(sent: bytes) -> None:
    name = name_of_its_own()
    with shared(20, 2, name=name) as loader:
        batches = iter(loader)
        first = next(batches)
        stranger = wire.connect(scoped(name))
        assert stranger is not None
        with closing(stranger), open(os.devnull) as file:
            socket.send_fds(stranger._socket, [sent], [file.fileno()])
            with pytest.raises(wire.Closed):
                stranger.receive()
        assert [each[1].tolist() for each in (first, *batches)] == expected(20, 2)


def test_names_with_lone_surrogates_are_sent() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        wire.LoaderConnection(ours).send({"path": "b\udcff"})
        message = wire.LoaderConnection(theirs).receive()
        assert message is not None
        assert message.json == {"path": "b\udcff"}


def test_no_socket_is_made_or_closed_while_a_thread_forks() -> None:
    """A child would keep one that is not yet, or not any more, among those which it closes."""
    name = name_of_its_own()
    listening = wire.listener(name)
    assert listening is not None
    stop = threading.Event()

    def connect() -> None:
        while not stop.is_set():
            connection = wire.connect(name)
            accepted = wire.accept(listening)
            assert connection is not None and accepted is not None
            connection.close()
            accepted.close()

    thread = threading.Thread(target=connect)
    thread.start()
    try:
        for _ in range(30):
            if not (child := os.fork()):
                os._exit(any(_is_socket_of(name, number) for number in range(3, 256)))
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        thread.join()
        listening.close()


def _is_socket_of(name: str, number: int) -> bool:
    try:
        with socket.socket(fileno=number) as sock:
            address = sock.getsockname() or sock.getpeername()
    except OSError:
        return False
    return address == wire.address_of(name).encode()


def _code_of(call: Callable[[], object]) -> int:
    try:
        call()
    except LoaderError as error:
        return 7 if "before this process was forked" in str(error) else 8
    return 9


def test_a_state_of_another_loader_and_wrong_options_are_refused() -> None:
    with shared(8, 2) as other:
        state = other.state_dict()
    with shared(9, 2) as loader, pytest.raises(LoaderError, match="not of this shared loader"):
        loader.load_state_dict(state)
    for options in ({"buffer": 0}, {"own_size": 0}):
        with pytest.raises(LoaderError):
            shared(9, 2, **options)
    with pytest.raises(UsageError, match='join is "sometimes", expected "epoch"'):
        shared(9, 2, join="sometimes")
