"""Makespan, serial, speed-up, carbon and baselines, from planted stores of known truth."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy  # its parts when they are used

from radt.analysis.estimates import Estimate
from radt.analysis.quantities import Quantity
from radt.analysis.report import ReportCache
from radt.analysis.summaries import WorkloadSummary
from radt.model import RunStatus, Scope, SeriesKind
from radt.store.reader import StoreReader
from radt.store.records import Samples, SeriesBatch, SeriesRecord
from tests.frontend.report_support import FINISHED, OOM, Planted, S, Study
from tests.report.series_support import report_of, workloads_of

MAKESPAN, SERIAL, SPEED_UP = Quantity.MAKESPAN, Quantity.SERIAL, Quantity.SPEED_UP
#: What a planted run takes besides its epochs after the first: start, warm-up, end.
ELSE_S = 1.0 + 9.0 + 1.0


def means(workload: WorkloadSummary) -> dict[Quantity, float]:
    asked = (MAKESPAN, SERIAL, SPEED_UP)
    return {one: workload.values[one].mean for one in asked if one in workload.values}


def large(letter: str, epoch_s: float, **more: object) -> Planted:
    return Planted(letter, epoch_s, name="resnet152", params={"size": "large"}, **more)


def divided(study: Study, label: str, runs: list[Planted], collocation: str) -> None:
    workload_id = study.workload(label, runs)
    study.writer.update_workload(workload_id, start_skew_ns=0)
    for run in runs:
        study.writer.update_run(study.run_id(workload_id, run.letter), collocation=collocation)


def test_what_runs_of_several_models_take_together(study: Study) -> None:
    study.workload("S", [Planted("a", 2.0)])
    study.workload("L", [large("a", 10.0)])
    study.workload("S+S+L", [Planted("a", 3.0), Planted("b", 3.5), large("c", 12.0)])
    found = workloads_of(study)
    # The last one to end counts: two more epochs of the large one.
    assert means(found["S+S+L"]) == pytest.approx(
        {
            MAKESPAN: ELSE_S + 2 * 12.0,
            SERIAL: 2 * (ELSE_S + 2 * 2.0) + ELSE_S + 2 * 10.0,
            SPEED_UP: (2 * 15.0 + 31.0) / 35.0,
        }
    )
    assert means(found["S"]) == pytest.approx({MAKESPAN: 15.0}), "a baseline has none itself"
    assert found["S+S+L"].values[SPEED_UP].interval is None, "one repeat has no spread"


def test_serial_takes_a_baseline_of_every_row(study: Study) -> None:
    study.workload("S", [Planted("a", 2.0)])
    study.workload("S+L", [Planted("a", 3.0), large("b", 12.0)])
    assert set(means(workloads_of(study)["S+L"])) == {MAKESPAN}


def test_a_workload_of_which_a_row_did_not_finish_has_no_makespan(study: Study) -> None:
    study.workload("S", [Planted("a", 2.0)])
    study.workload("2x", [Planted("a", 3.0), Planted("b", 3.0, status=OOM)])
    assert means(workloads_of(study)["2x"]) == {}


def test_rows_that_were_resumed_later_did_not_run_together(study: Study) -> None:
    study.workload("S", [Planted("a", 2.0)])
    workload_id = study.workload("2x", [Planted("a", 3.0), Planted("b", 3.0)])
    later_ns = study.now_ns + 1000 * S
    study.writer.update_run(
        study.run_id(workload_id, "b"), started_ns=later_ns, ended_ns=later_ns + 20 * S
    )
    assert means(workloads_of(study)["2x"]) == {}


def test_intervals_of_ratios_know_the_spread_of_both_sides(study: Study) -> None:
    alone, beside = (1.9, 2.0, 2.1, 2.05), (3.0, 3.3, 3.1)
    for epoch_s in alone:
        study.workload("S", [Planted("a", epoch_s)], tags={"radt.series": "s"})
    for epoch_s in beside:
        study.workload(
            "2x", [Planted("a", epoch_s), Planted("b", epoch_s)], tags={"radt.series": "t"}
        )
    pair = workloads_of(study)["2x"]
    slowdown = pair.groups[0].values[Quantity.SLOWDOWN]
    assert slowdown.mean == pytest.approx(np.mean(beside) / np.mean(alone))
    assert slowdown.count == 3
    assert bounds(slowdown) == pytest.approx(welch(beside, alone), rel=1e-9)
    speed_up = pair.values[SPEED_UP]
    serial = [2 * (ELSE_S + 2 * one) for one in alone]
    makespans = [ELSE_S + 2 * one for one in beside]
    assert speed_up.mean == pytest.approx(np.mean(serial) / np.mean(makespans))
    assert bounds(speed_up) == pytest.approx(welch(serial, makespans), rel=1e-9)
    assert (speed_up.count, pair.values[SERIAL].count) == (3, 4)


def bounds(estimate: Estimate) -> tuple[float, float]:
    assert estimate.interval is not None
    return estimate.interval.low, estimate.interval.high


def welch(above: object, below: object) -> tuple[float, float]:
    """By scipy: the interval of the ratio of geometric means."""
    found = scipy.stats.ttest_ind(np.log(above), np.log(below), equal_var=False)
    interval = found.confidence_interval(0.95)
    return math.exp(interval.low), math.exp(interval.high)


def test_a_ratio_to_what_was_measured_once_has_no_interval(study: Study) -> None:
    study.workload("S", [Planted("a", 2.0)])
    for epoch_s in (3.0, 3.1, 3.2):
        study.workload("2x", [Planted(c, epoch_s) for c in "ab"], tags={"radt.series": "s"})
    pair = workloads_of(study)["2x"]
    for found in (pair.groups[0].values[Quantity.SLOWDOWN], pair.values[SPEED_UP]):
        assert (found.count, found.interval) == (3, None)
    assert pair.values[MAKESPAN].interval is not None


def test_a_repeat_that_failed_counts_for_nothing(study: Study) -> None:
    study.workload("S", [Planted("a", 2.0)])
    for epoch_s, status in ((3.0, FINISHED), (3.2, FINISHED), (50.0, OOM)):
        study.workload(
            "2x",
            [Planted("a", epoch_s), Planted("b", epoch_s, status=status)],
            tags={"radt.series": "s"},
        )
    makespan = workloads_of(study)["2x"].values[MAKESPAN]
    assert makespan.repeats == pytest.approx((ELSE_S + 6.0, ELSE_S + 6.4))


def test_serial_is_for_as_many_epochs(study: Study) -> None:
    """As where a limit of time ends all of them: they would be "serial" times as fast."""
    study.workload("S", [Planted("a", 2.0, epochs=5)])
    study.workload("2x", [Planted(c, 4.0, epochs=3) for c in "ab"])
    pair = workloads_of(study)["2x"]
    alone_s = ELSE_S + 2 * 2.0  # start-up, warm-up and two epochs, without the other two
    assert means(pair)[SERIAL] == pytest.approx(2 * alone_s)
    assert pair.is_adjusted
    assert any("another number of epochs" in one for one in report_of(study).footnotes)
    # Whatever window was asked for.
    (_, of_all) = report_of(study, window="all").workloads
    assert of_all.values[SERIAL].mean == pytest.approx(2 * alone_s)


def test_scripts_without_epochs_have_a_speed_up(study: Study) -> None:
    study.workload("S", [Planted("a", 2.0, epochs=0)])
    study.workload("2x", [Planted(c, 2.0, epochs=0) for c in "ab"])
    pair = workloads_of(study)["2x"]
    assert means(pair)[SPEED_UP] == pytest.approx(2.0)
    assert not pair.is_adjusted


def test_alone_means_on_the_whole_device(study: Study) -> None:
    study.workload("naive", [Planted("a", 2.0)])
    divided(study, "MPS", [Planted("a", 2.2)], "MPS")  # newer
    divided(study, "1g", [Planted("a", 5.0)], "1g.5gb")
    divided(study, "2x", [Planted(c, 3.0) for c in "ab"], "MPS")
    found = workloads_of(study)
    assert found["2x"].groups[0].mean(Quantity.SLOWDOWN) == pytest.approx(1.5)
    baseline = found["2x"].groups[0].baseline
    assert baseline is not None
    assert (baseline.label, baseline.text, baseline.is_current) == ("naive", "alone", True)
    # A part of a device is put against all of it.
    assert found["1g"].groups[0].mean(Quantity.SLOWDOWN) == pytest.approx(2.5)
    assert found["naive"].groups[0].mean(Quantity.SLOWDOWN) is None
    assert report_of(study).footnotes == ()


def test_alone_on_a_part_is_named_so(study: Study) -> None:
    divided(study, "7g", [Planted("a", 2.0)], "7g.40gb")
    workload_id = study.workload("2x", [Planted(c, 3.0) for c in "ab"])
    study.writer.update_workload(workload_id, start_skew_ns=0)
    found = workloads_of(study)
    assert found["2x"].groups[0].mean(Quantity.SLOWDOWN) == pytest.approx(1.5)
    assert found["7g"].groups[0].mean(Quantity.SLOWDOWN) is None
    assert report_of(study).footnotes == (
        "Compared with runs alone on 7g.40gb, because no run was alone on the whole device: 2x.",
    )


def test_a_baseline_may_be_of_an_earlier_start(study: Study) -> None:
    """Of a row that had the workload's label for itself, until the file was changed."""
    study.workload("1", [Planted("a", 2.5)])
    study.workload("1", [Planted("a", 2.0)])
    workload_id = study.workload("1", [Planted(c, 3.0) for c in "ab"])
    study.writer.update_workload(workload_id, start_skew_ns=0)
    report = report_of(study)
    (pair,) = report.workloads
    assert pair.groups[0].mean(Quantity.SLOWDOWN) == pytest.approx(1.5)
    assert means(pair)[SERIAL] == pytest.approx(2 * 15.0)
    assert report.footnotes == ("Compared with earlier runs that this report does not show: 1.",)
    # One that the report has goes before it, though it is older than none.
    study.workload("solo", [Planted("a", 1.5)])
    assert workloads_of(study)["1"].groups[0].mean(Quantity.SLOWDOWN) == pytest.approx(2.0)


def test_what_is_remembered_follows_a_new_baseline(study: Study) -> None:
    cache = ReportCache()
    study.workload("S", [Planted("a", 2.0)])
    study.workload("2x", [Planted(c, 3.0) for c in "ab"])
    before = report_of(study, cache=cache).workloads[-1]
    assert before.groups[0].mean(Quantity.SLOWDOWN) == pytest.approx(1.5)
    study.workload("S", [Planted("a", 1.0)])
    (after,) = (one for one in report_of(study, cache=cache).workloads if one.label == "2x")
    assert after.groups[0].mean(Quantity.SLOWDOWN) == pytest.approx(3.0)
    assert means(after)[SERIAL] == pytest.approx(2 * 13.0)
    assert report_of(study, cache=cache) == report_of(study)


def emit(study: Study, workload_id: str, letter: str, grams: dict[str, float], end_s: int) -> None:
    """A counter of each metric that has grown by so much in every second, from 1,000 g on."""
    run_id = study.run_id(workload_id, letter)
    with StoreReader(study.store) as reader:
        origin_ns = reader.run(run_id).started_ns
    assert origin_ns is not None
    times_s = np.arange(0, end_s + 1)
    for number, (metric, per_s) in enumerate(grams.items()):
        scope = Scope.GPU if metric.endswith("gpu") else Scope.HOST
        record = SeriesRecord(
            *(run_id, 100 + number, "carbon", metric, "g", scope, SeriesKind.COUNTER),
            entity="gpu0" if scope is Scope.GPU else "",
            interval_s=1.0,
            method=f"{metric}: 300 g/kWh",
            estimated=True,
        )
        study.writer.add_series([record])
        samples = Samples(origin_ns + times_s * S, 1000.0 + times_s * per_s)
        study.writer.append(run_id, [SeriesBatch(record.series_no, samples)])


def test_carbon_counts_what_runs_share_once(study: Study, database: str) -> None:
    team = Study(database)
    for one in (study, team):
        workload_id = one.workload("2x", [Planted(c, 4.0) for c in "ab"])
        for letter in "ab":
            emit(
                one,
                workload_id,
                letter,
                {"carbon.emissions.gpu": 0.3, "carbon.emissions.cpu": 0.1},
                19,
            )
        one.workload("S", [Planted("a", 4.0)])
    pair, alone = report_of(study).workloads
    carbon = pair.values[Quantity.CARBON]
    assert carbon.mean == pytest.approx(0.4 * 19)
    assert carbon.is_estimated
    assert carbon.metrics == ("carbon.emissions.gpu", "carbon.emissions.cpu")
    assert carbon.methods == tuple(f"{metric}: 300 g/kWh" for metric in sorted(carbon.metrics))
    # Two epochs of each of two runs, in eight seconds.
    assert pair.values[Quantity.CARBON_PER_EPOCH].mean == pytest.approx(0.4 * 8 / 4)
    assert Quantity.CARBON not in alone.values
    assert replace(report_of(team), experiment="") == replace(report_of(study), experiment="")
    team.writer.close()


def test_memory_that_ran_out(study: Study) -> None:
    """The planted values are forty times as much in the warm-up, where it ran out."""
    card = {"gpu.memory.used": 1e9, "gpu.memory.total": 1.05e9, "process.gpu.memory": 4e8}
    study.workload("2x", [Planted("a", 2.0, gpu=card), Planted("b", 2.0, gpu=card, status=OOM)])
    (pair,) = report_of(study).workloads
    finished, short = pair.groups
    assert finished.shortage is None
    assert finished.mean(Quantity.GPU_MEMORY_OF_RUN) == pytest.approx(4e8)
    assert short.status is RunStatus.OOM
    assert short.shortage is not None
    assert short.shortage.text == "40.0 GB of 42.0 GB in use on gpu0"


def test_memory_of_a_run_on_two_gpus(study: Study) -> None:
    workload_id = study.workload("ddp", [Planted("a", 2.0)])
    run_id = study.run_id(workload_id, "a")
    with StoreReader(study.store) as reader:
        started_ns = reader.run(run_id).started_ns
    assert started_ns is not None
    times_ns = started_ns + np.arange(15) * S
    # Two listeners read the first card: what both saw is there once.
    for number, (listener, entity, of_it) in enumerate(
        (("smi", "gpu0", 4e8), ("dcgm", "gpu0", 4e8), ("smi", "gpu1", 3e8))
    ):
        record = SeriesRecord(
            *(run_id, 100 + number, listener, "process.gpu.memory", "By", Scope.PROCESS),
            SeriesKind.GAUGE,
            entity,
        )
        study.writer.add_series([record])
        samples = Samples(times_ns, np.full(len(times_ns), of_it))
        study.writer.append(run_id, [SeriesBatch(record.series_no, samples)])
    (ddp,) = report_of(study).workloads
    assert ddp.groups[0].mean(Quantity.GPU_MEMORY_OF_RUN) == pytest.approx(7e8)
