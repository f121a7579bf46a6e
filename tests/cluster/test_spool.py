"""The shared folder of a submission: what its files say, and who gets which."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from radt.cluster.attempt import AttemptStart, JobAttempt
from radt.cluster.engine import Shape
from radt.cluster.spool import Spool
from radt.cluster.submission import JobArray, JobKey, Submission
from radt.errors import ClusterError
from radt.experiment.plan import WorkloadKey
from radt.experiment.status import RowStatus

JOB = JobKey(1, 17)
KEYS = (WorkloadKey("a, b", "1"), WorkloadKey("ü", "x/y"))
SUBMISSION = Submission(
    *("20261125-120000-abcd", "slurm", "/shared/study.csv", "login", "me", "2.0", "/venv/python"),
    (
        JobArray(Shape(gpus=2, gpu_type="a100", time_s=60.0), (KEYS,)),
        JobArray(Shape(), tuple((key,) for key in KEYS)),
    ),
    {"repeat": 3, "only": ["1"]},
    {"RADT_STORE_URI": "postgresql://db/radt"},
)


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool.create(tmp_path, SUBMISSION, b"Experiment,File\n")


@pytest.fixture
def attempt(spool: Spool) -> JobAttempt:
    return spool.claim(JOB)


def test_a_submission_is_read_as_it_was_written(spool: Spool) -> None:
    again = Spool(spool.path)
    assert again.submission == SUBMISSION
    assert again.experiment_csv.read_bytes() == b"Experiment,File\n"
    assert again.submission.workloads(JobKey(0, 0)) == KEYS
    assert list(again.submission.jobs) == [JobKey(0, 0), JobKey(1, 0), JobKey(1, 1)]
    assert again.submission.is_direct
    assert spool.path.stat().st_mode & 0o077 == 0
    with pytest.raises(ClusterError, match="no submission that this radt can read"):
        Spool(spool.path / "arrays")


def test_many_at_once_get_attempts_of_their_own(spool: Spool) -> None:
    numbers: list[int] = []
    together = threading.Barrier(8)

    def claim() -> None:
        together.wait()
        numbers.extend(spool.claim(JOB).number for _ in range(5))

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(1, 41))
    assert spool.last_attempt(JOB) == 40
    assert spool.last_attempt(JobKey(0, 0)) == 0


def test_two_that_write_a_file_at_once_each_write_it_whole(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_have_written = threading.Barrier(2, timeout=60)
    monkeypatch.setattr("os.fsync", lambda _: both_have_written.wait())
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(spool.hold, ("broken", "no radt on any node")))
    assert spool.held in ("broken", "no radt on any node")
    assert [entry.name for entry in spool.path.iterdir() if entry.name.startswith(".")] == []


def test_the_number_of_a_refused_request_is_not_used_again(spool: Spool) -> None:
    """Another host may still see the first file of that name."""
    numbers = []
    for refused in (False, True, True, False, True, False):
        request = spool.intend(0, [0])
        spool.put_script(request, "#!/bin/sh\n")
        numbers.append(request.number)
        if refused:
            spool.give_up(request)
    assert numbers == [1, 2, 3, 4, 5, 6]
    assert [request.number for request in spool.requests()] == [1, 4, 6]
    scripts = sorted(path.name for path in (spool.path / "arrays" / "0").glob("script.*"))
    assert scripts == ["script.1.sh", "script.4.sh", "script.6.sh"]


def test_an_attempt_is_seen_as_it_says(attempt: JobAttempt) -> None:
    first = attempt.view()
    assert (first.number, first.start, first.beats, first.kept) == (1, None, 0, None)
    start = AttemptStart("gpu-07", "1234_7", 42, "2.0", 1)
    attempt.begin(start)
    for _ in range(3):
        attempt.beat()
    assert attempt.view().beats == 3
    attempt.put_statuses({2: RowStatus("RUNNING", "r1")})
    rows = {2: RowStatus("FINISHED", "r1"), 10: RowStatus("SKIPPED: x, \u201cy\u201d")}
    attempt.put_statuses(rows, ended=True, reason="preempted", kept=["r1", "r0"])
    seen = attempt.view()
    assert (seen.start, seen.statuses) == (start, rows)
    assert (seen.ended, seen.reason, seen.kept) == (True, "preempted", {"r0", "r1"})
    names = sorted(path.name for path in attempt.path.iterdir())
    assert names == ["start.json", "statuses.2.json"], "it beats no more"


def test_what_could_not_be_written_is_written_by_the_next_call(attempt: JobAttempt) -> None:
    attempt.beat()
    attempt.put_statuses({2: RowStatus("RUNNING", "r1")})
    away = attempt.path.with_name("away")
    attempt.path.rename(away)
    for call in (attempt.beat, lambda: attempt.put_statuses({2: RowStatus("FINISHED", "r1")})):
        with pytest.raises(OSError, match="No such file"):
            call()
    away.rename(attempt.path)
    attempt.beat()
    attempt.put_statuses({2: RowStatus("FINISHED", "r1")})
    assert attempt.view().beats == 2
    assert attempt.view().statuses == {2: RowStatus("FINISHED", "r1")}
    assert len(list(attempt.path.glob("statuses.*"))) == 1


def test_the_second_unfit_node_holds_the_rest(spool: Spool) -> None:
    spool.unfit("no radt on gpu-01")
    assert spool.held == ""
    assert spool.unfit("no radt on gpu-02:\n  \x1b[31mold\x1b[0m") == (
        "no radt on gpu-02:\n  \x1b[31mold\x1b[0m"
    )
    held = "two jobs could not begin: no radt on gpu-02: [31mold [0m"
    assert spool.held == held
    assert spool.unfit("no radt on gpu-03") == held, "it waits with the rest"
    spool.release()
    assert spool.held == ""
    spool.unfit("no radt on gpu-04")
    assert spool.held == ""


def test_a_third_job_waits_until_the_rest_is_held(spool: Spool) -> None:
    for name in ("first", "second"):  # the second one is about to say so
        (spool.path / "unfit" / name).mkdir(parents=True)
    said: list[str] = []
    third = threading.Thread(target=lambda: said.append(spool.unfit("no radt on gpu-03")))
    third.start()
    spool.hold("no radt")
    third.join(180)
    assert said == ["no radt"]


def test_what_a_full_disk_cut_off_is_as_if_it_was_not_there(attempt: JobAttempt) -> None:
    attempt.put_statuses({2: RowStatus("RUNNING", "r1")})
    (attempt.path / "statuses.7.json").write_text('{"rows": {}, "en')
    assert attempt.view().statuses == {2: RowStatus("RUNNING", "r1")}
    (attempt.path / "statuses.1.json").write_text("")
    assert attempt.view().statuses == {}
