"""Which runs count, why the others do not, and that every page says the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from radt.analysis.quantities import Quantity
from radt.analysis.report import read_report
from radt.analysis.selection import Omission, Reason, counts_text
from radt.model import Role, RunStatus
from radt.tags import ARCHIVED, PARENT, PROFILED, ROLE, SERIES, YES
from tests.report.test_summary import Study

OK, FAILED, KILLED, RUNNING = (
    RunStatus.FINISHED,
    RunStatus.FAILED,
    RunStatus.KILLED,
    RunStatus.RUNNING,
)
#: Workload, letter, workload id, status, tags, and why the run does not count.
Row = tuple[str, str, str, RunStatus, dict[str, str], Reason | None]
HIDDEN = {ARCHIVED: YES}


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return Study(tmp_path / "radt.db")


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([("a", "a", "w1", OK, {}, None)], "1 run"),
        (
            [("a", "a", "w1", OK, {}, Omission.SUPERSEDED), ("a", "a", "w2", OK, {}, None)],
            "2 runs, 1 counts: 1 superseded",
        ),
        (  # an unsuccessful start does not supersede one that finished
            [
                ("a", "a", "w1", OK, {}, None),
                ("a", "a", "w2", FAILED, {}, FAILED),
                ("a", "a", "w3", RUNNING, {}, RUNNING),
            ],
            "3 runs, 1 counts: 1 running, 1 failed",
        ),
        (  # repeats, of which one was killed
            [
                ("a", "a", "w1", OK, {SERIES: "s"}, None),
                ("a", "a", "w2", KILLED, {SERIES: "s"}, KILLED),
                ("a", "a", "w3", OK, {SERIES: "s"}, None),
            ],
            "3 runs, 2 count: 1 killed",
        ),
        (
            [
                ("a", "a", "w1", OK, HIDDEN, Omission.ARCHIVED),
                ("a", "a", "w2", OK, {PROFILED: "nsys"}, Omission.PROFILED),
            ],
            "2 runs, none counts: 1 archived, 1 profiled",
        ),
        (  # the rest of a pair did not run alone
            [
                ("pair", "a", "w1", OK, HIDDEN, Omission.ARCHIVED),
                ("pair", "b", "w1", OK, {}, Omission.BESIDE_ARCHIVED),
            ],
            "2 runs, none counts: 1 archived, 1 beside an archived run",
        ),
        (  # a service counts with those that it serves
            [
                ("a", "a", "w1", OK, {}, None),
                ("a", "b", "w1", KILLED, {ROLE: Role.SERVICE}, KILLED),
                ("b", "a", "w2", RUNNING, {}, RUNNING),
                ("b", "b", "w2", OK, {ROLE: Role.SERVICE}, RUNNING),
            ],
            "4 runs, 1 counts: 2 running, 1 killed",
        ),
        (  # runs within runs count with these, and can be archived alone
            [
                ("a", "a", "w1", OK, {}, None),
                ("a", "a/x", "w1", OK, {PARENT: f"{1:032x}"}, None),
                ("a", "a/y", "w1", OK, {PARENT: f"{1:032x}", **HIDDEN}, Omission.ARCHIVED),
                ("b", "a", "w2", OK, HIDDEN, Omission.ARCHIVED),
                ("b", "a/x", "w2", OK, {PARENT: f"{4:032x}"}, Omission.ARCHIVED),
            ],
            "5 runs, 2 count: 3 archived",
        ),
    ],
)
def test_every_run_counts_or_has_a_reason(study: Study, rows: list[Row], text: str) -> None:
    for workload, letter, workload_id, status, tags, _ in rows:
        study.run(workload, letter, [1.0, 2.0], workload_id=workload_id, status=status, tags=tags)
    report = read_report(study.reader, "study")
    expected = {f"{number:032x}": row[5] for number, row in enumerate(rows, 1) if row[5]}
    assert report.selection.reasons == expected
    assert counts_text([report.selection]) == text
    shown = {
        run.run.run_id
        for workload in report.workloads
        for group in workload.groups
        for each in (group, *group.children)
        if each.values
        for run in each.runs
    }
    # Of repeats, the report names the newest.
    assert shown <= {f"{number:032x}" for number in range(1, len(rows) + 1)} - expected.keys()


def test_archived_runs_count_where_they_are_named(study: Study) -> None:
    study.run("a", "a", [1.0, 2.0], tags=HIDDEN)
    assert read_report(study.reader, "study").workloads == []
    (workload,) = read_report(study.reader, "study", archived=True).workloads
    assert workload.groups[0].mean(Quantity.TIME_PER_EPOCH) == 2.0


def test_a_row_that_runs_again_stands_for_itself_while_it_runs(study: Study) -> None:
    """Within its workload in the place of its killed run, and alone as it will have been."""
    study.run("pair", "a", [1.0], workload_id="w1", status=KILLED)
    study.run("pair", "b", [1.0], workload_id="w1", status=RUNNING)
    study.run("pair", "a", [1.0], workload_id="w1", status=RUNNING)
    study.run("solo", "a", [1.0], workload_id="w2")
    study.run("solo", "a", [1.0], workload_id="w3", status=RUNNING)
    pair, solo = read_report(study.reader, "study").selection.running
    assert {run.run_id: run.status for run in pair.runs} == {
        f"{number:032x}": RUNNING for number in (2, 3)
    }
    assert solo.solo and not pair.solo
    assert not solo.finished and solo.makespan_s is None


def test_a_service_without_other_rows_is_not_superseded(study: Study) -> None:
    study.run("a", "a", [1.0], tags={ROLE: Role.SERVICE})
    assert read_report(study.reader, "study").selection.reasons == {}
