"""The schema, the code and README say the same of the columns."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radt.collocation.spec import Collocation
from radt.devices.cpus import CpuRequest
from radt.devices.gpus import Gpu
from radt.devices.machine import Devices, Machine
from radt.errors import UsageError
from radt.experiment import columns, resources
from radt.experiment.columns import SCHEMA_NAME, Column, fields
from radt.experiment.plan import ExperimentPlan

ROOT = Path(__file__).parents[2]
MACHINE = Machine(64, tuple(Gpu(index, "H200", f"GPU-{index}") for index in range(8)))

#: What each parser makes of a text; with it the schema's pattern must not be at odds.
PARSERS: dict[Column, Callable[[str], object]] = {
    Column.STATUS: columns.parse_status,
    Column.DEVICES: lambda text: Devices.parse(text, MACHINE),
    Column.COLLOCATION: Collocation.parse,
    Column.CPUS: lambda text: CpuRequest.parse(text, MACHINE.cpus),
    Column.TIMEOUT: columns.parse_timeout,
    Column.NODES: resources.parse_nodes,
    Column.GPUS: resources.GpuRequest.parse,
    Column.EXCLUSIVE: resources.parse_exclusive,
    Column.MEMORY: resources.parse_memory,
    Column.TIME: resources.parse_time,
}
PIECES = {
    Column.STATUS: ["FINISHED", "failed", " ", ":", "2/3", "exit code 3", "\n", "-"],
    Column.DEVICES: ["0", "1", "7", "+", "cpu", "CPU", " "],
    Column.COLLOCATION: ["MPS", "mps", ":", "40", "3g.20gb", "1c.", "+", "#1", "+me", "%", "naive"],
    Column.CPUS: ["0", "3", "8", "-", "+", ",", "#", " "],
    Column.TIMEOUT: ["1", "30", "h", "min", "s", ":", ".5", " ", "d"],
    Column.NODES: ["0", "1", "12", " ", "-", "x"],
    Column.GPUS: ["2", "a100", "x", "×", "*", ":", " ", "-80gb", "_"],
    Column.EXCLUSIVE: ["yes", "No", "TRUE", "off", "0", "1", " "],
    Column.MEMORY: ["64", ".5", "G", "gb", "iB", " ", "T", "0"],
    Column.TIME: ["1", "30", "h", "min", ":", ":00", "2-", ".5", " ", "d"],
}


def test_the_schema_has_the_columns_of_the_code() -> None:
    assert list(fields()) == [str(column) for column in Column]


def test_it_is_a_table_schema() -> None:
    """https://datapackage.org/standard/table-schema/"""
    schema = json.loads((ROOT / "schemas" / SCHEMA_NAME).read_text(encoding="utf-8"))

    assert schema["fieldsMatch"] == "partial"  # others may be there, these may be absent
    for field in schema["fields"]:
        assert field["type"] == "string"
        assert field["title"] and field["description"].endswith(".") and field["ifEmpty"]
        assert set(field) <= {
            "name", "title", "type", "description", "ifEmpty", "example", "missingValues",
            "constraints",
        }  # fmt: skip
        assert set(field.get("constraints", {})) <= {"pattern", "maxLength"}
        # Patterns of Table Schema match as a whole and know no anchors.
        assert not re.search(r"^\^|\$$", field.get("constraints", {}).get("pattern", ""))


@pytest.mark.parametrize("column", list(Column))
def test_examples_are_right(column: Column) -> None:
    column.field.check(column.field.example)
    if column in PARSERS:
        PARSERS[column](column.field.example)


@pytest.mark.parametrize("column", [c for c in Column if c is not Column.FILE])
def test_what_is_missing_is_an_empty_cell(
    plan: Callable[..., ExperimentPlan], column: Column
) -> None:
    empty = list(plan(f"File,{column}\ntrain.py,\n").runs)

    for text in column.field.missing:
        assert list(plan(f"File,{column}\ntrain.py,{text}\n").runs) == empty


@pytest.mark.parametrize("column", list(PARSERS))
@given(data=st.data())
def test_the_schema_takes_what_the_parser_takes(column: Column, data: st.DataObject) -> None:
    """Another tool that uses the schema refuses no file that radt runs."""
    text = "".join(data.draw(st.lists(st.sampled_from(PIECES[column]), min_size=1, max_size=6)))
    try:
        PARSERS[column](text)
    except UsageError:
        return
    if not column.field.is_missing(text):
        column.field.check(text)


def test_constraints_of_the_schema_hold(
    problems: Callable[..., list[object]], plan: Callable[..., ExperimentPlan]
) -> None:
    plan(f"File,Experiment,Run\ntrain.py,{'e' * 500},x-1\n")

    found = problems(f"File,Experiment,Run\ntrain.py,{'e' * 501},x 1\n")

    assert [problem.column for problem in found] == ["Experiment", "Run"]  # type: ignore[attr-defined]
