"""``radt compare`` of any metric: verdicts, conditions, and runs that never get there."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from radt.analysis.fail_if import ExitCode, Limit, parse
from radt.analysis.quantities import Statistic
from radt.analysis.series_quantities import SeriesQuantity
from radt.cli.compare import command
from radt.errors import UsageError
from tests.frontend.report_support import Planted, Study
from tests.report.series_support import add_metric, repeats

TIME = "time_to(accuracy>=0.65)"
#: Curves that get to 0.65 after 4, 5 and 6 s, after half of that, and those that never do.
SLOW = [[0.1, 0.2, 0.3, *[0.5] * count, 0.7] for count in (0, 1, 2)]
FAST = [[0.1, 0.66], [0.1, 0.2, 0.66], [0.1, 0.2, 0.66]]
NEVER = [[0.1, 0.2], [0.1, 0.3], [0.1, 0.2]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A slow workload, a fast one, one that gets there twice in three times, and one that never."""
    folder = tmp_path_factory.mktemp("compare") / "radt-data"
    folder.mkdir()
    study = Study(folder / "radt.db")
    repeats(study, "slow", SLOW)
    repeats(study, "fast", FAST)
    repeats(study, "twice", [FAST[0], FAST[0], NEVER[0]])
    repeats(study, "never", NEVER)
    for label, end in (("nan", math.nan), ("inf", math.inf)):
        repeats(study, label, [FAST[0], [0.1, end], FAST[0]])
    repeats(study, "one", FAST[:1])
    repeats(study, "one nan", [[0.1, math.nan]])
    plain = study.workload("plain", [Planted("a", 2.0)])
    add_metric(study, study.run_id(plain, "a"), "power", [1e3], unit="W", listener="smi")
    other = Study(folder / "radt.db", "other")
    repeats(other, "slow", SLOW, unit="%")
    for each in (study, other):
        each.writer.close()
    return folder / "radt.db"


def call(store: Path, a: str, b: str, *arguments: str) -> Result:
    return CliRunner().invoke(command, [a, b, "--home", str(store.parent), *arguments])


def document(store: Path, a: str, b: str, *arguments: str) -> dict[str, object]:
    done = call(store, a, b, "--format", "json", *arguments)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    found: dict[str, object] = json.loads(done.output)
    return found


def finding(store: Path, a: str, b: str, name: str) -> dict[str, object]:
    (workload,) = document(store, a, b, "--quantity", name)["workloads"]  # type: ignore[misc]
    (found,) = workload["findings"]
    assert isinstance(found, dict)
    return found


def code(store: Path, a: str, b: str, *arguments: str) -> int:
    done = CliRunner().invoke(
        command, [a, b, "--home", str(store.parent), *arguments], standalone_mode=False
    )
    assert done.exception is None, done.exception
    assert isinstance(done.return_value, int)
    return done.return_value


def test_a_metric_is_compared_with_its_interval(store: Path) -> None:
    found = finding(store, "study/slow", "study/fast", TIME)
    assert found["a"]["repeats"] == [4.0, 5.0, 6.0]  # type: ignore[index]
    assert found["b"]["repeats"] == [2.0, 3.0, 3.0]  # type: ignore[index]
    assert (found["unit"], found["verdict"], found["scale"]) == ("s", "better", "ratio")
    low, high = found["interval"]  # type: ignore[misc]
    assert low < found["effect"] < high < 1
    assert finding(store, "study/slow", "study/fast", "last(accuracy)")["verdict"] == "worse"
    assert finding(store, "study/fast", "study/slow", "last(accuracy)")["verdict"] == "better"


@pytest.mark.parametrize(
    ("b", "reached"),
    [("twice", "reached by 3 of 3 runs of A, 2 of 3 runs of B"), ("never", "0 of 3 runs of B")],
)
def test_runs_that_never_get_there_make_it_inconclusive(store: Path, b: str, reached: str) -> None:
    done = call(store, "study/slow", f"study/{b}", "--quantity", TIME)
    assert reached in " ".join(done.output.split())
    assert "better" not in done.output
    limits = ("--fail-if", f"{TIME} > 1.1x", "--fail-if", f"{TIME} < 1 h")
    for strictness in ((), ("--strict",)):
        assert code(store, "study/slow", f"study/{b}", *limits, *strictness) == ExitCode.FINE
        assert (
            code(store, "study/slow", f"study/{b}", *limits, *strictness, "--fail-if-unknown")
            == ExitCode.UNKNOWN
        )
    found = document(store, "study/slow", f"study/{b}", *limits)
    (workload,) = found["workloads"]  # type: ignore[misc]
    (shortfall,) = [one for one in workload["shortfalls"] if one["quantity"] == TIME]
    assert (shortfall["a"], shortfall["b"]) == ([3, 3], [2 if b == "twice" else 0, 3])
    assert {one["outcome"] for one in found["conditions"]} == {"inconclusive"}  # type: ignore[attr-defined]
    # The means that some runs lack are no test of anything.
    assert found["comparisons"] == len(
        [one for one in workload["findings"] if one["interval"] is not None]
    )
    assert all(one["interval"] is None for one in workload["findings"] if one["quantity"] == TIME)


def test_neither_side_gets_there(store: Path) -> None:
    done = call(store, "study/never", "study/never", "--quantity", TIME)
    assert "reached by 0 of 3 runs of A, 0 of 3 runs of B" in " ".join(done.output.split())
    limit = ("--fail-if", f"{TIME} > 1 s")
    assert code(store, "study/never", "study/never", *limit) == ExitCode.FINE
    found = document(store, "study/never", "study/never", *limit)
    (workload,) = found["workloads"]  # type: ignore[misc]
    assert workload["not_comparable"] == [TIME]
    done = call(store, "study/never", "study/never", *limit)
    assert "inconclusive: not reached by all runs of never" in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        ("fast", "nan", "(last(accuracy) 0.660 → NaN, n = 3)"),
        ("fast", "inf", "(last(accuracy) 0.660 → inf, n = 3)"),
        ("inf", "fast", "(last(accuracy) inf → 0.660, n = 3)"),
        ("one", "one nan", "(last(accuracy) 0.660 → NaN, n = 1)"),
    ],
)
def test_a_value_that_is_not_finite_makes_it_inconclusive(
    store: Path, a: str, b: str, text: str
) -> None:
    found = finding(store, f"study/{a}", f"study/{b}", "last(accuracy)")
    assert (found["verdict"], found["interval"]) == ("inconclusive", None)
    assert found["sentence"] == f"{b} vs {a}: inconclusive {text}; a value is not finite"
    arguments = ("--quantity", "last(accuracy)", "--fail-if", "last(accuracy) < -5%")
    output = " ".join(call(store, f"study/{a}", f"study/{b}", *arguments).output.split())
    assert "× higher" not in output
    assert "ne repeat" not in output
    assert "a value is not finite)" in output


@pytest.mark.parametrize("limit", ["< 0.65", "> 0.65", "< 0.9x", "> +5%", "< -0.1"])
@pytest.mark.parametrize(("a", "b"), [("fast", "nan"), ("one", "one nan")])
def test_a_mean_that_is_nan_decides_nothing(store: Path, a: str, b: str, limit: str) -> None:
    sides = (store, f"study/{a}", f"study/{b}", "--fail-if", f"last(accuracy) {limit}")
    for strictness in ((), ("--strict",)):
        assert code(*sides, *strictness) == ExitCode.FINE
        assert code(*sides, *strictness, "--fail-if-unknown") == ExitCode.UNKNOWN


@pytest.mark.parametrize(
    ("a", "condition", "wanted"),
    [
        ("twice", f"{TIME} > 1 s", ExitCode.FAILED),
        ("twice", f"{TIME} > 90 s", ExitCode.FINE),
        ("twice", f"{TIME} > 1.1x", ExitCode.UNKNOWN),
        ("twice", f"{TIME} > +1 s", ExitCode.UNKNOWN),
        ("nan", "last(accuracy) < 0.7", ExitCode.FAILED),
        ("nan", "last(accuracy) < 0.7x", ExitCode.UNKNOWN),
    ],
)
def test_a_limit_of_b_alone_does_not_depend_on_a(
    store: Path, a: str, condition: str, wanted: ExitCode
) -> None:
    for strictness in ((), ("--strict",)):
        arguments = ("--fail-if", condition, "--fail-if-unknown", *strictness)
        assert code(store, f"study/{a}", "study/fast", *arguments) == wanted


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        (f"{TIME} > 1.1x", ExitCode.FINE),
        (f"{TIME} < 0.95x", ExitCode.FAILED),
        (f"{TIME} < -5%", ExitCode.FAILED),
        (f"{TIME} > 10 ms", ExitCode.FAILED),
        (f"{TIME} > 1 h", ExitCode.FINE),
        ("last(accuracy) < 0.7", ExitCode.FAILED),
        ("last(accuracy) < 0.6", ExitCode.FINE),
        ("last(accuracy) < -1%", ExitCode.FAILED),
        ("max(process.memory.rss) > 1 GB", ExitCode.FAILED),
        ("max(process.memory.rss) > 1 TiB", ExitCode.FINE),
    ],
)
def test_conditions(store: Path, condition: str, wanted: ExitCode) -> None:
    assert code(store, "study/slow", "study/fast", "--fail-if", condition) == wanted


@pytest.mark.parametrize(
    ("condition", "cause"),
    [
        ("last(accuracy < 1", "a parenthesis is not closed"),
        ("lst(accuracy) < 1", "'lst' in 'lst(accuracy)' is not a statistic"),
        ("last(accuracy) < 1 kW", "'kW' is not a unit of last(accuracy)"),
        ("max(process.memory.rss) > 1 s", "'s' is not a unit of max(process.memory.rss)"),
        ("max(process.memory.rss) > 1", "expected a unit"),
        ("last(accuracy)", "expected a quantity, > or <, and a limit"),
        ("last(acuracy) < 1", "has the metric 'acuracy'. Did you mean accuracy?"),
    ],
)
def test_what_is_wrong_with_a_condition(store: Path, condition: str, cause: str) -> None:
    error = call(store, "study/slow", "study/fast", "--fail-if", condition).exception
    assert isinstance(error, UsageError)
    assert cause in str(error)


def test_a_limit_is_read_in_the_unit_of_the_metric() -> None:
    watts = SeriesQuantity(Statistic.MAX, "power", unit="W")
    found = parse("max(power) > 1.5 kW", [watts])
    assert (found.quantity, found.limit, found.value) == (watts, Limit.VALUE, 1500.0)
    assert found.quantity.info.unit == "W"
    samples = SeriesQuantity(Statistic.LAST, "decoded", unit="{samples}")
    assert parse("last(decoded) > +500 samples", [samples]).limit is Limit.DIFFERENCE


def test_several_units_are_an_error(store: Path) -> None:
    error = call(store, "study/slow", "other/slow", "--quantity", "last(accuracy)").exception
    assert isinstance(error, UsageError)
    assert error.message == "'accuracy' has several units: '%', none"


def test_a_metric_that_one_side_has_is_missing_and_one_that_none_has_an_error(store: Path) -> None:
    found = document(store, "study/slow", "study/plain", "--quantity", "last(accuracy)")
    (workload,) = found["workloads"]  # type: ignore[misc]
    assert (workload["findings"], workload["not_comparable"]) == ([], ["last(accuracy)"])
    error = call(store, "study/slow", "study/fast", "--quantity", "last(power)").exception
    assert isinstance(error, UsageError)
    assert "has the metric 'power'" in error.message
