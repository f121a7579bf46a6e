"""What a sweep asks for, and what is wrong with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from radt.devices.machine import Machine
from radt.errors import ExperimentError, Problem
from radt.experiment.source import is_experiment, open_source
from radt.experiment.sweep import SweepFile
from radt.listeners.api import Registry
from radt.model import RunStatus
from tests.experiment.sweep_kit import SMALL, SweepBench


@pytest.fixture
def sweep(folder: Path, cpu_only: Machine, registry: Registry) -> SweepBench:
    return SweepBench(folder / "sweep.yaml", cpu_only, registry)


def test_a_grid_is_every_combination_the_last_parameter_first(sweep: SweepBench) -> None:
    plan = sweep.write(SMALL).plan()

    assert [(one.label, [run.params for run in one.runs]) for one in plan.workloads] == [
        ("000", [("--lr", "0.1", "--bs", "32")]),
        ("001", [("--lr", "0.1", "--bs", "64")]),
        ("002", [("--lr", "0.01", "--bs", "32")]),
        ("003", [("--lr", "0.01", "--bs", "64")]),
    ]
    assert {run.experiment for run in plan.runs} == {"sweep"}, "the file's name"
    assert {run.program.path.name for run in plan.runs} == {"train.py"}
    assert [run.status for run in plan.runs] == [None] * 4
    assert len({run.line for run in plan.runs}) == 4, "statuses go by lines"
    assert not sweep.csv.exists(), "planning writes nothing"


def test_all_columns_of_csv_files_are_keys(sweep: SweepBench) -> None:
    sweep.write(
        "Experiment: digits\nNAME: no\nfile: train.py\nDevices: cpu\nlisteners: [top, smi@2s]\n"
        "environment: local\ncpus: 1\ntimeout: 1:30:00\nmodel: resnet\ndata: null\n"
        "params: --epochs 5 --tag 'a b'\nDataset size: 010\nrepeat: 3\n"
        "parameters: {lr: {values: [0.1]}}\n"
    )

    (run,) = sweep.plan().runs

    assert (run.experiment, run.name) == ("digits", "no")
    assert [str(choice) for choice in run.listeners] == ["top", "smi@2s"]
    assert (run.cpus.count, run.timeout_s) == (1, 5400.0)
    assert run.columns == {"Model": "resnet", "Dataset size": "010"}
    assert run.params == ("--epochs", "5", "--tag", "a b", "--lr", "0.1")
    assert sweep.file().repeat == 3


@pytest.mark.parametrize(
    ("written", "argument"),
    [
        ("1", "1"),
        ("0.10", "0.1"),  # what YAML and the original make of it
        ("1e-3", "1e-3"),
        ("1.0e-3", "0.001"),
        ('""', ""),
        ("a b", "a b"),
        ("it's", "it's"),
        ('"say \\"no\\""', 'say "no"'),
        ('"two\\nlines"', "two\nlines"),
        ("$HOME *.py", "$HOME *.py"),
        ("-1", "-1"),
        ("'[1, 2]'", "[1, 2]"),
        ("ä 𝄞", "ä 𝄞"),
        ("2026-01-31", "2026-01-31"),
        ("'a(b): c)'", "a(b): c)"),
    ],
)
def test_a_value_is_one_argument_whatever_is_in_it(
    sweep: SweepBench, written: str, argument: str
) -> None:
    sweep.write(f"file: train.py\ndevices: cpu\nparameters:\n  x:\n    values:\n    - {written}\n")

    (run,) = sweep.plan().runs

    assert run.params == ("--x", argument)
    sweep.record({run.params_text: "FAILED: it said (no): why?"})
    (again,) = sweep.plan().runs
    assert (again.status, again.run_id) == (RunStatus.FAILED, "abc")
    assert again.params == ("--x", argument)


def test_short_forms_of_parameters(sweep: SweepBench) -> None:
    sweep.write(
        "file: train.py\nparameters:\n  lr: [0.1, 0.2]\n  bs: {value: 32}\n  seed: 7\n"
        "  <<: &more {wd: [0]}\n"
    )

    assert list(sweep.runs()) == [
        "--wd 0 --lr 0.1 --bs 32 --seed 7",
        "--wd 0 --lr 0.2 --bs 32 --seed 7",
    ]


@pytest.mark.parametrize(
    ("at_once", "workloads"),
    [
        ("1", [1, 1, 1, 1]),
        ("3", [3, 1]),
        ("4", [4]),
        ("100", [4]),
        ("all", [4]),
    ],
)
def test_runs_share_workloads_if_asked_to(
    sweep: SweepBench, at_once: str, workloads: list[int]
) -> None:
    plan = sweep.write(f"{SMALL}at_once: {at_once}\n").plan()

    assert [len(one.runs) for one in plan.workloads] == workloads
    assert [run.letter for run in plan.workloads[0].runs] == list("abcd")[: workloads[0]]
    assert [one.label for one in plan.workloads] == [f"{n:03}" for n in range(len(workloads))]


def test_runs_of_a_workload_must_fit_the_machine_together(sweep: SweepBench) -> None:
    sweep.write(f"{SMALL}cpus: 1\nat_once: 2\n").plan()

    (problem,) = sweep.write(f"{SMALL}cpus: 1\nat_once: all\n").problems()

    assert (problem.line, problem.column) == (10, "cpus")


PROBLEMS: list[tuple[str, str, list[tuple[int | None, str | None, str]]]] = [
    ("empty", "", [(None, None, "expected a mapping, got an empty file")]),
    ("comments", "# x\n", [(None, None, "expected a mapping, got an empty file")]),
    ("list", "- a\n", [(1, None, "expected a mapping, got something else")]),
    ("text", "train.py\n", [(1, None, "expected a mapping, got something else")]),
    ("tab", "file: a\nparameters:\n\tlr: 1\n", [(3, None, "invalid YAML")]),
    ("dash", "file: a\ncollocation: -\n", [(2, None, "invalid YAML")]),
    ("open quote", 'file: a\nname: "x\nparameters: {}\n', [(2, None, "invalid YAML")]),
    ("two documents", "file: a\n---\nfile: b\n", [(2, None, "invalid YAML")]),
    ("control character", "file: a\nname: \x01\n", [(2, None, "YAML has no character")]),
    ("deep", "x: " + "[" * 5000, [(None, None, "brackets are nested too deep")]),
    (
        "nothing",
        "x: 1\n",
        [(None, "parameters", "this key is missing"), (None, "file", "the cell is empty")],
    ),
    (
        "duplicate keys",
        "file: train.py\nfile: train.py\nparameters:\n  lr: [1]\n  lr: [2]\n",
        [(2, "file", "this key is written twice"), (5, "parameters", "lr is written twice")],
    ),
    (
        "same key in another case",
        "file: train.py\nFile: train.py\nparameters: {a: [1]}\n",
        [(2, "File", "this key is written twice")],
    ),
    (
        "misspelt",
        "file: train.py\nparamters: {a: [1]}\n",
        [(None, "parameters", "this key is missing"), (2, "paramters", "unknown key")],
    ),
    (
        "keys of the plan",
        "file: train.py\nworkload: 1\nrun: x\nparameters: {a: [1]}\n",
        [(2, "workload", "radt numbers the workloads"), (3, "run", "a sweep has several runs")],
    ),
    (
        "cells",
        "file: tran.py\ndevices: 7\nlisteners: tpo\nparameters: {a: [1]}\nname: {a: 1}\n",
        [
            (1, "file", "there is no file"),
            (2, "devices", "GPU 7"),
            (3, "listeners", "unknown listener"),
            (5, "name", "expected a text or a number, got a mapping"),
        ],
    ),
    (
        "numbers",
        "file: train.py\nrepeat: 0\ntrials: many\nat_once: some\nseed: 1.5\nmethod: gird\n"
        "parameters: {a: [1]}\n",
        [
            (2, "repeat", "expected a whole number from 1, got '0'"),
            (3, "trials", "expected a whole number from 1, got 'many'"),
            (4, "at_once", "expected a whole number from 1, got 'some'"),
            (5, "seed", "expected a whole number, got '1.5'"),
            (6, "method", "expected grid or random, got 'gird'"),
        ],
    ),
    (
        "no mapping",
        "file: train.py\nparameters: [a]\n",
        [(2, "parameters", "expected a mapping of names")],
    ),
    (
        "no parameter",
        "file: train.py\nparameters: {}\n",
        [(2, "parameters", "expected a mapping of names")],
    ),
    (
        "parameters",
        "file: train.py\nparameters:\n  a: {values: []}\n  b: {values: 3}\n  c: {vales: [1]}\n"
        "  --d: [1]\n  e f: [1]\n  g: {values: [1], min: 2}\n  h: {}\n  i: {min: 1, max: 2.5}\n",
        [
            (3, "parameters", "a has no values"),
            (4, "parameters", "b: expected a list of values, got '3'"),
            (5, "parameters", "c has an unknown key 'vales'"),
            (6, "parameters", "expected the name of an option without its dashes, got '--d'"),
            (7, "parameters", "expected the name of an option without its dashes, got 'e f'"),
            (8, "parameters", "g has values twice, or values and a range"),
            (9, "parameters", "h has no values"),
            (10, "parameters", "i: expected a list of values for a grid, got a range"),
        ],
    ),
    (
        "values",
        "file: train.py\nparameters:\n  a:\n    values:\n    - 1\n    -\n    - [2]\n    - {b: 3}\n"
        '    - 1\n    - "\\0"\n    - !x 4\n    - !!binary aGk=\n',
        [
            (6, "parameters", "a: expected a value, got nothing"),
            (8, "parameters", "a: expected a value, got a mapping"),
            (9, "parameters", "a: 1 is written twice"),
            (10, "parameters", "a: '\\x00' has characters that no argument may have"),
            (11, "parameters", "a: '4' cannot be read"),
            (12, "parameters", "a: expected a value, got binary data"),
        ],
    ),
    (
        "a list in itself",
        "file: train.py\nparameters:\n  a:\n  - &a [1, *a]\n",
        [(4, "parameters", "a list contains itself")],
    ),
    (
        "ranges",
        "file: train.py\nmethod: random\nparameters:\n  a: {min: 2, max: 1}\n"
        "  b: {min: 0, max: 1, distribution: log_uniform}\n  c: {min: x, max: 1}\n"
        "  d: {min: 0.5, max: 2, distribution: int}\n  e: {min: 1, max: .inf}\n"
        "  f: {min: 1, max: 2, distribution: normal}\n",
        [
            (4, "parameters", "a: expected min <= max, got 2 and 1"),
            (5, "parameters", "b: expected min > 0 for log_uniform, got 0"),
            (6, "parameters", "c, min: expected a number, got 'x'"),
            (7, "parameters", "d: expected whole numbers for int, got 0.5 and 2"),
            (8, "parameters", "e, max: expected a number, got '.inf'"),
            (
                9,
                "parameters",
                "f: min has no meaning for normal",
            ),
        ],
    ),
    (
        "distributions",
        "file: train.py\nmethod: random\nparameters:\n  a: {min: 2, max: 3, distribution: beta}\n"
        "  b: {distribution: normal, sigma: -1}\n  c: {min: 0, max: 9, distribution: q_int}\n"
        "  d: {min: 0, max: 9, distribution: q_uniform, q: 0}\n  e: {min: 0}\n"
        "  f: {min: 1, max: 2, q: 3}\n  g: {values: [1], probabilities: [1]}\n"
        "  h: {min: 1, max: 2, distribution: inv_log_uniform}\n",
        [
            (4, "parameters", "a: expected uniform, log_uniform, int, normal, log_normal, "),
            (5, "parameters", "b: expected sigma >= 0, got -1"),
            (6, "parameters", "c: expected uniform,"),
            (7, "parameters", "d: expected q > 0, got 0"),
            (8, "parameters", "e has no values"),
            (9, "parameters", "f: q has no meaning for int"),
            (10, "parameters", "g has an unknown key 'probabilities'"),
            (11, "parameters", "h: expected uniform,"),
        ],
    ),
    (
        "styles",
        "file: train.py\nstyle: --name\nparameters:\n  a: {values: [1], style: flags}\n"
        "  b: [[x, --y]]\n  c: [null, false]\n  d: [true, 'True']\n  e: [[1], '[1]']\n"
        "  f: {value: [1, 2]}\n  +g: [1]\n  h: {value: 1, parameters: {i: [1]}}\n",
        [
            (2, "style", "expected one of --name value, --name/--no-name, --name=value, name=val"),
            (4, "parameters", "expected one of --name value"),
            (5, "parameters", "b: --y in a list would be taken for an option"),
            (6, "parameters", "c: False is passed like another value"),
            (7, "parameters", "d: True is written twice"),
            (8, "parameters", "e: [1] is written twice"),
            (9, "parameters", "f: expected one value, got a list"),
            (10, "parameters", "expected the name of an option without its dashes, got '+g'"),
            (11, "parameters", "h has values and parameters"),
        ],
    ),
    (
        "together",
        "file: train.py\nparameters:\n  a, b:\n  - [1, 2]\n  - [1]\n  - 3\n  - [1, 2]\n"
        "  c, d: {min: 1, max: 2}\n  a: [1]\n  e, --f: [[1, 2]]\n",
        [
            (5, "parameters", "a, b: expected a list of 2 values, one for each, got [1]"),
            (6, "parameters", "a, b: expected a list of 2 values, one for each, got 3"),
            (7, "parameters", "a, b: [1, 2] is written twice"),
            (
                8,
                "parameters",
                "c, d: expected a list of values for several parameters",
            ),
            (9, "parameters", "a is written twice"),
            (10, "parameters", "expected the name of an option without its dashes, got '--f'"),
        ],
    ),
    (
        "conditions",
        "file: train.py\nparameters:\n  opt: [sgd, adam]\n  wrong: {values: 3}\n"
        "  a: {value: 1, when: {opt: adm}}\n  b: {value: 1, when: {otp: adam}}\n"
        "  c: {value: 1, when: {later: 1}}\n  d: {value: 1, when: adam}\n"
        "  e: {value: 1, when: {wrong: 1}}\n  n: {min: 1, max: 9}\n"
        "  f: {value: 1, when: {n: 30}}\n  g: {value: 1, when: {n: 3}}\n  later: [1]\n",
        [
            (4, "parameters", "wrong: expected a list of values, got '3'"),
            (5, "parameters", "a: opt is never 'adm'"),
            (6, "parameters", "b: no parameter 'otp' is above it"),
            (7, "parameters", "c: no parameter 'later' is above it"),
            (8, "parameters", "d: expected a parameter and its values in when"),
            (11, "parameters", "f: n is never '30'"),
        ],
    ),
    (
        "no end of runs",
        "file: train.py\nmethod: random\nparameters:\n  a: {min: 0.0, max: 1.0}\n",
        [(3, "parameters", "a range has infinitely many values")],
    ),
    (
        "fixed arguments",
        "file: train.py\nparams: --lr 1\nparameters: {lr: [1]}\n",
        [(2, "params", "--lr is in both params and parameters")],
    ),
    (
        "open quote in fixed arguments",
        "file: train.py\nparams: --name 'a\nparameters: {lr: [1]}\n",
        [(2, "params", "a quote is never closed")],
    ),
    (
        "statuses of an earlier version",
        "file: train.py\nparameters: {a: [1]}\nstatus: {0: FINISHED r (--a 1)}\n",
        [(3, "status", "an earlier version of radt wrote these statuses")],
    ),
]


@pytest.mark.parametrize(
    ("text", "expected"), [pytest.param(text, found, id=name) for name, text, found in PROBLEMS]
)
def test_problems_are_found_in_their_places(
    sweep: SweepBench, text: str, expected: list[tuple[int | None, str | None, str]]
) -> None:
    sweep.path.write_text(text, encoding="utf-8")
    with pytest.raises(ExperimentError) as caught:
        sweep.plan()

    found = list(caught.value.problems)
    assert [(one.line, one.column) for one in found] == [place[:2] for place in expected]
    for problem, (_, _, cause) in zip(found, expected, strict=True):
        assert problem.cause.startswith(cause)
        assert problem.remedy
    assert not sweep.csv.exists()


def test_a_byte_that_is_not_utf8_has_a_line(sweep: SweepBench) -> None:
    sweep.path.write_bytes(b"file: train.py\nname: caf\xe9\nparameters: {a: [1]}\n")

    with pytest.raises(ExperimentError) as caught:
        sweep.plan()

    assert [one.line for one in caught.value.problems] == [2]


@pytest.mark.parametrize(
    ("start", "cause"), [(b"PK\x03\x04", "a workbook"), (b"\xff\xfe", "UTF-16")]
)
def test_other_kinds_of_files_are_recognised(sweep: SweepBench, start: bytes, cause: str) -> None:
    sweep.path.write_bytes(start + b"whatever")

    with pytest.raises(ExperimentError) as caught:
        sweep.file()

    assert cause in caught.value.problems[0].cause


def test_a_huge_grid_is_refused_with_its_size(sweep: SweepBench) -> None:
    values = "{values: [" + ", ".join(map(str, range(200))) + "]}"
    text = f"file: train.py\nparameters:\n  a: {values}\n  b: {values}\n  c: {values}\n"

    (problem,) = sweep.write(text).problems()

    assert (problem.line, problem.column) == (2, "parameters")
    assert "got 8,000,000" in problem.cause
    assert "trials: 100" in problem.remedy
    assert len(sweep.write(text + "trials: 3\n").runs()) == 3


def test_every_problem_of_all_runs_is_said_once(sweep: SweepBench) -> None:
    sweep.write(SMALL.replace("train.py", "none.py"))

    assert len(sweep.problems()) == 1


def test_a_listener_that_does_not_work_here_is_a_warning(sweep: SweepBench) -> None:
    plan = sweep.write(SMALL + "listeners: top+dcgmi\n").plan()

    (warning,) = plan.warnings
    assert warning.startswith("listener dcgm does not work here: no hostengine answers; 4 runs ")


def test_sources_are_told_apart_by_name(folder: Path) -> None:
    (folder / "S.YML").write_text(SMALL, encoding="utf-8")
    (folder / "e.csv").write_text("File\ntrain.py\n", encoding="utf-8")

    assert isinstance(open_source(folder / "S.YML"), SweepFile)
    assert open_source(folder / "e.csv").repeat == 1
    assert is_experiment("a.YAML") and is_experiment(Path("b.csv")) and not is_experiment("c.py")
    with pytest.raises(ExperimentError) as caught:
        open_source(folder / "train.py")
    assert "expected the name of an experiment file" in caught.value.problems[0].cause
    with pytest.raises(ExperimentError) as caught:
        open_source(folder / "none.yaml")
    assert caught.value.problems == (Problem("there is no such file", "Check the path"),)
