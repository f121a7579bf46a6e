"""Steps of training: their times by a clock of the test's own, and in real processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from radt.errors import UsageError
from radt.journal.values import JournalSeries
from radt.run import steps
from radt.run.steps import Batches, StepRecorder, first_dimension
from tests.run.conftest import TIME_BEGINS, Joined

MS = 10**6


class Clock:
    """Time that passes only when somebody says so."""

    def __init__(self) -> None:
        self.now_ns = 5 * MS

    def monotonic_ns(self) -> int:
        return self.now_ns

    def spend(self, ms: int) -> None:
        self.now_ns += ms * MS


class Samples:
    """A journal that remembers."""

    def __init__(self) -> None:
        self.written: list[tuple[str, float, int | None]] = []

    def sample(self, name: str, value: float, step: int | None = None) -> None:
        series = JournalSeries.from_name(name)
        assert series is not None
        self.written.append((series.metric, round(value, 9), step))

    def of(self, metric: str) -> list[tuple[float, int | None]]:
        return [(value, step) for name, value, step in self.written if name == metric]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(steps, "time", clock)
    return clock


@pytest.fixture
def samples() -> Samples:
    return Samples()


@pytest.fixture
def recorder(clock: Clock, samples: Samples) -> StepRecorder:
    return StepRecorder(samples)


def loader(clock: Clock, *waits_ms: int, size: int = 4) -> Iterator[list[int]]:
    for wait_ms in waits_ms:
        clock.spend(wait_ms)
        yield [0] * size


def test_batches_tell_waiting_from_working(
    clock: Clock, recorder: StepRecorder, samples: Samples
) -> None:
    for batch in Batches(loader(clock, 100, 300), None, recorder):
        assert len(batch) == 4
        clock.spend(100)
    assert samples.of("step.time") == [(0.2, 1), (0.4, 2)]
    assert samples.of("samples_per_s") == [(round(8 / 0.6, 9), 2)]
    assert samples.of("data_wait") == [(round(0.4 / 0.6, 9), 2)]


def test_rates_are_of_a_second_and_of_the_rest(
    clock: Clock, recorder: StepRecorder, samples: Samples
) -> None:
    for _ in Batches(loader(clock, *[0] * 5), 10, recorder):
        clock.spend(400)
    assert [step for _, step in samples.of("step.time")] == [1, 2, 3, 4, 5]
    assert samples.of("samples_per_s") == [(25, 3), (25, 5)]
    assert samples.of("data_wait") == [(0, 3), (0, 5)]


def test_a_short_rest_of_an_epoch_does_not_weigh_as_much_as_a_second(
    clock: Clock, recorder: StepRecorder, samples: Samples
) -> None:
    for _ in range(3):
        for number, _ in enumerate(Batches(loader(clock, *[0] * 4), 10, recorder)):
            clock.spend(100 if number == 3 else 400)
    # An epoch is 1.2 s and a rest of 0.1 s, which is faster: the next value includes it.
    both = round(40 / 1.3, 9)
    assert samples.of("samples_per_s") == [(25, 3), (both, 7), (both, 11)]


def test_time_between_loops_is_no_step(
    clock: Clock, recorder: StepRecorder, samples: Samples
) -> None:
    for _ in range(2):
        for _ in Batches(loader(clock, 0), 1, recorder):
            clock.spend(10)
        clock.spend(5000)
    recorder.step(1)
    assert samples.of("step.time") == [(0.01, 1), (0.01, 2)]


def test_turn_that_was_broken_off_does_not_count(
    clock: Clock, recorder: StepRecorder, samples: Samples
) -> None:
    for number, _ in enumerate(Batches(loader(clock, *[10] * 5), None, recorder)):
        clock.spend(10)
        if number == 2:
            break
    assert samples.of("step.time") == [(0.02, 1), (0.02, 2)]
    assert samples.of("samples_per_s") == [(200, 2)]
    assert recorder.loops == 0


def test_exceptions_of_the_loader_arrive_and_end_the_loop(
    clock: Clock, recorder: StepRecorder, samples: Samples
) -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise OSError("no data")

    with pytest.raises(OSError, match="no data"):
        for _ in Batches(broken(), 2, recorder):
            clock.spend(10)
    assert (samples.of("step.time"), recorder.loops) == ([(0.01, 1)], 0)


def test_only_the_outermost_loop_counts(
    clock: Clock, recorder: StepRecorder, samples: Samples
) -> None:
    seen = 0
    for _ in Batches(loader(clock, 0), 3, recorder):
        for _ in Batches(loader(clock, 0, 0), 5, recorder):
            clock.spend(10)
            seen += 1
        recorder.step(7)
    assert seen == 2
    assert samples.of("step.time") == [(0.02, 1)]
    assert samples.of("samples_per_s") == [(150, 1)]


def test_batches_are_as_long_as_their_loader(recorder: StepRecorder) -> None:
    assert len(Batches([1, 2, 3], 1, recorder)) == 3
    assert [*Batches(iter("ab"), 1, recorder)] == ["a", "b"]
    with pytest.raises(TypeError):
        len(Batches(iter("ab"), 1, recorder))


def test_steps_count_from_the_begin_of_an_epoch(
    clock: Clock, recorder: StepRecorder, samples: Samples
) -> None:
    recorder.step(8)  # began nobody knows when
    clock.spend(100)
    recorder.step(8)
    recorder.pause()
    clock.spend(60_000)  # evaluation
    recorder.begin()
    clock.spend(50)
    recorder.step(8)
    recorder.pause()
    assert samples.of("step.time") == [(0.1, 2), (0.05, 3)]
    assert samples.of("samples_per_s") == [(80, 2)]
    assert samples.of("data_wait") == []  # not known, rather than 0


def test_steps_without_samples_have_no_throughput(
    clock: Clock, recorder: StepRecorder, samples: Samples
) -> None:
    recorder.begin()
    for size in (None, 6, None):
        clock.spend(500)
        recorder.step(size)
    recorder.pause()
    assert samples.of("samples_per_s") == [(12, 2)]


def test_what_happens_after_a_step_is_no_part_of_the_next(
    clock: Clock, recorder: StepRecorder, samples: Samples
) -> None:
    told: list[tuple[str, int]] = []
    recorder.before_step = lambda number: told.append(("before", number))

    def after(number: int) -> None:
        told.append(("after", number))
        clock.spend(9000)  # a trace is written

    recorder.after_step = after
    for _ in Batches(loader(clock, 0, 0), 1, recorder):
        clock.spend(10)
    recorder.begin()
    for _ in range(2):
        clock.spend(10)
        recorder.step(1)
    assert [value for value, _ in samples.of("step.time")] == [0.01] * 4
    assert told == [("before", 1), *(("after", number) for number in (1, 2, 3, 4))]


@pytest.mark.parametrize(("size", "error"), [(-1, UsageError), ("4", TypeError), (1.5, TypeError)])
def test_samples_are_a_whole_number(recorder: StepRecorder, size: Any, error: type) -> None:
    with pytest.raises(error):
        recorder.step(size)
    with pytest.raises(error):
        Batches([1], size, recorder)
    with pytest.raises(error):
        [*Batches([1], lambda _: size, recorder)]
    assert recorder.loops == 0


class Tensor:
    def __init__(self, *shape: int) -> None:
        self.shape = shape


class Encoding(Mapping[str, Any]):
    """As tokenisers give it: a mapping that is no dict."""

    def __init__(self, **values: Any) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (Tensor(64, 3, 224, 224), 64),
        ((Tensor(64, 3), Tensor(64)), 64),
        ([(Tensor(8, 3),), Tensor(9)], 8),
        ({"x": Tensor(32, 128), "y": 1}, 32),
        (Encoding(ids=[[1, 2], [3, 4]], mask=None), 2),
        (["a", "b", "c"], 3),
        ("text", 4),
        (Tensor(), None),
        ({}, None),
        ([], 0),
        (7, None),
        (None, None),
    ],
)
def test_first_dimension(batch: object, size: int | None) -> None:
    assert first_dimension(batch) == size


def test_steps_of_a_script(joined: Joined) -> None:
    """More than fit into one segment of the journal, in two epochs, and in a forked child."""
    source = (
        "import os, radt\n"
        "with radt.Run() as run:\n"
        "    for epoch in run.epochs(2):\n"
        "        for batch in run.batches([[1, 2, 3]] * 10_000): pass\n"
        "    run.epoch(3)\n"
        "    for _ in range(3): run.step(samples=5)\n"
        "    run.step()\n"
        "    run.epoch(4)\n"
        "    run.step(samples=5)\n"
        "    if os.fork() == 0:\n"
        "        for batch in run.batches([[1, 2]] * 2): pass\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
        "run.step(); run.step()\n"
    )
    _, err = joined.run(source)
    assert err == ("radt: values logged outside of `with radt.Run()` are not recorded\n")
    found = joined.found()
    assert found.steps("step.time") == [*range(1, 20_006)]
    assert all(value > 0 for value in found.values("step.time"))
    assert all(0 <= value <= 1 for value in found.values("data_wait"))
    assert found.steps("samples_per_s")[0] <= 10_000  # the first at the end of an epoch, at most
    assert len(found.values("step.time", "child 1")) == 2
    assert found.dropped == 0


def test_switched_off_steps_do_nothing(joined: Joined) -> None:
    out, err = joined.run(
        "import radt\n"
        "with radt.Run(torch=True) as run:\n"
        "    for batch in run.batches([1, 2]): print(batch)\n"
        "    run.step(4)\n"
        "    with run.profile(): run.step(4)\n",
        RADT_MODE="off",
    )
    assert (out, err) == ("1\n2\n", "")
    assert not joined.run_dir.journal.exists() or not any(joined.run_dir.journal.iterdir())


FOREVER = (
    TIME_BEGINS
    + """\
import radt, radt.run.limits, time
radt.run.limits.GRACE_S = {grace}
def loader():
    yield [1]
    begins.set()
    {forever}
with radt.Run(max_time_s=0.3) as run:
    for batch in run.batches(loader()): pass
    print("not here")
print("behind")
"""
)


@pytest.mark.parametrize(
    ("forever", "grace"),
    [
        ("while True: time.sleep(0.02); yield [1]", "1000"),  # the loop ends at its next step
        ("while True: time.sleep(0.02)", "0.2"),  # it waits for data that do not come
    ],
)
def test_loop_over_batches_ends_with_the_time(joined: Joined, forever: str, grace: str) -> None:
    out, err = joined.run(FOREVER.format(forever=forever, grace=grace))
    assert out == "behind\n"
    assert err == "radt: the run ends here: its limit of 0.3 s is reached\n"
    assert joined.found().values("step.time")


def test_a_step_that_the_script_timed_itself(
    clock: Clock, recorder: StepRecorder, samples: Samples
) -> None:
    recorder.begin()
    clock.spend(700)  # part of it was no step
    recorder.step(4, time_s=0.5, wait_s=0.125)
    recorder.pause()
    assert samples.of("step.time") == [(0.5, 1)]
    assert samples.of("samples_per_s") == [(8.0, 1)]
    assert samples.of("data_wait") == [(0.25, 1)]


def test_epochs_that_a_framework_counts_have_a_total(joined: Joined) -> None:
    joined.run(
        "import radt\n"
        "with radt.Run() as run:\n"
        "    run.epoch(1, total=3)\n"
        "    run.epoch(2, total=3)\n"
    )
    found = joined.found()
    assert {batch.epochs_total for batch in found.batches} == {3}
