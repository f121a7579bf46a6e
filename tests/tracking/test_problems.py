"""Problems are said once and kept on disk; requests get as large as the server takes."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from radt.tracking.batches import BatchSize
from radt.tracking.lanes import IN_TURN, SIDE_BY_SIDE, Lane, Lanes, Task
from radt.tracking.pace import Pace
from radt.tracking.problems import EVERYTHING, ProblemBook, read_problems

MINUTE_NS = 60 * 10**9


class Clock:
    def __init__(self) -> None:
        self.ns = 10**18

    def __call__(self) -> int:
        return self.ns


def test_said_once_kept_on_disk_and_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    file = tmp_path / "delivery" / "x.json"
    book = ProblemBook(file, "https://me:secret@mlflow", clock)
    for _ in range(100):
        book.note(EVERYTHING, "no connection to https://me:secret@mlflow")
        clock.ns += MINUTE_NS // 4
    assert caplog.text.count("no connection") == 1
    assert "secret" not in caplog.text + file.read_text()
    (problem,) = read_problems(file).values()
    assert problem.since_ns == 10**18
    assert problem.last_ns > problem.since_ns

    again = ProblemBook(file, "", clock)  # the next process
    again.note(EVERYTHING, "no connection to https://me:secret@mlflow")
    assert again.problems[EVERYTHING].since_ns == 10**18
    with caplog.at_level(logging.WARNING):
        again.solved(EVERYTHING)
    assert "goes on after 25:00" in caplog.text
    assert not file.exists()
    assert read_problems(file) == {}


def test_a_link_that_comes_and_goes_fills_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    book = ProblemBook(tmp_path / "x.json", "", clock)
    for _ in range(50):
        book.note("run", "the connection broke")
        book.solved("run")
        clock.ns += 10**9
    assert len(caplog.records) == 2
    book.note("run", "the connection broke")
    book.keep({"another"})
    assert book.problems == {}


def test_a_damaged_file_and_a_full_disk_change_nothing(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text('{"problems": {"": {"text"')
    assert read_problems(file) == {}
    book = ProblemBook(Path("/proc/none/x.json"), "")
    book.note(EVERYTHING, "away")
    assert book.problems[EVERYTHING].text == "away"


def test_requests_shrink_and_recover_up_to_what_the_server_takes() -> None:
    batch = BatchSize(1000)
    batch.slow(1000)
    assert batch.limit == 500
    batch.worked(500)
    assert batch.limit == 1000
    batch.too_large(1000)
    batch.slow(500)
    assert batch.limit == 250
    for _ in range(5):
        batch.worked(batch.limit)
    assert batch.limit == 500
    batch.worked(3)
    for _ in range(20):
        batch.too_large(batch.limit)
        batch.slow(1)
    assert batch.limit == 1


@pytest.mark.parametrize("workers", [IN_TURN, SIDE_BY_SIDE])
def test_one_subject_is_never_done_twice_at_a_time(workers: dict[Lane, int]) -> None:
    pace, go = Pace(), threading.Event()
    lanes = Lanes(workers, pace.nudge)

    def fail() -> None:
        go.wait(10)
        raise ValueError("no")

    slow = Task("run", "run ended", fail, Lane.ENDED)
    assert lanes.start(slow)
    assert not lanes.start(Task("run", "run", fail, Lane.RUNNING))
    other = Task("other", "other", go.wait, Lane.RUNNING)
    assert lanes.start(other) == (workers is SIDE_BY_SIDE), "no place behind an upload"
    go.set()
    lanes.close()
    outcomes = {outcome.task.key: outcome.error for outcome in lanes.outcomes()}
    assert isinstance(outcomes["run ended"], ValueError)
    assert lanes.idle
