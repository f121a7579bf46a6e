"""A report in all formats: the same numbers to the digit, names that are only names."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from radt import units
from radt.analysis.estimates import Estimate
from radt.analysis.quantities import Quantity
from radt.analysis.report import Report
from radt.analysis.selection import Omission, Selection
from radt.errors import UsageError
from radt.model import RunStatus
from radt.render import report_json
from radt.render.files import file_name, rendered
from radt.render.formats import ReportFormat
from radt.render.interference import matrices
from radt.render.json_text import json_text
from radt.render.markup import escape_markdown
from radt.render.model import Table
from radt.render.numbers import INTERVAL_NOTE, scaled, with_unit
from radt.render.report import report_document
from radt.render.report_content import Content, is_shared
from tests.frontend.report_support import Planted, Study
from tests.report.series_support import report_of

HOSTILE = "<img src=x onerror=alert(1)>|`=1\x1b[31m"
LIGHT = {"gpu.sm.active": 0.4, "gpu.memory.used": 5e9, "gpu.power": 200.0}


@pytest.fixture
def planted(study: Study) -> Study:
    """Two repeats alone, two together, seven of which one did not fit, one that was killed."""
    series = {"radt.series": "s"}
    for epoch_s in (1.9, 2.1):
        study.workload("solo", [Planted("a", epoch_s, gpu=LIGHT, watts=200.0)], tags=series)
    for epoch_s in (2.9, 3.1):
        pair = [Planted(one, epoch_s, gpu=LIGHT, watts=300.0, share_w=120.0) for one in "ab"]
        study.workload("pair", pair, tags=series)
    seven = [Planted(one, 6.0) for one in "abcdef"]
    study.workload("seven", [*seven, Planted("g", 6.0, status=RunStatus.OOM)])
    study.workload("lost", [Planted("a", 6.0, status=RunStatus.KILLED)])
    return study


def content_of(study: Study) -> Content:
    return Content.of(report_of(study))


def values(content: Content) -> dict[tuple[str, str, str], Estimate]:
    """Every value of a report by workload, what it is of, and quantity."""
    return {
        (
            line.item.name,
            "" if is_shared(one) else f"{line.group.name} {line.group.status}",
            one,
        ): found
        for line in content.lines
        for one in Quantity
        if (found := line.estimate(one)) is not None
    }


def test_csv_and_json_have_every_value_to_the_last_digit(planted: Study) -> None:
    content = content_of(planted)
    wanted = values(content)
    assert {"time_per_epoch", "vs_solo", "energy", "sm_active", "energy_of_runs"} <= {
        quantity for _, _, quantity in wanted
    }
    found = {}
    for row in csv.DictReader(io.StringIO(rendered(content, ReportFormat.CSV))):
        if row["quantity"]:
            of = f"{row['name']} {row['status']}" if row["of"] == "runs" else ""
            found[row["workload"], of, row["quantity"]] = row
    assert found.keys() == wanted.keys()
    for key, row in found.items():
        estimate, interval = wanted[key], wanted[key].interval
        assert float(row["value"]) == estimate.mean
        assert int(row["n"]) == estimate.count
        assert row["low"] == ("" if interval is None else repr(interval.low))
        assert row["high"] == ("" if interval is None else repr(interval.high))
        assert row["unit"] == Quantity(key[2]).info.unit
        assert row["window"] == "all epochs after the first"
        assert row["estimated"] == str(estimate.is_estimated).lower()

    document = json.loads(rendered(content, ReportFormat.JSON))
    told = {}
    for workload in document["workloads"]:
        for name, value in workload["values"].items():
            told[workload["label"], "", name] = value
        for group in workload["groups"]:
            for name, value in group["values"].items():
                told[workload["label"], f"{group['name']} {group['status']}", name] = value
    assert told.keys() == wanted.keys()
    for key, value in told.items():
        assert value == units.in_json(report_json.estimate_json(wanted[key]))
        assert value["mean"] == wanted[key].mean
        assert tuple(value["repeats"]) == wanted[key].repeats


def test_tables_in_all_formats_have_the_same_cells(planted: Study) -> None:
    content = content_of(planted)
    written = {kind: rendered(content, kind, columns=300) for kind in ReportFormat}
    flat = re.sub(r"<[^>]*>", "", written[ReportFormat.HTML])
    page = re.sub(r"\s+", " ", flat)
    count = 0
    for table in report_document(content):
        if isinstance(table, Table):
            for cell in (cell for row in table.rows for cell in row.cells):
                assert f" {escape_markdown(cell.text_in_unit)} |" in written[ReportFormat.MARKDOWN]
                assert " ".join(cell.text_in_unit.split()) in page
                assert cell.text in written[ReportFormat.TABLE]
                count += bool(cell.number)
    assert count > 30
    for text in (written[ReportFormat.TABLE], page, written[ReportFormat.MARKDOWN]):
        assert "OOM" in text and "KILLED" in text
        assert "all epochs after the first" in text
        assert INTERVAL_NOTE in text


def test_how_runs_ended_is_a_row_without_values(planted: Study) -> None:
    rows = csv.DictReader(io.StringIO(rendered(content_of(planted), ReportFormat.CSV)))
    ended = [(row["workload"], row["status"], row["runs"]) for row in rows if not row["quantity"]]
    assert ended == [("seven", "OOM", "1"), ("lost", "KILLED", "1")]


def test_json_is_as_its_description_has_it(planted: Study) -> None:
    document = json.loads(rendered(content_of(planted), ReportFormat.JSON))
    described = report_json.__doc__ or ""
    assert (document["format"], document["version"]) == ("radt-report", 1)
    assert 'format       "radt-report"' in described and "version      1;" in described

    def names(found: object) -> Iterator[str]:
        if isinstance(found, dict):
            for name, inner in found.items():
                if name not in set(Quantity) and name != "study":
                    yield name
                yield from names(inner)
        elif isinstance(found, list):
            for inner in found:
                yield from names(inner)

    missing = {name for name in names(document) if not re.search(rf"\b{name}\b", described)}
    assert missing == set()


@pytest.mark.parametrize(
    ("value", "in_json", "in_text"),
    [
        (math.nan, "NaN", "NaN"),
        (math.inf, "Infinity", "inf"),
        (-math.inf, "-Infinity", "-inf"),
        (None, None, units.NO_VALUE),
    ],
)
@pytest.mark.parametrize("unit", ["", "s", "1", "x", "By", "By/s", "W"])
def test_a_value_that_diverged_is_not_missing(
    value: float | None, in_json: str | None, in_text: str, unit: str
) -> None:
    assert json.loads(json_text("test", {"mean": value}))["mean"] == in_json
    assert units.in_unit(value, unit).split()[0] == in_text


@pytest.mark.parametrize(
    ("quantity", "repeats", "wanted"),
    [
        (Quantity.TIME_PER_EPOCH, (4.19, 4.21, 4.2), "4.20 ±0.02 s"),
        (Quantity.TIME_PER_EPOCH, (4.2,), "4.20 s"),
        (Quantity.TIME_PER_EPOCH, (0.4, 0.41), "405 ±64 ms"),
        (Quantity.TIME_PER_EPOCH, (97.0, 98.0, 99.0), "1:38 ±2.48 s"),
        (Quantity.TIME_PER_EPOCH, (5.0, 5.000001), "5.00 ±6e-06 s"),
        (Quantity.TIME_PER_EPOCH, (0.1 + 0.2, 0.3), "300 ±0 ms"),
        (Quantity.SLOWDOWN, (1.5, 1.56, 1.53), "1.53 ±0.07×"),
        (Quantity.SAMPLES_PER_S, (12_400.0, 12_600.0, 12_500.0), "12,500 ±248"),
        (Quantity.CPU, (1.98, 2.0, 1.99), "199 ±2 %"),
        (Quantity.GPU_MEMORY_PEAK, (5.2e9, 5.3e9), "5.25 ±0.64 GB"),
        (Quantity.PCIE_RX, (1.2e6, 1.4e6), "1.30 ±1.27 MB/s"),
        (Quantity.ENERGY, (0.0, 0.0), "0 ±0 J"),
    ],
)
def test_intervals_are_as_exact_as_their_means_and_in_the_same_unit(
    quantity: Quantity, repeats: tuple[float, ...], wanted: str
) -> None:
    estimate = Estimate(sum(repeats) / len(repeats), repeats)
    assert with_unit(quantity, estimate) == wanted


def test_columns_of_tables_have_one_unit() -> None:
    estimates = [Estimate(2.0e9, (1.9e9, 2.1e9)), Estimate(4.0e8, (4.0e8,), is_estimated=True)]
    axis = scaled(Quantity.MEMORY, estimates)
    assert axis.head == "RSS [GB]"
    assert [axis.number_text(one) for one in estimates] == ["2.00", "~0.400"]
    assert [axis.spread(one) for one in estimates] == ["±1.27", ""]


@pytest.mark.parametrize("width", [80, 100, 200])
def test_tables_are_as_wide_as_the_terminal(study: Study, width: int) -> None:
    for host in ("gpu-01.cluster.example.org", "gpu-02.cluster.example.org"):
        study.workload("a long name of a workload", [Planted("a", 2.0, gpu=LIGHT)], host=host)
        pair = [
            Planted(one, 3.0 + place, params={"learning-rate": str(place), "batch-size": "128"})
            for place, one in enumerate("ab")
        ]
        study.workload("pair", pair, host=host)
    text = rendered(content_of(study), ReportFormat.TABLE, columns=width)
    assert max(map(len, text.splitlines())) <= width
    assert "gpu-01" in text and "gpu-02" in text
    assert "SM active" in text and "samples/s" in text
    # What does not fit beside the others stands below them.
    assert (text.count("\n  workload ") >= 4) is (width < 200)


def test_what_does_not_fit_is_shared_out_evenly(study: Study) -> None:
    study.workload("one", [Planted("a", 2.0, gpu=LIGHT, watts=80.0, disk_per_s=1e6)])
    text = rendered(content_of(study), ReportFormat.TABLE, columns=80)
    heads = [line for line in text.splitlines() if line.startswith("  workload ")]
    of_devices = [line for line in heads if " runs " not in line and "speed-up" not in line]
    assert len(of_devices) > 1
    # Columns are two blanks or more apart; workload and n lead each table.
    counts = [len(re.split(r" {2,}", line.strip())) - 2 for line in of_devices]
    assert max(counts) - min(counts) <= 1, of_devices


def test_names_are_only_names(study: Study) -> None:
    study.workload("=1+1", [Planted("a", 2.0, name=HOSTILE)])
    study.workload(HOSTILE, [Planted(one, 3.0, name=HOSTILE) for one in "ab"])
    content = content_of(study)
    page = rendered(content, ReportFormat.HTML)
    assert "<img" not in page and "&lt;img" in page
    assert "http" not in page.replace("http-equiv", "")
    assert "<script" not in page and "default-src 'none'" in page.replace("&#39;", "'")
    text = rendered(content, ReportFormat.MARKDOWN)
    assert r"\<img src=x onerror=alert(1)\>\|\`=1" in text
    assert "\x1b" not in text
    table = rendered(content, ReportFormat.TABLE)
    assert "\x1b" not in table and "<img" in table
    rows = list(csv.DictReader(io.StringIO(rendered(content, ReportFormat.CSV))))
    assert rows[0]["workload"] == "'=1+1"
    assert HOSTILE in {row["name"] for row in rows}
    assert json.loads(rendered(content, ReportFormat.JSON))["workloads"][1]["label"] == HOSTILE


@pytest.mark.parametrize("kind", ReportFormat)
def test_a_report_without_workloads_can_be_written(kind: ReportFormat) -> None:
    selection = Selection(2, reasons=dict.fromkeys("ab", Omission.PROFILED))
    text = rendered(Content.of(Report("nothing", selection=selection)), kind)
    if kind is not ReportFormat.CSV:
        assert "2 runs, none counts: 2 profiled" in text


def test_the_matrix_says_who_slows_whom_down(study: Study) -> None:
    study.workload("s", [Planted("a", 2.0, name="small")])
    study.workload("l", [Planted("a", 4.0, name="large", params={"size": "L"})])
    study.workload("ss", [Planted(one, 3.0, name="small") for one in "ab"])
    mixed = [
        Planted("a", 5.0, name="small"),
        Planted("b", 6.0, name="large", params={"size": "L"}),
    ]
    study.workload("sl", mixed)
    content = content_of(study)
    (matrix,) = matrices(content).values()
    found = {
        (row.cells[0].text, column.title): cell.text
        for row in matrix.rows
        for column, cell in zip(matrix.columns[1:], row.cells[1:], strict=True)
        if cell.estimate is not None
    }
    assert found == {
        ("small", "small"): "1.50×",
        ("small", "large"): "2.50×",
        ("large", "small"): "1.50×",
    }
    assert matrix.rows[0].cells[2].heat == 1.0
    for kind in (ReportFormat.MARKDOWN, ReportFormat.TABLE, ReportFormat.HTML):
        text = rendered(content, kind)
        assert "Interference" in text and "2.50×" in text
    (told,) = json.loads(rendered(content, ReportFormat.JSON))["interference"]
    assert told["cells"][0][1]["mean"] == pytest.approx(2.5)


def test_formats_are_told_from_names_and_names_are_safe() -> None:
    choose = ReportFormat.choose
    assert choose(None, None) is ReportFormat.TABLE
    assert choose(None, Path("-")) is ReportFormat.TABLE
    assert choose(None, Path("a.HTM")) is ReportFormat.HTML
    assert choose(None, Path("a.md")) is ReportFormat.MARKDOWN
    assert choose("csv", Path("a.json")) is ReportFormat.CSV
    with pytest.raises(UsageError, match="Expected a file name with one of"):
        choose(None, Path("report.xlsx"))
    assert file_name(("../a b/ü", "report"), "md") == "radt-a-b-ü-report.md"
    assert file_name(("///", "report"), "csv") == "radt-report.csv"
    assert file_name(("ab" * 90, "report"), "csv") == f"radt-{'ab' * 30}-report.csv"
