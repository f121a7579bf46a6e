"""What becomes of a job: every line of the table in cluster.md's "Attempts and resuming"."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from radt.cluster.attempt import PREEMPTED, TIME_LIMIT, AttemptStart, AttemptView
from radt.cluster.engine import JobEnd, JobState, Phase
from radt.cluster.settle import JobFacts, Next, Settlement, settle
from radt.cluster.submission import SubmittedRow
from radt.experiment.status import RowStatus

OUTCOME_S = 60.0
LONG_S = 1000.0
ROWS = [SubmittedRow(2, letter="a"), SubmittedRow(3, letter="b")]
QUEUED = JobState(Phase.QUEUED, "Resources")
RUNNING = JobState(Phase.RUNNING, nodes="gpu-07")


AGAIN = AttemptStart("gpu-08", "12_3", 1, "0", restarts=1)


def ended(end: JobEnd) -> JobState:
    return JobState(Phase.ENDED, nodes="gpu-07", end=end)


def attempt(
    *texts: str, number: int = 1, has_ended: bool = False, reason: str = "", job_id: str = "12_3"
) -> AttemptView:
    """An attempt that says this of the rows."""
    statuses = {
        row.line: RowStatus(text, f"run{number}{row.letter}")
        for row, text in zip(ROWS, texts, strict=False)
        if text
    }
    start = AttemptStart("gpu-07", job_id, 1, "0")
    return AttemptView(number, start, 5, statuses, has_ended, reason, frozenset())


def said(*texts: str, **more: object) -> AttemptView:
    """An attempt that says this of the rows, and that it has ended."""
    return replace(attempt(*texts, has_ended=True), **more)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Line:
    """A line of the table: what is known, what the rows say then, and what is next."""

    name: str
    state: JobState | None
    attempts: tuple[AttemptView, ...]
    texts: tuple[str, str]
    next: Next
    silent_s: float = LONG_S
    never_began: bool = False


NO_REPORT = "FAILED: the job ended without reporting a result: Killed"
TABLE = [
    # The engine has it -------------------------------------------------------------------------
    Line("waits", QUEUED, (), ("QUEUED: 12_3 Resources",) * 2, Next.WAIT),
    Line("is held", JobState(Phase.HELD), (), ("QUEUED: 12_3 held",) * 2, Next.WAIT),
    Line("begins", RUNNING, (), ("QUEUED: 12_3 gpu-07",) * 2, Next.WAIT),
    Line("runs", RUNNING, (attempt("RUNNING", "RUNNING"),), ("RUNNING: gpu-07",) * 2, Next.WAIT),
    Line(
        "one row has ended",
        RUNNING,
        (attempt("FINISHED", "RUNNING"),),
        ("FINISHED", "RUNNING: gpu-07"),
        Next.WAIT,
    ),
    Line(
        "requeued after its node failed",
        QUEUED,
        (attempt("FINISHED", "RUNNING"),),
        ("FINISHED", "QUEUED: 12_3 Resources"),
        Next.WAIT,
    ),
    Line(
        "started for the second time",
        RUNNING,
        (attempt("FINISHED", "RUNNING"), attempt("FINISHED", "RUNNING", number=2)),
        ("FINISHED", "RUNNING: gpu-07"),
        Next.WAIT,
    ),
    Line(
        "started 5 times",
        QUEUED,
        tuple(attempt("RUNNING", "RUNNING", number=n + 1) for n in range(5)),
        ("KILLED: started 5 times",) * 2,
        Next.CANCEL,
    ),
    # Nodes have said how it ended --------------------------------------------------------------
    Line("finished", None, (said("FINISHED", "FINISHED"),), ("FINISHED",) * 2, Next.DONE, 0.0),
    Line(
        "failed by itself",
        ended(JobEnd.FAILED),
        (said("FAILED: exit code 3", "FINISHED"),),
        ("FAILED: exit code 3", "FINISHED"),
        Next.DONE,
    ),
    Line(
        "one could not be set up",
        ended(JobEnd.FAILED),
        (said("FAILED: no such module", "SKIPPED: a could not be set up"),),
        ("FAILED: no such module", "SKIPPED: a could not be set up"),
        Next.DONE,
    ),
    Line(
        "ended politely within the grace of a preemption",
        ended(JobEnd.COMPLETED),
        (said("FINISHED", "KILLED: preempted", reason=PREEMPTED),),
        ("FINISHED", "QUEUED: preempted"),
        Next.SUBMIT,
    ),
    Line(
        "the same, and the runner's exit code was not 0",
        ended(JobEnd.FAILED),
        (said("KILLED: preempted", "KILLED: preempted", reason=PREEMPTED),),
        ("QUEUED: preempted",) * 2,
        Next.SUBMIT,
    ),
    Line(
        "the same, forgotten by the engine",
        None,
        (said("KILLED: preempted", "KILLED: preempted", reason=PREEMPTED),),
        ("QUEUED: preempted",) * 2,
        Next.SUBMIT,
    ),
    Line(
        "preempted the fifth time",
        ended(JobEnd.COMPLETED),
        (
            *(attempt("RUNNING", "RUNNING", number=n + 1) for n in range(4)),
            said("KILLED: preempted", "KILLED: preempted", number=5, reason=PREEMPTED),
        ),
        ("KILLED: started 5 times",) * 2,
        Next.DONE,
    ),
    Line(
        "cancelled: the same signal, another end",
        ended(JobEnd.CANCELLED),
        (said("FINISHED", "KILLED: preempted", reason=PREEMPTED),),
        ("FINISHED", "KILLED: the job was cancelled"),
        Next.DONE,
    ),
    Line(
        "told before its time limit, and ended in time",
        ended(JobEnd.FAILED),
        (said("KILLED: the job's time limit", "FINISHED", reason=TIME_LIMIT),),
        ("KILLED: the job's time limit", "FINISHED"),
        Next.DONE,
    ),
    Line(
        "the time limit, after half of a bundle",
        ended(JobEnd.FAILED),
        (said("FINISHED", "", reason=TIME_LIMIT),),
        ("FINISHED", "QUEUED: the job's time limit"),
        Next.SUBMIT,
    ),
    Line(
        "the time limit, and nothing of the bundle has ended",
        ended(JobEnd.FAILED),
        (said("KILLED: the job's time limit", "", reason=TIME_LIMIT),),
        ("KILLED: the job's time limit",) * 2,
        Next.DONE,
    ),
    Line(
        "no interpreter on the node",
        ended(JobEnd.FAILED),
        (said(reason="python is missing on gpu-07"),),
        ("FAILED: python is missing on gpu-07",) * 2,
        Next.DONE,
        never_began=True,
    ),
    # Nodes have not said how it ended ----------------------------------------------------------
    Line(
        "its outcome may still come",
        ended(JobEnd.COMPLETED),
        (attempt("RUNNING", "RUNNING"),),
        ("RUNNING: gpu-07",) * 2,
        Next.WAIT,
        59.0,
    ),
    Line(
        "COMPLETED",
        ended(JobEnd.COMPLETED),
        (attempt("FINISHED", "RUNNING"),),
        ("FINISHED", NO_REPORT),
        Next.DONE,
    ),
    Line("FAILED", ended(JobEnd.FAILED), (attempt("RUNNING"),), (NO_REPORT,) * 2, Next.DONE),
    Line(
        "FAILED before it began",
        ended(JobEnd.FAILED),
        (),
        (NO_REPORT,) * 2,
        Next.DONE,
        never_began=True,
    ),
    Line(
        "FAILED by the old node of a job that Slurm has started anew",
        ended(JobEnd.FAILED),
        (attempt("RUNNING"), replace(attempt("FINISHED", "RUNNING", number=2), start=AGAIN)),
        ("FINISHED", "QUEUED: ended with the node that it had lost"),
        Next.SUBMIT,
    ),
    Line(
        "OUT_OF_MEMORY",
        ended(JobEnd.OUT_OF_MEMORY),
        (attempt("FINISHED", "RUNNING"),),
        ("FINISHED", "OOM: the job's memory"),
        Next.DONE,
    ),
    *(
        Line(
            end,
            ended(end),
            (attempt("FINISHED", "RUNNING"),),
            ("FINISHED", f"KILLED: {reason}"),
            Next.DONE,
        )
        for end, reason in {
            JobEnd.TIMEOUT: "the job's time limit",
            JobEnd.PREEMPTED: "preempted",
            JobEnd.NODE_FAIL: "its node failed",
            JobEnd.BOOT_FAIL: "its node did not start",
            JobEnd.DEADLINE: "the job's deadline",
            JobEnd.CANCELLED: "the job was cancelled",
        }.items()
    ),
    Line(
        "cancelled in the queue, which needs no patience",
        JobState(Phase.ENDED, end=JobEnd.CANCELLED),
        (),
        ("KILLED: the job was cancelled",) * 2,
        Next.DONE,
        0.0,
    ),
    Line(
        "it has said its word, and the engine has not yet",
        RUNNING,
        (said("FINISHED", "KILLED: preempted", reason=PREEMPTED),),
        ("FINISHED", "RUNNING: gpu-07"),
        Next.WAIT,
        0.0,
    ),
    # The engine has forgotten it ---------------------------------------------------------------
    Line(
        "it still beats",
        None,
        (attempt("FINISHED", "RUNNING"),),
        ("FINISHED", "RUNNING"),
        Next.WAIT,
        299.0,
    ),
    Line(
        "lost",
        None,
        (attempt("FINISHED", "RUNNING"),),
        ("FINISHED", "KILLED: lost"),
        Next.DONE,
        300.0,
    ),
    Line("nothing ever began", None, (), ("KILLED: lost",) * 2, Next.DONE, 300.0),
    # Several attempts --------------------------------------------------------------------------
    Line(
        "the newest counts",
        ended(JobEnd.COMPLETED),
        (attempt("FAILED: exit code 1", "RUNNING"), said("FINISHED", "FINISHED", number=2)),
        ("FINISHED", "FINISHED"),
        Next.DONE,
    ),
    Line(
        "what an earlier one brought to its end stays",
        ended(JobEnd.COMPLETED),
        (attempt("FINISHED", "RUNNING"), said("", "FINISHED", number=2, kept=None)),
        ("FINISHED", "FINISHED"),
        Next.DONE,
    ),
    Line(
        "what an earlier one brought to its end later than the newest began does not count",
        ended(JobEnd.COMPLETED),
        (attempt("FINISHED", "RUNNING"), said("", "FINISHED", number=2)),
        ("QUEUED", "FINISHED"),
        Next.SUBMIT,
    ),
    Line(
        "submitted again: the word of the last job is old",
        QUEUED,
        (said("KILLED: preempted", "KILLED: preempted", reason=PREEMPTED, start=None),),
        ("QUEUED: 12_3 Resources",) * 2,
        Next.WAIT,
    ),
    Line(
        "submitted again, and ended without a word",
        ended(JobEnd.NODE_FAIL),
        (attempt("KILLED: x", "KILLED: x", has_ended=True, reason=PREEMPTED, job_id="11_3"),),
        ("KILLED: its node failed",) * 2,
        Next.DONE,
    ),
]


@pytest.mark.parametrize("line", TABLE, ids=lambda line: line.name)
def test_every_line_of_the_table(line: Line) -> None:
    facts = JobFacts("12_3", line.state, line.attempts, line.silent_s, log_line="Killed")
    settled = settle(facts, ROWS, OUTCOME_S)
    assert texts(settled) == line.texts
    assert settled.next is line.next
    assert bool(settled.never_began) == line.never_began


def texts(settled: Settlement) -> tuple[str, ...]:
    return tuple(settled.rows[row.line].text if row.line in settled.rows else "" for row in ROWS)


def test_the_repeat_stays_in_the_cell() -> None:
    rows = [SubmittedRow(2, done=1, asked=3)]
    assert settle(JobFacts("12_3", QUEUED), rows).rows[2].text == "QUEUED 2/3: 12_3 Resources"
    view = replace(attempt("RUNNING 3/3"), ended=False)
    lost = settle(JobFacts("12_3", ended(JobEnd.NODE_FAIL), (view,), LONG_S), rows).rows[2]
    assert lost == RowStatus("KILLED 3/3: its node failed", "run1a")
    # A repeat that has finished is a result; the next start goes on with the one after it.
    between = replace(attempt("FINISHED 2/3"), ended=False)
    assert settle(JobFacts("12_3", RUNNING, (between,)), rows).rows[2].text == "FINISHED 2/3"


def test_who_stops_a_submission_is_named() -> None:
    facts = JobFacts(
        "12_3", ended(JobEnd.CANCELLED), (attempt("RUNNING"),), LONG_S, stopped="stopped"
    )
    assert texts(settle(facts, ROWS, OUTCOME_S)) == ("KILLED: stopped",) * 2


def test_a_job_that_was_told_to_wait_is_submitted_again() -> None:
    refused = said(reason="no python on gpu-07")
    facts = JobFacts("12_3", ended(JobEnd.FAILED), (refused,), holds=["no python on gpu-07"])
    settled = settle(facts, ROWS, OUTCOME_S)
    assert settled.next is Next.SUBMIT
    assert not settled.never_began


HELD = said(reason="two jobs could not begin")


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (JobEnd.CANCELLED, "KILLED: the job was cancelled"),
        (JobEnd.BOOT_FAIL, "KILLED: its node did not start"),
        (JobEnd.TIMEOUT, "KILLED: the job's time limit"),
        (JobEnd.OUT_OF_MEMORY, "OOM: the job's memory"),
    ],
)
def test_after_a_release_a_job_that_was_ended_is_not_submitted_again(
    end: JobEnd, text: str
) -> None:
    """Attempts of earlier versions of radt do not say which job was held."""
    unknown = replace(HELD, start=None)
    facts = JobFacts("12_3", ended(end), (unknown,), LONG_S, 2, [HELD.reason])
    settled = settle(facts, ROWS, OUTCOME_S)
    assert (settled.next, texts(settled)) == (Next.DONE, (text,) * 2)


def test_a_held_job_is_not_submitted_for_ever() -> None:
    for submissions, following, text in (
        (4, Next.SUBMIT, "QUEUED: held"),
        (5, Next.DONE, "KILLED: started 5 times"),
    ):
        state = ended(JobEnd.FAILED)
        facts = JobFacts("12_3", state, (HELD,), LONG_S, submissions, [HELD.reason])
        settled = settle(facts, ROWS, OUTCOME_S)
        assert (settled.next, texts(settled)) == (following, (text,) * 2)


def test_a_job_that_fails_after_a_release_is_not_held() -> None:
    before = replace(HELD, start=AttemptStart("gpu-07", "11_3", 1, ""))
    facts = JobFacts("12_3", ended(JobEnd.FAILED), (before,), LONG_S, 2, [HELD.reason])
    settled = settle(facts, ROWS, OUTCOME_S)
    assert settled.next is Next.DONE
    assert texts(settled) == ("FAILED: the job ended without reporting a result",) * 2


def test_a_job_that_the_engine_lost_before_it_began_is_submitted_again() -> None:
    facts = JobFacts("12_3", None, (), 59.0, is_forgotten=True)
    assert settle(facts, ROWS, OUTCOME_S).next is Next.WAIT
    settled = settle(replace(facts, silent_s=60.0), ROWS, OUTCOME_S)
    assert settled.next is Next.SUBMIT
    assert texts(settled) == ("QUEUED",) * 2


def test_a_job_is_not_submitted_for_ever() -> None:
    facts = JobFacts("12_3", None, (), LONG_S, submissions=5, is_forgotten=True)
    settled = settle(facts, ROWS, OUTCOME_S)
    assert settled.next is Next.DONE
    assert texts(settled) == ("KILLED: lost",) * 2


@pytest.mark.parametrize(
    "line",
    [
        "slurmstepd-node1: error: StepId=2.0 exceeded memory limit (13 > 10), being killed",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=2.0. Some of the step ...",
    ],
)
def test_a_job_whose_log_says_that_it_took_too_much_memory(line: str) -> None:
    facts = JobFacts("12_3", ended(JobEnd.FAILED), (attempt("RUNNING", ""),), 100.0, log_line=line)
    assert set(texts(settle(facts, ROWS, OUTCOME_S))) == {"OOM: the job's memory"}
