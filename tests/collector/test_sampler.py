"""A sampler by itself: what it leaves behind when its listener fails in one way or another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from collector_kit import wait_for

from radt.collector.guardian import Heartbeat, ReadingMark
from radt.collector.ledger import ListenerState
from radt.collector.processes import ProcessTable
from radt.collector.protocol import Registration
from radt.collector.runs import RegisteredRun
from radt.collector.sampling import Sampler
from radt.errors import ListenerUnavailableError
from radt.listeners.api import Availability, Listener, Metric, Reading, Target
from radt.model import ListenerChoice, Scope, SeriesKind

NAME = "probing"


class Probing(Listener):
    """Does what the test says."""

    name = NAME
    on_open: Callable[[], None] = staticmethod(lambda: None)
    on_sample: Callable[[], None] = staticmethod(lambda: None)
    closed = 0

    @classmethod
    def probe(cls) -> Availability:
        return Availability(True)

    @classmethod
    def metrics(cls) -> Sequence[Metric]:
        return (Metric("probing.value", "1", Scope.HOST),)

    def open(self) -> None:
        type(self).on_open()

    def sample(self, targets: Sequence[Target]) -> Iterator[Reading]:
        type(self).on_sample()
        yield Reading("probing.value", 1.0)

    def close(self) -> None:
        type(self).closed += 1


@pytest.fixture
def kind() -> type[Probing]:
    return type("Fresh", (Probing,), {})


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Heartbeat]:
    box = Heartbeat(tmp_path / "box")
    yield box
    box.close()


@pytest.fixture
def start(box: Heartbeat) -> Iterator[Callable[..., Sampler]]:
    started: list[Sampler] = []

    def sampler(
        kind: type[Listener],
        *,
        mark: ReadingMark | None = None,
        hung: list[threading.Thread] | None = None,
    ) -> Sampler:
        choice, left = ListenerChoice(NAME, 0.02), [] if hung is None else hung
        made = Sampler(kind, choice, ProcessTable(), mark or box.mark(NAME), 0.1, left)
        started.append(made)
        return made

    yield sampler
    for one in started:
        one.stop()
        one.join(180)


def _unavailable() -> None:
    raise ListenerUnavailableError("gone", "look for it")


def _run() -> RegisteredRun:
    run = RegisteredRun(Registration("r" * 32, "/store", "/spool"), None, buffered_points=1000)
    run.expect(NAME, 0.02)
    run.started(1, time.monotonic_ns())
    return run


def _is_reading(box: Heartbeat) -> bool:
    """Whether a death of the collector now would be put down to the listener."""
    before = box.mark(NAME).strikes
    box.count_strikes()
    return box.mark(NAME).strikes > before


def test_one_that_turns_out_not_to_work_is_not_found_reading(
    kind: type[Probing], start: Callable[..., Sampler], box: Heartbeat
) -> None:
    kind.on_open = staticmethod(_unavailable)
    sampler = start(kind)
    assert sampler.settled.wait(180)
    assert sampler.state is ListenerState.UNAVAILABLE
    sampler.join(180)
    assert not _is_reading(box)


def test_one_that_turns_out_not_to_work_lets_other_suspects_read(
    kind: type[Probing], start: Callable[..., Sampler], box: Heartbeat
) -> None:
    """Listeners that were reading at a death read one at a time."""
    kind.on_open = staticmethod(_unavailable)
    suspect = box.mark(NAME)
    suspect.reading()
    box.count_strikes()
    sampler = start(kind)
    assert sampler.settled.wait(180)
    sampler.join(180)
    assert ReadingMark._suspects.acquire(blocking=False)
    ReadingMark._suspects.release()


def test_what_an_opening_took_before_it_failed_is_let_go(
    kind: type[Probing], start: Callable[..., Sampler]
) -> None:
    kind.on_open = staticmethod(_unavailable)
    sampler = start(kind)
    assert sampler.settled.wait(180)
    sampler.join(180)
    assert kind.closed == 1


def test_a_reading_that_returns_meanwhile_does_not_hang(
    kind: type[Probing], start: Callable[..., Sampler], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread says that it is back between two looks at the time since it is away."""
    sampler = start(kind)
    assert sampler.settled.wait(180)
    sampler._hang_ns = 60 * 10**9  # this test may be held up between two of its lines
    thread = sampler._thread
    thread.busy_since_ns = time.monotonic_ns()
    now_ns = time.monotonic_ns

    def and_it_returns() -> int:
        thread.busy_since_ns = 0
        return now_ns()

    with monkeypatch.context() as patch:
        patch.setattr("radt.collector.sampling.time.monotonic_ns", and_it_returns)
        sampler.check()
    assert sampler._thread is thread


def test_values_are_not_older_than_they_say(
    kind: type[Probing], start: Callable[..., Sampler]
) -> None:
    """A suspect may wait for another one before it reads."""
    asked_ns: list[int] = []

    class Mark:
        strikes = 0

        def reading(self) -> None:
            asked_ns.append(time.monotonic_ns())

        def idle(self) -> None:
            """It has read."""

        def clear(self) -> None:
            """It has proved itself."""

    run = _run()
    sampler = start(kind, mark=Mark())
    sampler.add(run)
    wait_for(lambda: run.waiting_series)
    (column,) = run.take().columns.values()
    assert column.times_ns[0] >= asked_ns[1]  # the first is the opening's


def test_threads_that_hang_do_not_add_up_over_runs(
    kind: type[Probing], start: Callable[..., Sampler]
) -> None:
    hung: list[threading.Thread] = []
    released = threading.Event()
    kind.on_sample = staticmethod(lambda: released.wait() and None)
    first = start(kind, hung=hung)
    first.add(_run())
    wait_for(lambda: first.check() or first.state is ListenerState.DROPPED)
    assert len(hung) == 3
    second = start(kind, hung=hung)
    second.add(_run())
    assert second.settled.wait(180)
    assert second.state is ListenerState.UNAVAILABLE
    assert "have not returned" in second.availability.reason
    released.set()
    for thread in hung:
        thread.join(180)
    third = start(kind, hung=hung)
    assert third.settled.wait(180)
    assert third.state is ListenerState.RUNNING


class Counting(Probing):
    """Has a counter besides what it samples, which nobody waits for: once an hour."""

    counted = 0

    @classmethod
    def metrics(cls) -> Sequence[Metric]:
        return (
            *super().metrics(),
            Metric("probing.energy", "J", Scope.HOST, SeriesKind.COUNTER),
        )

    def counters(self, targets: Sequence[Target]) -> Iterator[Reading]:
        type(self).counted += 1
        yield Reading("probing.energy", 100.0 * type(self).counted)


def test_counters_are_read_as_a_run_begins_and_as_it_ends(box: Heartbeat) -> None:
    choice = ListenerChoice(NAME, 3600.0)
    sampler = Sampler(Counting, choice, ProcessTable(), box.mark(NAME), 60.0, [])
    try:
        assert sampler.settled.wait(120)
        run = RegisteredRun(Registration("r" * 32, "/store", "/spool"), None, buffered_points=1000)
        run.expect(NAME, 3600.0)
        sampler.add(run)
        assert sampler.read_last(run) is None  # it has not begun
        run.started(1, time.monotonic_ns())
        sampler.wake()
        wait_for(lambda: run.waiting_series == 1)
        done = sampler.read_last(run)
        assert done is not None
        assert done.wait(120)
        samples = run.take()
        ((key, column),) = samples.columns.items()
        assert key.metric == "probing.energy"
        assert list(column.values) == [100.0, 200.0]
        # They are no samples that the schedule expects.
        assert all(ledger.received == 0 for ledger in samples.ledgers)
    finally:
        sampler.stop()
        sampler.join(120)
