"""Who slows down whom, from planted stores of known truth."""

from __future__ import annotations

from pathlib import Path

import pytest

from radt.analysis.report import read_report
from radt.analysis.summaries import Encounter, encounters_of
from radt.store.reader import StoreReader
from radt.tags import PROFILED
from tests.frontend.report_support import OOM, Planted, Study

SMALL, MEDIUM = "resnet26", "resnet50"


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """Both models alone, 2 s and 5 s an epoch."""
    study = Study(tmp_path / "radt.db")
    study.workload("S", [small("a", 2.0)])
    study.workload("M", [medium("a", 5.0)])
    return study


def small(letter: str, epoch_s: float, **more: object) -> Planted:
    return Planted(letter, epoch_s, name=SMALL, params={"model": SMALL}, **more)


def medium(letter: str, epoch_s: float, **more: object) -> Planted:
    return Planted(letter, epoch_s, name=MEDIUM, params={"model": MEDIUM}, **more)


def found_in(study: Study) -> list[Encounter]:
    with StoreReader(study.store) as reader:
        workloads = read_report(reader, study.experiment).workloads
    return [encounter for workload in workloads for encounter in encounters_of(workload)]


def slowdowns(found: list[Encounter], model: str) -> list[tuple[float, str, int]]:
    """Return the slowdowns of a model, with its neighbours and the number of runs."""
    return [
        (pytest.approx(each.slowdown.mean), each.neighbours_text, each.degree)
        for each in found
        if each.model == model
    ]


def test_a_matrix_of_models(study: Study) -> None:
    study.workload("3S", [small(c, 3.2) for c in "abc"])
    study.workload("2S", [small(c, 2.4) for c in "ab"])
    study.workload("S+M", [small("a", 3.0), medium("b", 6.0)])
    found = found_in(study)
    assert slowdowns(found, SMALL) == [(1.6, f"2 × {SMALL}", 3), (1.2, SMALL, 2), (1.5, MEDIUM, 2)]
    assert slowdowns(found, MEDIUM) == [(1.2, SMALL, 2)]
    assert not any(encounter.is_mixed for encounter in found)


@pytest.mark.parametrize(("devices", "degrees"), [("unknown", []), ("GPU-a", [2])])
def test_runs_on_unknown_devices_are_nobodys_neighbours(
    study: Study, devices: str, degrees: list[int]
) -> None:
    study.workload("S?", [small("a", 2.0, devices=devices)])
    study.workload("2S?", [small(c, 2.4, devices=devices) for c in "ab"])
    assert [encounter.degree for encounter in found_in(study)] == degrees


def test_neighbours_of_several_models_stand_by_themselves(study: Study) -> None:
    study.workload("S+S+M", [small("a", 3.0), small("b", 3.4), medium("c", 8.0)])
    found = found_in(study)
    # Either neighbour may have slowed down the small ones; the medium one had only small ones.
    assert slowdowns(found, MEDIUM) == [(1.6, f"2 × {SMALL}", 3)]
    assert slowdowns(found, SMALL) == [(1.6, f"{SMALL} + {MEDIUM}", 3)]
    assert [encounter.model for encounter in found if encounter.is_mixed] == [SMALL]


def test_ways_to_share_are_told_apart_and_repeats_counted(study: Study) -> None:
    for epoch_s in (2.3, 2.4, 2.5):
        workload_id = study.workload(
            "2S MPS", [small(c, epoch_s) for c in "ab"], tags={"radt.series": "s"}
        )
        for letter in "ab":
            study.writer.update_run(study.run_id(workload_id, letter), collocation="MPS")
    study.workload("2S", [small(c, 3.0) for c in "ab"])
    naive, mps = sorted(found_in(study), key=lambda one: one.collocation)
    assert [one.collocation for one in (naive, mps)] == ["", "MPS"]
    assert [one.slowdown.count for one in (naive, mps)] == [1, 3]
    assert mps.slowdown.mean == pytest.approx(1.2)


def test_runs_on_other_devices_are_no_neighbours(study: Study) -> None:
    workload_id = study.workload("apart", [small("a", 2.0), medium("b", 5.0)])
    study.writer.update_run(study.run_id(workload_id, "b"), devices="1+2")
    assert not found_in(study)


def test_what_did_not_run_beside_others_to_its_end_says_nothing(study: Study) -> None:
    study.workload("short", [small("a", 2.0), medium("b", 5.0, status=OOM)])
    study.workload("slowed", [small("a", 9.0), medium("b", 9.0)], tags={PROFILED: "nsys"})
    study.workload("no baseline", [Planted("a", 3.0, name="vit"), Planted("b", 3.0, name="vit")])
    assert not found_in(study)
