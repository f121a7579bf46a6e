"""Services in reports and comparisons: measured and added up, and no competitor."""

from __future__ import annotations

from pathlib import Path

import pytest

from radt.analysis.advice_measurements import read_measurements
from radt.analysis.findings import compare
from radt.analysis.operands import OperandFinder
from radt.analysis.quantities import Quantity
from radt.analysis.summaries import encounters_of
from radt.analysis.window_spec import DEFAULT_WINDOW
from radt.model import Role, RunStatus
from radt.store.locate import Places
from radt.store.reader import StoreReader
from radt.tags import ROLE
from tests.frontend.report_support import FINISHED, KILLED, Planted, Study
from tests.report.series_support import report_of, workloads_of


def served(study: Study, label: str, trained: list[Planted], **service: object) -> str:
    """Plant a workload with a service that is like its runs in all but its role.

    It lasts longer than they do, and has epochs of its own.
    """
    last = Planted("z", 4.0, epochs=6, cores=0.5, rss=(1e9, 1e9), watts=300.0, share_w=30.0)
    for name, value in service.items():
        setattr(last, name, value)
    workload_id = study.workload(label, [*trained, last])
    study.writer.put_tags(study.run_id(workload_id, "z"), {ROLE: Role.SERVICE})
    return workload_id


def test_a_service_is_in_the_sums_and_no_neighbour(study: Study) -> None:
    study.workload("solo", [Planted("a", 2.0, watts=200.0)])
    served(study, "pair", [Planted(letter, 4.0, watts=300.0, share_w=100.0) for letter in "ab"])
    report = report_of(study)
    solo, pair = report.workloads
    trained, service = pair.groups
    assert (trained.is_service, service.is_service) == (False, True)
    assert (len(trained.runs), pair.run_count, service.name) == (2, 2, "resnet26 (service)")
    # Its load counts while the others are measured, not in its own epochs.
    assert service.values[Quantity.CPU].mean == pytest.approx(0.5)
    assert pair.values[Quantity.CPU_OF_ALL].mean == pytest.approx(2 * 0.98 + 0.5)
    assert pair.values[Quantity.MEMORY_OF_ALL].mean == pytest.approx(2 * 2e9 + 1e9)
    assert solo.values[Quantity.CPU_OF_ALL].mean == pytest.approx(0.98)
    assert Quantity.CPU_OF_ALL in report.quantities
    # From the first reading to the service's last one; two epochs of each of the two others.
    assert pair.values[Quantity.ENERGY].mean == pytest.approx(300.0 * 30)
    assert pair.values[Quantity.ENERGY_PER_EPOCH].mean == pytest.approx(300.0 * 8 / 4)
    assert service.values[Quantity.ENERGY_OF_RUNS].mean == pytest.approx(30.0 * 30)
    # Neither slowed down nor waited for, and the others have one neighbour each.
    assert trained.mean(Quantity.SLOWDOWN) == pytest.approx(2.0)
    assert (service.mean(Quantity.SLOWDOWN), service.baseline) == (None, None)
    assert pair.values[Quantity.MAKESPAN].mean == pytest.approx(19.0)
    assert pair.values[Quantity.SERIAL].mean == pytest.approx(2 * 15.0)
    (encounter,) = (each for workload in report.workloads for each in encounters_of(workload))
    assert (encounter.degree, encounter.neighbours) == (2, (("resnet26", 1),))


def test_without_services_sums_of_all_are_not_listed(study: Study) -> None:
    study.workload("pair", [Planted(letter, 4.0) for letter in "ab"])
    assert Quantity.CPU_OF_ALL not in report_of(study).quantities


def test_a_run_with_a_service_is_alone_and_one_without_is_preferred(study: Study) -> None:
    study.workload("pair", [Planted(letter, 4.0) for letter in "ab"])
    served(study, "with", [Planted("a", 2.5)])
    found = report_of(study)
    with_service = {each.label: each for each in found.workloads}
    baseline = with_service["pair"].groups[0].baseline
    assert baseline is not None
    assert (baseline.label, baseline.text) == ("with", "alone with a service")
    assert with_service["pair"].groups[0].mean(Quantity.SLOWDOWN) == pytest.approx(4.0 / 2.5)
    assert with_service["with"].groups[0].mean(Quantity.SLOWDOWN) is None
    assert any("no run was alone without one: pair." in note for note in found.footnotes)

    study.workload("without", [Planted("a", 2.0)])
    served(study, "with", [Planted("a", 2.5)])  # newer does not help it
    plain = workloads_of(study)
    assert plain["pair"].groups[0].mean(Quantity.SLOWDOWN) == pytest.approx(2.0)
    # What the service costs the run that it serves.
    assert plain["with"].groups[0].mean(Quantity.SLOWDOWN) == pytest.approx(2.5 / 2.0)


@pytest.mark.parametrize("status", [KILLED, RunStatus.FAILED])
def test_a_service_that_failed_leaves_the_others_their_results(
    study: Study, status: RunStatus
) -> None:
    study.workload("solo", [Planted("a", 2.0)])
    served(study, "pair", [Planted(letter, 4.0) for letter in "ab"], status=status)
    pair = workloads_of(study)["pair"]
    trained, service = pair.groups
    assert (trained.status, service.status) == (FINISHED, status)
    assert pair.values[Quantity.SPEED_UP].mean == pytest.approx(30 / 19)
    assert Quantity.CPU_OF_ALL not in pair.values, "a part of it is not known"


def test_a_comparison_matches_no_service_and_compares_the_sum(study: Study) -> None:
    study.workload("own", [Planted(letter, 4.0) for letter in "ab"])
    served(study, "shared", [Planted(letter, 2.0, cores=0.2) for letter in "ab"])
    served(study, "again", [Planted(letter, 2.0, cores=0.2) for letter in "ab"])
    folder = Path(study.store).parent
    with OperandFinder(Places.of(folder), DEFAULT_WINDOW, folder) as finder:
        a, b = finder.find("study/own"), finder.find("study/shared")
        (workload,) = compare(a, b).workloads
        (alike,) = compare(b, finder.find("study/again")).workloads
    found = {finding.quantity: finding for finding in workload.findings}
    assert {finding.runs for finding in (*workload.findings, *alike.findings)} == {""}
    assert found[Quantity.TIME_PER_EPOCH].b.mean == pytest.approx(2.0)
    assert found[Quantity.CPU_OF_ALL].a.mean == pytest.approx(2 * 0.98)
    assert found[Quantity.CPU_OF_ALL].b.mean == pytest.approx(2 * 0.2 + 0.5)
    differing = {str(difference) for difference in workload.differences}
    assert "services none → resnet26" in differing
    assert not any(text.startswith("runs at once") for text in differing)


def test_advice_leaves_workloads_with_services_out_and_says_so(study: Study) -> None:
    study.workload("solo", [Planted("a", 2.0)])
    served(study, "pair", [Planted(letter, 4.0) for letter in "ab"])
    with StoreReader(study.store) as reader:
        measured = read_measurements(reader, study.experiment)
    assert (len(measured.solos), measured.measured) == (1, [])
    assert measured.left_out[0].startswith("1 workload with services:")
