"""What the page Report shows: the same numbers as the terminal, in order, as table, bars, files."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from radt.analysis.quantities import Quantity
from radt.analysis.series_quantities import AnyQuantity
from radt.errors import StoreError
from radt.frontend.app import create_app
from radt.frontend.auth import DashboardAccess
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.report import read_progress, read_shown, suggestions
from radt.frontend.data.report_model import BY_ORDER, Choices, Shown
from radt.frontend.data.spec import Pick
from radt.frontend.pages.report import answer, table_of
from radt.frontend.theme import Scheme, colour
from radt.frontend.view import View
from radt.model import RunStatus
from radt.render.bars import MAX_BARS, BarChart, bars_of, charted, in_blocks
from radt.render.files import rendered
from radt.render.formats import ReportFormat
from radt.render.markup import bars_svg, table_html
from radt.render.model import Cell, ColumnHead, Row, Table
from radt.render.numbers import INTERVAL_NOTE
from radt.render.report_csv import as_csv
from radt.tags import PROFILED
from tests.frontend.report_support import Planted, Study, sweep
from tests.report.series_support import add_metric, repeats

HOSTILE = "<img src=x onerror=alert(1)>|`=1"


@pytest.fixture
def study(store_path: Path) -> Iterator[Study]:
    store_path.parent.mkdir(parents=True)
    made = Study(store_path)
    yield made
    made.writer.close()


def options(**given: str) -> View:
    return View(experiment="study", options={f"report.{k}": v for k, v in given.items()})


def shown_of(source: CachedStore, **given: str) -> tuple[Shown, Choices]:
    view = options(**given)
    return read_shown(source, view), Choices.of(view.options)


def chart_of(shown: Shown, quantity: AnyQuantity, choices: Choices) -> BarChart:
    in_order = choices.sort != BY_ORDER
    items = shown.items if in_order else in_blocks(shown.items)
    return BarChart.of(quantity, bars_of(items, quantity), has_blocks=not in_order)


def written(style: str, svg: str) -> list[str]:
    """The texts of a class in a chart."""
    return re.findall(rf'class="{style}".*?>(.*?)<', svg)


def part(source: CachedStore, name: str, **given: str) -> str:
    """A part of the page."""
    found = answer(source, {"view": options(**given).to_json()})
    assert found is not None
    return str(found["parts"][f"report-{name}"])


def labels(source: CachedStore, **given: str) -> list[str]:
    return [entry.name for entry in shown_of(source, **given)[0].items]


def rows(shown: Shown, choices: Choices) -> list[list[str]]:
    """The table's cells."""
    made = table_of(shown, choices, options())
    return [[cell.text_in_unit for cell in row.cells] for row in made.rows]


def collocated(study: Study) -> None:
    for epoch_s in (1.9, 2.1):
        study.workload("solo", [Planted("a", epoch_s)], tags={"radt.series": "s"})
    study.workload("pair", [Planted("a", 3.0, watts=250.0), Planted("b", 3.6, watts=250.0)])
    seven = [Planted(letter, 6.0) for letter in "abcdef"]
    study.workload("seven", [*seven, Planted("g", 6.0, status=RunStatus.OOM)])
    study.workload("lost", [Planted("a", 6.0, status=RunStatus.KILLED)])


def test_rows_have_values_intervals_and_how_runs_ended(study: Study, source: CachedStore) -> None:
    collocated(study)
    shown, choices = shown_of(source)
    lines = rows(shown, choices)
    assert lines[0][:6] == ["solo", "resnet26", "2", "2.00 ±1.27", "–", "–"]
    assert lines[1][:5] == ["pair", "2 × resnet26", "1", "3.30", "1.65"]
    assert lines[2][:5] == ["seven", "6 × resnet26", "1", "6.00", "3.00"]
    assert lines[3][:4] == ["", "resnet26 OOM", "–", "–"]
    assert lines[4][:3] == ["lost", "resnet26 killed", "–"]
    assert part(source, "notes").startswith(f"<p>{INTERVAL_NOTE}</p>")
    energy = 250 * (1 + 9 + 2 * 3.6)
    assert shown.items[1].summary.energy.gpus_j == pytest.approx(energy, rel=0.01)


def test_the_window_is_chosen_and_what_makes_no_sense_is_said(
    study: Study, source: CachedStore
) -> None:
    study.workload("solo", [Planted("a", 2.0)])
    shown, _ = shown_of(source)
    (entry,) = shown.items
    assert entry.summary.groups[0].mean(Quantity.TIME_PER_EPOCH) == pytest.approx(2.0)
    shown, choices = shown_of(source, window="epoch:1")
    assert shown.items[0].summary.groups[0].mean(Quantity.TIME_PER_EPOCH) == pytest.approx(9.0)
    assert (shown.window, choices.window_error) == ("epoch 1", "")
    shown, choices = shown_of(source, window="epoch:x", overlap="1")
    assert "epoch:x" in choices.window_error
    assert choices.window.overlap
    assert shown.window.endswith("while all runs of the workload ran")


def test_order_is_the_experiments_or_as_chosen(study: Study, source: CachedStore) -> None:
    collocated(study)
    assert labels(source) == ["solo", "pair", "seven", "lost"]
    # What has no value comes last either way.
    assert labels(source, sort="time_per_epoch") == ["solo", "pair", "seven", "lost"]
    assert labels(source, sort="-time_per_epoch") == ["seven", "pair", "solo", "lost"]
    assert labels(source, sort="vs_solo") == ["pair", "seven", "solo", "lost"]
    assert labels(source, sort="-workload") == ["solo", "seven", "pair", "lost"]
    assert labels(source, sort="nonsense") == ["solo", "pair", "seven", "lost"]


def test_workloads_with_numbers_in_their_names_sort_by_them(
    study: Study, source: CachedStore
) -> None:
    for label in ("run 10", "run 2", "run", ""):
        study.workload(label, [Planted("a", 2.0, name="7x")])
    assert labels(source, sort="workload") == ["7x", "run", "run 2", "run 10"]


def test_columns_are_those_that_are_asked_for(study: Study, source: CachedStore) -> None:
    collocated(study)
    shown, _ = shown_of(source, columns="cpu,disk_read,memory,nonsense")
    assert shown.columns == (Quantity.CPU, Quantity.MEMORY)  # of what is measured
    assert shown_of(source, columns="-")[0].columns == ()


def test_profiled_are_left_out_and_can_be_shown(study: Study, source: CachedStore) -> None:
    study.workload("plain", [Planted("a", 2.0)])
    study.workload("slowed", [Planted("a", 9.0)], tags={PROFILED: "nsys"})
    shown, _ = shown_of(source)
    assert [entry.name for entry in shown.items] == ["plain"]
    assert "2 runs, 1 counts: 1 profiled" in shown.facts
    shown, _ = shown_of(source, profiled="1")
    assert [entry.name for entry in shown.items] == ["plain", "slowed"]
    assert "2 runs" in shown.facts


def test_what_is_picked_of_several_experiments(
    store_path: Path, study: Study, source: CachedStore
) -> None:
    first = study.workload("solo", [Planted("a", 2.0)])
    study.workload("pair", [Planted("a", 3.0), Planted("b", 3.0)])
    other = Study(store_path, "other")
    lone = other.workload("solo", [Planted("a", 4.0)])
    picks = (Pick.workload("study", first), Pick.run("other", other.run_id(lone, "a")))
    view = View(picks=picks, options={"report.picked": "1"})
    assert [entry.name for entry in read_shown(source, view).items] == [
        "study solo",
        "other solo",
    ]
    assert "| other solo |" in rendered(read_shown(source, view), ReportFormat.MARKDOWN)
    assert [entry.name for entry in read_shown(source, View(picks=picks)).items] != []
    other.writer.close()


def test_quantities_of_series_are_those_of_the_terminal(study: Study, source: CachedStore) -> None:
    repeats(study, "some", [[0.5, 0.7], [0.5, 0.6]])
    repeats(study, "all", [[0.8, 0.9]])
    series = "last(accuracy); time_to(accuracy >= 0.65);last(accuracy);nonsense"
    shown, choices = shown_of(source, series=series, columns="cpu", sort="-last(accuracy)")
    assert "'nonsense' is not a quantity of a series" in choices.series_error
    assert [each.value for each in shown.columns] == [
        "cpu",
        "last(accuracy)",
        "time_to(accuracy>=0.65)",
    ]
    assert [entry.name for entry in shown.items] == ["all", "some"]
    assert [row[-2:] for row in rows(shown, choices)] == [
        ["0.900", "1.00"],
        ["0.650 ±0.635", "2.00"],
    ]
    last, time_to = charted(shown.quantities)[-2:]
    assert [bar.label for bar in chart_of(shown, time_to, choices).bars] == ["all", "some"]
    assert written("value", bars_svg(chart_of(shown, last, choices))) == ["0.900", "0.650"]
    text = rendered(shown.in_columns, ReportFormat.MARKDOWN)
    assert r"some: 1 of 2 runs reached accuracy\>=0.65; the value is their mean." in text
    assert suggestions(source, "study")[:2] == ["last(accuracy)", "max(accuracy)"]


def test_negative_values_hang_from_zero(study: Study, source: CachedStore) -> None:
    for label, value in (("down", -3.0), ("up", 1.0)):
        workload_id = study.workload(label, [Planted("a", 2.0)])
        add_metric(study, study.run_id(workload_id, "a"), "reward", [value])
    shown, choices = shown_of(source, series="last(reward)")
    quantity = charted(shown.quantities)[-1]
    chart = chart_of(shown, quantity, choices)
    svg = bars_svg(chart)
    assert re.findall(r'class="tick".*?>(-?[\d.]+)<', svg) == ["-3", "-2", "-1", "0", "1"]
    (zero_y,) = re.findall(r'class="axis".*?y1="([\d.]+)"', svg)
    boxes = re.findall(r'<rect .*? y="([\d.]+)".*?height="([\d.]+)"', svg)
    (below_y, below), (above_y, above) = [(float(y), float(height)) for y, height in boxes]
    assert (below_y, above_y + above) == (float(zero_y), float(zero_y))
    assert below == pytest.approx(3 * above)


def test_a_value_that_diverged_is_a_word_in_place_of_its_bar(
    study: Study, source: CachedStore
) -> None:
    for label, value in (("good", 0.5), ("bad", math.inf)):
        workload_id = study.workload(label, [Planted("a", 2.0)])
        add_metric(study, study.run_id(workload_id, "a"), "loss", [1.0, value])
    shown, choices = shown_of(source, series="last(loss)")
    chart = chart_of(shown, charted(shown.quantities)[-1], choices)
    assert [bar.known is not None for bar in chart.bars] == [True, False]
    assert written("value", bars_svg(chart)) == ["0.500"]
    assert re.findall(r'class="end".*?>(.*?)<', bars_svg(chart)) == ["inf"]


def test_peaks_are_drawn_into_the_bars_of_means(study: Study, source: CachedStore) -> None:
    collocated(study)
    shown, choices = shown_of(source)
    chart = chart_of(shown, Quantity.MEMORY, choices)
    assert Quantity.MEMORY_PEAK not in charted(shown.quantities)
    assert all(bar.peak is not None for bar in chart.bars if bar.known is not None)
    assert chart.note == "GB · bar mean, line and number peak"
    peaks = [chart.axis.number(bar.peak.mean) for bar in chart.bars if bar.peak is not None]
    assert re.findall(r'class="value".*?>(.*?)<', bars_svg(chart)) == peaks


def test_experiments_of_a_selection_agree_on_the_unit(
    study: Study, source: CachedStore, store_path: Path
) -> None:
    repeats(study, "solo", [[0.5]])
    for name, unit in (("same", ""), ("percent", "%")):
        other = Study(store_path, name)
        repeats(other, "solo", [[0.7]], unit=unit)
        other.writer.close()
    asked = {"report.picked": "1", "report.series": "last(accuracy)"}
    for name, columns, problems in (
        ("same", ["last(accuracy)"], []),
        ("percent", [], ["'accuracy' has several units: '%', none"]),
    ):
        picks = (Pick("study"), Pick(name))
        shown = read_shown(source, View(picks=picks, options=asked))
        assert len(shown.items) == 2
        assert [each.value for each in shown.columns if "(" in each.value] == columns
        assert [problem.error.message for problem in shown.problems] == problems


def test_bars_stand_in_blocks_by_how_many_share(study: Study, source: CachedStore) -> None:
    collocated(study)
    shown, choices = shown_of(source)
    chart = chart_of(shown, Quantity.TIME_PER_EPOCH, choices)
    assert [(bar.degree, bar.item.name, bar.estimate is None) for bar in chart.bars] == [
        (1, "solo", False),
        (1, "lost", True),
        (2, "pair", False),
        (7, "seven", False),
        (7, "seven", True),
    ]
    svg = part(source, "charts").partition("</svg>")[0]
    assert written("block", svg) == ["1 run", "2 runs", "7 runs"]
    assert written("value", svg) == ["2.00", "3.30", "6.00"]
    assert written("end", svg) == ["killed", "OOM"]
    assert svg.count('class="part"') == 2
    assert svg.count('class="whisker"') == 1
    assert svg.count('class="one"') == 2 + 6  # of the runs; one run alone is its bar
    # A workload has its colour of the other pages: that of its place in the experiment.
    lights = re.findall("<rect .*?--light:(.*?);", svg)
    assert lights == [colour(place, Scheme.LIGHT) for place in (1, 2, 3)]
    told = re.findall("(?s)<title>(.*?)</title>", svg)
    assert "n = 2" in told[0] and "95 % CI 729 ms to 3.27 s" in told[0]
    assert "runs 3.00 s to 3.60 s" in told[2]
    assert told[4].endswith("OOM")
    # In another order there are no blocks.
    svg = part(source, "charts", sort="-time_per_epoch").partition("</svg>")[0]
    assert written("block", svg) == []
    assert written("value", svg) == ["6.00", "3.30", "2.00"]


def test_estimates_are_paler_and_named(study: Study, source: CachedStore) -> None:
    study.workload("pair", [Planted(letter, 2.0, watts=200.0, share_w=80.0) for letter in "ab"])
    shown, choices = shown_of(source, columns="energy,energy_of_runs")
    assert Quantity.ENERGY_OF_RUNS in charted(shown.quantities)
    svg = bars_svg(chart_of(shown, Quantity.ENERGY_OF_RUNS, choices))
    assert svg.count("estimated") == 2  # the bar, and its explanation
    assert rows(shown, choices)[0][-1].startswith("~")


def test_names_are_only_text(study: Study, source: CachedStore) -> None:
    study.workload(HOSTILE, [Planted("a", 2.0, name=HOSTILE)])
    study.workload("other", [Planted("a", 3.0)])
    shown, choices = shown_of(source)
    for name in ("table", "charts"):
        drawn = part(source, name)
        assert "<img" not in drawn and "&lt;img" in drawn
    assert r"\<img src=x onerror=alert(1)\>\|\`=1" in rendered(
        shown.in_columns, ReportFormat.MARKDOWN
    )
    assert rows(shown, choices)[0][0] == HOSTILE


def test_files_are_those_of_the_terminal_in_the_order_of_the_page(
    study: Study, source: CachedStore
) -> None:
    collocated(study)
    study.workload("=1+1", [Planted("a", 5.0, params={"lr": "1"})])
    shown, _ = shown_of(source, sort="-time_per_epoch", columns="time_per_epoch,vs_solo")
    content = shown.in_columns
    found = [
        row
        for row in csv.DictReader(io.StringIO(as_csv(content)))
        if row["quantity"] in ("time_per_epoch", "")
    ]
    assert [row["workload"] for row in found] == ["seven", "seven", "'=1+1", "pair", "solo", "lost"]
    assert float(found[3]["value"]) == pytest.approx(3.3)
    assert float(found[4]["high"]) - float(found[4]["value"]) == pytest.approx(1.2706, abs=1e-4)
    assert [row["status"] for row in found].count("OOM") == 1
    lines = rendered(content, ReportFormat.MARKDOWN).splitlines()
    assert r"| workload | runs | n | time/epoch \[s\] | vs solo \[×\] |" in lines
    assert "| solo | resnet26 | 2 | 2.00 ±1.27 | – |" in lines
    assert "| lost | resnet26 | – | KILLED | – |" in lines


def test_long_experiments_have_pages_and_charts_an_end(study: Study, source: CachedStore) -> None:
    sweep(study, 101)
    shown, choices = shown_of(source)
    assert len(rows(shown, choices)) == 100
    shown, choices = shown_of(source, page="99")
    assert len(rows(shown, choices)) == 1
    chart = chart_of(shown, Quantity.CPU, choices)
    assert len(chart.bars) == MAX_BARS < len(shown.items)
    assert chart.note == f"% of a core · the first {MAX_BARS}"


def test_numbers_stand_with_their_points_below_each_other() -> None:
    cells = [Cell(number=number) for number in ("1.25", "12.5", "125")]
    table = Table([ColumnHead("a")], [Row([cell]) for cell in [*cells, Cell("–")]])
    texts = re.findall('<td class="number" title="">(.*?)</td>', table_html(table))
    assert [text.rstrip() for text in texts] == ["1.25", "12.5", "125", "–"]
    assert [len(text) - len(text.rstrip()) for text in texts] == [0, 1, 3, 0]


@pytest.mark.parametrize(
    ("planted", "says"),
    [
        ([], "No run has ended"),
        ([Planted("a", 2.0, status=RunStatus.RUNNING)], "No run has ended yet"),
    ],
)
def test_empty_reports_say_what_is_missing(
    study: Study, source: CachedStore, planted: list[Planted], says: str
) -> None:
    study.workload("solo", planted)
    assert says in part(source, "table")


def test_runs_without_epochs_say_what_is_missing(study: Study, source: CachedStore) -> None:
    study.workload("solo", [Planted("a", 2.0, epochs=0)])
    shown, _ = shown_of(source)
    assert "no epochs are marked" in part(source, "table")
    assert Quantity.TIME_PER_EPOCH not in shown.columns
    assert Quantity.CPU in shown.columns


@pytest.mark.parametrize(
    "view",
    [
        options(window=HOSTILE),
        options(series=f"last({HOSTILE})"),
        options(series=HOSTILE),
        View(experiment=HOSTILE),
    ],
)
def test_parts_have_no_markup_of_an_address(study: Study, source: CachedStore, view: View) -> None:
    study.workload("w", [Planted("a", 2.0)])
    found = answer(source, {"view": view.to_json()})
    assert found is not None
    parts = "".join(found["parts"].values())
    assert "&lt;img src=x" in parts
    assert "<img" not in parts


def test_an_unknown_experiment_has_no_files(study: Study, source: CachedStore) -> None:
    study.workload("w", [Planted("a", 2.0)])
    client = create_app(source, DashboardAccess()).server.test_client()
    asked = answer(source, {"view": View(experiment="typo").to_json()})
    assert asked is not None
    assert "There is no experiment typo" in asked["parts"]["report-table"]
    for path in ("/report/file.csv", "/report/bars.svg"):
        found = client.get(f"{path}?e=typo")
        assert (found.status_code, found.text) == (404, "There is no experiment typo\n")
    assert client.get("/report/file.csv?e=study").status_code == 200


def test_a_read_that_fails_is_not_in_progress(
    study: Study, source: CachedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    study.workload("w", [Planted("a", 2.0)])

    def away(*_: object) -> None:
        raise StoreError("a chunk is damaged")

    monkeypatch.setattr("radt.analysis.report.measure", away)
    with pytest.raises(StoreError):
        read_shown(source, options())
    assert read_progress(source, options()) is None
