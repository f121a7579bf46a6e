"""The reader of comma-separated text, against the csv module and on its own."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radt.experiment.table import TableStream, parse_table

# Every character that means something to the reader, and some that do not.
ALPHABET = "a#\", \t;\n\r\\'é\u2028\x0b"
CELLS = st.text(ALPHABET, max_size=6)


@given(
    rows=st.lists(st.lists(CELLS, min_size=2, max_size=5), min_size=1, max_size=8),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    newline=st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_reads_what_the_csv_module_wrote(rows: list[list[str]], quoting: int, newline: str) -> None:
    # A first cell that is neither empty nor a comment: those lines are not records here.
    rows = [["x", *row] for row in rows]
    if quoting == csv.QUOTE_MINIMAL:  # quotes only those line ends that it writes itself
        rows = [[cell.replace("\r", " ").replace("\n", " ") for cell in row] for row in rows]
    stream = io.StringIO()
    csv.writer(stream, quoting=quoting, lineterminator=newline).writerows(rows)

    table = parse_table(stream.getvalue())

    assert table.defects == ()
    assert table.header is not None
    read = [record.cells for record in (table.header, *table.rows)]
    expected = [
        [value if cell.quoted else value.strip() for value, cell in zip(row, cells, strict=True)]
        for row, cells in zip(rows, read, strict=True)
    ]
    assert [[cell.value for cell in cells] for cells in read] == expected


@given(st.text(ALPHABET, max_size=60))
def test_any_text_is_covered_by_cells_and_what_stands_between_them(text: str) -> None:
    table = parse_table(text)

    records = [record for record in (table.header, *table.rows) if record is not None]
    position = 0
    for record in records:
        assert record.start >= position
        between = text[position : record.start].replace("\r\n", "\n").replace("\r", "\n")
        assert between == "" or between.endswith("\n")
        # Line numbers are those of an editor.
        before = text[: record.start].replace("\r\n", "\n").replace("\r", "\n")
        assert record.line == before.count("\n") + 1
        for left, right in zip(record.cells, record.cells[1:], strict=False):
            assert text[left.end : right.start] == ","
        for cell in record.cells:
            raw = text[cell.start : cell.end]
            before = text[: cell.start].replace("\r\n", "\n").replace("\r", "\n")
            assert cell.line == before.count("\n") + 1
            if cell.quoted:
                assert raw.strip(" \t")[1:-1].replace('""', '"') == cell.value
            else:
                assert raw.strip() == cell.value
        position = record.end


@given(st.text(ALPHABET, max_size=60))
def test_a_stream_has_the_same_rows(text: str) -> None:
    text = f"A,B\n{text}"
    table = parse_table(text)
    stream = TableStream(io.BytesIO(text.encode()))
    rows = list(stream.rows())

    defective = {defect.line for defect in table.defects}
    assert stream.defects == list(table.defects)
    assert [(row.line, row.cells) for row in rows] == [
        (row.line, [cell.value for cell in row.cells])
        for row in table.rows
        if not any(cell.line in defective for cell in row.cells)
    ]


def test_lines_are_physical_lines() -> None:
    text = (
        '\ufeff# a comment, with "a quote\r\n'
        "File,Params\r\n"
        "\r\n"
        'a.py,"--text ""one\r\ntwo""\r\n"\r\n'
        "  # another\r\n"
        ",,\r\n"
        "b.py,c"
    )
    table = parse_table(text)

    assert table.header is not None and table.header.line == 2
    assert [row.line for row in table.rows] == [4, 9]
    assert table.rows[0].cells[1].value == '--text "one\r\ntwo"\r\n'
    assert table.defects == ()


@pytest.mark.parametrize(
    "line",
    [
        "# note",
        "  # note",
        '"# note, with a comma",,,',  # as a spreadsheet saves it
        "# note,,,",
        "",
        "   \t",
        ",,,",
        ' , "" , ',
        "sep=,",
    ],
)
def test_lines_that_are_no_records(line: str) -> None:
    table = parse_table(f"{line}\nFile,Name\n{'' if line == 'sep=,' else line}\ntrain.py,x\n")

    assert table.header is not None and table.header.cells[0].value == "File"
    assert [row.line for row in table.rows] == [4]


def test_a_quoted_cell_may_begin_with_a_hash_where_others_are_filled() -> None:
    table = parse_table('Name,File\n"#1",train.py\n')

    assert [cell.value for cell in table.rows[0].cells] == ["#1", "train.py"]


@pytest.mark.parametrize(
    ("text", "line", "index", "cause", "other_lines"),
    [
        ('A,B\n1,"x\n2,y\n3,z\n', 2, 1, "never closed", [3, 4]),
        ('A,B\n1,"x\n2,"y"\n3,z\n', 2, 1, "never closed", [3, 4]),
        ('A,B\n"x" y,2\n3,z\n', 2, 0, "text follows", [3]),
        ('A,B\n3,z\n1,"', 3, 1, "never closed", [2]),
    ],
)
def test_quotes_that_do_not_match_spoil_their_line_only(
    text: str, line: int, index: int, cause: str, other_lines: list[int]
) -> None:
    table = parse_table(text)

    (defect,) = table.defects
    assert (defect.line, defect.index) == (line, index)
    assert cause in defect.cause
    assert sorted({row.line for row in table.rows} - {line}) == other_lines


def test_a_long_file_is_read_in_one_go() -> None:
    rows = 50_000
    table = parse_table("File,Params\n" + 'train.py,"--a ""b"", c"\n' * rows)

    assert len(table.rows) == rows
    assert table.rows[-1].line == rows + 1
