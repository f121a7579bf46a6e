"""Problems are said once and kept on disk; requests get as large as the server takes."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from radt.delivery.mlflow.limits import BatchSize
from radt.delivery.problems import EVERYTHING, ProblemLog, read_problems
from radt.delivery.process import IN_TURN, SIDE_BY_SIDE, Queue, Queues, Task, Wakeup

MINUTE_NS = 60 * 10**9


class Clock:
    def __init__(self) -> None:
        self.ns = 10**18

    def __call__(self) -> int:
        return self.ns


def test_said_once_kept_on_disk_and_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    file = tmp_path / "delivery" / "x.json"
    problem_log = ProblemLog(file, "https://me:secret@mlflow", clock)
    for _ in range(100):
        problem_log.note(EVERYTHING, "no connection to https://me:secret@mlflow")
        clock.ns += MINUTE_NS // 4
    assert caplog.text.count("no connection") == 1
    assert "secret" not in caplog.text + file.read_text()
    (problem,) = read_problems(file).values()
    assert problem.since_ns == 10**18
    assert problem.last_ns > problem.since_ns

    again = ProblemLog(file, "", clock)  # the next process
    again.note(EVERYTHING, "no connection to https://me:secret@mlflow")
    assert again.problems[EVERYTHING].since_ns == 10**18
    with caplog.at_level(logging.WARNING):
        again.solved(EVERYTHING)
    assert "resumed after 25:00" in caplog.text
    assert not file.exists()
    assert read_problems(file) == {}


def test_a_link_that_comes_and_goes_fills_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    problem_log = ProblemLog(tmp_path / "x.json", "", clock)
    for _ in range(50):
        problem_log.note("run", "the connection broke")
        problem_log.solved("run")
        clock.ns += 10**9
    assert len(caplog.records) == 2
    problem_log.note("run", "the connection broke")
    problem_log.keep({"another"})
    assert problem_log.problems == {}


def test_a_damaged_file_and_a_full_disk_change_nothing(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text('{"problems": {"": {"text"')
    assert read_problems(file) == {}
    problem_log = ProblemLog(Path("/proc/none/x.json"), "")
    problem_log.note(EVERYTHING, "away")
    assert problem_log.problems[EVERYTHING].text == "away"


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
def test_one_subject_is_never_done_twice_at_a_time(workers: dict[Queue, int]) -> None:
    wakeup, go = Wakeup(), threading.Event()
    queues = Queues(workers, wakeup.nudge)

    def fail() -> None:
        go.wait(180)
        raise ValueError("no")

    slow = Task("run", "run ended", fail, Queue.ENDED)
    assert queues.start(slow)
    assert not queues.start(Task("run", "run", fail, Queue.RUNNING))
    other = Task("other", "other", go.wait, Queue.RUNNING)
    assert queues.start(other) == (workers is SIDE_BY_SIDE), "no place behind an upload"
    go.set()
    queues.close()
    outcomes = {outcome.task.key: outcome.error for outcome in queues.outcomes()}
    assert isinstance(outcomes["run ended"], ValueError)
    assert queues.idle
