"""What an attempt says while it runs, also where the folder is away or another one goes on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from radt import __version__
from radt.cluster.attempt import JobAttempt
from radt.cluster.engine import Shape
from radt.cluster.shipping import AttemptHeartbeat, NodeStatuses
from radt.cluster.spool import Spool
from radt.cluster.submission import JobArray, JobKey, Submission
from radt.experiment.plan import WorkloadKey
from radt.experiment.status import RowStatus
from tests.support.waiting import wait_until

JOB = JobKey(0, 0)
RUNNING, FINISHED = RowStatus("RUNNING", "r1"), RowStatus("FINISHED", "r1")


def test_an_end_is_said_once_its_archive_is_there() -> None:
    changes: list[int] = []
    statuses = NodeStatuses({2: RowStatus("FINISHED", "r0")}, frozenset({"r0"}))
    statuses.on_change = lambda: changes.append(1)
    statuses.set_many({3: RUNNING})
    statuses.set_many({3: FINISHED, 4: RowStatus("SKIPPED: never begun")})
    rows = {2: RowStatus("FINISHED", "r0"), 3: RUNNING, 4: RowStatus("SKIPPED: never begun")}
    assert statuses.reported == (rows, {"r0"})
    assert statuses.rows[3] == FINISHED
    statuses.arrived("r1")
    assert statuses.reported == (rows | {3: FINISHED}, {"r0", "r1"})
    assert len(changes) == 3
    # The next repeat of the row: what has ended before stays kept.
    statuses.set_many({3: RowStatus("RUNNING 2/2", "r2")})
    assert statuses.reported[0][3] == RowStatus("RUNNING 2/2", "r2")
    assert statuses.reported[1] == {"r0", "r1"}


def test_an_end_is_not_forgotten_when_the_next_repeat_begins_before_it_is_there() -> None:
    statuses = NodeStatuses({}, frozenset())
    first, second = RowStatus("FINISHED 1/2", "r1"), RowStatus("RUNNING 2/2", "r2")
    statuses.set_many({3: RowStatus("RUNNING 1/2", "r1")})
    statuses.set_many({3: first})
    statuses.set_many({3: second})
    assert statuses.reported == ({3: RowStatus("RUNNING 1/2", "r1")}, frozenset())
    statuses.arrived("r1")
    assert statuses.reported == ({3: second}, {"r1"})
    statuses.set_many({3: RowStatus("FINISHED 2/2", "r2")})
    statuses.lose("the folder is full")
    assert statuses.rows == {3: RowStatus("KILLED 2/2: the folder is full", "r2")}


def test_a_run_that_never_came_has_not_finished() -> None:
    statuses = NodeStatuses({}, frozenset())
    statuses.set_many({2: RowStatus("FINISHED", "r0"), 3: RowStatus("FINISHED", "r1")})
    statuses.arrived("r0")
    statuses.lose("full")
    assert statuses.rows == {2: RowStatus("FINISHED", "r0"), 3: RowStatus("KILLED: full", "r1")}


class Beating:
    """An attempt with its heartbeat."""

    def __init__(self, folder: Path) -> None:
        submission = Submission(
            *("20261125-120000-abcd", "slurm", "/f/study.csv", "login", "me", __version__, "p"),
            (JobArray(Shape(), ((WorkloadKey("study", "1"),),)),),
        )
        self.spool = Spool.create(folder, submission, b"")
        self.attempt: JobAttempt = self.spool.claim(JOB)
        self.statuses = NodeStatuses({}, frozenset())
        self.output = folder / "output.log"
        self.output.touch()
        self.superseded: list[int] = []
        self.heartbeat = AttemptHeartbeat(
            *(self.spool, JOB, self.attempt, self.statuses, self.output),
            beat_s=0.02,
            on_superseded=self.superseded.append,
        )
        self.heartbeat.start()


@pytest.fixture
def beating(tmp_path: Path) -> Iterator[Beating]:
    made = Beating(tmp_path)
    yield made
    made.heartbeat.drop()


def test_it_beats_and_says_what_is_new_to_its_last_word(beating: Beating) -> None:
    view = beating.attempt.view
    wait_until(lambda: view().beats >= 3, "it beats")
    assert (view().kept, view().statuses, view().ended) == (frozenset(), {}, False)
    beating.statuses.set_many({2: RUNNING})
    wait_until(lambda: view().statuses == {2: RUNNING}, "it says so")
    with beating.output.open("a") as output:
        for number in range(3):
            output.write(f"line {number}\n")
            output.flush()
            written = beating.output.read_text()
            log = beating.attempt.output_log
            wait_until(
                lambda log=log, written=written: log.exists() and log.read_text() == written,
                "its output is there",
            )
    beating.statuses.set_many({2: FINISHED})
    assert beating.heartbeat.finish("preempted", lambda: math.inf)
    last = view()
    assert (last.ended, last.reason, last.statuses) == (True, "preempted", {2: FINISHED})
    assert beating.superseded == []


def test_what_was_not_said_is_said_when_the_folder_is_back(
    beating: Beating, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = beating.attempt
    wait_until(lambda: attempt.view().beats, "it beats")
    failed: list[OSError] = []
    write = JobAttempt.put_statuses

    def noted(*arguments: Any, **named: Any) -> None:
        try:
            write(*arguments, **named)
        except OSError as error:
            failed.append(error)
            raise

    monkeypatch.setattr(JobAttempt, "put_statuses", noted)
    away = beating.spool.path.with_name("away")
    beating.spool.path.rename(away)
    beating.statuses.set_many({2: RUNNING})
    beating.output.write_text("meanwhile\n")
    wait_until(lambda: failed, "it cannot say so")
    away.rename(beating.spool.path)
    wait_until(lambda: attempt.view().statuses == {2: RUNNING}, "it says so")
    wait_until(attempt.output_log.exists, "its output is there")
    beating.spool.path.rename(away)
    assert not beating.heartbeat.finish("", lambda: 0.0), "it is away"
    away.rename(beating.spool.path)
    assert beating.heartbeat.finish("", lambda: math.inf)
    assert (attempt.view().ended, attempt.view().statuses) == (True, {2: RUNNING})
    assert attempt.output_log.read_text() == "meanwhile\n"


def test_a_newer_attempt_silences_it(beating: Beating) -> None:
    wait_until(lambda: beating.attempt.view().beats, "it beats")
    newer = beating.spool.claim(JOB)
    wait_until(lambda: beating.superseded, "it knows")
    assert beating.superseded == [newer.number]
    before = sorted(path.name for path in beating.attempt.path.iterdir())
    beating.statuses.set_many({2: FINISHED})
    assert beating.heartbeat.finish("", lambda: math.inf), "there is nothing to wait for"
    assert sorted(path.name for path in beating.attempt.path.iterdir()) == before
