"""All quantities of a report, from a planted store whose every number is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from sqlalchemy import event

from radt.analysis import series_values
from radt.analysis.quantities import Quantity
from radt.analysis.reading import points_of
from radt.analysis.report import ReportCache, read_report
from radt.analysis.stretches import growth, merged, rate_per_s
from radt.analysis.summaries import WorkloadSummary
from radt.model import RunStatus
from radt.store.counters import Increases
from radt.store.reader import StoreReader
from radt.tags import SERIES
from tests.frontend.report_support import RULE, Planted, Study, sweep
from tests.report.series_support import report_of

CARD = {
    "gpu.sm.active": 0.5,
    "gpu.utilization": 0.9,
    "gpu.memory.used": 6e9,
    "gpu.power": 200.0,
}


def of_all(workload: WorkloadSummary) -> dict[str, float]:
    return {quantity.value: one.mean for quantity, one in workload.values.items()}


def test_values_of_a_card_that_two_runs_share(study: Study) -> None:
    """Everything is twice, thrice or forty times as much in the epoch that does not count."""
    study.workload("solo", [Planted("a", 2.0, gpu=CARD, watts=200.0)])
    study.workload(
        "pair",
        [
            Planted(letter, 4.0, gpu=CARD, watts=300.0, share_w=120.0, disk_per_s=5e6)
            for letter in "ab"
        ],
    )
    report = report_of(study)
    solo, pair = report.workloads
    assert of_all(pair) == pytest.approx(
        {
            "sm_active": 0.5,
            "gpu_utilization": 0.9,
            "gpu_memory": 6e9,
            "gpu_memory_peak": 6e9,
            "power": 200.0,
            # From the first reading to the last one: 1 s, the warm-up, two epochs.
            "energy": 300.0 * 18,
            # Two epochs of each of two runs, in 8 s.
            "energy_per_epoch": 300.0 * 8 / 4,
            "energy_per_sample": 300.0 * 8 / (2 * 1000 * 8),
            "makespan": 19.0,
            "serial": 2 * 15.0,
            "speed_up": 30 / 19,
            "cpu_of_all": 1.96,
            "memory_of_all": 4e9,
        }
    )
    (group,) = pair.groups
    assert {quantity.value: one.mean for quantity, one in group.values.items()} == pytest.approx(
        {
            "time_per_epoch": 4.0,
            "vs_solo": 2.0,
            "samples_per_s": 2000.0,
            "samples_per_s_of_run": 1000.0,
            "cpu": 1.96,
            "memory": 4e9,
            "memory_peak": 5e9,
            "energy_of_runs": 2 * 120.0 * 18,
            "disk_read": 1e7,
        }
    )
    assert group.values[Quantity.ENERGY_OF_RUNS].is_estimated
    assert group.values[Quantity.ENERGY_OF_RUNS].methods == (RULE,)
    assert solo.groups[0].mean(Quantity.SLOWDOWN) is None
    # Both have SM activity, which says more than utilisation.
    assert Quantity.GPU_UTILIZATION not in report.quantities
    assert Quantity.SM_ACTIVE in report.quantities


def test_utilisation_is_named_as_such_where_nothing_says_more(study: Study) -> None:
    study.workload("old card", [Planted("a", 2.0, gpu={"gpu.utilization": 0.9})])
    report = report_of(study)
    assert Quantity.GPU_UTILIZATION in report.quantities
    assert Quantity.SM_ACTIVE not in report.quantities
    study.workload("new card", [Planted("a", 2.0, gpu=CARD)])
    # Side by side, never in one column.
    assert {Quantity.GPU_UTILIZATION, Quantity.SM_ACTIVE} <= set(report_of(study).quantities)


def test_repeats_have_a_spread_and_single_runs_none(study: Study) -> None:
    for epoch_s in (1.9, 2.0, 2.1):
        study.workload("solo", [Planted("a", epoch_s)], tags={"radt.series": "s"})
    study.workload("pair", [Planted("a", 4.0), Planted("b", 6.0)])
    solo, pair = report_of(study).workloads
    time = solo.groups[0].values[Quantity.TIME_PER_EPOCH]
    assert (time.mean, time.repeats) == (pytest.approx(2.0), pytest.approx((1.9, 2.0, 2.1)))
    assert len(solo.workload_ids) == 3
    slowdown = pair.groups[0].values[Quantity.SLOWDOWN]
    assert (slowdown.count, slowdown.interval) == (1, None)
    assert slowdown.parts == pytest.approx((2.0, 3.0))


def test_repeats_of_a_script_without_a_workload_are_one(study: Study) -> None:
    for epoch_s in (2.0, 4.0):
        study.workload("", [Planted("a", epoch_s)], tags={"radt.series": "s"})
    study.workload("", [Planted("a", 9.0)])
    found = report_of(study).workloads
    assert [one.groups[0].mean(Quantity.TIME_PER_EPOCH) for one in found] == [3.0, 9.0]
    assert [one.groups[0].repeats for one in found] == [2, 1]


def test_runs_of_a_sweep_are_named_by_what_differs(study: Study) -> None:
    sweep(study, 3)
    names = [workload.groups[0].name for workload in report_of(study).workloads]
    assert names == [
        "batch-size 16, lr 0.1",
        "batch-size 32, lr 0.05",
        "batch-size 64, lr 0.0333",
    ]


def test_a_name_of_ones_own_stays_before_the_parameters(study: Study) -> None:
    for amp in ({"amp": "true"}, {}):
        study.workload(f"amp {bool(amp)}", [Planted("a", 2.0, name="vit", params=amp)])
    study.workload("other", [Planted("a", 2.0, name="cnn", params={"width": "3"})])
    names = [workload.groups[0].name for workload in report_of(study).workloads]
    assert names == ["vit, amp true", "vit", "cnn"]


def test_like_runs_repeat_what_they_have_in_common_once(study: Study) -> None:
    for lr in ("0.01", "0.003"):
        rows = [
            Planted(letter, 2.0, name="mlp", params={"lr": lr, "seed": str(seed)})
            for seed, letter in enumerate("abcdef")
        ]
        study.workload(f"of {lr}", rows[: 2 if lr == "0.003" else 6])
    names = [workload.groups[0].name for workload in report_of(study).workloads]
    assert names == ["mlp, lr 0.01, seed 0/1/2/3/…", "mlp, lr 0.003, seed 0/1"]


def test_a_renamed_repeat_does_not_rename_the_others(study: Study) -> None:
    starts = [
        study.workload("", [Planted("a", 2.0, name="mlp")], tags={SERIES: "s"}) for _ in range(3)
    ]
    study.writer.update_run(study.run_id(starts[-1], "a"), name="the baseline")
    (workload,) = report_of(study).workloads
    assert (workload.groups[0].name, workload.groups[0].repeats) == ("mlp", 3)


def test_what_ended_otherwise_is_a_result_without_numbers(study: Study) -> None:
    study.workload("solo", [Planted("a", 2.0)])
    for status in (RunStatus.OOM, RunStatus.FAILED, RunStatus.KILLED):
        study.workload(status.lower(), [Planted("a", 2.0, status=status, gpu=CARD)])
    study.workload("goes on", [Planted("a", 2.0, status=RunStatus.RUNNING)])
    report = report_of(study)
    assert [one.groups[0].status for one in report.workloads] == [
        RunStatus.FINISHED,
        RunStatus.OOM,
        RunStatus.FAILED,
        RunStatus.KILLED,
    ]
    assert all(not one.groups[0].values and not one.values for one in report.workloads[1:])
    assert report.selection.open_count == 1


def test_what_did_not_change_is_not_read_again(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    real: Callable[..., object] = points_of

    def counting(reader: StoreReader, wanted: list[tuple[str, int]], metrics: object) -> object:
        if wanted:
            read.append(len({run_id for run_id, _ in wanted}))
        return real(reader, wanted, metrics)

    monkeypatch.setattr(series_values, "points_of", counting)
    cache = ReportCache()
    for label in "xyz":
        study.workload(label, [Planted("a", 2.0, watts=100.0)])
    first = report_of(study, cache=cache)
    assert report_of(study, cache=cache) == first
    assert read == [3]
    study.workload("w", [Planted("a", 8.0, watts=100.0)])
    again = report_of(study, cache=cache)
    assert read == [3, 1]
    assert again.workloads[:3] == first.workloads
    # Late points of a run that had ended are seen.
    run_id = study.run_id(first.workloads[0].workload_id, "a")
    study.writer.put_tags(run_id, {"note": "touched"})
    report_of(study, cache=cache)
    assert read == [3, 1, 1]


def test_many_runs_take_few_statements(study: Study) -> None:
    """As many for twenty runs as for one."""
    counts = []
    for more in (1, 19):
        for _ in range(more):
            study.workload(str(study.count), [Planted("a", 2.0, gpu=CARD, watts=100.0)])
        statements: list[str] = []
        with StoreReader(study.store) as reader:
            event.listen(
                reader.engine,
                "before_cursor_execute",
                lambda *given, seen=statements: seen.append(given[2]),
            )
            assert len(read_report(reader, study.experiment).workloads) == study.count
        counts.append(len(statements))
    assert counts[0] == counts[1] > 5


def increases(*readings: tuple[float, float]) -> Increases:
    times_ns = np.array([round(at * 1e9) for at, _ in readings], dtype=np.int64)
    values = np.array([value for _, value in readings])
    return Increases(times_ns[:-1], times_ns[1:], np.diff(values))


def test_growth_within_stretches_takes_parts_of_readings() -> None:
    found = increases((0, 0), (10, 100), (20, 400))
    s = 1_000_000_000
    assert growth(found, [(5 * s, 15 * s)]) == pytest.approx(50 + 150)
    assert rate_per_s(found, [(5 * s, 15 * s)]) == pytest.approx(20)
    assert rate_per_s(found, [(15 * s, 99 * s)]) == pytest.approx(30)  # of what is covered
    assert growth(found, [(30 * s, 40 * s)]) is None
    assert merged([(5, 9), (0, 2), (1, 3), (3, 4)]) == [(0, 4), (5, 9)]


def test_values_that_are_not_finite_leave_the_others(study: Study) -> None:
    study.workload("solo", [Planted("a", 2.0, cores=math.nan, samples_per_s=10.0)])
    (workload,) = report_of(study).workloads
    assert workload.groups[0].mean(Quantity.CPU) is None
    assert workload.groups[0].mean(Quantity.SAMPLES_PER_S) == 10.0
