"""Who slows down whom, from planted stores of known truth."""

from __future__ import annotations

from pathlib import Path

import pytest

from radt.analysis.report import read_report
from radt.analysis.summaries import Encounter, Interference
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


def found_in(study: Study) -> Interference:
    with StoreReader(study.store) as reader:
        return read_report(reader, study.experiment).interference


def cell(found: tuple[Encounter, ...]) -> list[tuple[float, int, str]]:
    return [(pytest.approx(one.slowdown.mean), one.degree, one.collocation) for one in found]


def test_a_matrix_of_models(study: Study) -> None:
    study.workload("3S", [small(c, 3.2) for c in "abc"])
    study.workload("2S", [small(c, 2.4) for c in "ab"])
    study.workload("S+M", [small("a", 3.0), medium("b", 6.0)])
    found = found_in(study)
    assert (found.models, found.neighbours) == ((SMALL, MEDIUM), (SMALL, MEDIUM))
    # The fewest neighbours first.
    assert cell(found.at(SMALL, SMALL)) == [(1.2, 2, ""), (1.6, 3, "")]
    assert cell(found.at(SMALL, MEDIUM)) == [(1.5, 2, "")]
    assert cell(found.at(MEDIUM, SMALL)) == [(1.2, 2, "")]
    assert found.at(MEDIUM, MEDIUM) == ()
    assert found.mixed == ()


@pytest.mark.parametrize(("devices", "degrees"), [("unknown", []), ("GPU-a", [2])])
def test_runs_on_unknown_devices_are_nobodys_neighbours(
    study: Study, devices: str, degrees: list[int]
) -> None:
    study.workload("S?", [small("a", 2.0, devices=devices)])
    study.workload("2S?", [small(c, 2.4, devices=devices) for c in "ab"])
    assert [each.degree for each in found_in(study).at(SMALL, SMALL)] == degrees


def test_neighbours_of_several_models_stand_by_themselves(study: Study) -> None:
    study.workload("S+S+M", [small("a", 3.0), small("b", 3.4), medium("c", 8.0)])
    found = found_in(study)
    # What slowed down the small ones nobody can tell; the medium one had small ones only.
    assert cell(found.encounters) == [(1.6, 3, "")]
    (mixed,) = found.mixed
    assert (mixed.model, mixed.neighbours_text, mixed.degree) == (SMALL, f"{SMALL} + {MEDIUM}", 3)
    assert mixed.slowdown.mean == pytest.approx(1.6)
    assert found.encounters[0].neighbours_text == f"2 × {SMALL}"


def test_ways_to_share_are_told_apart_and_repeats_counted(study: Study) -> None:
    for epoch_s in (2.3, 2.4, 2.5):
        workload_id = study.workload(
            "2S MPS", [small(c, epoch_s) for c in "ab"], tags={"radt.series": "s"}
        )
        for letter in "ab":
            study.writer.update_run(study.run_id(workload_id, letter), collocation="MPS")
    study.workload("2S", [small(c, 3.0) for c in "ab"])
    naive, mps = sorted(found_in(study).at(SMALL, SMALL), key=lambda one: one.collocation)
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
    assert found_in(study) == Interference()
