"""Profiled runs, and what ran beside them, are no measurements."""

from __future__ import annotations

from pathlib import Path

import pytest

from radt.analysis.quantities import Quantity
from radt.analysis.report import read_report
from radt.analysis.selection import Omission
from radt.analysis.summaries import WorkloadSummary
from radt.model import RunStatus
from radt.tags import PROFILED, PROFILED_BESIDE
from tests.report.test_summary import Study

UNDER_NSYS = {PROFILED: "nsys"}


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return Study(tmp_path / "radt.db")


def times(workloads: list[WorkloadSummary]) -> list[tuple[str, str, float | None]]:
    return [(w.label, g.name, g.mean(Quantity.TIME_PER_EPOCH)) for w in workloads for g in w.groups]


def profiled_count(study: Study) -> int:
    return read_report(study.reader, "study").selection.count(Omission.PROFILED)


def test_a_profiled_start_does_not_stand_for_its_workload(study: Study) -> None:
    study.run("solo", "a", [1.0, 2.0], workload_id="w1")
    study.run("solo", "a", [1.0, 8.0], workload_id="w2", tags=UNDER_NSYS)

    assert times(read_report(study.reader, "study").workloads) == [("solo", "net", 2.0)]
    assert profiled_count(study) == 1
    assert times(read_report(study.reader, "study", profiled=True).workloads) == [
        ("solo", "net", 2.0),
        ("solo", "net (nsys)", 8.0),
    ]


def test_neighbours_are_left_out_too_and_stay_apart_when_shown(study: Study) -> None:
    study.run("pair", "a", [1.0, 8.0], tags=UNDER_NSYS)
    study.run("pair", "b", [1.0, 4.0], tags={PROFILED_BESIDE: "a"})

    assert read_report(study.reader, "study").workloads == []
    assert profiled_count(study) == 2
    assert times(read_report(study.reader, "study", profiled=True).workloads) == [
        ("pair", "net (nsys)", 8.0),
        ("pair", "net (beside a)", 4.0),
    ]


def test_a_profiled_run_is_no_baseline_but_is_compared_with_one(study: Study) -> None:
    study.run("profiled", "a", [1.0, 8.0], tags=UNDER_NSYS)
    for letter in ("a", "b"):
        study.run("pair", letter, [1.0, 4.0])
    profiled, pair = read_report(study.reader, "study", profiled=True).workloads
    assert [w.groups[0].mean(Quantity.SLOWDOWN) for w in (profiled, pair)] == [None, None]

    study.run("solo", "a", [1.0, 2.0])
    profiled, pair, solo = read_report(study.reader, "study", profiled=True).workloads
    assert [w.groups[0].mean(Quantity.SLOWDOWN) for w in (profiled, pair, solo)] == [4.0, 2.0, None]


def test_profiled_repeats_are_one_line(study: Study) -> None:
    for number, seconds in enumerate((6.0, 8.0)):
        study.run(
            "solo",
            "a",
            [1.0, seconds],
            workload_id=f"w{number}",
            tags=UNDER_NSYS | {"radt.series": "s"},
        )

    assert times(read_report(study.reader, "study", profiled=True).workloads) == [
        ("solo", "net (nsys)", 7.0)
    ]


def test_what_came_to_no_result_is_not_counted(study: Study) -> None:
    study.run("solo", "a", [1.0, 2.0], tags=UNDER_NSYS, status=RunStatus.SKIPPED)

    assert profiled_count(study) == 0
