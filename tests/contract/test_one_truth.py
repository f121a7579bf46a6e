"""Every number has one value wherever radt shows it, or the place does not show it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import pytest

from radt import units
from radt.frontend.data.report import read_shown
from radt.frontend.data.report_model import Choices
from radt.frontend.data.spec import ColumnChoice
from radt.frontend.pages import report, runs
from radt.frontend.view import View
from radt.model import STATUS_WORDS, RunStatus
from radt.render.model import Tone
from tests.contract.recorded import EXPERIMENT, Recorded, recorded_in
from tests.contract.surfaces import COLUMNS, SURFACES, Shown, run_parts, source_of

#: Factors of units as people read them; numbers without a unit are in that of the quantity.
UNITS = {"ms": 1e-3, "µs": 1e-6, "%": 1e-2, "kJ": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9}
WORDS = {word: status.value for status, word in STATUS_WORDS.items()}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    with recorded_in(tmp_path_factory.mktemp("contract")) as made:
        yield made


@pytest.fixture(scope="module")
def shown(recorded: Recorded) -> dict[str, Shown]:
    """What each surface shows, by its name."""
    return {name: surface(recorded) for name, surface in SURFACES.items()}


def bounds(value: str | float | None) -> tuple[float, float] | str | None:
    """Return between which numbers a value is, whose text is rounded; a state as it is stored."""
    if value is None:
        return None
    if not isinstance(value, str):
        return (value, value)
    if value in WORDS or value in list(RunStatus):
        return WORDS.get(value, value)
    if value.lstrip("-") in ("NaN", "inf", "Infinity"):
        return (float(value), float(value))
    if value.startswith("1/"):
        inverse = bounds(value.removeprefix("1/"))
        assert isinstance(inverse, tuple)
        return (1 / inverse[1], 1 / inverse[0])
    number, _, unit = value.replace("×", " ×").partition(" ")
    minutes, _, rest = number.rpartition(":")
    half = 0.5 * 10.0 ** -len(re.sub(r"[^\d.]", "", rest).partition(".")[2])
    middle = float(rest.replace(",", "")) + 60 * float(minutes or 0)
    factor = UNITS.get(unit.removesuffix(" of a core").strip(), 1.0)
    return ((middle - half) * factor, (middle + half) * factor)


def disagreements(shown: dict[str, Shown]) -> list[str]:
    """Return what surfaces show otherwise than others, a line each."""
    found = []
    for subject, quantity in dict.fromkeys(key for one in shown.values() for key in one):
        said = {
            name: one[subject, quantity]
            for name, one in shown.items()
            if (subject, quantity) in one
        }
        if not agree([bounds(value) for value in said.values()]):
            words = ", ".join(f"{name} {value}" for name, value in said.items())
            found.append(f"{quantity} of {subject}: {words}")
    return found


def agree(values: list[tuple[float, float] | str | None]) -> bool:
    """Return whether one number is within the bounds of all."""
    ranges = [value for value in values if isinstance(value, tuple)]
    if len(ranges) < len(values):
        return len(set(values)) == 1
    lows, highs = zip(*ranges, strict=True)
    if any(map(math.isnan, lows)):
        return all(map(math.isnan, lows))
    if any(map(math.isinf, lows)):
        return len(set(lows)) == 1
    low, high = max(lows), min(highs)
    return bool(low <= high + 1e-9 * abs(high))


def test_every_place_shows_the_same_values(shown: dict[str, Shown]) -> None:
    assert disagreements(shown) == []


@pytest.mark.parametrize("name", SURFACES)
def test_a_place_that_shows_another_value_is_found(shown: dict[str, Shown], name: str) -> None:
    """Each place shows numbers, and at least one of them is shown elsewhere, too."""
    elsewhere = {key for other, one in shown.items() if other != name for key in one}
    numbers = [
        key
        for key, value in shown[name].items()
        if key in elsewhere and isinstance(bounds(value), tuple)
    ]
    assert numbers
    wrong: Shown = {**shown[name], numbers[0]: 12345.678}
    assert any(f"{name} 12345.678" in line for line in disagreements(shown | {name: wrong}))


def test_texts_of_numbers_are_read_as_people_read_them() -> None:
    assert bounds(units.duration(0.4124)) == pytest.approx((0.4115, 0.4125))
    assert bounds("1:38") == pytest.approx((97.5, 98.5))
    assert bounds("2.83×") == pytest.approx((2.825, 2.835))


def test_a_missing_value_says_why(recorded: Recorded) -> None:
    """On the Runs page, the Report page, the Run page, and in the files of a report."""
    source = source_of(recorded)
    view = View(columns=tuple(map(ColumnChoice, COLUMNS)), options={"runs.group": "none"})
    sent = runs.answer(source, {"view": view.to_json()})
    places = {column["key"]: place for place, column in enumerate(sent["columns"])}
    for row in sent["rows"]:
        assert row["missing"][places["energy"]] in (
            *("the run used no GPU", "the energy of its GPUs is the workload's"),
            *("the run did not finish (failed)", "the run did not finish (killed)"),
        )
    shown = read_shown(source, View(experiment=EXPERIMENT))
    table = report.table_of(shown, Choices.of({}), view)
    missing = [cell for row in table.rows for cell in row.cells if cell.tone is Tone.DIM]
    assert missing
    assert all(cell.explanation for cell in missing)
    metrics = "".join(run_parts(recorded, run.run_id)["run-metrics"] for run in recorded.runs)
    explanations = re.findall(rf'<td [^>]*title="([^"]*)">{units.NO_VALUE}</td>', metrics)
    assert explanations  # of a counter; the shortest runs may have no reading of one
    assert all(explanations)
    html = recorded.bench.shown("report", EXPERIMENT, "--format", "html")
    assert 'class="number dim"' in html
    assert 'class="number dim" title=""' not in html
