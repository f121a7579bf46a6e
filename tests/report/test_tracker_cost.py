"""What the tracker cost, from planted ledgers and tags."""

from __future__ import annotations

import pytest

from radt.analysis.quantities import Quantity
from radt.store.records import LedgerRecord
from radt.tags import TRACKER_CPU_S, TRACKER_JOURNAL_BYTES
from tests.frontend.report_support import Planted, Study
from tests.report.series_support import report_of

MS = 1_000_000


def read(study: Study, run_id: str, listener: str, count: int, each_ns: int) -> None:
    study.writer.put_ledger(
        LedgerRecord(
            *(run_id, listener, 0.5, count, count, 0, count * each_ns),
            sampling_max_ns=3 * each_ns,
        )
    )


def spent(study: Study, run_id: str, cpu_s: float, journal_bytes: int = 0) -> None:
    tags = {TRACKER_CPU_S: f"{cpu_s:.3f}"}
    if journal_bytes:
        tags[TRACKER_JOURNAL_BYTES] = str(journal_bytes)
    study.writer.put_tags(run_id, tags)


def test_of_runs_side_by_side_the_collector_counts_once(study: Study) -> None:
    # 17 s and 35 s long.
    workload_id = study.workload("S+L", [Planted("a", 3.0), Planted("b", 12.0)])
    short, long = (study.run_id(workload_id, letter) for letter in "ab")
    spent(study, short, 0.2, 1_000)
    spent(study, long, 0.7, 2_500)
    read(study, short, "top", 34, MS)
    read(study, long, "top", 70, MS)
    read(study, long, "smi", 70, 5 * MS)
    report = report_of(study)
    (workload,) = report.workloads
    assert workload.values[Quantity.TRACKER_CPU].mean == pytest.approx(0.7 / 35)
    cost = report.tracker
    assert cost.cpu_share == pytest.approx(0.02)
    assert (cost.unknown, cost.journal_bytes) == (0, 3_500)
    smi, top = cost.listeners
    assert (smi.name, smi.readings, smi.mean_s) == ("smi", 70, pytest.approx(0.005))
    assert smi.share == pytest.approx(0.01)
    # A reading that two runs share was taken once.
    assert (top.name, top.readings, top.longest_s) == ("top", 70, pytest.approx(0.003))
    assert cost.text == (
        "2.0 % of a core · journals 3.50 KB · sampling cost smi 5.00 ms, top 1.00 ms"
    )


def test_repeats_have_a_spread_and_machines_add_up(study: Study) -> None:
    for cpu_s in (0.15, 0.45):
        workload_id = study.workload("S", [Planted("a", 2.0)], tags={"radt.series": "s"})
        spent(study, study.run_id(workload_id, "a"), cpu_s)  # in 15 s
    workload_id = study.workload("far", [Planted(c, 2.0) for c in "ab"])
    study.writer.update_run(study.run_id(workload_id, "b"), host="gpu-02")
    for letter in "ab":
        spent(study, study.run_id(workload_id, letter), 0.3)
    report = report_of(study)
    cpu = {one.label: one.values[Quantity.TRACKER_CPU] for one in report.workloads}
    assert cpu["S"].repeats == pytest.approx((0.01, 0.03))
    assert cpu["far"].mean == pytest.approx(2 * 0.02)
    assert report.tracker.cpu_share == pytest.approx((0.15 + 0.45 + 0.6) / 45)


def test_what_is_not_known_is_not_made_up(study: Study) -> None:
    for label, tags in (
        ("old", {}),
        ("odd", {TRACKER_CPU_S: "a lot", TRACKER_JOURNAL_BYTES: "nan"}),
        ("below zero", {TRACKER_CPU_S: "-1"}),
    ):
        study.workload(label, [Planted("a", 2.0)], tags=tags)
    report = report_of(study)
    assert all(Quantity.TRACKER_CPU not in one.values for one in report.workloads)
    cost = report.tracker
    assert (cost.cpu_share, cost.unknown, cost.journal_bytes, cost.listeners) == (None, 3, None, ())
    assert cost.text == ""
