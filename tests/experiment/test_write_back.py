"""Writing statuses changes the cells it must and not one byte more."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radt.experiment.columns import Column, ColumnPositions
from radt.experiment.source import ExperimentFile
from radt.experiment.status import RowStatus, StatusWriter
from radt.experiment.table import Record, parse_table

Write = Callable[[str | bytes], Path]

IDENTITY = ("Experiment", "Workload", "Name", "Devices", "Model", "File", "Params")
OWN = ("Batch Size", "Größe, β", "note 'x'")
WRITTEN = ("Status", "Run")


@dataclass(frozen=True)
class Written:
    """A file put together by the test, which knows where everything stands."""

    text: str
    columns: tuple[str, ...]
    lines: tuple[int, ...]


def quoted(value: str) -> str:
    return '"' + value.replace('"', '""') + '"'


@st.composite
def files(draw: st.DrawFn) -> Written:
    """Any file that radt accepts: order, padding, quotes, comments, line ends, BOM at will."""
    columns = draw(st.permutations(IDENTITY + OWN + WRITTEN))
    kept = draw(st.sets(st.sampled_from(columns)))
    columns = tuple(column for column in columns if column in kept or column == "File")
    newline = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    blanks = st.sampled_from(["", "", " ", "    "])
    texts = st.text("ab,\"# 'é;\n", max_size=5)
    noise = st.sampled_from(["", '# note, with "a quote', "  ", ",,"])
    width = draw(st.none() | st.integers(10, 14))

    def cell(value: str) -> str:
        plain = value == value.strip() and not set(value) & set(',"\n#')
        raw = value if plain and draw(st.booleans()) else quoted(value.replace("\n", newline))
        if width is None:
            return draw(blanks) + raw + draw(blanks)
        return raw.rjust(width)

    def value_of(column: str) -> str:
        if column == "File":
            return "train.py"
        return draw(st.sampled_from(["", "RUNNING", "abc"])) if column in WRITTEN else draw(texts)

    lines: list[int] = []
    pieces = [draw(st.sampled_from(["", "\ufeff"]))]

    def end_line() -> None:
        pieces.append(newline)

    def physical_line() -> int:
        return "".join(pieces).replace("\r\n", "\n").replace("\r", "\n").count("\n") + 1

    pieces.append(",".join(cell(column) for column in columns))
    for _ in range(draw(st.integers(1, 5))):
        end_line()
        pieces.append(draw(noise))
        end_line()
        lines.append(physical_line())
        pieces.append(",".join(cell(value_of(column)) for column in columns))
    if draw(st.booleans()):
        end_line()
    return Written("".join(pieces), columns, tuple(lines))


def values(text: str, newline: str = "") -> list[dict[str, str]]:
    """What the csv module, which knows nothing of radt, reads."""
    without_comments = [
        line
        for line in text.removeprefix("\ufeff").splitlines(keepends=True)
        if not line.startswith("#")
    ]
    rows = list(csv.reader(without_comments, skipinitialspace=True))
    rows = [[cell.strip() for cell in row] for row in rows if any(cell.strip() for cell in row)]
    return [dict(zip(rows[0], row, strict=False)) for row in rows[1:]]


def records(text: str) -> list[Record]:
    table = parse_table(text)
    assert table.header is not None and not table.defects
    return [table.header, *table.rows]


def written(file: Written, statuses: dict[int, RowStatus]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "e.csv"
        path.write_bytes(file.text.encode())
        StatusWriter(path).set_many(statuses)
        return path.read_bytes().decode()


def assert_only_written_cells_differ(before: str, after: str, columns: tuple[str, ...]) -> None:
    old_position = new_position = 0
    for old, new in zip(records(before), records(after), strict=True):
        # Comments, empty lines, line ends, the byte order mark.
        assert after[new_position : new.start] == before[old_position : old.start]
        for index, (left, right) in enumerate(zip(old.cells, new.cells, strict=False)):
            raw_left, raw_right = before[left.start : left.end], after[right.start : right.end]
            if index >= len(columns) or columns[index] not in WRITTEN:
                assert raw_right == raw_left
            elif left.value == right.value:  # may have got wider
                assert raw_right.strip() == raw_left.strip()
        assert len(new.cells) >= len(old.cells)
        old_position, new_position = old.end, new.end
    assert after[new_position:] == before[old_position:]


statuses = st.builds(
    RowStatus,
    st.sampled_from(["RUNNING", "FINISHED", "KILLED", 'FAILED: "x", y', "FAILED: exit code 139"]),
    st.none() | st.sampled_from(["3f2a1b4c", "0" * 32]),
)


@given(files(), st.data())
def test_write_back_keeps_every_other_byte(file: Written, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(file.lines), min_size=1, unique=True))
    changes = {line: data.draw(statuses) for line in chosen}

    after = written(file, changes)

    assert_only_written_cells_differ(file.text, after, file.columns)
    by_line = {record.line: record for record in records(after)}
    header = [cell.value for cell in records(after)[0].cells]
    for line, status in changes.items():
        cells = [cell.value for cell in by_line[line].cells]
        assert cells[header.index("Status")] == status.text
        if status.run_id is not None:
            assert cells[header.index("Run")] == status.run_id


@given(files(), st.data())
def test_what_was_written_once_is_stable(file: Written, data: st.DataObject) -> None:
    changes = {line: data.draw(statuses) for line in file.lines}

    once = written(file, changes)

    assert written(Written(once, file.columns, file.lines), changes) == once
    one_by_one = file.text
    for line, status in changes.items():
        one_by_one = written(Written(one_by_one, file.columns, file.lines), {line: status})
    assert records(one_by_one)[-1].line == records(once)[-1].line
    assert [[c.value for c in r.cells] for r in records(one_by_one)] == [
        [c.value for c in r.cells] for r in records(once)
    ]


@given(files(), st.data())
def test_rows_are_found_again_where_they_were_moved_to(file: Written, data: st.DataObject) -> None:
    """By any column that tells them apart, also one of the user's own."""
    table = parse_table(file.text)
    assert table.header is not None
    header = ColumnPositions.of(table.header)
    identities = [header.identity(row) for row in table.rows]
    unique = [
        row for row, one in zip(table.rows, identities, strict=True) if identities.count(one) == 1
    ]
    pieces = [file.text[row.start : row.end] for row in table.rows]
    order = data.draw(st.permutations(range(len(pieces))))
    moved = file.text[: table.rows[0].start] + "\n".join(pieces[index] for index in order)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "e.csv"
        path.write_bytes(file.text.encode())
        writer = StatusWriter(path)
        path.write_bytes(moved.encode())
        writer.set_many({row.line: RowStatus(f"FAILED: {row.line}") for row in unique})
        after = records(path.read_bytes().decode())

    now = ColumnPositions.of(after[0])
    marked = {now.identity(row): now.value(row, Column.STATUS) for row in after[1:]}
    for row in unique:
        assert marked[header.identity(row)] == f"FAILED: {row.line}"


def test_the_csv_module_reads_the_same_from_it(write: Write) -> None:
    path = write('File,Params,Status\ntrain.py, "a ""b"", c",\n# x\ntrain.py,d,RUNNING\n')
    writer = StatusWriter(path)

    writer.set(2, 'FAILED: "no", really', "abc")
    writer.set(4, "FINISHED", "def")

    assert values(path.read_text()) == [
        {"File": "train.py", "Params": 'a "b", c', "Status": 'FAILED: "no", really', "Run": "abc"},
        {"File": "train.py", "Params": "d", "Status": "FINISHED", "Run": "def"},
    ]


def lines(*rows: str) -> str:
    return "".join(f"{row}\n" for row in rows)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            lines("File,Status,Run", "train.py,,", "train.py,,"),
            lines("File,Status,Run", "train.py,FAILED: exit code 3,abc", "train.py,,"),
            id="nothing is padded",
        ),
        pytest.param(
            lines("File    ,    Status,     Run", "train.py,          ,        ", "x.py,a,b"),
            lines(
                "File    ,    Status,     Run", "train.py,FAILED: exit code 3,     abc", "x.py,a,b"
            ),
            id="padded but not aligned: what has room keeps it",
        ),
        pytest.param(
            lines(
                "    Status,  Run,    File",
                "          ,     ,train.py",
                "   RUNNING,  abc,train.py",
            ),
            lines(
                "             Status,  Run,    File",
                "FAILED: exit code 3,  abc,train.py",
                "            RUNNING,  abc,train.py",
            ),
            id="aligned to the right: widened",
        ),
        pytest.param(
            lines(
                "Status    ,Run  ,File", "          ,     ,train.py", "RUNNING   ,abc  ,train.py"
            ),
            lines(
                "Status             ,Run  ,File",
                "FAILED: exit code 3,abc  ,train.py",
                "RUNNING            ,abc  ,train.py",
            ),
            id="aligned to the left: widened",
        ),
        pytest.param(
            lines("File, Status, Run", "train.py, , ", "train.py, RUNNING, abc"),
            lines(
                "File, Status, Run", "train.py, FAILED: exit code 3, abc", "train.py, RUNNING, abc"
            ),
            id="a blank after every comma",
        ),
        pytest.param(
            lines('"File","Status","Run"', '"train.py","",""', '"train.py","",""'),
            lines(
                '"File","Status","Run"',
                '"train.py","FAILED: exit code 3","abc"',
                '"train.py","",""',
            ),
            id="everything is quoted",
        ),
        pytest.param(
            lines("File,Params", "train.py,--a", "# note", ",", "train.py,"),
            lines(
                "File,Params,Status,Run",
                "train.py,--a,FAILED: exit code 3,abc",
                "# note",
                ",",
                "train.py,,,",
            ),
            id="columns are added",
        ),
        pytest.param(
            lines("File,,", "train.py,,,,", "train.py,", "train.py"),
            lines(
                "File,,,Status,Run",
                "train.py,,,FAILED: exit code 3,abc",
                "train.py,,,,",
                "train.py,,,,",
            ),
            id="columns are added beyond empty ones",
        ),
        pytest.param(
            lines("Run,File", "nan,train.py"),
            lines("Run,File,Status", "abc,train.py,FAILED: exit code 3"),
            id="one column is added",
        ),
    ],
)
def test_layouts(write: Write, before: str, after: str) -> None:
    path = write(before)

    StatusWriter(path).set(2, "FAILED: exit code 3", "abc")

    assert path.read_text() == after


def test_a_widened_column_stays_aligned_for_good(write: Write) -> None:
    path = write(lines(" Status,File", "       ,train.py", "       ,train.py"))
    writer = StatusWriter(path)

    writer.set(2, "RUNNING")
    writer.set(3, "FAILED: exit code 3")
    writer.set(2, "FINISHED")

    assert path.read_text() == lines(
        "             Status,File", "           FINISHED,train.py", "FAILED: exit code 3,train.py"
    )


def test_a_status_as_long_as_its_header_is_not_aligned_with_it(write: Write) -> None:
    path = write(lines("Workload, Status, Run, File", "1,,,train.py", "1,,,train.py"))
    writer = StatusWriter(path)

    writer.set_many({2: RowStatus("RUNNING"), 3: RowStatus("RUNNING")})
    writer.set_many({2: RowStatus("FINISHED"), 3: RowStatus("FAILED: exit code 3")})

    assert path.read_text() == lines(
        "Workload, Status, Run, File", "1,FINISHED,,train.py", "1,FAILED: exit code 3,,train.py"
    )


def test_a_column_that_is_full_stays_aligned_beside_others_that_are(write: Write) -> None:
    path = write(lines("Status ,Name ,File", "RUNNING,small,train.py", "RUNNING,big  ,train.py"))

    StatusWriter(path).set(2, "FINISHED")

    assert path.read_text() == lines(
        "Status  ,Name ,File", "FINISHED,small,train.py", "RUNNING ,big  ,train.py"
    )


def test_texts_are_made_fit_for_a_cell(write: Write) -> None:
    path = write("File\ntrain.py\n")

    StatusWriter(path).set(2, "FAILED: one\n  two\x1b[31m\0 " + "é" * 200, "abc\n")

    (row,) = values(path.read_text())
    assert row["Status"].startswith("FAILED: one two?[31m? éé")
    assert row["Status"].endswith("é…") and len(row["Status"]) == 120
    assert row["Run"] == "abc"


def test_the_status_is_understood_by_the_next_start(
    write: Write, cpu_only: object, registry: object
) -> None:
    path = write("File\ntrain.py\ntrain.py\n")
    file = ExperimentFile.read(path)

    file.writer().set_many(
        {2: RowStatus("FAILED: killed by signal 9", "abc"), 3: RowStatus("FINISHED")}
    )

    first, second = ExperimentFile.read(path).plan(cpu_only, registry).runs  # type: ignore[arg-type]
    assert (first.status, first.run_id, second.status) == ("FAILED", "abc", "FINISHED")
