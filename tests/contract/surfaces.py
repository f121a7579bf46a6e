"""What each place where radt shows a number says of the recorded experiment.

A surface is a function of `Recorded` that returns what it shows, as `Shown`: by run id (or the
workload's label, for what a workload has) and quantity. A text is a number as people read it,
rounded; a float is exact; None is a value that the place says is missing. What a place does not
show is left out. A new surface is a function in `SURFACES`, a new quantity a key of its result.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from html import unescape
from html.parser import HTMLParser
from typing import Any

import radt
from radt import units
from radt.analysis.quantities import Quantity
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.explore import explored
from radt.frontend.data.report import read_shown
from radt.frontend.data.report_model import Choices
from radt.frontend.data.run_table import read_table
from radt.frontend.data.spec import ColumnChoice, Pick
from radt.frontend.export.run_table import table_csv
from radt.frontend.pages import compare, report, run, workload
from radt.frontend.view import View
from radt.model import RunStatus
from radt.render.markup import table_html
from radt.store.backend import StoreAddress
from tests.contract.recorded import EXPERIMENT, Recorded

Shown = dict[tuple[str, str], "str | float | None"]
#: Quantities by their column of the table of runs.
COLUMNS = {
    "status": "status",
    "duration": "duration",
    "time_per_epoch": "time_per_epoch",
    "vs_solo": "vs_solo",
    "energy": "energy",
    "loss.last": "last(loss)",
    "loss.min": "min(loss)",
    "sentiment_accuracy.max": "max(sentiment_accuracy)",
    "sentiment_accuracy.mean": "mean(sentiment_accuracy)",
    "process.memory.rss.max": "max(process.memory.rss)",
}
#: Asked of reports, in addition to what they have.
SERIES = [name for name in COLUMNS.values() if "(" in name and not name.startswith("mean(")]
#: Quantities of a workload, however many runs it has.
OF_WORKLOADS = ("makespan", "serial", "speed_up", "tracker_cpu")
#: Quantities of like runs.
OF_GROUPS = ("time_per_epoch", "vs_solo", "cpu", "memory_peak", "cpu_time")


#: Keys of `radt.totals` and of reports by the same quantity.
TOTALS = {"duration_s": "duration", "cpu_time_s": "cpu_time", "rss_peak_bytes": "rss_peak"}
#: Titles of facts on the page of a run.
FACTS = {"Status": "status", "Duration": "duration"}
_FACT = re.compile(r"<dt>(.*?)</dt>\s*<dd[^>]*>(.*?)</dd>", re.DOTALL)


def source_of(recorded: Recorded) -> CachedStore:
    return CachedStore(StoreAddress.of(recorded.bench.home / "radt.db"))


def said(text: str) -> str | None:
    """Return what a cell says; None where it says that the value is missing."""
    return None if text.strip() in ("", units.NO_VALUE) else text.strip()


# -- runs ----------------------------------------------------------------------------------------


def ls_json(recorded: Recorded) -> Shown:
    shown: Shown = {}
    for listed in json.loads(recorded.bench.shown("ls", EXPERIMENT, "--all", "--json"))["runs"]:
        of_run = {"status": listed["status"], "duration": listed["duration_s"]}
        of_run |= {"last(loss)": listed["metrics"].get("loss")}
        shown |= {(listed["run_id"], key): value for key, value in of_run.items()}
    return shown


def ls_sorted(recorded: Recorded) -> Shown:
    """The column that `radt ls` shows because it is sorted by it."""
    shown: Shown = {}
    for column in _table(recorded).columns:
        printed = recorded.bench.shown("ls", EXPERIMENT, "--all", "--sort", column.key)
        head, *lines = [line for line in printed.splitlines() if line.strip()]
        place = re.search(rf"  {re.escape(column.label)}(  |$)", head)
        for line in lines if place else []:
            ids = [one.run_id for one in recorded.runs if one.run_id.startswith(line[2:10])]
            if len(ids) == 1 and place is not None:
                text = line[place.start() : place.start() + 2 + len(column.label)]
                shown[ids[0], COLUMNS[column.key]] = said(_with_unit(text, column.label))
    return shown


def _with_unit(text: str, label: str) -> str:
    """Return a cell with the unit of its column's heading: ``loss last, MB``."""
    return f"{text} {label.rpartition(', ')[2]}" if text.strip() and ", " in label else text


def _table(recorded: Recorded) -> Any:
    columns = tuple(map(ColumnChoice, COLUMNS))
    view = View(experiment=EXPERIMENT, columns=columns, options={"runs.group": "none"})
    return read_table(source_of(recorded), view)


def runs_page(recorded: Recorded) -> Shown:
    table = _table(recorded)
    shown: Shown = {}
    for place in table.order.tolist():
        for column in table.columns:
            cell = column.cell(place)
            text = str(cell[0] if isinstance(cell, list) else cell or "")
            key = table.all_runs.runs[place].run_id, COLUMNS[column.key]
            shown[key] = said(_with_unit(text, column.label))
    return shown


def runs_csv(recorded: Recorded) -> Shown:
    rows = csv.DictReader(io.StringIO(table_csv(_table(recorded))))
    return {
        (row["run_id"], quantity): row[column] if quantity == "status" else _exact(row[column])
        for row in rows
        for column, quantity in COLUMNS.items()
    }


def _exact(text: str) -> float | None:
    return float(text) if text else None


def run_page(recorded: Recorded) -> Shown:
    shown: Shown = {}
    for one in recorded.runs:
        parts_of_page = run_parts(recorded, one.run_id)
        for title, text in _FACT.findall(parts_of_page["run-facts"]):
            if title in FACTS:
                shown[one.run_id, FACTS[title]] = said(unescape(text))
        parser = _Tables()
        parser.feed(parts_of_page["run-metrics"])
        for metric, unit, *cells in (row for table in parser.tables for row in table[1:]):
            if metric in ("loss", "sentiment_accuracy", "process.memory.rss"):
                values = (said(f"{cell} {unit}") if said(cell) else None for cell in cells[:4])
                named = zip(("last", "min", "max", "mean"), values, strict=True)
                shown |= {(one.run_id, f"{key}({metric})"): value for key, value in named}
    return shown


def run_parts(recorded: Recorded, run_id: str) -> dict[str, str]:
    """The HTML of each part of a run's page."""
    answer = run.answer(source_of(recorded), {"view": View(run=run_id).to_json()})
    assert answer is not None
    return dict(answer["parts"])


def workload_page(recorded: Recorded) -> Shown:
    shown: Shown = {}
    source = source_of(recorded)
    for one in recorded.runs:
        view = View(workload=one.workload_id, experiment=EXPERIMENT)
        answer = workload.answer(source, {"view": view.to_json()})
        assert answer is not None
        rows = answer["parts"]["workload-outcomes"].split('data-run="')
        (row,) = (row for row in rows if row.startswith(one.run_id))
        if found := re.search(r"([\d.]+×) (slower|faster) than solo", row):
            inverse = "" if found[2] == "slower" else "1/"
            shown[one.run_id, "vs_solo"] = f"{inverse}{found[1]}"
    return shown


def explore_page(recorded: Recorded) -> Shown:
    there = explored(source_of(recorded), View(experiment=EXPERIMENT))
    keys = {"time:epoch": "time_per_epoch", "time:duration": "duration"}
    keys |= {
        f"metric:{column}": name
        for column, name in COLUMNS.items()
        if "(" in name and f"metric:{column}" in there.choices
    }
    return {
        (run_id, name): value
        for key, name in keys.items()
        for run_id, value in zip(there.run_ids, there.column(key).values, strict=True)
    }


def compare_page(recorded: Recorded) -> Shown:
    """How long finished runs took, in the list beside the charts."""
    ids = [one.run_id for one in recorded.runs]
    view = View(picks=tuple(Pick.run(EXPERIMENT, run_id) for run_id in ids))
    answer = compare.known(source_of(recorded), view)
    shown: Shown = {}
    for unit in answer["facts"]["units"]:
        for listed in unit["runs"]:
            shown[listed["id"], "status"] = listed["status"]
            if listed["status"] == RunStatus.FINISHED:
                shown[listed["id"], "duration"] = listed["note"].split(" · ")[0]
    return shown


def load(recorded: Recorded) -> Shown:
    shown: Shown = {}
    for one in recorded.runs:
        frame = radt.load(one.run_id, home=recorded.bench.home)
        for metric, values in frame.groupby("metric")["value"]:
            finite = values[abs(values) < float("inf")]
            if metric in ("loss", "sentiment_accuracy", "process.memory.rss") and len(finite):
                shown |= {
                    (one.run_id, f"last({metric})"): float(values.iloc[-1]),
                    (one.run_id, f"min({metric})"): float(finite.min()),
                    (one.run_id, f"max({metric})"): float(finite.max()),
                    (one.run_id, f"mean({metric})"): float(finite.mean()),
                }
    return shown


def totals(recorded: Recorded) -> Shown:
    return {
        (one.run_id, quantity): value
        for one in recorded.runs
        for key, value in radt.totals(one.run_id, home=recorded.bench.home).items()
        if (quantity := TOTALS.get(key)) is not None
    }


def mlflow(recorded: Recorded) -> Shown:
    shown: Shown = {}
    for one in recorded.runs:
        there = recorded.bench.mlflow.get_run(str(one.mlflow_run_id))
        shown[one.run_id, "status"] = there.data.tags.get("radt.status", there.info.status)
        for key, quantity in {
            "loss": "last(loss)",
            "radt/duration_s": "duration",
            "radt/cpu_time_s": "cpu_time",
            "radt/time_per_epoch_s": "time_per_epoch",
        }.items():
            if (value := there.data.metrics.get(key)) is not None:
                # It has no infinity and stores the largest double.
                shown[one.run_id, quantity] = value if abs(value) < 1.7e308 else value * 2
    return shown


# -- reports -------------------------------------------------------------------------------------


def _report(recorded: Recorded, format_: str) -> str:
    chosen = [f"--quantity={name}" for name in (*SERIES, *OF_WORKLOADS, *OF_GROUPS)]
    return recorded.bench.shown("report", EXPERIMENT, "--format", format_, *chosen)


def report_json(recorded: Recorded) -> Shown:
    shown: Shown = {}
    for item in json.loads(_report(recorded, "json"))["workloads"]:
        for name, value in item["values"].items():
            shown[item["label"], name] = _number(value["mean"])
        groups = list(item["groups"])
        for group in groups:
            groups += group["children"]
            ids = [one["id"] for one in group["runs"]]
            is_one = len(ids) == 1 and len(item["ids"]) == 1
            for name, value in group["values"].items():
                shown[f"{item['label']}/{group['name']}", name] = _number(value["mean"])
                if is_one:
                    shown[ids[0], name] = _number(value["mean"])
            if is_one:
                shown[ids[0], "status"] = group["status"]
    return shown


def report_csv(recorded: Recorded) -> Shown:
    return {
        (
            row["workload"] if row["of"] == "workload" else f"{row['workload']}/{row['name']}",
            row["quantity"],
        ): float(row["value"])
        for row in csv.DictReader(io.StringIO(_report(recorded, "csv")))
        if row["value"]
    }


def report_markdown(recorded: Recorded) -> Shown:
    tables: list[list[list[str]]] = [[]]
    for line in _report(recorded, "markdown").splitlines():
        if line.startswith("|"):
            cells = [cell.strip().replace("\\", "") for cell in line.strip("|").split("|")]
            tables[-1] += [] if set(line) <= set("|-: ") else [cells]
        elif tables[-1]:
            tables.append([])
    return _of_tables(tables)


def report_terminal(recorded: Recorded) -> Shown:
    tables: list[list[list[str]]] = []
    for part in _report(recorded, "table").split("\n\n"):
        lines = [line for line in part.splitlines() if line.strip()]
        head = next((place for place, line in enumerate(lines) if "  workload  " in line), None)
        if head is None:
            continue
        # Columns of words begin, and columns of numbers end, where their heads do.
        titles = [(one.start(), one.end()) for one in re.finditer(r"\S+( \S+)*", lines[head])]
        starts = [0, *(end + 1 for _, end in titles[2:-1])]
        words = titles[1][0]
        rows = []
        for line in lines[head:]:
            numbers = [line[end : titles[i + 3][1]] for i, (_, end) in enumerate(titles[2:-1])]
            first = line[titles[1][1] if len(titles) < 3 else words : titles[2][1]]
            name, _, count = first.rstrip().rpartition(" ")
            rows.append([line[:words], name, count, *numbers])
        assert starts
        tables.append([[cell.strip() for cell in row] for row in rows])
    return _of_tables(tables)


class _Tables(HTMLParser):
    """The tables of a page as texts."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self._is_cell = False

    def handle_starttag(self, tag: str, attributes: Sequence[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self._is_cell = True
        elif tag == "span" and self._is_cell:
            self.tables[-1][-1][-1] = f"{self.tables[-1][-1][-1].rstrip()}\t"

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th") and self._is_cell:
            self._is_cell = False
            self.tables[-1][-1][-1] = self.tables[-1][-1][-1].strip()

    def handle_data(self, data: str) -> None:
        if self._is_cell:
            self.tables[-1][-1][-1] += data


def report_html(recorded: Recorded) -> Shown:
    parser = _Tables()
    parser.feed(_report(recorded, "html"))
    return _of_tables(parser.tables)


def report_page(recorded: Recorded) -> Shown:
    series = ";".join(SERIES)
    columns = ",".join([*OF_WORKLOADS, *OF_GROUPS])
    options = {"report.series": series, "report.columns": columns}
    view = View(experiment=EXPERIMENT, options=options)
    shown = read_shown(source_of(recorded), view)
    parser = _Tables()
    parser.feed(table_html(report.table_of(shown, Choices.of(options), view)))
    return _of_tables(parser.tables)


def _of_tables(tables: Sequence[Sequence[Sequence[str]]]) -> Shown:
    """Return what the tables of a report show; the first row of each is its head."""
    shown: Shown = {}
    for head, *rows in filter(None, tables):
        if head[0] != "workload":
            continue
        label = ""
        for row in rows:
            label = row[0] or label
            cells = dict(zip(head, row, strict=True))
            name = re.sub(r"^(↳ )?(\d+ × )?| \(service\)$", "", cells.get("runs", ""))
            name = name.split("\t")[0]
            for title, cell in cells.items():
                quantity, unit = _quantity(title)
                number = re.split(r"[\s~]", cell.strip().lstrip("~"))
                if quantity and cell and not cell.isupper():
                    text = (
                        number[0]
                        if "[" in title or "\t" in title
                        else " ".join([number[0], *number[-1:][: len(number) - 1]])
                    )
                    value = said(f"{text} {unit}".strip()) if said(text) else None
                    subject = label if quantity in OF_WORKLOADS else f"{label}/{name}"
                    shown[subject, quantity] = value
    return shown


def _quantity(title: str) -> tuple[str, str]:
    """Return the name of a quantity, and its unit, from the head of a column; empty for neither."""
    found = re.fullmatch(r"(.*?)(?: \[(.*)\]|\t+ ?(.*?)\t*)?", title)
    assert found is not None
    text = found[1].strip()
    names = {quantity.info.title: quantity.value for quantity in Quantity}
    return names.get(text, text if text in SERIES else ""), (found[2] or found[3] or "").strip()


def _number(value: float | str | None) -> float | None:
    return None if value is None else float(value)


SURFACES: Mapping[str, Callable[[Recorded], Shown]] = {
    surface.__name__: surface
    for surface in (
        *(ls_json, ls_sorted, runs_page, runs_csv, run_page, workload_page, explore_page),
        *(compare_page, load, totals, mlflow),
        *(report_json, report_csv, report_markdown, report_terminal, report_html, report_page),
    )
}
