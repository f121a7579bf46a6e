"""How the values of a sweep arrive in a program, by the style of their parameter."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radt.devices.machine import Machine
from radt.experiment.sweep_expand import Style, Value, words
from radt.listeners.api import Registry
from tests.experiment.sweep_kit import SweepBench

#: The values of ``VALUES``, and what each style makes of them.
VALUES: tuple[Value, ...] = (True, False, None, 0.1, "", "a b", "-x", [1, 2], [], ["a'b", None])
PASSED: dict[Style, list[list[str]]] = {
    Style.OPTION: [
        ["--x"],
        [],
        [],
        ["--x", "0.1"],
        ["--x", ""],
        ["--x", "a b"],
        ["--x=-x"],
        ["--x", "1", "2"],
        ["--x"],
        ["--x", "a'b", "None"],
    ],
    Style.TEXT: [
        ["--x=True"],
        ["--x=False"],
        ["--x=None"],
        ["--x=0.1"],
        ["--x="],
        ["--x=a b"],
        ["--x=-x"],
        ["--x=[1, 2]"],
        ["--x=[]"],
        ['--x=["a\'b", None]'],
    ],
    Style.ASSIGNMENT: [
        ["x=true"],
        ["x=false"],
        [],
        ["x=0.1"],
        ["x="],
        ["x=a b"],
        ["x=-x"],
        ["x=[1,2]"],
        ["x=[]"],
        ["x=['a\\'b',null]"],
    ],
}
PASSED[Style.ON_OFF] = [PASSED[Style.OPTION][0], ["--no-x"], *PASSED[Style.OPTION][2:]]


@pytest.fixture
def sweep(folder: Path, cpu_only: Machine, registry: Registry) -> SweepBench:
    return SweepBench(folder / "sweep.yaml", cpu_only, registry)


def passed(sweep: SweepBench, keys: dict[str, object]) -> list[list[str]]:
    """The arguments of the runs of a sweep, each from its row of the CSV."""
    sweep.csv.unlink(missing_ok=True)
    sweep.write(yaml.safe_dump({"file": "train.py", "devices": "cpu", **keys}, sort_keys=False))
    sweep.expand()
    before = [list(run.params) for run in sweep.plan().runs]
    assert sweep.expand() == "", "each row is found again in the CSV"
    return before


@pytest.mark.parametrize("style", PASSED)
def test_each_style_passes_each_value(sweep: SweepBench, style: Style) -> None:
    for value, expected in zip(VALUES, PASSED[style], strict=True):
        of_one = {"values": [value], "style": style.value}
        assert passed(sweep, {"parameters": {"x": of_one}}) == [expected]
        assert passed(sweep, {"style": style.value, "parameters": {"x": [value]}}) == [expected]


def test_argparse_takes_what_is_passed() -> None:
    """Each value arrives as it is written, where argparse can take it at all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--fuse", action=argparse.BooleanOptionalAction, default=None)
    parser.add_argument("--sizes", nargs="+", type=int)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--name")
    given: list[tuple[str, Value, Style]] = [
        ("amp", True, Style.OPTION),
        ("fuse", False, Style.ON_OFF),
        ("sizes", [3, 1], Style.OPTION),
        ("lr", -1e-5, Style.OPTION),
        ("name", "--amp", Style.OPTION),
    ]

    args = parser.parse_args([word for each in given for word in words(*each)])

    assert {name: getattr(args, name) for name, _, _ in given} == {n: v for n, v, _ in given}
    assert parser.parse_args(words("amp", False, Style.OPTION)).amp is False
    assert parser.parse_args(words("fuse", None, Style.ON_OFF)).fuse is None


def test_assignments_precede_options_that_might_swallow_them(sweep: SweepBench) -> None:
    sizes = {"sizes": {"values": [[1, 2]]}, "+a/b": {"value": 1, "style": "name=value"}}

    assert passed(sweep, {"params": "--epochs 5", "parameters": sizes}) == [
        ["--epochs", "5", "+a/b=1", "--sizes", "1", "2"]
    ]


def test_nested_parameters_have_dotted_names(sweep: SweepBench) -> None:
    nested = {"optimizer": {"parameters": {"lr": [0.1], "nadam": {"parameters": {"beta": [0.9]}}}}}

    assert passed(sweep, {"parameters": nested}) == [
        ["--optimizer.lr", "0.1", "--optimizer.nadam.beta", "0.9"]
    ]
    hydra = {"style": "name=value", "parameters": nested}
    assert passed(sweep, hydra) == [["optimizer.lr=0.1", "optimizer.nadam.beta=0.9"]]


def test_a_column_may_be_called_style(sweep: SweepBench) -> None:
    sweep.write('file: train.py\n"style": cubist\nparameters: {x: [1]}\n')

    assert [run.columns for run in sweep.plan().runs] == [{"style": "cubist"}]


def test_a_list_and_its_text_are_two_runs(sweep: SweepBench) -> None:
    assert passed(sweep, {"parameters": {"x": [[1, 2]]}}) == [["--x", "1", "2"]]

    sweep.write(sweep.text.replace("- - 1", "- 1 2\n  - - 1\n    - 2\n    - ''\n  - - 1"))

    assert sweep.expand() == f"added 2 rows to {sweep.csv}"
    rows = [list(run.params) for run in sweep.plan().runs]
    assert rows == [["--x", "1", "2"], ["--x", "1 2"], ["--x", "1", "2", ""]]


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
WRITTEN = """- -- -x --x=1 = a=b ' " \\ # $HOME `ls` -1e-5 -1 ä𝄞 None true a,b '"'"' *.py"""
hostile = texts | st.sampled_from(
    [*WRITTEN.split(), "", " ", "a\nb", "\r", "\t", "\u2028", "\ufeff"]
)
ECHO = "import json, sys\nprint(json.dumps(sys.argv[1:]))\n"


def echoed(script: Path, arguments: Sequence[str]) -> object:
    done = subprocess.run(
        [sys.executable, script, *arguments], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@settings(
    deadline=None,
    max_examples=20,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(hostile, min_size=1, max_size=4, unique=True),
    st.lists(hostile, max_size=3),
    st.sampled_from([Style.OPTION, Style.ON_OFF, Style.TEXT, Style.ASSIGNMENT]),
)
def test_any_value_arrives_as_it_is(
    sweep: SweepBench, given: list[str], items: list[str], style: Style
) -> None:
    """From YAML through a row of the CSV to the arguments of a process.

    Braces are placeholders in any Params, and tested as such; argparse would take items of lists
    that start with a dash for options, so these are refused.
    """
    given = list(dict.fromkeys(text.translate({ord(c): "~" for c in "{}"}) for text in given))
    items = [text.translate({ord(c): "~" for c in "{}"}).lstrip("-") for text in items]
    script = sweep.path.parent / "train.py"
    script.write_text(ECHO, encoding="utf-8")
    parameters = {"x": given, "items": {"values": [items]}}

    rows = passed(sweep, {"style": style.value, "parameters": parameters})

    names = [words("x", text, style) + words("items", list[Value](items), style) for text in given]
    assert rows == names
    assert [echoed(script, row) for row in rows] == rows
    if style in (Style.OPTION, Style.TEXT):
        parser = argparse.ArgumentParser()
        parser.add_argument("--x")
        parser.add_argument("--items", nargs="*" if style is Style.OPTION else None)
        taken = [text for text in given if text != "--"]  # which argparse drops wherever it stands
        parsed = [parser.parse_args(row).x for row in rows]
        assert [text for text in parsed if text != []] == taken
