"""What the next start does with rows and workloads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from radt.collocation.spec import Collocation
from radt.devices.machine import Devices
from radt.experiment.plan import (
    RowAction,
    RunPlan,
    WorkloadPlan,
    actions,
    decide,
    first_repeat,
)
from radt.experiment.program import Program, ProgramKind
from radt.model import Role, RunStatus
from radt.run_name import row_letter


def row(status: RunStatus | None, repeats_done: int | None = None) -> RunPlan:
    finished = int(status is RunStatus.FINISHED)
    return RunPlan(
        experiment="e",
        workload="1",
        name="",
        status=status,
        run_id="",
        devices=Devices(),
        collocation=Collocation(),
        listeners=(),
        program=Program(ProgramKind.SCRIPT, Path("/train.py")),
        params=(),
        params_text="",
        repeats_done=finished if repeats_done is None else repeats_done,
    )


def workload(*rows: RunPlan) -> WorkloadPlan:
    runs = (replace(one, line=index, letter=row_letter(index)) for index, one in enumerate(rows))
    return WorkloadPlan("e", "1", tuple(runs))


@pytest.mark.parametrize(
    ("status", "rerun", "action"),
    [
        (None, False, RowAction.RUN),
        (None, True, RowAction.RUN),
        (RunStatus.SCHEDULED, False, RowAction.RUN),
        (RunStatus.SKIPPED, False, RowAction.RUN),
        (RunStatus.FINISHED, False, RowAction.SKIP),
        (RunStatus.FINISHED, True, RowAction.SKIP),
        (RunStatus.FAILED, False, RowAction.SKIP),
        (RunStatus.FAILED, True, RowAction.RUN),
        (RunStatus.OOM, False, RowAction.SKIP),
        (RunStatus.OOM, True, RowAction.RUN),
        (RunStatus.TIMEOUT, False, RowAction.SKIP),
        (RunStatus.TIMEOUT, True, RowAction.RUN),
        (RunStatus.RUNNING, False, RowAction.RESUME),
        (RunStatus.RUNNING, True, RowAction.RESUME),
        (RunStatus.KILLED, False, RowAction.RESUME),
        (RunStatus.KILLED, True, RowAction.RESUME),
    ],
)
def test_a_row_alone(status: RunStatus | None, rerun: bool, action: RowAction) -> None:
    assert decide(row(status), rerun=rerun) is action
    assert action.runs == (action is not RowAction.SKIP)


def test_every_status_is_decided() -> None:
    assert all(decide(row(status), rerun=rerun) for status in RunStatus for rerun in (False, True))


def test_repeats_that_are_missing_are_run() -> None:
    assert decide(row(RunStatus.FINISHED, 2), repeat=3) is RowAction.REPEAT
    assert decide(row(RunStatus.FINISHED, 3), repeat=3) is RowAction.SKIP
    assert decide(row(RunStatus.FAILED, 1), repeat=3) is RowAction.SKIP


def test_if_one_row_runs_all_do() -> None:
    finished, killed = row(RunStatus.FINISHED), row(RunStatus.KILLED)
    assert actions(workload(finished, killed)) == {"a": RowAction.AGAIN, "b": RowAction.RESUME}
    assert actions(workload(finished, row(RunStatus.FAILED))) == {
        "a": RowAction.SKIP,
        "b": RowAction.SKIP,
    }
    assert actions(workload(row(RunStatus.OOM), row(None))) == {
        "a": RowAction.AGAIN,
        "b": RowAction.RUN,
    }


def test_repeats_that_are_missing_do_not_start_a_workload_that_failed() -> None:
    for failure in (RunStatus.FAILED, RunStatus.OOM, RunStatus.TIMEOUT):
        rows = row(RunStatus.FINISHED, 1), row(failure, 0)
        assert set(actions(workload(*rows), repeat=2).values()) == {RowAction.SKIP}
        again = actions(workload(*rows), repeat=2, rerun=True)
        assert again == {"a": RowAction.REPEAT, "b": RowAction.RUN}
    killed = row(RunStatus.FAILED, 1), row(RunStatus.KILLED, 1)
    assert actions(workload(*killed), repeat=2) == {"a": RowAction.AGAIN, "b": RowAction.RESUME}


def test_a_workload_goes_on_at_the_repeat_that_not_all_rows_have() -> None:
    rows = row(RunStatus.FINISHED, 2), row(RunStatus.KILLED, 1)
    assert first_repeat(workload(*rows)) == 2


def service(status: RunStatus | None, repeats_done: int | None = None) -> RunPlan:
    return replace(row(status, repeats_done), role=Role.SERVICE)


@pytest.mark.parametrize("status", [None, *RunStatus])
def test_a_service_runs_with_its_workload_and_never_alone(status: RunStatus | None) -> None:
    done = workload(row(RunStatus.FINISHED), service(status))
    assert set(actions(done).values()) == {RowAction.SKIP}
    due = workload(row(RunStatus.KILLED), service(status))
    assert all(action.runs for action in actions(due).values())


def test_a_service_that_failed_is_a_reason_to_run_what_failed_again() -> None:
    rows = row(RunStatus.FINISHED), service(RunStatus.FAILED)
    assert actions(workload(*rows), rerun=True) == {"a": RowAction.AGAIN, "b": RowAction.RUN}
    killed = row(RunStatus.FINISHED), service(RunStatus.KILLED)
    assert set(actions(workload(*killed), rerun=True).values()) == {RowAction.SKIP}


def test_the_repeats_of_a_workload_are_those_of_the_rows_that_are_served() -> None:
    rows = row(RunStatus.FINISHED, 2), service(RunStatus.KILLED, 1)
    assert first_repeat(workload(*rows)) == 3
    assert set(actions(workload(*rows), repeat=2).values()) == {RowAction.SKIP}
    assert all(action.runs for action in actions(workload(*rows), repeat=3).values())
