"""Conditions of --fail-if: what they mean, what is wrong with those that mean nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from radt.analysis.fail_if import ExitCode, Limit, Outcome, check, exit_code, parse
from radt.analysis.findings import Comparison, compare
from radt.analysis.operands import OperandFinder
from radt.analysis.quantities import Quantity
from radt.analysis.series_quantities import parse_series_quantity
from radt.analysis.window_spec import DEFAULT_WINDOW
from radt.errors import UsageError
from radt.model import RunStatus
from radt.render.comparison import comparison_document
from radt.store.locate import Places
from tests.comparison.planted import rounds, store_of
from tests.frontend.report_support import Planted, Study
from tests.report.series_support import add_metric

TIME, RATE = Quantity.TIME_PER_EPOCH, Quantity.SAMPLES_PER_S
REACHED = parse_series_quantity("time_to(accuracy>=0.65)")
SERIES = (parse_series_quantity("last(accuracy)"), REACHED)


@pytest.mark.parametrize(
    ("text", "quantity", "above", "limit", "value"),
    [
        ("time_per_epoch > +5%", TIME, True, Limit.CHANGE, 1.05),
        ("  samples_per_s<-3 %  ", RATE, False, Limit.CHANGE, 0.97),
        ("samples_per_s < −3 %", RATE, False, Limit.CHANGE, 0.97),
        ("TIME_PER_EPOCH > 1.1x", TIME, True, Limit.RATIO, 1.1),
        ("time_per_epoch > 1.1 ×", TIME, True, Limit.RATIO, 1.1),
        ("time_per_epoch > 2.5 s", TIME, True, Limit.VALUE, 2.5),
        ("time_per_epoch > 250ms", TIME, True, Limit.VALUE, 0.25),
        ("makespan > +10 min", Quantity.MAKESPAN, True, Limit.DIFFERENCE, 600.0),
        ("gpu_memory_peak > 1.5e1 GB", Quantity.GPU_MEMORY_PEAK, True, Limit.VALUE, 15e9),
        ("gpu_memory_peak > +512MiB", Quantity.GPU_MEMORY_PEAK, True, Limit.DIFFERENCE, 2.0**29),
        ("disk_read > 80 MB/s", Quantity.DISK_READ, True, Limit.VALUE, 80e6),
        ("energy > 1 kWh", Quantity.ENERGY, True, Limit.VALUE, 3.6e6),
        ("samples_per_s < 500", RATE, False, Limit.VALUE, 500.0),
        ("samples_per_s < 500/s", RATE, False, Limit.VALUE, 500.0),
        ("sm_active < 80%", Quantity.SM_ACTIVE, False, Limit.VALUE, 0.8),
        ("sm_active < -10%", Quantity.SM_ACTIVE, False, Limit.CHANGE, 0.9),
        ("speed_up < 1.2x", Quantity.SPEED_UP, False, Limit.VALUE, 1.2),
        ("speed_up < .9", Quantity.SPEED_UP, False, Limit.VALUE, 0.9),
    ],
)
def test_what_a_condition_means(
    text: str, quantity: Quantity, above: bool, limit: Limit, value: float
) -> None:
    found = parse(text)
    assert (found.quantity, found.above, found.limit) == (quantity, above, limit)
    assert found.value == pytest.approx(value)


NOT_ONE = "expected a quantity, > or <, and a limit. Write time_per_epoch > +5%"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, NOT_ONE) for text in ("", "> 5%", "time_per_epoch", "time_per_epoch >= +5%")),
        *(
            (f"time_per_epoch {text}", NOT_ONE)
            for text in (">> +5%", "> ", "> fast", "> +5% or so")
        ),
        ("time_per_epok > +5%", "Unknown quantity 'time_per_epok'. Did you mean time_per_epoch"),
        ("  nonsense > +5%", "Unknown quantity 'nonsense'. Quantities: time_per_epoch, "),
        ("time_per_epoch > 5%", "a percentage change needs a sign. Write +5% or -5%"),
        ("time_per_epoch > 5", "expected a unit"),
        ("time_per_epoch > 5 GB", "'GB' is not a unit of time_per_epoch"),
        ("time_per_epoch > +1.1x", "a ratio must be above 0, without a sign"),
        ("time_per_epoch < -100%", "a change must be above -100 %"),
        ("last(x > 5%", "a parenthesis is not closed. Write last(accuracy)"),
        ("last(gpu.memory > 3) < 2)>1", NOT_ONE),
        ("time_per_epoch > 1e999 s", "the number is too large"),
    ],
)
def test_what_is_wrong_with_a_condition(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert f"{text!r}: " in caught.value.message
    assert said in str(caught.value)
    assert caught.value.remedy


def compared(tmp_path: Path, a: dict[str, list[float]], b: dict[str, list[float]]) -> Comparison:
    store = store_of(tmp_path)
    rounds(Study(store, "before"), a)
    after = Study(store, "after")
    after.now_ns += 10**15  # the other day
    rounds(after, b)
    with OperandFinder(Places.of(store.parent), DEFAULT_WINDOW, tmp_path) as finder:
        return compare(finder.find("before"), finder.find("after"), (TIME, RATE))


@pytest.fixture(scope="module")
def ten_per_cent(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """10 % slower; the interval is 1.092 to 1.108."""
    tmp_path = tmp_path_factory.mktemp("compare")
    times = [1.99, 2.00, 2.01, 2.00, 2.00]
    return compared(tmp_path, {"one": times}, {"one": [1.1 * time for time in times]})


@pytest.mark.parametrize(
    ("text", "outcome", "strict"),
    [
        ("time_per_epoch > +5%", Outcome.MET, Outcome.MET),
        ("time_per_epoch > +9.5%", Outcome.INCONCLUSIVE, Outcome.MET),
        ("time_per_epoch > +10.5%", Outcome.INCONCLUSIVE, Outcome.NOT_MET),
        ("time_per_epoch > +15%", Outcome.NOT_MET, Outcome.NOT_MET),
        ("time_per_epoch < +15%", Outcome.MET, Outcome.MET),
        ("time_per_epoch > 1.05x", Outcome.MET, Outcome.MET),
        ("time_per_epoch > +100 ms", Outcome.MET, Outcome.MET),
        ("time_per_epoch > +201ms", Outcome.INCONCLUSIVE, Outcome.NOT_MET),
        ("time_per_epoch > +300 ms", Outcome.NOT_MET, Outcome.NOT_MET),
        ("time_per_epoch > 2.1 s", Outcome.MET, Outcome.MET),
        ("time_per_epoch > 2.2001 s", Outcome.INCONCLUSIVE, Outcome.NOT_MET),
        ("time_per_epoch > 2.3 s", Outcome.NOT_MET, Outcome.NOT_MET),
        ("samples_per_s < -5%", Outcome.MET, Outcome.MET),
        ("samples_per_s < -15%", Outcome.NOT_MET, Outcome.NOT_MET),
        ("energy > +5%", Outcome.INCONCLUSIVE, Outcome.INCONCLUSIVE),
    ],
)
def test_all_of_the_interval_decides_or_the_mean(
    ten_per_cent: Comparison, text: str, outcome: Outcome, strict: Outcome
) -> None:
    (plain,) = check(ten_per_cent, [parse(text)])
    (by_mean,) = check(ten_per_cent, [parse(text)], strict=True)
    assert (plain.outcome, by_mean.outcome) == (outcome, strict)


def test_one_workload_is_enough(tmp_path: Path) -> None:
    comparison = compared(
        tmp_path,
        {"one": [2.0, 2.01, 2.02], "two": [2.0, 2.01, 2.02]},
        {"one": [3.0, 3.01, 3.02], "two": [2.0, 2.02, 2.01]},
    )
    (checked,) = check(comparison, [parse("time_per_epoch > +5%")])
    assert [one.workload for one in checked.findings[Outcome.MET]] == ["one"]
    assert [one.workload for one in checked.findings[Outcome.NOT_MET]] == ["two"]
    assert exit_code([checked]) is ExitCode.FAILED


def test_what_b_does_not_have_cannot_be_told(tmp_path: Path) -> None:
    comparison = compared(
        tmp_path,
        {"one": [2.0, 2.01, 2.02], "gone": [2.0, 2.01, 2.02]},
        {"one": [2.0, 2.02, 2.01], "new": [9.0, 9.0, 9.0]},
    )
    (checked,) = check(comparison, [parse("time_per_epoch > +5%")])
    assert (checked.outcome, checked.missing) == (Outcome.INCONCLUSIVE, ["gone"])
    assert exit_code([checked]) is ExitCode.FINE
    assert exit_code([checked], fail_if_unknown=True) is ExitCode.UNKNOWN


@dataclass
class Model(Planted):
    """A run of a model, and its last accuracy."""

    accuracy: float | None = 0.7


RESNET, VIT, NEW = (
    Model(letter, 2.0, name=name, params={"model": name})
    for letter, name in (("a", "resnet"), ("b", "vit"), ("c", "new"))
)
FAILED = replace(VIT, status=RunStatus.OOM)
WITHOUT_METRIC, LOW = replace(VIT, accuracy=None), replace(VIT, accuracy=0.6)


def mixed(tmp_path: Path, a: Sequence[Model], b: Sequence[Model]) -> Comparison:
    """Two repeats of a workload of several models."""
    store = store_of(tmp_path)
    for number, (experiment, runs) in enumerate((("before", a), ("after", b))):
        study = Study(store, experiment)
        study.now_ns += number * 10**15
        for repeat in ("1/2", "2/2"):
            tags = {"radt.series": experiment, "radt.repeat": repeat}
            workload_id = study.workload("mix", runs, tags=tags)
            for run in runs:
                if run.accuracy is not None:
                    run_id = study.run_id(workload_id, run.letter)
                    add_metric(study, run_id, "accuracy", [run.accuracy])
    with OperandFinder(Places.of(store.parent), DEFAULT_WINDOW, tmp_path, SERIES) as finder:
        return compare(finder.find("before"), finder.find("after"), (TIME, *SERIES))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([RESNET, VIT], [RESNET, FAILED]),
        ([RESNET, VIT], [RESNET]),
        ([RESNET, VIT], [RESNET, FAILED, NEW]),
        ([RESNET, FAILED], [RESNET, VIT]),
    ],
    ids=["failed in B", "only in A", "failed in B, with a new one", "failed in A"],
)
def test_models_of_a_workload_that_one_side_lacks_are_missing(
    tmp_path: Path, a: Sequence[Model], b: Sequence[Model]
) -> None:
    comparison = mixed(tmp_path, a, b)
    checked = check(comparison, map(parse, ("time_per_epoch > +5%", "last(accuracy) < 0.5")))
    assert [each.missing for each in checked] == [["mix, vit"]] * 2
    assert [len(each.findings[Outcome.NOT_MET]) for each in checked] == [1, 1]
    assert exit_code(checked) is ExitCode.FINE
    assert exit_code(checked, fail_if_unknown=True) is ExitCode.UNKNOWN
    document = str(comparison_document(comparison, checked))
    assert "inconclusive: not measured on both sides of mix, vit" in document
    met = check(comparison, [parse("time_per_epoch < +5%")])
    assert exit_code(met, fail_if_unknown=True) is ExitCode.FAILED


@pytest.mark.parametrize("side", ["A", "B"])
def test_a_metric_that_one_model_lacks_on_one_side_is_missing(tmp_path: Path, side: str) -> None:
    whole, partial = [RESNET, VIT], [RESNET, WITHOUT_METRIC]
    comparison = mixed(tmp_path, *((partial, whole) if side == "A" else (whole, partial)))
    time, *others = check(
        comparison,
        map(parse, ("time_per_epoch > +5%", "last(accuracy) < 0.5", f"{REACHED.value} > 1 h")),
    )
    assert (time.outcome, time.missing) == (Outcome.NOT_MET, [])
    for checked in others:
        assert (checked.outcome, checked.missing) == (Outcome.INCONCLUSIVE, ["mix, vit"])


@pytest.mark.parametrize("side", ["A", "B", "both"])
def test_a_condition_that_one_model_never_reaches_is_missing(tmp_path: Path, side: str) -> None:
    a, b = ([RESNET, VIT if side == other else LOW] for other in "BA")
    (checked,) = check(mixed(tmp_path, a, b), [parse(f"{REACHED.value} > 1 h")])
    assert len(checked.findings[Outcome.NOT_MET]) == 1
    assert (checked.outcome, checked.missing) == (Outcome.INCONCLUSIVE, ["mix, vit"])


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([RESNET], [RESNET, VIT]),
        ([RESNET, FAILED], [RESNET, FAILED]),
        ([RESNET, WITHOUT_METRIC], [RESNET, WITHOUT_METRIC]),
    ],
    ids=["only in B", "failed in both", "metric in neither"],
)
def test_models_that_only_b_has_or_no_side_measured_are_not_missing(
    tmp_path: Path, a: Sequence[Model], b: Sequence[Model]
) -> None:
    conditions = map(parse, ("time_per_epoch > +5%", "last(accuracy) < 0.5"))
    checked = check(mixed(tmp_path, a, b), conditions)
    assert checked[1].missing == checked[0].missing == []
    assert [each.outcome for each in checked] == [Outcome.NOT_MET] * 2


def test_a_failure_is_more_than_what_cannot_be_told(ten_per_cent: Comparison) -> None:
    checked = check(ten_per_cent, [parse("time_per_epoch > +9.5%"), parse("samples_per_s < -5%")])
    assert [one.outcome for one in checked] == [Outcome.INCONCLUSIVE, Outcome.MET]
    assert exit_code(checked, fail_if_unknown=True) is ExitCode.FAILED


def test_one_repeat_tells_nothing_but_its_mean(tmp_path: Path) -> None:
    comparison = compared(tmp_path, {"one": [2.0]}, {"one": [4.0]})
    condition = parse("time_per_epoch > +5%")
    assert check(comparison, [condition])[0].outcome is Outcome.INCONCLUSIVE
    assert check(comparison, [condition], strict=True)[0].outcome is Outcome.MET
