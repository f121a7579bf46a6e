"""What is logged comes back, whatever it is and whoever logs it."""

from __future__ import annotations

import math
import os
import signal
import struct
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radt.errors import UsageError
from radt.journal.format import HEAD_BYTES, SEGMENT_BYTES, EventKind, RecordKind
from radt.journal.reader import Finish, JournalReader
from radt.journal.writer import AFTER_END, JournalWriter
from radt.model import NO_STEP, MarkerKind, RunStatus
from tests.support.journal import Found

PER_SEGMENT = SEGMENT_BYTES // 32


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    points=st.lists(
        st.tuples(
            st.sampled_from(["loss", "ünï 🚀", "a/b c"]),
            st.floats(allow_nan=True, allow_infinity=True, width=64),
            st.one_of(st.none(), st.integers(-(2**63) + 1, 2**63 - 1)),
        )
    )
)
def test_any_float_and_step_come_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, points: list[tuple[str, float, int | None]]
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    writer = JournalWriter(folder, rank=None, warn=pytest.fail)
    for name, value, step in points:
        writer.scalar(name, value, step)
    writer.close()
    found = Found(JournalReader(folder, {}))
    found.read(final=True)
    for name in {name for name, _, _ in points}:
        wanted = [value for other, value, _ in points if other == name]
        steps = [NO_STEP if step is None else step for other, _, step in points if other == name]
        assert struct.pack(f"{len(wanted)}d", *wanted) == struct.pack(
            f"{len(wanted)}d", *found.values(name)
        )
        assert found.steps(name) == steps


def test_whatever_is_a_number_can_be_logged(writer: JournalWriter, found: Found) -> None:
    values: list[Any] = [
        3, True, 2**70, np.float32(0.5), np.float64(1.5), np.int64(-7), np.bool_(True),
        np.array(2.5), torch.tensor(0.25), torch.tensor([4.0]), torch.tensor(5, dtype=torch.int32),
        torch.tensor(0.75, requires_grad=True),
    ]  # fmt: skip
    for value in values:
        writer.scalar("value", value)
    found.read()
    assert found.values("value") == [3, 1, 2**70, 0.5, 1.5, -7, 1, 2.5, 0.25, 4, 5, 0.75]


def test_the_first_and_last_step(writer: JournalWriter, found: Found) -> None:
    steps = [1 - 2**63, np.int64(1 - 2**63), 0, np.uint64(2**63 - 1), 2**63 - 1]
    for step in steps:
        writer.scalar("loss", 0.5, step)
    found.read()
    assert found.steps("loss") == [1 - 2**63, 1 - 2**63, 0, 2**63 - 1, 2**63 - 1]


@pytest.mark.parametrize(
    "step",
    [
        np.int64(7),
        np.uint8(7),
        7.0,
        np.float32(7.0),
        np.array(7),
        torch.tensor(7),
        torch.tensor(7.0),
    ],
)
def test_whatever_is_a_whole_number_can_be_a_step(
    writer: JournalWriter, found: Found, step: Any
) -> None:
    writer.scalar("loss", 0.5, step)
    found.read()
    assert found.steps("loss") == [7]


@pytest.mark.parametrize(
    ("name", "value", "step", "error", "says"),
    [
        ("loss", "0.5", None, TypeError, "must be a number"),
        ("loss", None, None, TypeError, "NoneType"),
        ("loss", [1.0], None, TypeError, "list"),
        ("loss", np.zeros(2), None, TypeError, "ndarray"),
        ("loss", 1j, None, TypeError, "complex"),
        ("loss", 10**400, None, UsageError, "too large"),
        ("loss", 0.5, 1.5, TypeError, "whole number"),
        ("loss", 0.5, "1", TypeError, "whole number"),
        ("loss", 0.5, float("nan"), TypeError, "the step of 'loss' must be a whole number"),
        ("loss", 0.5, np.float32(0.5), TypeError, "whole number"),
        ("loss", 0.5, True, TypeError, "'loss' must be a whole number, not True"),
        ("loss", 0.5, np.bool_(True), TypeError, "whole number"),
        ("loss", 0.5, torch.tensor(True), TypeError, "whole number"),
        ("loss", 0.5, torch.tensor(0.5), TypeError, "whole number"),
        ("loss", 0.5, torch.tensor([1, 2]), TypeError, "whole number"),
        ("loss", 0.5, np.arange(2), TypeError, "whole number"),
        ("loss", 0.5, 2**63, UsageError, "the step of 'loss' does not fit into 64 bits"),
        ("loss", 0.5, np.uint64(2**63), UsageError, "64 bits"),
        ("loss", 0.5, -(2**63), UsageError, "64 bits"),
        ("loss", 0.5, -(2**63) - 1, UsageError, "64 bits"),
        pytest.param("loss", 0.5, 10**9999, UsageError, "64 bits", id="too long to be shown"),
        ("new", 0.5, -(2**63), UsageError, "the step of 'new' does not fit"),
        ("", 0.5, None, UsageError, "empty"),
        ("  ", 0.5, None, UsageError, "empty"),
        ("a" * 251, 0.5, None, UsageError, "251 characters"),
        ("a\nb", 0.5, None, UsageError, "printed"),
        (7, 0.5, None, TypeError, "int"),
        (["loss"], 0.5, None, TypeError, "list"),
    ],
)
def test_mistakes_of_the_script_are_raised_and_cost_nothing_else(
    writer: JournalWriter,
    found: Found,
    name: Any,
    value: Any,
    step: Any,
    error: type[Exception],
    says: str,
) -> None:
    writer.scalar("loss", 1.0, 1)
    with pytest.raises(error, match=says):
        writer.scalar(name, value, step)
    writer.scalar("loss", 2.0, 2)
    found.read()  # no hole that it would have to wait for
    assert found.values("loss") == [1.0, 2.0]
    assert found.dropped == 0


def test_times_are_monotonic_and_of_the_call(writer: JournalWriter, found: Found) -> None:
    before_ns = time.monotonic_ns()
    for step in range(100):
        writer.scalar("loss", 0.5, step)
    after_ns = time.monotonic_ns()
    (column,) = found.read().scalars
    times_ns = column.times_ns.tolist()
    assert times_ns == sorted(times_ns)
    assert before_ns <= times_ns[0] <= times_ns[-1] <= after_ns


def test_segments_follow_each_other_without_a_seam(
    writer: JournalWriter, found: Found, folder: Path
) -> None:
    total = 3 * PER_SEGMENT + 5
    for step in range(total):
        writer.scalar("loss", float(step), step)
    found.read()
    assert found.steps("loss") == list(range(total))
    writer.close()
    segments = sorted(folder.glob("*-*/segment-*"))
    assert [path.stat().st_size for path in segments] == [
        HEAD_BYTES + SEGMENT_BYTES
    ] * 4  # no unused spare


def test_threads_lose_nothing(writer: JournalWriter, found: Found) -> None:
    each, threads = 3 * PER_SEGMENT // 8, 8
    start = threading.Barrier(threads)

    def work(number: int) -> None:
        start.wait()
        for step in range(each):
            writer.scalar(f"thread {number}", float(step), step)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    found.read()
    for number in range(threads):
        assert found.steps(f"thread {number}") == list(range(each))


def test_signal_handler_may_log_at_any_time(writer: JournalWriter, found: Found) -> None:
    handled = 0
    numbers = count()

    def log(*_: object) -> None:
        nonlocal handled
        number = next(numbers)  # a handler may interrupt itself
        writer.scalar(f"signal {number % 50}", 1.0, number)  # names are defined in it, too
        handled += 1

    previous = signal.signal(signal.SIGVTALRM, log)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.0005, 0.0005)
    try:
        step = 0
        while handled < 300:
            writer.scalar("loss", 0.5, step)
            step += 1
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)
    writer.close()  # no waiting: what a handler interrupted has been finished
    found.read()
    assert sorted(found.steps("loss")) == list(range(step))
    steps = [step for number in range(50) for step in found.steps(f"signal {number}")]
    assert sorted(steps) == list(range(next(numbers)))


def test_forked_child_has_a_journal_of_its_own(writer: JournalWriter, found: Found) -> None:
    for step in range(10):
        writer.scalar("loss", 0.5, step)
    children = []
    for number in range(3):
        child = os.fork()
        if not child:
            for step in range(PER_SEGMENT + 10):
                writer.scalar("child loss", float(number), step)
            writer.scalar("loss", 1.5, number)  # a name that the parent has defined
            os._exit(0)
        children.append(child)
        writer.scalar("loss", 0.5, 10 + number)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
    found.read()
    assert found.steps("loss") == list(range(13))
    assert found.processes == {"", "child 1", "child 2", "child 3"}
    for number in (1, 2, 3):
        assert found.steps("child loss", f"child {number}") == list(range(PER_SEGMENT + 10))
        assert found.values("loss", f"child {number}") == [1.5]
    assert found.batches[-1].pids >= {os.getpid(), *children}


def test_child_that_logs_nothing_leaves_nothing(writer: JournalWriter, folder: Path) -> None:
    writer.scalar("loss", 0.5)
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    assert len(list(folder.glob("*-*"))) == 1


def test_fork_while_other_threads_log(writer: JournalWriter, found: Found) -> None:
    stop = threading.Event()
    logged = [0, 0]

    def work(number: int) -> None:
        while not stop.is_set():
            # New names take the lock that a fork could leave locked in the child for ever.
            writer.scalar(f"{number}-{logged[number] % 1000}", 1.0, logged[number])
            logged[number] += 1

    workers = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for worker in workers:
        worker.start()
    for number in range(20):
        child = os.fork()
        if not child:
            writer.scalar("child", float(number))
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    stop.set()
    for worker in workers:
        worker.join()
    writer.close()
    found.read()
    for number in (1, 20):
        assert len(found.values("child", f"child {number}")) == 1
    assert sum(len(c.values) for b in found.batches for c in b.scalars) == 20 + sum(logged)


def test_ranks_are_named_and_a_restarted_one_carries_on(folder: Path, found: Found) -> None:
    for rank in (0, 1, 1):
        one = JournalWriter(folder, rank=rank, warn=pytest.fail)
        one.scalar("loss", float(rank))
        one.close()
    found.read()
    assert found.values("loss") == [0.0]
    assert found.values("loss", "rank 1") == [1.0, 1.0]


def test_what_is_said_besides_values(writer: JournalWriter, found: Found) -> None:
    writer.say(EventKind.PARAMS, values={"lr": "0.1", "ünï\n": "\ud800 lone"})
    writer.say(EventKind.TAGS, values={"team": "x"})
    writer.say(EventKind.EPOCHS, total=5)
    token = writer.begin(RecordKind.EPOCH_BEGIN, "epoch", 3)
    span = writer.begin(RecordKind.SPAN_BEGIN, "validate")
    writer.end(RecordKind.SPAN_END, "validate", None, span)
    writer.end(RecordKind.EPOCH_END, "epoch", 3, token)
    writer.say(EventKind.FINISH, status="FAILED", reason="ValueError: boom")
    batch = found.read()
    assert batch.params == {"lr": "0.1", "ünï\n": "\ud800 lone"}
    assert batch.tags == {"team": "x"}
    assert batch.epochs_total == 5
    assert found.reader.finish() == Finish(RunStatus.FAILED, "ValueError: boom")
    assert [(event.kind, event.name, event.step, event.begin) for event in batch.spans] == [
        (MarkerKind.EPOCH, "epoch", 3, True),
        (MarkerKind.SPAN, "validate", None, True),
        (MarkerKind.SPAN, "validate", None, False),
        (MarkerKind.EPOCH, "epoch", 3, False),
    ]
    assert batch.spans[0].token == batch.spans[3].token != batch.spans[1].token


def test_after_the_end_it_warns_and_does_not_raise(
    writer: JournalWriter, found: Found, warnings: list[str]
) -> None:
    writer.scalar("loss", 0.5)
    writer.close()
    writer.scalar("loss", 0.5)
    writer.scalar("other", 0.5)
    writer.say(EventKind.PARAMS, values={"a": "b"})
    assert set(warnings) == {AFTER_END}
    batch = found.read()
    assert found.values("loss") == [0.5]
    assert batch.params == {}


def test_nan_is_kept(writer: JournalWriter, read_all: Callable[[], Found]) -> None:
    writer.scalar("loss", math.nan)
    assert math.isnan(read_all().values("loss")[0])
