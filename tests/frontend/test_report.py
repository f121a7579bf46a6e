"""What the page Report shows: the same numbers as the terminal, in order, as table, bars, files."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from dash.development.base_component import Component

from radt.analysis.quantities import Quantity
from radt.cli import report as terminal
from radt.frontend.charts.report_bars import figure
from radt.frontend.data.report import content_of, read_shown, suggestions
from radt.frontend.data.report_model import MAX_BARS, Choices, Shown, Size, bars_of, charted
from radt.frontend.data.source import Source
from radt.frontend.data.spec import Pick
from radt.frontend.pages import report_table as parts
from radt.frontend.pages.report_table import table
from radt.frontend.theme import Scheme, colour
from radt.frontend.view import View
from radt.model import RunStatus
from radt.render.files import ReportFormat, rendered
from radt.render.markup import bars_svg
from radt.render.model import Bar, BarChart
from radt.render.numbers import aligned, with_unit
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


def shown_of(source: Source, **given: str) -> tuple[Shown, Choices]:
    view = options(**given)
    return read_shown(source, view), Choices.of(view.options)


def labels(source: Source, **given: str) -> list[str]:
    return [entry.name for entry in shown_of(source, **given)[0].entries]


def texts(component: Any) -> str:
    """All text of a component."""
    if isinstance(component, Component):
        return texts(getattr(component, "children", None))
    if isinstance(component, list | tuple):
        return "\t".join(map(texts, component))
    return "" if component is None else str(component)


def rows(shown: Shown, choices: Choices) -> list[list[str]]:
    """The table's cells without padding."""
    made = table(shown, choices, lambda entry: entry.name)
    return [
        [re.sub(r"\s+", " ", texts(cell)).strip() for cell in row.children]
        for row in made.children[2].children
    ]


def collocated(study: Study) -> None:
    for epoch_s in (1.9, 2.1):
        study.workload("solo", [Planted("a", epoch_s)], tags={"radt.series": "s"})
    study.workload("pair", [Planted("a", 3.0, watts=250.0), Planted("b", 3.6, watts=250.0)])
    seven = [Planted(letter, 6.0) for letter in "abcdef"]
    study.workload("seven", [*seven, Planted("g", 6.0, status=RunStatus.OOM)])
    study.workload("lost", [Planted("a", 6.0, status=RunStatus.KILLED)])


def test_page_and_terminal_agree_to_the_digit(study: Study, source: Source) -> None:
    collocated(study)
    said = CliRunner().invoke(
        terminal.command,
        ["study", "--home", str(Path(study.store).parent)],
        env={"COLUMNS": "200"},
    )
    assert said.exit_code == 0, said.output
    table = said.output.split("\n\n")[1].splitlines()
    cells = [re.split(r"\s{2,}", line.strip()) for line in table]
    heads, *printed = cells
    shown, choices = shown_of(source)
    wanted = []
    for entry in shown.entries:
        for group in entry.summary.groups:
            time = with_unit(Quantity.TIME_PER_EPOCH, group.values.get(Quantity.TIME_PER_EPOCH))
            if group.status is not RunStatus.FINISHED:
                time = str(group.status)
            rest = (Quantity.SLOWDOWN, Quantity.SAMPLES_PER_S)
            wanted.append([time, *(with_unit(one, group.values.get(one)) for one in rest)])
    assert heads[:6] == ["workload", "runs", "n", "time/epoch", "vs solo", "samples/s"]
    found = []
    for line in printed:
        place = next(
            place
            for place, text in enumerate(line)
            if re.fullmatch(r"[–\d]+", text)  # n
        )
        found.append(line[place + 1 : place + 4])
    assert found == wanted
    lines = rows(shown, choices)
    assert lines[0][:6] == ["solo", "resnet26", "2", "2.00 ±1.27", "–", "–"]
    assert lines[1][:5] == ["pair", "2 × resnet26", "1", "3.30", "1.65"]
    assert lines[2][:5] == ["seven", "6 × resnet26", "1", "6.00", "3.00"]
    assert lines[3][:3] == ["resnet26 OOM", "–", "–"]
    assert lines[4][:3] == ["lost", "resnet26 killed", "–"]
    energy = 250 * (1 + 9 + 2 * 3.6)
    assert shown.entries[1].summary.energy.gpus_j == pytest.approx(energy, rel=0.01)
    assert f"{energy:,.0f}"[:3] in said.output


def test_the_window_is_chosen_and_what_makes_no_sense_is_said(study: Study, source: Source) -> None:
    study.workload("solo", [Planted("a", 2.0)])
    shown, _ = shown_of(source)
    (entry,) = shown.entries
    assert entry.summary.groups[0].time_per_epoch_s == pytest.approx(2.0)
    shown, choices = shown_of(source, window="epoch:1")
    assert shown.entries[0].summary.groups[0].time_per_epoch_s == pytest.approx(9.0)
    assert (shown.window, choices.window_error) == ("epoch 1", "")
    shown, choices = shown_of(source, window="epoch:x", overlap="1")
    assert "epoch:x" in choices.window_error
    assert choices.window.overlap
    assert shown.window.endswith("while all runs of the workload ran")


def test_order_is_the_experiments_or_as_chosen(study: Study, source: Source) -> None:
    collocated(study)
    assert labels(source) == ["solo", "pair", "seven", "lost"]
    # What has no value comes last either way.
    assert labels(source, sort="time_per_epoch") == ["solo", "pair", "seven", "lost"]
    assert labels(source, sort="-time_per_epoch") == ["seven", "pair", "solo", "lost"]
    assert labels(source, sort="vs_solo") == ["pair", "seven", "solo", "lost"]
    assert labels(source, sort="-workload") == ["solo", "seven", "pair", "lost"]
    assert labels(source, sort="nonsense") == ["solo", "pair", "seven", "lost"]


def test_workloads_with_numbers_in_their_names_sort_by_them(study: Study, source: Source) -> None:
    for label in ("run 10", "run 2", "run", ""):
        study.workload(label, [Planted("a", 2.0, name="7x")])
    assert labels(source, sort="workload") == ["7x", "run", "run 2", "run 10"]


def test_columns_are_those_that_are_asked_for(study: Study, source: Source) -> None:
    collocated(study)
    shown, _ = shown_of(source, columns="cpu,disk_read,memory,nonsense")
    assert shown.columns == (Quantity.CPU, Quantity.MEMORY)  # of what is measured
    assert shown_of(source, columns="-")[0].columns == ()


def test_profiled_are_left_out_and_can_be_shown(study: Study, source: Source) -> None:
    study.workload("plain", [Planted("a", 2.0)])
    study.workload("slowed", [Planted("a", 9.0)], tags={PROFILED: "nsys"})
    shown, _ = shown_of(source)
    assert ([entry.name for entry in shown.entries], shown.left_out) == (["plain"], 1)
    assert "1 profiled left out" in parts.facts(shown)
    shown, _ = shown_of(source, profiled="1")
    assert ([entry.name for entry in shown.entries], shown.left_out) == (["plain", "slowed"], 0)


def test_what_is_picked_of_several_experiments(
    store_path: Path, study: Study, source: Source
) -> None:
    first = study.workload("solo", [Planted("a", 2.0)])
    study.workload("pair", [Planted("a", 3.0), Planted("b", 3.0)])
    other = Study(store_path, "other")
    lone = other.workload("solo", [Planted("a", 4.0)])
    picks = (Pick.workload("study", first), Pick.run("other", other.run_id(lone, "a")))
    view = View(picks=picks, options={"report.picked": "1"})
    assert [entry.name for entry in read_shown(source, view).entries] == [
        "study solo",
        "other solo",
    ]
    assert [entry.name for entry in read_shown(source, View(picks=picks)).entries] != []
    other.writer.close()


def test_quantities_of_series_are_those_of_the_terminal(study: Study, source: Source) -> None:
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
    assert [entry.name for entry in shown.entries] == ["all", "some"]
    assert [row[-2:] for row in rows(shown, choices)] == [
        ["0.900", "1.00"],
        ["0.650 ±0.635", "2.00"],
    ]
    last, time_to = charted(shown)[-2:]
    assert [bar.label for bar in bars_of(shown, time_to, choices)] == ["all", "some"]
    made = figure(last, bars_of(shown, last, choices), Scheme.LIGHT, Size.SMALL, in_blocks=False)
    assert made["data"][0]["y"] == pytest.approx([0.9, 0.65])
    text = rendered(content_of(shown, choices), ReportFormat.MARKDOWN)
    assert r"some: 1 of 2 runs reached accuracy\>=0.65; the value is their mean." in text
    assert suggestions(source, "study")[:2] == ["last(accuracy)", "max(accuracy)"]


def test_negative_values_hang_from_zero(study: Study, source: Source) -> None:
    for label, value in (("down", -3.0), ("up", 1.0)):
        workload_id = study.workload(label, [Planted("a", 2.0)])
        add_metric(study, study.run_id(workload_id, "a"), "reward", [value])
    shown, choices = shown_of(source, series="last(reward)")
    quantity = charted(shown)[-1]
    bars = bars_of(shown, quantity, choices)
    made = figure(quantity, bars, Scheme.LIGHT, Size.SMALL, in_blocks=False)
    low, high = made["layout"]["yaxis"]["range"]
    assert low < -3 < 1 < high
    (zero,) = made["layout"]["shapes"]
    assert (zero["y0"], zero["y1"]) == (0.0, 0.0)
    chart = BarChart(
        *("reward", ""), [Bar(str(each), each, "", "way-naive", "", "") for each in (-3.0, 1.0)]
    )
    svg = bars_svg(chart)
    assert re.findall(r'class="tick".*?>(-?[\d.]+)<', svg) == ["-3", "-2", "-1", "0", "1"]
    (zero_y,) = re.findall(r'class="axis".*?y1="([\d.]+)"', svg)
    boxes = re.findall(r'<rect .*? y="([\d.]+)".*?height="([\d.]+)"', svg)
    (below_y, below), (above_y, above) = [(float(y), float(height)) for y, height in boxes]
    assert (below_y, above_y + above) == (float(zero_y), float(zero_y))
    assert below == pytest.approx(3 * above)


def test_experiments_of_a_selection_agree_on_the_unit(
    study: Study, source: Source, store_path: Path
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
        assert len(shown.entries) == 2
        assert [each.value for each in shown.columns if "(" in each.value] == columns
        assert [problem.cause for problem in shown.problems] == problems


def test_bars_stand_in_blocks_by_how_many_share(study: Study, source: Source) -> None:
    collocated(study)
    shown, choices = shown_of(source)
    bars = bars_of(shown, Quantity.TIME_PER_EPOCH, choices)
    assert [(bar.degree, bar.entry.name, bar.estimate is None) for bar in bars] == [
        (1, "solo", False),
        (1, "lost", True),
        (2, "pair", False),
        (7, "seven", False),
        (7, "seven", True),
    ]
    made = figure(Quantity.TIME_PER_EPOCH, bars, Scheme.LIGHT, Size.SMALL, in_blocks=True)
    drawn = made["data"][0]
    assert drawn["y"] == pytest.approx([2.0, 3.3, 6.0])
    assert drawn["error_y"]["array"] == [pytest.approx(1.2706, abs=1e-4), None, None]
    notes = [note["text"] for note in made["layout"]["annotations"]]
    assert notes == ["1 run", "2 runs", "7 runs", "killed", "OOM", "2.00", "3.30", "6.00"]
    assert len(made["layout"]["shapes"]) == 2
    # A workload has its colour of the other pages: that of its place in the experiment.
    assert drawn["marker"]["color"] == [colour(place, Scheme.LIGHT) for place in (1, 2, 3)]
    told = [tip["text"] for tip in made["layout"]["meta"]["tips"]]
    assert "n = 2" in told[0] and "95 % CI 729 ms to 3.27 s" in told[0]
    assert "runs 3.00 s to 3.60 s" in told[2]
    assert told[4] == "OOM"


def test_estimates_are_hatched_and_named(study: Study, source: Source) -> None:
    study.workload("pair", [Planted(letter, 2.0, watts=200.0, share_w=80.0) for letter in "ab"])
    shown, choices = shown_of(source, columns="energy,energy_of_runs")
    assert Quantity.ENERGY_OF_RUNS in charted(shown)
    made = figure(
        Quantity.ENERGY_OF_RUNS,
        bars_of(shown, Quantity.ENERGY_OF_RUNS, choices),
        Scheme.DARK,
        Size.SMALL,
        in_blocks=True,
    )
    assert made["data"][0]["marker"]["pattern"]["shape"] == ["/"]
    assert "estimated" in made["layout"]["meta"]["tips"][0]["text"]
    assert rows(shown, choices)[0][-1].startswith("~")


def test_names_are_only_text(study: Study, source: Source) -> None:
    study.workload(HOSTILE, [Planted("a", 2.0, name=HOSTILE)])
    shown, choices = shown_of(source)
    bars = bars_of(shown, Quantity.CPU, choices)
    made = figure(Quantity.CPU, bars, Scheme.LIGHT, Size.SMALL, in_blocks=True)
    del made["layout"]["meta"]["tips"]  # only text nodes
    drawn = json.dumps(made)
    assert "<img" not in drawn and "&lt;img" in drawn
    assert r"\<img src=x onerror=alert(1)\>\|\`=1" in rendered(
        content_of(shown, choices), ReportFormat.MARKDOWN
    )
    assert rows(shown, choices)[0][0] == HOSTILE


def test_files_are_those_of_the_terminal_in_the_order_of_the_page(
    study: Study, source: Source
) -> None:
    collocated(study)
    study.workload("=1+1", [Planted("a", 5.0, params={"lr": "1"})])
    shown, choices = shown_of(source, sort="-time_per_epoch", columns="time_per_epoch,vs_solo")
    content = content_of(shown, choices)
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


def test_long_experiments_have_pages_and_charts_an_end(study: Study, source: Source) -> None:
    sweep(study, 101)
    shown, choices = shown_of(source)
    assert len(rows(shown, choices)) == 100
    shown, choices = shown_of(source, page="99")
    assert len(rows(shown, choices)) == 1
    bars = bars_of(shown, Quantity.CPU, choices)
    made = figure(Quantity.CPU, bars, Scheme.LIGHT, Size.LARGE, in_blocks=True)
    assert len(made["data"][0]["x"]) == MAX_BARS < len(bars)


def test_numbers_stand_with_their_points_below_each_other() -> None:
    assert [text.find(".") for text in aligned(["1.25", "12.5"])] == [1, 2]
    padded = aligned(["1.25", "12.5", "125", ""])
    assert [len(text) - len(text.rstrip()) for text in padded] == [0, 1, 3, 0]


@pytest.mark.parametrize(
    ("planted", "says"),
    [
        ([], "No run has ended"),
        ([Planted("a", 2.0, status=RunStatus.RUNNING)], "No run has ended yet"),
    ],
)
def test_empty_reports_say_what_is_missing(
    study: Study, source: Source, planted: list[Planted], says: str
) -> None:
    study.workload("solo", planted)
    shown, choices = shown_of(source)
    assert says in texts(parts.table_of(shown, choices, options()))


def test_runs_without_epochs_say_what_is_missing(study: Study, source: Source) -> None:
    study.workload("solo", [Planted("a", 2.0, epochs=0)])
    shown, choices = shown_of(source)
    said = texts(parts.table_of(shown, choices, options()))
    assert "no epochs are marked" in said
    assert Quantity.TIME_PER_EPOCH not in shown.columns
    assert Quantity.CPU in shown.columns
