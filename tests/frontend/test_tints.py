"""One run, one colour: on every page, in an experiment of few runs and of more than colours."""

from __future__ import annotations

import pytest

from radt.frontend.charts.timeseries import Look, figure
from radt.frontend.data.catalog import read_catalog, tint
from radt.frontend.data.chart_data import chart_data
from radt.frontend.data.report import read_shown
from radt.frontend.data.report_model import Choices
from radt.frontend.data.spec import BoardSpec, ChartSpec, Level, Pick
from radt.frontend.pages import workload
from radt.frontend.pages.compare import facts
from radt.frontend.pages.report import table_of
from radt.frontend.pages.runs import answer
from radt.frontend.selection import read_selection
from radt.frontend.theme import HUE_COUNT, Scheme, colour
from radt.frontend.view import View
from radt.model import RunStatus
from radt.render.markup import table_html

LOOKS = [Scheme.LIGHT, Scheme.DARK]


def fill(demo, count: int) -> None:
    """Workloads of one run and of two that end differently, in turns."""
    ends = {"a": RunStatus.FINISHED, "b": RunStatus.FAILED}
    placed = 0
    for number in range(count):
        letters = "a" if number % 2 == 0 or placed + 2 > count else "ab"
        runs = [demo.run(letter, "net", 2.0, epochs=2, status=ends[letter]) for letter in letters]
        demo.workload("study", f"w{number}", runs)
        placed += len(runs)
        if placed >= count:
            return


def on_runs(source, run) -> list[str]:
    rows = answer(source, {"view": {"experiment": "study"}})["rows"]
    return next(row["swatch"] for row in rows if row["id"] == run.run_id[:12])


def in_the_list_of_compare(source, run) -> list[str]:
    view = View(picks=(Pick("study"),))
    units = facts(source, view, read_selection(source, view))["units"]
    one = next(
        one for unit in units for one in unit["runs"] if one["id"].startswith(run.run_id[:12])
    )
    return [one["light"], one["dark"]]


def in_a_chart(source, run) -> list[str]:
    selection = read_selection(source, View(picks=(Pick("study"),)))
    data = chart_data(source, selection, ChartSpec("loss", 0), BoardSpec(level=Level.RUN), None)
    assert data is not None
    return [
        next(
            line["colour"]
            for line in figure(data, Look(scheme))["layout"]["meta"]["lines"]
            if line["key"].startswith(f"r{run.run_id[:12]}")
        )
        for scheme in LOOKS
    ]


def on_its_workloads_page(source, run) -> list[str]:
    view = View(experiment="study", workload=run.record.workload_id)
    rows = workload.answer(source, {"view": view.to_json()})["parts"]["workload-rows"]
    # The link of the run is after its swatch.
    before = rows.partition(f"id={run.run_id}")[0].rpartition("--light: ")[2]
    light, _, dark = before.partition('"')[0].partition("; --dark: ")
    return [light, dark]


def on_report(source, run) -> list[str]:
    shown = read_shown(source, View(experiment="study"))
    for entry in shown.items:
        for group in entry.summary.groups:
            if group.runs[0].run.run_id == run.run_id:
                return [colour(shown.tint(entry, group), scheme) for scheme in LOOKS]
    raise AssertionError(f"{run.short} is in no group of its own")


@pytest.mark.parametrize("count", [3, 12])
def test_a_run_has_one_colour_on_all_pages(demo, source, count):
    fill(demo, count)
    runs = read_selection(source, View(picks=(Pick("study"),))).runs.values()
    assert len(runs) == count
    seen = set()
    for run in runs:
        expected = [
            colour(tint(read_catalog(source, "study"), run.run_id), scheme) for scheme in LOOKS
        ]
        pages = (on_runs, in_the_list_of_compare, in_a_chart)
        for page in (*pages, on_its_workloads_page, on_report):
            assert page(source, run) == expected, (page.__name__, run.short)
        seen.add(tuple(expected))
    assert len(seen) >= min(count, HUE_COUNT)


def test_a_workload_has_the_colour_of_its_first_run_in_the_reports_table(demo, source):
    fill(demo, 12)
    shown = read_shown(source, View(experiment="study"))
    drawn = table_html(table_of(shown, Choices(), View()))
    first = [runs[0] for runs in _workloads(source)]
    assert len(first) > 3
    for run in first:
        assert colour(tint(read_catalog(source, "study"), run.run_id), Scheme.DARK) in drawn


def _workloads(source):
    return [unit.runs for unit in read_selection(source, View(picks=(Pick("study"),))).units]
