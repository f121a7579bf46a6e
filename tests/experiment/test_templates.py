"""What is filled into File and Params, and what is left as it is."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from radt.devices.machine import Machine
from radt.errors import ExperimentError, Problem, UsageError
from radt.experiment.plan import ExperimentPlan
from radt.experiment.templates import Placeholders

Plan = Callable[..., ExperimentPlan]
Problems = Callable[..., list[Problem]]


def quoted(value: str) -> str:
    return '"' + value.replace('"', '""') + '"'


def test_columns_are_filled_into_params(plan: Plan, two_gpus: Machine) -> None:
    planned = plan(
        "Experiment,Workload,Name,Devices,Model,Data,Batch Size,File,Params\n"
        "e,w,n,0+1,vit,/my data,64,train.py,"
        "{Model} --d {data} {DEVICES} {Letter} {Workload} "
        "{Experiment} {Name} -{Batch Size}-{Model}\n"
        "e,w,n,,vit,/my data,64,train.py,{Letter}{Devices}\n",
        two_gpus,
    )

    first, second = planned.runs
    assert first.params == (
        "vit", "--d", "/my data", "0+1", "a", "w", "e", "n", "-64-vit",
    )  # fmt: skip
    assert second.params == ("b0",)  # the device is the one that an empty cell means
    assert first.params_text.startswith("{Model} --d")
    assert shlex.split(first.arguments) == list(first.params)


def test_a_value_with_blanks_and_quotes_stays_one_word(plan: Plan) -> None:
    hostile = 'it\'s "a" $HOME {Model} `x`\n;'
    (run,) = plan(
        f"Data,Batch Size,File,Params\n{quoted(hostile)},8,train.py,"
        + quoted("--data={Data} '{Batch Size}'")
        + "\n"
    ).runs

    assert run.params == (f"--data={hostile}", "8")


def test_names_with_blanks_need_no_quotes(plan: Plan) -> None:
    (run,) = plan(
        "Batch Size,File,Params\n8,train.py,"
        + quoted("{batch size} {{Batch Size}} '{Batch Size} {no column}' {no column}")
        + "\n"
    ).runs

    assert run.params == (
        "8", "{Batch Size}", "8 {no column}", "{no", "column}",
    )  # fmt: skip


def test_labels_of_rows_without_a_workload(plan: Plan) -> None:
    planned = plan("File,Params\ntrain.py,{Workload}{Letter}\ntrain.py,{Workload}{Letter}\n")

    assert [run.params for run in planned.runs] == [("1a",), ("2a",)]


def test_columns_are_filled_into_file(plan: Plan, folder: Path) -> None:
    for name in ("train_a.py", "train_b.py", "vit.py"):
        (folder / name).touch()

    planned = plan(
        "Workload,Model,File\n1,vit,train_{Letter}.py\n1,vit,train_{Letter}.py\n2,vit,{Model}.py\n"
    )

    assert [run.program.path.name for run in planned.runs] == ["train_a.py", "train_b.py", "vit.py"]


@pytest.mark.parametrize(
    "text",
    [
        '{"model": "vit", "n": {"a": [1, {}]}}',
        "{lr:.3f}",
        "{1,2}",
        "{ Model }",
        "${Model}",  # OmegaConf's, and a shell's
        "{{ jinja }}",
        "{",
        "}{",
        "{}",
        "{{}}",
    ],
)
def test_what_is_no_column_stays(plan: Plan, text: str) -> None:
    (run,) = plan(f"Model,File,Params\nvit,train.py,{quoted(shlex.quote(text))}\n").runs

    assert run.params == (text,)


def test_a_word_in_braces_has_to_be_a_column(plan: Plan) -> None:
    with pytest.raises(ExperimentError, match=r"\{Nope\} is not a column"):
        plan("Model,File,Params\nvit,train.py,--lr {Nope}\n")


@pytest.mark.parametrize(
    ("word", "filled"),
    [
        ("{{Model}}", "{Model}"),
        ("{{model}}-{Model}", "{model}-vit"),
        ("{{modle}}", "{modle}"),
        ("{{Data}}", "{Data}"),
        ("{{lr}}", "{lr}"),
        ("{2nd %} {{2nd %}}", "x {2nd %}"),
        ('{"m":"{Model}"}', '{"m":"vit"}'),
        ('{"m":{"n":{Model}}}', '{"m":{"n":vit}}'),
    ],
)
def test_braces_twice_mean_the_text(word: str, filled: str) -> None:
    assert Placeholders({"Model": "vit", "2nd %": "x"}).fill(word) == filled


@pytest.mark.parametrize(
    ("params", "cause", "remedy"),
    [
        (
            "{Modle}",
            "{Modle} is not a column",
            "Did you mean 'Model'? Write {{Modle}} for",
        ),
        ("{seeds}", "{seeds} is not a column", "Did you mean 'Seed'?"),
        ("{Data}", "{Data}: there is no such column", "Add it. Write {{Data}}"),
        ("{Seed}", "{Seed} is empty in this row", "Fill the row's Seed cell"),
        ("{Run}", "{Run} cannot be filled in", "{{Run}} for the text {Run}"),
        ("{params}", "{params} cannot be filled in", "{{params}} for the text"),
    ],
)
def test_what_was_meant_to_be_a_column(
    problems: Problems, params: str, cause: str, remedy: str
) -> None:
    (problem,) = problems(f"Model,Seed,Run,File,Params\nvit,,abc,train.py,{params}\n")

    assert (problem.line, problem.column) == (2, "Params")
    assert cause in problem.cause and remedy in problem.remedy


def test_file_does_not_stand_for_itself(problems: Problems) -> None:
    (problem,) = problems("File\n{File}\n")

    assert (problem.column, problem.cause) == ("File", "{File} cannot be filled in")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("ab {}$\"'", max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "lr", "b c"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(JSON)
def test_json_survives(value: object) -> None:
    word = json.dumps(value)
    assume(not re.search(r"\{[ab]+\}", word))  # one word in braces has to be a column

    assert Placeholders({"Model": "vit", "Seed": "1"}).fill(word) == word


@given(st.text("{}$aM", max_size=12))
def test_nothing_is_filled_twice(value: str) -> None:
    """What a column holds is never taken for something to fill."""
    assert Placeholders({"Model": value or "x", "M": "no"}).fill("<{Model}>") == f"<{value or 'x'}>"


def test_params_of_a_command() -> None:
    blanks = Placeholders({"Model": "vit"})

    assert blanks.expand(["-m", "{Model}", "--{Params}"], ["a=1", "b c={Model}"]) == [
        "-m", "vit", "--a=1", "--b c={Model}",
    ]  # fmt: skip
    assert blanks.expand(["{params}", "x"], []) == ["x"]
    assert blanks.expand(["x"], ["--a"]) == ["x", "--a"]
    assert blanks.expand(["{{Params}}"], ["--a"]) == ["{Params}", "--a"]
    with pytest.raises(UsageError):
        blanks.fill("{Params}")
