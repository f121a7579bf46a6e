"""Every problem of a file is found at once, each with its place, cause and remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from radt.devices.machine import Machine
from radt.errors import ExperimentError, Problem
from radt.experiment.plan import ExperimentPlan
from radt.experiment.source import ExperimentFile

Problems = Callable[..., list[Problem]]
Write = Callable[[str | bytes], Path]

HEADER = "Experiment,Workload,Name,Status,Run,Devices,Collocation,Listeners,File,Params"


def test_all_at_once_in_the_files_order(problems: Problems) -> None:
    found = problems(
        "# three things\n"
        f"{HEADER},Cpu\n"
        "a,1,,DONE,,0,9c.3g.20gb,topp+smii,trian.py,it's,\n"
        "\n"
        "a,1,,,,0+cpu,MSP,top,train.py\n"
        'a,"1\n2",,,,x,-,top@5,train.py,,\n'
    )

    assert [(p.line, p.column) for p in found] == [
        (2, "Cpu"),
        (3, "Status"),
        (3, "Devices"),
        (3, "Collocation"),
        (3, "Listeners"),
        (3, "Listeners"),
        (3, "File"),
        (3, "Params"),
        (5, None),
        (7, "Devices"),  # the row begins on line 6, the cell stands on line 7
        (7, "Listeners"),
    ]
    assert all(p.cause and p.remedy for p in found)


def test_the_file_stays_as_it_is(write: Write, problems: Problems) -> None:
    content = b"\xef\xbb\xbfFile ,Status\r\nnone.py, \r\n"
    problems(content)
    path = write(content)

    assert path.read_bytes() == content
    assert sorted(p.name for p in path.parent.iterdir()) == ["experiment.csv", "train.py"]


@pytest.mark.parametrize(
    ("column", "cell", "cause", "remedy"),
    [
        ("Status", "DONE", "unknown status 'DONE'", "Empty the cell"),
        ("Status", "FINSHED x", "unknown status 'FINSHED'", "Did you mean 'FINISHED'?"),
        ("Devices", "0", "no GPU (no NVIDIA driver)", "cpu"),
        ("Devices", "cpu+0", "mixes cpu with GPUs", "alone"),
        ("Devices", "-1", "'-1' is not a device", "number"),
        ("Devices", "0.0", "'0.0' is not a device", "number"),
        ("Devices", "²", "'²' is not a device", "number"),
        ("Devices", "1+", "lacks a device", "number"),
        ("Devices", "1+1", "GPU 1 is named twice", "once"),
        ("Collocation", "MPS:140", "expected a thread percentage above 0", "MPS:40"),
        ("Collocation", "4c.3g.20gb", "does not fit into 3", "1c to 3c"),
        ("Collocation", "shared", "unknown collocation 'shared'", "Write -"),
        ("Listeners", "topp", "unknown listener 'topp'", "Did you mean 'top'? (radt listeners)"),
        ("Listeners", "xyzzy", "unknown listener 'xyzzy'", "radt listeners"),
        ("Listeners", "dcgmi+dcgm", "'dcgm' is named twice", "once"),
        ("Listeners", "dcgmi@5", "'5' is not an interval", "dcgmi@500ms"),
        ("Listeners", "top+ncu", "ncu does not work here: ncu is not on PATH", "take ncu out of"),
        ("Listeners", "nsys@1s", "nsys does not sample", "Write nsys"),
        ("Listeners", "nsys:x", "nsys has no option 'x'", "Write nsys alone"),
        ("Listeners", "top+none", "none is combined", "alone"),
        ("Listeners", "top+top@2s", "'top' is named twice", "once"),
        ("Listeners", "top+", "a listener's name is missing", "top+smi"),
        ("Listeners", "watts", "cannot be loaded: No module named 'watts'", "package"),
        ("Listeners", "top@5", "'5' is not an interval", "top@500ms"),
        ("Listeners", "top@", "'' is not an interval", "top@500ms"),
        ("Listeners", "top@-1s", "'-1s' is not an interval", "top@500ms"),
        ("Listeners", "top@1ms", "1ms is out of range", "10ms"),
        ("Listeners", "top@0s", "0s is out of range", "10ms"),
        ("Listeners", "top@61min", "61min is out of range", "60min"),
        ("File", "", "the cell is empty", "script"),
        ("File", "trian.py", "there is no file 'trian.py'", "Did you mean 'train.py'?"),
        ("File", "sub/x.py", "there is no file 'sub/x.py'", "radt looks in this file's folder"),
        ("File", ".", "got the folder '.' without one", "script"),
        ("File", "/dev/null", "'/dev/null' is not a file", "script"),
        ("File", "python train.py", "no file 'python train.py'", "Write train.py alone"),
        ("Cpus", "eight", "expected a number or a list of CPUs, got 'eight'", "0-3+6"),
        ("Cpus", "3", "expected 1 to 2 CPUs, got 3", "Write 1 to 2"),
        ("Cpus", "0", "expected 1 to 2 CPUs, got 0", "Write 1 to 2"),
        ("Cpus", "0-3+70", "CPU 2-3+70 does not exist or is not available", "Choose from 0-1"),
        ("Cpus", "0 1", "got '0 1'", "0-3+6"),
        ("Cpus", "3-1", "got '3-1'", "0-3+6"),
        ("Cpus", "0-99999", "there is no CPU 99999", "smaller"),
        ("Cpus", "1" * 5000, "a list of CPUs, got", "0-3+6"),
        ("Devices", "1" * 5000, "is not a device", "number"),
        ("Timeout", "soon", "'soon' is not a length of time", "90s, 10min"),
        ("Timeout", "1:30", "'1:30' may be minutes or hours", "1:30:00"),
        ("Timeout", "1:75:00", "may be minutes or hours", "1:30:00"),
        ("Timeout", "0s", "up to 366 days, got 0s", "leave the cell empty"),
        ("Timeout", "-1", "'-1' is not a length of time", "90s, 10min"),
        ("Timeout", "400d", "above 0 and up to 366 days, got 400d", "leave the cell empty"),
        ("Run", "two words", "'two words' is not a valid run id", "Write it like"),
        ("Experiment", "e" * 501, "501 characters are too many for the experiment", "at most 500"),
        ("Environment", "pytorhc", "unknown environment 'pytorhc'", "local, uv"),
        ("File", "notes.txt", "neither a Python script (.py) nor executable", "chmod +x notes.txt"),
        ("Params", "--name it's", "a quote is never closed", "Close it"),
        ("File", "t" * 300, "a path in it cannot be looked up", "Check the path"),
        ("File", "a/" * 3000, "File name too long", "Check the path"),
        ("File", "-m " + "m" * 300, "File name too long", "Check the path"),
        ("File", "~nobody-of-us/a.py", "there is no file", "radt looks"),
        ("Environment", "uv:" + "e" * 300, "File name too long", "Check the path"),
        ("Environment", "e" * 300, "File name too long", "Check the path"),
        ("Environment", "uv:~nobody-of-us/a", "there is no file", "radt looks"),
        ("Params", "a\\", "lone backslash", "\\\\"),
        ("Params", "#NAME?", "took this cell for a formula", "text"),
    ],
)
def test_cells(
    problems: Problems, folder: Path, column: str, cell: str, cause: str, remedy: str
) -> None:
    (folder / "notes.txt").touch()
    others = "Name,File" if column != "File" else "Name"
    values = "x,train.py" if column != "File" else "x"

    (problem,) = problems(f"{others},{column}\n{values},{cell}\n")

    assert (problem.line, problem.column) == (2, column)
    assert cause in problem.cause
    assert remedy in problem.remedy


def test_the_header_as_the_user_wrote_it_names_the_column(problems: Problems) -> None:
    (problem,) = problems("file,  DEVICES \ntrain.py,x\n")

    assert problem.column == "DEVICES"


def test_gpus_that_are_not_there(problems: Problems, two_gpus: Machine) -> None:
    (problem,) = problems("File,Devices\ntrain.py,0+2+3\n", two_gpus)

    assert problem.cause == "this machine has no GPU 2, 3"
    assert "0 (H200), 1 (H200)" in problem.remedy


def test_gpus_that_are_hidden(problems: Problems, two_gpus: Machine) -> None:
    shrunk = Machine(16, two_gpus.gpus[1:], hidden=two_gpus.gpus[:1])

    (problem,) = problems("File,Devices\ntrain.py,0\n", shrunk)

    assert "GPU 0 is hidden by CUDA_VISIBLE_DEVICES" in problem.cause
    assert "1 (H200)" in problem.remedy


@pytest.mark.parametrize(
    ("row", "cause", "remedy"),
    [
        ("train.py,x", "expected 3 cells, got 2", "Add 1 comma;"),
        ("train.py", "expected 3 cells, got 1", "Add 2 commas;"),
        ("train.py,x,--a 1,2", "expected 3 cells, got 4, from '2' on", "Quote"),
        ('train.py,x,"--a" 1', "text follows the closing quote", "double the quotes"),
        ('train.py,x,"--a', "never closed", "Close it"),
    ],
)
def test_rows_that_are_no_rows(problems: Problems, row: str, cause: str, remedy: str) -> None:
    content = f"File,Name,Params\ntrain.py,x,y\n{row}\ntrain.py,x,it's\n"

    first, second = problems(content)

    assert first.line == 3
    assert cause in first.cause and remedy in first.remedy
    assert (second.line, second.column) == (4, "Params")  # what follows is checked as well


def test_a_value_below_no_header(problems: Problems) -> None:
    (problem,) = problems("File,,Name\ntrain.py,lost,x\n")

    assert "'lost' has no header" in problem.cause


@pytest.mark.parametrize(
    ("header", "row", "column", "cause", "remedy"),
    [
        ("File,Listners", "train.py,", "Listners", "unknown column", "Did you mean 'Listeners'?"),
        ("File,Mode", "train.py,", "Mode", "unknown column", 'quote it: "Mode"'),
        ('"File","Mode"', "train.py,", "Mode", "unknown column", "Did you mean 'Model'?"),
        ("Fiel,Name", "train.py,", "Fiel", "unknown column", "Did you mean 'File'?"),
        ("File,Seed,seed", "train.py,1,2", "seed", "appears twice", "Remove one"),
        ("File,Name,name", "train.py,,", "name", "appears twice", "Remove one"),
        ("Name,Params", "x,", "File", "missing", "Add it"),
    ],
)
def test_headers(
    problems: Problems, header: str, row: str, column: str, cause: str, remedy: str
) -> None:
    (problem,) = problems(f"\n{header}\n{row}\n")

    assert (problem.line, problem.column) == (2, column)
    assert cause in problem.cause and remedy in problem.remedy


@pytest.mark.parametrize(
    ("content", "line", "cause", "remedy"),
    [
        (b"", None, "the file is empty", "Begin with the line Experiment,Workload,"),
        (b"# only this\n\n", None, "only comments", "Begin with the line"),
        (b"File,Status\n# none\n,\n", None, "at least one run", "Add a line"),
        (b"1,2,train.py\n", 1, "should name the columns", "Put above it: Experiment,"),
        (b"#\nExperiment;Workload;File\n1;2;train.py\n", 2, "semicolons separate", "commas"),
        (b"sep=;\nWorkload;File\n2;train.py\n", 2, "semicolons separate", "commas"),
        (b'"Workload";"File"\n2;train.py\n', 1, "semicolons separate", "commas"),
        (b"Workload\tFile\n2\ttrain.py\n", 1, "tabs separate", "commas"),
        ("File\ntrain.py\n".encode("utf-16"), None, "UTF-16", "UTF-8"),
        (b"PK\x03\x04rest", None, "workbook", "CSV in UTF-8"),
    ],
)
def test_files_that_are_something_else(
    problems: Problems, content: bytes, line: int | None, cause: str, remedy: str
) -> None:
    (problem,) = problems(content)

    assert problem.line == line
    assert cause in problem.cause and remedy in problem.remedy


def test_bytes_of_another_encoding_are_named_with_their_line(problems: Problems) -> None:
    content = (
        'File,Name,Params\r\ntrain.py,"a\r\ncafé",\r\n# é\r\nträin.py,,it\'s\r\n'.encode("cp1252")
        + b"train.py,\x81,\r\ntrain.py,\0,x\r\n"
    )

    found = problems(content)

    assert [(p.line, p.column) for p in found] == [
        (3, "Name"),
        (4, None),
        (5, "File"),  # and no second problem for the file that this name does not find
        (5, "Params"),
        (6, "Name"),
        (7, "Name"),
    ]
    assert found[0].cause == "byte 0xE9 is not UTF-8 ('é' in Windows-1252)"
    assert "CSV UTF-8" in found[0].remedy
    assert found[4].cause == "byte 0x81 is not UTF-8"
    assert found[5].cause == "a NUL byte"


def test_files_that_cannot_be_read(folder: Path) -> None:
    with pytest.raises(ExperimentError, match="1 problem, nothing was started") as caught:
        ExperimentFile.read(folder / "missing.csv")
    assert caught.value.exit_code == 2
    assert caught.value.problems[0].cause == "there is no such file"

    with pytest.raises(ExperimentError) as caught:
        ExperimentFile.read(folder)
    assert "Is a directory" in caught.value.problems[0].cause


def test_data_may_be_described_instead_of_named(plan: Callable[..., ExperimentPlan]) -> None:
    (workload,) = plan(f"File,Data\ntrain.py,{'d' * 300}\n").workloads
    assert workload.runs[0].environment.data == ()
