"""Quantities of any series: their names, their values, and runs that never get there."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from radt.analysis.quantities import Direction, Statistic
from radt.analysis.report import ReportCache
from radt.analysis.series_quantities import (
    Relation,
    SeriesQuantity,
    parse_quantity,
    parse_series_quantity,
)
from radt.cli import report as module
from radt.errors import UsageError
from radt.model import RunStatus, SeriesKind
from radt.store.pruning import Keep, prune_run
from radt.store.reader import StoreReader
from radt.store.records import Samples, SeriesBatch
from tests.frontend.report_support import Planted, Study
from tests.report.series_support import add_metric, repeats, report_of


def quantities(*names: str) -> tuple[SeriesQuantity, ...]:
    return tuple(map(parse_series_quantity, names))


def values_of(study: Study, *names: str, window: str = "") -> dict[str, float]:
    """Values of the first workload's first group, by name."""
    group = report_of(study, *names, window=window).workloads[0].groups[0]
    return {
        name: group.values[quantity].mean
        for name, quantity in zip(names, quantities(*names), strict=True)
        if quantity in group.values
    }


def estimated(study: Study, *names: str) -> list[str]:
    group = report_of(study, *names).workloads[0].groups[0]
    return [name for name in names if group.values[parse_series_quantity(name)].is_estimated]


def solo(study: Study, label: str = "solo") -> str:
    """A run whose counted epochs are from second 10 to 14; returns its id."""
    return study.run_id(study.workload(label, [Planted("a", 2.0)]), "a")


def command(study: Study, *arguments: str, experiment: str = "study") -> Result:
    home = str(Path(study.store).parent)
    return CliRunner().invoke(
        module.command, [experiment, "--home", home, *arguments], env={"COLUMNS": "80"}
    )


def said(study: Study, *arguments: str) -> str:
    done = command(study, *arguments)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


@pytest.mark.parametrize(
    ("text", "statistic", "metric", "relation", "limit"),
    [
        ("last(accuracy)", Statistic.LAST, "accuracy", None, 0.0),
        (" P95 ( test/latency ) ", Statistic.P95, "test/latency", None, 0.0),
        ("max(loss (train))", Statistic.MAX, "loss (train)", None, 0.0),
        ("time_to(accuracy>=0.65)", Statistic.TIME_TO, "accuracy", Relation.AT_LEAST, 0.65),
        ("time_to(accuracy ≥ .65)", Statistic.TIME_TO, "accuracy", Relation.AT_LEAST, 0.65),
        ("time_to(loss < -1e-3)", Statistic.TIME_TO, "loss", Relation.BELOW, -0.001),
        ("time_to(a>b<=2)", Statistic.TIME_TO, "a>b", Relation.AT_MOST, 2.0),
        ("time_to(loss>2)", Statistic.TIME_TO, "loss", Relation.ABOVE, 2.0),
    ],
)
def test_what_a_name_means(
    text: str, statistic: Statistic, metric: str, relation: Relation | None, limit: float
) -> None:
    assert parse_quantity(text) == SeriesQuantity(statistic, metric, relation, limit)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("lst(accuracy)", "Did you mean last(accuracy)?"),
        ("last()", "has no metric"),
        ("last(accuracy", "is not a quantity of a series"),
        ("time_to(accuracy)", "Write time_to(accuracy>=0.65)"),
        ("time_to(accuracy>=much)", "Expected a condition"),
        ("time_to(accuracy>=1e999)", "too large"),
        ("time_per_epok", "Did you mean time_per_epoch?"),
    ],
)
def test_what_is_wrong_with_a_name(text: str, cause: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_quantity(text)
    assert cause in str(caught.value)


@given(
    st.sampled_from(Statistic),
    st.from_regex(r"[A-Za-z][A-Za-z0-9_./ -]{0,20}[A-Za-z0-9]", fullmatch=True),
    st.sampled_from(Relation),
    st.floats(allow_nan=False, allow_infinity=False),
)
def test_a_name_is_read_back(
    statistic: Statistic, metric: str, relation: Relation, limit: float
) -> None:
    is_time = statistic is Statistic.TIME_TO
    quantity = SeriesQuantity(
        statistic, metric, relation if is_time else None, limit if is_time else 0.0
    )
    assert parse_series_quantity(quantity.value) == quantity


@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("last(test/accuracy)", Direction.HIGHER),
        ("min(val_loss)", Direction.LOWER),
        ("p95(latency)", Direction.LOWER),
        ("time_to(accuracy>=0.5)", Direction.LOWER),
        ("mean(samples_per_s)", Direction.HIGHER),
        ("last(temperature)", Direction.NEITHER),
        ("last(accuracy_loss)", Direction.NEITHER),
        # Whole words count, not parts of them.
        ("last(sentiment_accuracy)", Direction.HIGHER),
        ("max(sentiment)", Direction.HIGHER),
        ("min(sentiment)", Direction.LOWER),
        ("last(sentiment)", Direction.NEITHER),
    ],
)
def test_which_values_are_better(name: str, better: Direction) -> None:
    assert parse_series_quantity(name).info.direction is better


def test_values_are_those_of_the_points(study: Study) -> None:
    run_id = solo(study)
    random = np.random.default_rng(11)
    values = random.normal(size=5000)
    times_s = np.sort(random.uniform(0.0, 15.0, size=5000))
    values[::7], values[-3:] = math.nan, math.nan
    add_metric(study, run_id, "x", values.tolist(), times_s=times_s.tolist())
    finite = np.isfinite(values)
    counted = values[finite & (times_s >= 10.0) & (times_s <= 14.0)]
    for limit in (1.0, 2.5):
        name = f"time_to(x>{limit})"
        first_s = times_s[finite & (values > limit)][0]
        assert values_of(study, name)[name] == pytest.approx(first_s, abs=1e-6)
    whole = values[finite]
    wanted = {
        "last(x)": math.nan,
        "max(x)": whole.max(),
        "min(x)": whole.min(),
        "total(x)": whole.sum(),
        "mean(x)": counted.mean(),
        "p50(x)": np.percentile(counted, 50),
        "p95(x)": np.percentile(counted, 95),
        "p99(x)": np.percentile(counted, 99),
    }
    assert values_of(study, *wanted) == pytest.approx(wanted, nan_ok=True)
    assert estimated(study, *wanted) == []
    everything = values_of(study, "mean(x)", "p50(x)", window="all")
    assert everything == pytest.approx({"mean(x)": whole.mean(), "p50(x)": np.median(whole)})


def test_the_last_value_is_the_latest_one_whatever_it_is(study: Study) -> None:
    run_id = solo(study)
    add_metric(study, run_id, "gone", [1.0, 2.0, math.inf])
    add_metric(study, run_id, "late", [5.0, 6.0], times_s=[11.0, 12.0])
    with StoreReader(study.store) as reader:
        number = max(each.series_no for each in reader.series([run_id]))
    # Another process' points come later, in a chunk of their own, and are older.
    early = Samples(np.array([study.now_ns - 10**12], dtype=np.int64), np.array([1.0]))
    study.writer.append(run_id, [SeriesBatch(number, early)])
    assert values_of(study, "last(gone)", "last(late)") == {
        "last(gone)": math.inf,
        "last(late)": 6.0,
    }


@pytest.mark.parametrize(
    ("condition", "second"), [("x>=2", 2), ("x>2", 4), ("x<=-1", 5), ("x<1", 3)]
)
def test_a_condition_is_met_at_its_limit_or_beyond(
    study: Study, condition: str, second: int
) -> None:
    add_metric(study, solo(study), "x", [1.0, 2.0, 0.5, 3.0, -1.0])
    name = f"time_to({condition})"
    assert values_of(study, name) == {name: float(second)}


def test_a_thinned_series_has_exact_values_or_estimates(study: Study) -> None:
    run_id = solo(study)
    random = np.random.default_rng(3)
    values = np.cumsum(random.normal(size=9000))
    times_s = np.linspace(0.5, 14.5, 9000)
    add_metric(study, run_id, "x", values.tolist(), times_s=times_s.tolist())
    exact = ("last(x)", "max(x)", "min(x)", "total(x)", "mean(x)")
    rough = ("p50(x)", f"time_to(x>={float(values.max()) / 2:.3f})")
    before = values_of(study, *exact, *rough)
    with StoreReader(study.store) as reader:
        assert prune_run(reader, study.writer, run_id, Keep.SUMMARIES) is not None
    after = values_of(study, *exact, *rough)
    assert [after[name] for name in exact] == pytest.approx([before[name] for name in exact])
    # A point in about 40 is left, over 14 s.
    assert after[rough[1]] == pytest.approx(before[rough[1]], abs=0.5)
    assert estimated(study, *exact, *rough) == list(rough)
    assert "~" in said(study, "--quantity", "p50(x)")


def test_counters_are_read_as_rates_and_their_total_is_their_growth(study: Study) -> None:
    run_id = solo(study)
    # 5 a second until it wraps at 100, then 10 a second.
    add_metric(
        study,
        run_id,
        "gpu.energy",
        [85.0, 90.0, 95.0, 5.0, 15.0],
        times_s=[9.0, 10.0, 11.0, 12.0, 13.0],
        unit="J",
        kind=SeriesKind.COUNTER,
        listener="smi",
        wraps_at=100.0,
    )
    names = ("total(gpu.energy)", "max(gpu.energy)", "min(gpu.energy)", "mean(gpu.energy)")
    found = values_of(study, *names)
    assert found == pytest.approx(dict(zip(names, (30.0, 10.0, 5.0, 25 / 3), strict=True)))
    units = {each.value: each.unit for each in report_of(study, *names).series.quantities}
    assert units == dict(zip(names, ("J", "W", "W", "W"), strict=True))


def test_devices_of_a_run_are_combined(study: Study) -> None:
    run_id = solo(study)
    for entity, values in (("gpu0", [1.0, 5.0, 4.0]), ("gpu1", [3.0, 3.0, 8.0])):
        times_s = [10.5, 11.5, 12.5]
        add_metric(
            study, run_id, "x", values, times_s=times_s, listener="smi", entity=entity, unit="W"
        )
    names = ("max(x)", "min(x)", "total(x)", "last(x)", "time_to(x>=5)", "time_to(x>=6)")
    assert values_of(study, *names) == pytest.approx(
        dict(zip(names, (8.0, 1.0, 24.0, 6.0, 12.5), strict=False))
    )


def test_the_metric_of_the_script_comes_before_that_of_a_listener(study: Study) -> None:
    run_id = solo(study)
    add_metric(study, run_id, "load", [9.0], listener="smi", entity="gpu0")
    add_metric(study, run_id, "load", [1.0])
    assert values_of(study, "last(load)") == {"last(load)": 1.0}


def test_repeats_give_an_interval_and_like_runs_their_mean(study: Study) -> None:
    repeats(study, "solo", [[0.5, 0.6], [0.5, 0.7], [0.5, 0.8]])
    pair = study.workload("pair", [Planted("a", 2.0), Planted("b", 2.0)])
    for letter, count in (("a", 10.0), ("b", 30.0)):
        add_metric(study, study.run_id(pair, letter), "accuracy", [count])
    (quantity,) = quantities("last(accuracy)")
    first, second = report_of(study, "last(accuracy)").workloads
    estimate = first.groups[0].values[quantity]
    assert estimate.repeats == (0.6, 0.7, 0.8)
    assert estimate.interval is not None
    assert estimate.interval.low == pytest.approx(0.7 - 0.2484, abs=1e-4)
    assert second.groups[0].values[quantity].mean == 20.0
    assert second.groups[0].values[quantity].parts == (10.0, 30.0)


def test_runs_that_never_get_there_have_no_value_and_are_counted(study: Study) -> None:
    repeats(study, "some", [[0.5, 0.7], [0.5, 0.6], [0.7]])
    repeats(study, "none", [[0.5], [0.6]])
    repeats(study, "all", [[0.7], [0.7]])
    name = "time_to(accuracy>=0.65)"
    (quantity,) = quantities(name)
    groups = [workload.groups[0] for workload in report_of(study, name).workloads]
    assert [group.reached[quantity].text for group in groups] == [
        "2 of 3 runs",
        "0 of 2 runs",
        "2 of 2 runs",
    ]
    assert groups[0].values[quantity].repeats == (2.0, 1.0)
    assert quantity not in groups[1].values
    text = said(study, "--quantity", name)
    assert "some: 2 of 3 runs reached accuracy>=0.65; the value is their mean." in text
    assert "none: 0 of 2 runs reached accuracy>=0.65." in text
    assert "all: 2 of 2" not in text
    rows = list(csv.DictReader(io.StringIO(said(study, "--format", "csv", "--quantity", name))))
    found = {row["workload"]: (row["quantity"], row["value"], row["reached"]) for row in rows}
    assert found == {
        "some": (name, "1.5", "2/3"),
        "none": (name, "", "0/2"),
        "all": (name, "1.0", "2/2"),
    }
    document = json.loads(said(study, "--format", "json", "--quantity", name))
    assert [workload["groups"][0]["reached"] for workload in document["workloads"]] == [
        {name: [2, 3]},
        {name: [0, 2]},
        {name: [2, 2]},
    ]
    assert list(document["quantities"]) == [name]
    assert document["quantities"][name]["unit"] == "s"


def test_unfinished_runs_do_not_count(study: Study) -> None:
    pair = study.workload("pair", [Planted("a", 2.0), Planted("b", 2.0, status=RunStatus.OOM)])
    for letter in "ab":
        add_metric(study, study.run_id(pair, letter), "accuracy", [0.7])
    (quantity,) = quantities("time_to(accuracy>=0.6)")
    finished, failed = report_of(study, quantity.value).workloads[0].groups
    assert finished.reached[quantity].text == "1 of 1 run"
    assert (dict(failed.reached), quantity in failed.values) == ({}, False)


def test_an_unknown_metric_is_one_error_with_near_names(study: Study) -> None:
    add_metric(study, solo(study), "test/accuracy", [0.5])
    for name, near in (
        ("last(test/acuracy)", "Did you mean test/accuracy?"),
        ("last(accuracy)", "Did you mean test/accuracy?"),
        ("last(zzzzzz)", "Metrics: process.cpu.utilization, process.memory.rss, samples_per_s"),
    ):
        error = command(study, "--quantity", name).exception
        assert isinstance(error, UsageError)
        assert error.message.startswith("No finished run of study has the metric")
        assert error.remedy is not None
        assert error.remedy.startswith(near)


def test_several_units_are_an_error(study: Study) -> None:
    for unit in ("s", "ms"):
        add_metric(study, solo(study, unit), "latency", [0.5], unit=unit)
    error = command(study, "--quantity", "last(latency)").exception
    assert isinstance(error, UsageError)
    assert error.message == "'latency' has several units: 'ms', 's'"
    # The time until a limit is in seconds; what the limit means is for the user to say.
    assert "time_to(latency>=0.5)" in said(study, "--quantity", "time_to(latency>=0.5)")


@pytest.mark.parametrize(
    ("metric", "value", "text"),
    [
        ("loader.decoded", 2000.0, "2,000 samples"),
        ("validation.wait", 0.25, "250 ms"),
        ("lease.handovers", 3.0, "3.00 handovers"),
        ("offload.resident", 2e9, "2.00 GB"),
        ("averaging.time", 1.5, "1.50 s"),
        ("averaging.replicas", 4.0, "4.00 replicas"),
    ],
)
def test_metrics_of_techniques_have_units(
    study: Study, metric: str, value: float, text: str
) -> None:
    add_metric(study, solo(study), metric, [value / 2, value])
    assert text in said(study, "--quantity", f"last({metric})")


def test_the_quantities_that_a_user_names_are_the_table(study: Study) -> None:
    repeats(study, "solo", [[0.5, 0.61], [0.5, 0.63]])
    names = ("last(accuracy)", "time_per_epoch", "max(process.memory.rss)")
    text = said(study, *(word for name in names for word in ("--quantity", name)))
    heads = " ".join(line for line in text.splitlines() if "workload" in line)
    places = [heads.index(title) for title in ("last(accuracy)", "time/epoch", "max(process")]
    assert places == sorted(places)
    assert "samples/s" not in text
    assert "0.620 ±0.127" in text
    assert "2.50 ±0.00 GB" in text
    assert max(map(len, text.partition("  ± or")[0].splitlines())) <= 80
    page = said(study, "--format", "html", "--quantity", "last(accuracy)")
    assert page.count("<svg") == 1
    assert "last(accuracy)" in page


def test_figures_are_those_of_the_named_quantities(study: Study, tmp_path: Path) -> None:
    repeats(study, "solo", [[0.5, 0.61], [0.5, 0.63]])
    repeats(study, "<img src=x>", [[0.5, 0.7]])

    def figures(name: str, *options: str) -> set[str]:
        said(study, "--figures", str(tmp_path / name), *options)
        return {path.name for path in (tmp_path / name).iterdir()}

    named = ("last(accuracy)", "time_to(accuracy>=0.6)")
    few = figures("few", *(word for name in named for word in ("--quantity", name)))
    assert few == {"radt-study-last-accuracy.svg", "radt-study-time_to-accuracy-at-least-0.6.svg"}
    assert "radt-study-time_per_epoch.svg" in figures("every")
    drawn = ElementTree.parse(tmp_path / "few" / "radt-study-last-accuracy.svg").getroot()
    words = [text for element in drawn.iter() for text in [element.text] if text]
    assert {"last(accuracy)", "<img src=x>", "0.620", "0.700"} <= set(words)
    assert any(word.startswith("Whiskers: 95 %") for word in words)
    style = next(word for word in words if ".way-naive" in word)
    assert "#0072b2" in style and "var(" not in style


def test_figures_whose_names_are_cut_to_the_same_are_all_kept(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radt.render.files._NAME_CHARS", 25)
    repeats(study, "solo", [[0.5, 0.61], [0.5, 0.63]])
    named = ("time_to(accuracy>=0.6)", "time_to(accuracy>=0.5)")
    said(study, "--figures", str(tmp_path), *(w for name in named for w in ("--quantity", name)))
    drawn = sorted(tmp_path.glob("*.svg"))
    assert [path.name for path in drawn] == [
        "radt-study-time_to-accura-2.svg",
        "radt-study-time_to-accura.svg",
    ]
    assert drawn[0].read_text() != drawn[1].read_text()


def test_a_single_bar_is_drawn_into_a_file(study: Study, tmp_path: Path) -> None:
    repeats(study, "solo", [[0.5, 0.61]])
    said(study, "--figures", str(tmp_path))
    assert (tmp_path / "radt-study-time_per_epoch.svg").is_file()


def test_no_figure_without_values_is_said(study: Study, tmp_path: Path) -> None:
    study.workload("failed", [Planted("a", 2.0, status=RunStatus.OOM)])
    said_text = said(study, "--figures", str(tmp_path / "figures"))
    assert "No figure is written: no quantity has a value" in said_text


def test_slanted_names_fit_into_the_file(study: Study, tmp_path: Path) -> None:
    repeats(study, "first-of-many-long-names", [[0.5, 0.61]])
    repeats(study, "second-of-them", [[0.5, 0.61]])
    said(study, "--figures", str(tmp_path))
    outer = ElementTree.parse(tmp_path / "radt-study-time_per_epoch.svg").getroot()
    svg = "{http://www.w3.org/2000/svg}"
    frame = outer.find(f"{svg}svg")
    assert frame is not None
    assert frame.get("overflow") == "visible"
    names = [each for each in frame.iter(f"{svg}text") if each.get("class") == "slanted"]
    assert len(names) == 2
    for name in names:
        x, y = map(float, re.findall(r"[\d.]+", name.get("transform", ""))[:2])
        length = len(name.text or "") * 6.2
        assert x - length * math.cos(math.radians(32)) >= 0
        assert y + length * math.sin(math.radians(32)) <= float(frame.get("height", "0"))


def test_another_quantity_is_read_although_the_runs_are_known(study: Study) -> None:
    repeats(study, "solo", [[0.5, 0.61]])
    cache = ReportCache()
    for name, value in (("last(accuracy)", 0.61), ("min(accuracy)", 0.5), ("last(accuracy)", 0.61)):
        (quantity,) = quantities(name)
        group = report_of(study, name, cache=cache).workloads[0].groups[0]
        assert group.values[quantity].mean == value
        assert len([each for each in group.values if isinstance(each, SeriesQuantity)]) == 1


def test_nothing_is_asked_of_an_experiment_without_finished_runs(study: Study) -> None:
    study.workload("solo", [Planted("a", 2.0, status=RunStatus.OOM)])
    assert "OOM" in said(study, "--quantity", "last(accuracy)")
