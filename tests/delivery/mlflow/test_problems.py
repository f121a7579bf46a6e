"""Problems are said once and kept on disk; requests get as large as the server takes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from radt.delivery.mlflow.errors import DeliveryError, ErrorKind
from radt.delivery.mlflow.limits import BatchSender
from radt.delivery.problems import EVERYTHING, MLFLOW, ProblemLog, problem_file, read_problems

MINUTE_NS = 60 * 10**9


class Clock:
    def __init__(self) -> None:
        self.ns = 10**18

    def __call__(self) -> int:
        return self.ns


def test_said_once_kept_on_disk_and_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    store, uri = tmp_path / "radt.db", "https://me:secret@mlflow"
    file = problem_file(store, MLFLOW, uri)
    problem_log = ProblemLog(store, MLFLOW, uri, clock)
    for _ in range(100):
        problem_log.note(EVERYTHING, "no connection to https://me:secret@mlflow")
        clock.ns += MINUTE_NS // 4
    assert caplog.text.count("no connection") == 1
    assert "secret" not in caplog.text + file.read_text()
    (problem,) = read_problems(store, MLFLOW, uri).values()
    assert problem.since_ns == 10**18
    assert problem.last_ns > problem.since_ns

    again = ProblemLog(store, MLFLOW, uri, clock)  # the next process
    again.note(EVERYTHING, "no connection to https://me:secret@mlflow")
    assert again.problems[EVERYTHING].since_ns == 10**18
    with caplog.at_level(logging.WARNING):
        again.solved(EVERYTHING)
    assert "resumed after 25:00" in caplog.text
    assert not file.exists()
    assert read_problems(store, MLFLOW, uri) == {}


def test_a_link_that_comes_and_goes_fills_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    problem_log = ProblemLog(tmp_path / "radt.db", MLFLOW, "", clock)
    for _ in range(50):
        problem_log.note("run", "the connection broke")
        problem_log.solved("run")
        clock.ns += 10**9
    assert len(caplog.records) == 2
    problem_log.note("run", "the connection broke")
    problem_log.keep({"another"})
    assert problem_log.problems == {}


def test_a_damaged_file_and_a_full_disk_change_nothing(tmp_path: Path) -> None:
    store = tmp_path / "radt.db"
    file = problem_file(store, MLFLOW, "")
    file.parent.mkdir()
    file.write_text('{"problems": {"": {"text"')
    assert read_problems(store, MLFLOW, "") == {}
    problem_log = ProblemLog(Path("/proc/none/radt.db"), MLFLOW, "")
    problem_log.note(EVERYTHING, "away")
    assert problem_log.problems[EVERYTHING].text == "away"


def test_requests_shrink_and_recover_up_to_what_the_server_takes() -> None:
    sizes: list[int] = []
    most = 1000
    errors: list[DeliveryError] = []

    def send(items: Sequence[int]) -> None:
        sizes.append(len(items))
        if errors:
            raise errors.pop()
        if len(items) > most:
            raise DeliveryError(ErrorKind.REFUSED, "too large", too_large=True)

    batches = BatchSender(1000)
    for attempts in (1, 2):
        for _ in range(attempts):
            errors.append(DeliveryError(ErrorKind.BUSY, "no answer in time", slow=True))
            with pytest.raises(DeliveryError):
                batches.send(range(1000), send, {})
        batches.send(range(1500), send, {})
    # A single one may have met a connection that was closed while it was idle.
    assert sizes == [1000, 1000, 500, 1000, 1000, 500, 1000]
    sizes = sizes[-3:]
    most = 300
    batches.send(range(1500), send, {})
    assert sizes[3:] == [1000, 500, 250, 250, 500, 250, 250, 250, 250]
    sizes.clear()
    batches.send(range(1000), send, {})
    assert sizes == [250] * 4
    most, notes = 0, {}
    with pytest.raises(DeliveryError, match="of any size"):
        batches.send(range(10), send, notes)
    assert (batches.limit, notes) == (1000, {})
