"""From records to points: means, steps, summaries."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radt.delivery.mlflow.points import (
    epoch_points,
    hardware_means,
    look_back_ns,
    series_name,
    series_names,
    software_points,
    summary_metrics,
    summary_values,
)
from radt.delivery.mlflow.target import MlflowPoint
from radt.model import NO_STEP, SOFTWARE, MarkerKind, RunStatus, Scope, SeriesKind
from radt.store.records import (
    LedgerRecord,
    MarkerRecord,
    RunRecord,
    Samples,
    SeriesRecord,
)
from radt.store.summaries import SeriesSummary, summarised

S = 1_000_000_000
ORIGIN_NS = 1_750_000_000 * S


def samples_at(seconds: list[float], values: list[float]) -> Samples:
    times = np.array([ORIGIN_NS + round(second * S) for second in seconds], dtype=np.int64)
    return Samples(times, np.array(values, dtype=np.float64))


def series(
    metric: str = "m",
    listener: str = "smi",
    entity: str = "",
    kind: SeriesKind = SeriesKind.GAUGE,
    unit: str = "By",
    number: int = 0,
):
    return SeriesRecord("r", number, listener, metric, unit, Scope.GPU, kind, entity)


def means(samples: Samples, *, since_ns: int = 0, final: bool, kind: SeriesKind = SeriesKind.GAUGE):
    return hardware_means(
        "m", series(kind=kind), samples, origin_ns=ORIGIN_NS, since_ns=since_ns, final=final
    )


def test_means_of_ten_seconds_at_their_end() -> None:
    found = means(samples_at([0, 5, 9.9, 10, 15, 20.5], [1, 2, 6, 10, 20, 99]), final=False)
    base_ms = ORIGIN_NS // 1_000_000
    assert found.points == [
        MlflowPoint("m", 3.0, base_ms + 10_000, 10),
        MlflowPoint("m", 15.0, base_ms + 20_000, 20),
    ]
    assert found.until_ns == ORIGIN_NS + 20 * S


def test_the_last_stretch_comes_when_the_series_has_ended() -> None:
    samples = samples_at([0, 5, 12], [1, 3, 7])
    assert len(means(samples, final=False).points) == 1
    final = means(samples, final=True)
    assert [(point.value, point.step) for point in final.points] == [(2.0, 10), (7.0, 20)]
    assert final.points[-1].timestamp_ms == ORIGIN_NS // 1_000_000 + 12_000
    assert means(samples, since_ns=final.until_ns, final=True).points == []


def test_counters_come_as_rates() -> None:
    """45 in 9 s; then 12 in 12 s and, after a reset, 2 in 1 s; then 23 in 23 s."""
    samples = samples_at([0, 9, 21, 22, 45], [100, 145, 157, 2, 25])
    found = means(samples, final=True, kind=SeriesKind.COUNTER)
    assert [(point.value, point.step) for point in found.points] == [
        (5.0, 10),
        (14 / 13, 30),
        (1.0, 50),
    ]
    assert found.points[-1].timestamp_ms == ORIGIN_NS // 1_000_000 + 45_000


def test_a_rate_of_joules_is_watts_and_one_of_grams_is_by_the_hour() -> None:
    samples = samples_at([0, 5], [0, 10])
    for unit, value in (("J", 2.0), ("g", 7200.0)):
        one = series(kind=SeriesKind.COUNTER, unit=unit)
        found = hardware_means("m", one, samples, origin_ns=ORIGIN_NS, since_ns=0, final=True)
        assert [point.value for point in found.points] == [value]


def test_a_counter_that_was_not_read_for_long_has_no_rate_for_that_time() -> None:
    samples = samples_at([0, 1, 100, 101], [0, 7, 700, 709])
    found = means(samples, final=True, kind=SeriesKind.COUNTER)
    assert [(point.value, point.step) for point in found.points] == [(7.0, 10), (9.0, 110)]


def test_values_that_are_not_finite_are_left_out_of_means() -> None:
    samples = samples_at([0, 1, 10, 11, 20], [math.nan, 4, math.nan, math.inf, 1])
    found = means(samples, final=True)
    assert [(point.value, point.step) for point in found.points] == [(4.0, 10), (1.0, 30)]


def test_samples_before_the_origin_and_no_samples() -> None:
    found = means(samples_at([-3, 1], [8, 2]), final=True)
    assert [(point.value, point.step) for point in found.points] == [(8.0, 0), (2.0, 10)]
    assert means(samples_at([], []), since_ns=5, final=True) == ([], 5)


@given(
    st.lists(st.integers(0, 200_000), min_size=1, max_size=40, unique=True).map(sorted),
    st.lists(st.integers(0, 40), max_size=5).map(sorted),
    st.sampled_from(SeriesKind),
)
def test_in_pieces_or_at_once_the_same_points(
    times_ms: list[int], cuts: list[int], kind: SeriesKind
) -> None:
    """However often the deliverer looks, and whatever it repeats, MLflow gets the same points."""
    values = [float(ms % 50_000) for ms in times_ms]
    samples = samples_at([ms / 1000 for ms in times_ms], values)
    at_once = means(samples, final=True, kind=kind).points
    pieces: list[MlflowPoint] = []
    since_ns = 0
    for cut in cuts:
        first = np.searchsorted(samples.times_ns, since_ns - look_back_ns(series(kind=kind)))
        seen = Samples(samples.times_ns[first:cut], samples.values[first:cut])
        found = means(seen, since_ns=since_ns, final=False, kind=kind)
        pieces += found.points
        since_ns = found.until_ns
    pieces += means(samples, since_ns=since_ns, final=True, kind=kind).points
    assert pieces == at_once


def test_software_points_keep_steps_and_number_the_others() -> None:
    times = np.array([ORIGIN_NS, ORIGIN_NS + 1_999_999], dtype=np.int64)
    values = np.array([0.5, math.nan])
    plain = software_points("loss", Samples(times, values), 7)
    assert [(point.step, point.timestamp_ms) for point in plain] == [
        (7, ORIGIN_NS // 1_000_000),
        (8, ORIGIN_NS // 1_000_000 + 1),
    ]
    assert math.isnan(plain[1].value)
    steps = np.array([-4, NO_STEP], dtype=np.int64)
    mixed = software_points("loss", Samples(times, values, steps), 7)
    assert [point.step for point in mixed] == [-4, 8]


def test_series_names() -> None:
    assert series_name(series("loss", SOFTWARE)) == "loss"
    assert series_name(series("loss", SOFTWARE, "rank 1")) == "loss/rank 1"
    assert series_name(series("gpu.power", "smi", "gpu0")) == "system/gpu.power/gpu0"
    energy = series("gpu.energy", "smi", "gpu0", SeriesKind.COUNTER, "J")
    assert series_name(energy) == "system/gpu.energy_per_s/gpu0"
    carbon = series("carbon.emissions.cpu", "carbon", "", SeriesKind.COUNTER, "g")
    assert series_name(carbon) == "system/carbon.emissions.cpu_per_h"
    assert series_name(series("n", SOFTWARE, kind=SeriesKind.COUNTER)) == "n"


def test_listeners_that_read_the_same_are_told_apart() -> None:
    """Also from each other's rates, which have names of their own."""
    found = series_names(
        [
            series("gpu.power", "smi", "gpu0", number=0),
            series("gpu.power", "dcgm", "gpu0", number=3),
            series("gpu.power", "dcgm", "gpu1", number=2),
            series("gpu.pcie.rx", "smi", "gpu0", SeriesKind.COUNTER, number=4),
            series("gpu.pcie.rx", "gpm", "gpu0", unit="By/s", number=5),
        ]
    )
    assert found == {
        0: "system/gpu.power/gpu0",
        2: "system/gpu.power/gpu1",
        3: "system/gpu.power/gpu0/dcgm",
        4: "system/gpu.pcie.rx_per_s/gpu0",
        5: "system/gpu.pcie.rx/gpu0",
    }


def marker(number: int, start_s: float, end_s: float | None, **fields: object) -> MarkerRecord:
    end_ns = None if end_s is None else ORIGIN_NS + round(end_s * S)
    values: dict[str, object] = {"kind": MarkerKind.EPOCH, "name": "epoch", "step": number}
    values |= fields
    return MarkerRecord(
        "r", number, start_ns=ORIGIN_NS + round(start_s * S), end_ns=end_ns, **values
    )


def test_epochs_of_the_first_process_that_were_completed() -> None:
    markers = [
        marker(1, 0, 30),
        marker(2, 30, 50),
        marker(3, 50, None),
        marker(1, 0, 31, process="rank 1"),
        marker(9, 0, 50, kind=MarkerKind.SPAN),
    ]
    assert [(point.step, point.value) for point in epoch_points(markers)] == [(1, 30), (2, 20)]


def summary(series: SeriesRecord, *values: float) -> SeriesSummary:
    return summarised(series, Samples(np.arange(len(values)) * S, np.array(values)))


def test_summary() -> None:
    run = RunRecord(
        "r", "w", "e", "1", "a", "n", 0, RunStatus.FINISHED, started_ns=S, ended_ns=3 * S
    )
    energy = series("gpu.energy", "smi", "gpu0", SeriesKind.COUNTER, number=4)
    once = series("gpu.pcie.rx", "smi", "gpu0", SeriesKind.COUNTER, number=5)
    summaries = [
        summary(series("gpu.power", "smi", "gpu0"), 100.0, 200.0),
        summary(energy, 4.0, 8.0, 4.0),
        summary(once, 5.0),
        summary(series("gpu.clock.sm", "smi"), math.nan),
        summary(series("loss", SOFTWARE), 1.0, 1.0),
    ]
    epochs = [
        MlflowPoint("e", 30.0, 0, 1),
        MlflowPoint("e", 20.0, 0, 2),
        MlflowPoint("e", 22.0, 0, 3),
    ]
    ledger = [LedgerRecord("r", "smi", 1.0, 10, 9, 1, 0)]
    summaries = [
        replace(each, series=replace(each.series, series_no=each.series.series_no or 10 + n))
        for n, each in enumerate(summaries)
    ]
    other = replace(summaries[0].series, listener="dcgm", series_no=20)
    summaries.append(summary(other, 101.0, 201.0))
    values = summary_values(run, summaries, epochs, ledger, [])
    assert values == {
        "duration_s": 2.0,
        "epoch/duration_s/mean": 21.0,
        "epoch/duration_s/max": 22.0,
        "gpu.power/gpu0/dcgm/mean": 151.0,
        "gpu.power/gpu0/dcgm/max": 201.0,
        "gpu.power/gpu0/mean": 150.0,
        "gpu.power/gpu0/max": 200.0,
        "gpu.energy/gpu0/total_at_least": 8.0,  # it began again from 0
        "samples/smi/received": 9.0,
        "samples/smi/missed": 1.0,
    }
    assert summary_metrics(values) == {
        f"summary/{name}": value
        for name, value in values.items()
        if not name.startswith("samples/")
    }


def test_at_most_a_dozen_summaries_are_metrics() -> None:
    """Of many devices a quantity is there for all of them, or for none."""
    stats = {"gpu.energy": "total", "gpu.utilization": "mean", "gpu.memory.used": "max"}
    values = {"process.threads/mean": 1.0, "process.threads/max": 2.0, "duration_s": 3.0}
    values |= {f"{metric}/gpu{n}/{stats[metric]}": 1.0 for metric in stats for n in range(4)}
    values |= {f"gpu.clock.sm/gpu{n}/mean": 1.0 for n in range(4)} | {"cpu_time_s": 4.0}
    assert list(summary_metrics(values)) == [
        "summary/duration_s",
        "summary/cpu_time_s",
        *(f"summary/gpu.energy/gpu{n}/total" for n in range(4)),
        *(f"summary/gpu.utilization/gpu{n}/mean" for n in range(4)),
        "summary/process.threads/mean",
        "summary/process.threads/max",
    ]


@pytest.mark.parametrize(("durations", "mean"), [([7.0], 7.0), ([7.0, 5.0], 5.0)])
def test_a_single_epoch_is_not_taken_as_warm_up(durations: list[float], mean: float) -> None:
    run = RunRecord("r", "w", "e", "1", "a", "n", 0)
    epochs = [MlflowPoint("e", value, 0, index) for index, value in enumerate(durations)]
    assert summary_values(run, [], epochs, [], [])["epoch/duration_s/mean"] == mean
