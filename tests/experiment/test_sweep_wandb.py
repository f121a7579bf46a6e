"""W&B's sweep files: what runs unchanged, and what is refused or named."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from radt.devices.machine import Machine
from radt.experiment.plan import RunPlan
from radt.listeners.api import Registry
from tests.experiment.sweep_kit import SweepBench


@pytest.fixture(scope="module")
def utils() -> Any:
    """W&B's own functions; it takes seconds to import."""
    return pytest.importorskip("wandb.sdk.launch.sweeps.utils")


PARAMETERS = """\
parameters:
  lr: {values: [0.1, 1e-3]}
  amp: {values: [true, false]}
  name: {values: [null]}
  text: {value: "it's = {lr} {{lr}} ${lr} {1,2} {a: 1}"}
  sizes: {value: [1, 2]}
  plain.dotted: {value: -1}
  optimizer:
    parameters:
      beta: {value: 0.9}
      nadam: {parameters: {decay: {value: 3}}}
"""
#: What W&B's server hands to an agent for each run of these.
CONFIGS: list[dict[str, Any]] = [
    {
        "lr": lr,
        "amp": amp,
        "name": None,
        "text": "it's = {lr} {{lr}} ${lr} {1,2} {a: 1}",
        "sizes": [1, 2],
        "plain.dotted": -1,
        "optimizer": {"beta": 0.9, "nadam": {"decay": 3}},
    }
    for lr in (0.1, "1e-3")
    for amp in (True, False)
]


@pytest.fixture
def sweep(folder: Path, cpu_only: Machine, registry: Registry) -> SweepBench:
    return SweepBench(folder / "sweep.yaml", cpu_only, registry)


def runs(sweep: SweepBench, text: str) -> list[RunPlan]:
    """The runs of a sweep, each from its row of the CSV."""
    sweep.csv.unlink(missing_ok=True)
    sweep.write(text).expand()
    assert sweep.expand() == ""
    return list(sweep.plan().runs)


def agents_words(utils: Any, config: Mapping[str, Any], command: list[str]) -> list[str]:
    """What an agent of W&B starts for a run (`wandb.wandb_agent.Agent._command_run`)."""
    args = {name: {"value": value} for name, value in config.items()}
    macros = utils.create_sweep_command_args({"args": args})
    macros |= {"env": [], "interpreter": ["python"], "program": ["train.py"]}
    words: list[str] = []
    for chunk in utils.create_sweep_command(list(command)):
        is_macro = chunk.startswith("${") and chunk.endswith("}")
        words += macros[chunk[2:-1]] if is_macro else [chunk]
    return words


@pytest.mark.parametrize(
    "command",
    [
        ["${env}", "${interpreter}", "${program}", "${args}"],
        ["${env}", "python3", "${program}", "--epochs", "5", "${args_no_boolean_flags}"],
        ["${interpreter}", "${program}", "${args_no_hyphens}", "hydra.verbose=true"],
        ["${env}", "python", "${program}", "--json", "${args_json}", "${args}"],
        ["${interpreter}", "${program}", "${args_no_equals}", "--home", "${envvar:THEIRS}/x"],
    ],
)
def test_a_program_gets_what_an_agent_passes(
    sweep: SweepBench, utils: Any, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THEIRS", "/a b")
    listed = "".join(f"- '{word}'\n" for word in command)

    found = runs(sweep, f"program: train.py\nmethod: grid\ncommand:\n{listed}{PARAMETERS}")

    expected = [agents_words(utils, config, command) for config in CONFIGS]
    assert [["train.py", *run.params] for run in found] == [words[1:] for words in expected]
    assert {run.program.path for run in found} == {sweep.path.parent / "train.py"}


def test_the_default_command_is_that_of_wandb(sweep: SweepBench, utils: Any) -> None:
    found = runs(sweep, f"program: train.py\nmethod: grid\n{PARAMETERS}")

    default = utils.DEFAULT_SWEEP_COMMAND
    expected = [agents_words(utils, config, default)[2:] for config in CONFIGS]
    assert [list(run.params) for run in found] == expected


@pytest.mark.parametrize(
    ("command", "label", "params"),
    [
        ("[python, -m, json.tool, '${args}']", "json.tool", ("--x=1",)),
        ("['${env}', cat, '${program}', '${args}']", "cat", ("train.py", "--x=1")),
        ("['${env}', A=1, cat, '${args}']", "env", ("A=1", "cat", "--x=1")),
        ("[python, -u, '${program}', '${args}']", "python", ("-u", "train.py", "--x=1")),
        ("[cat, 1, '${interpreter}', '${args}']", "cat", ("1", "python", "--x=1")),
    ],
)
def test_commands_that_start_something_else(
    sweep: SweepBench, command: str, label: str, params: tuple[str, ...]
) -> None:
    (run,) = runs(
        sweep,
        f"program: train.py\nmethod: grid\ncommand: {command}\nparameters: {{x: {{value: 1}}}}\n",
    )

    assert (run.program.label, run.params) == (label, params)


DISTRIBUTIONS = """\
program: train.py
method: random
run_cap: 300
parameters:
  a: {distribution: log_uniform, min: -2, max: 2}
  b: {distribution: q_log_uniform, min: 0, max: 3}
  c: {distribution: log_uniform_values, min: 0.1, max: 10}
  d: {distribution: q_uniform, min: 0, max: 1, q: 0.25}
  e: {distribution: normal, mu: 100, sigma: 10}
  f: {distribution: q_log_normal, mu: 1}
  g: {min: 1, max: 3}
  h: {min: 1.0, max: 3}
  i: {distribution: categorical, values: [x, y]}
  j: {distribution: constant, value: 7}
"""


def test_distributions_are_those_of_wandb(sweep: SweepBench) -> None:
    """The limits of ``log_uniform`` are exponents there."""
    values: dict[str, set[float]] = {}
    for run in runs(sweep, DISTRIBUTIONS):
        for word in run.params:
            name, _, text = word.removeprefix("--").partition("=")
            values.setdefault(name, set()).add(float(text) if name != "i" else len(text))
    assert 0.135 <= min(values["a"]) < 0.2 and 6 < max(values["a"]) < 7.39
    assert values["b"] == set(range(1, 21)), "exp(0) to exp(3), rounded"
    assert 0.1 <= min(values["c"]) < 0.2 and 8 < max(values["c"]) <= 10
    assert values["d"] == {0, 0.25, 0.5, 0.75, 1}
    assert 60 < min(values["e"]) < 85 and 115 < max(values["e"]) < 140
    assert values["f"] >= {1, 2, 3} and max(values["f"]) > 10
    assert values["g"] == {1, 2, 3} and len(values["h"]) > 200 and values["j"] == {7}


def test_what_is_different_is_named_once(sweep: SweepBench) -> None:
    (sweep.path.parent / "src").mkdir()
    (sweep.path.parent / "src" / "train.py").write_text("")
    text = (
        "program: src/train.py\nmethod: random\nname: mine\nproject: digits\nentity: we\n"
        "metric: {name: loss, goal: minimize}\nearly_terminate: {type: hyperband, min_iter: 3}\n"
        "run_cap: 9\nparameters: {x: {values: [1, 2]}}\n"
    )
    notes = (
        "of W&B's keys, these have no effect: early_terminate (every run goes on to its end), "
        "metric (radt optimises none, and target ends no sweep), entity, name",
        "src/train.py runs in its own folder, not in that of the sweep",
        "each of the 2 combinations runs once; W&B would repeat some",
    )

    plan = sweep.write(text).plan()

    assert plan.warnings == notes
    assert {run.experiment for run in plan.runs} == {"digits"}
    assert sweep.expand() == f"added 2 rows to {sweep.csv}; " + "; ".join(notes)
    assert sweep.expand() == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "program: train.py\nmethod: bayes\n",
            [(2, "method", "expected grid or random")],
        ),
        (
            "program: train.py\nmethod: grid\nscheduler: {engine: optuna}\njob: a\nrun_cap: x\n",
            [
                (3, "scheduler", "radt has no use for scheduler"),
                (4, "job", "radt has no use for job"),
                (5, "run_cap", "expected a whole number from 1"),
            ],
        ),
        ("program: train.py\ncommand: python\n", [(2, "command", "expected a list of words")]),
        (
            "program: train.py\ncommand:\n- ${program}\n- ${args_json_file}\n- ${envvar:NO_SUCH}\n",
            [
                (2, "command", "the program would not get its parameters"),
                (4, "command", "radt has nothing to put in place of ${args_json_file}"),
                (5, "command", "the variable NO_SUCH is not set"),
            ],
        ),
        ("program: ''\nmethod: grid\n", [(1, "file", "the cell is empty")]),
        (
            "program: train.py\nparams: --a 1\nstyle: name=value\nfile: train.py\n",
            [
                (2, "params", "radt has no use for params beside W&B's program"),
                (3, "style", "radt has no use for style beside W&B's program"),
                (4, "file", "radt has no use for file beside W&B's program"),
            ],
        ),
        (
            "program: train.py\nmethod: random\nparameters: {x: {distribution: beta}}\n",
            [(3, "parameters", "x: expected uniform,")],
        ),
        (
            "program: train.py\nmethod: random\nparameters: {x: {min: 0.0, max: 1.0}}\n",
            [(3, "parameters", "a range has infinitely many values")],
        ),
        (
            "program: train.py\nmethod: random\nrun_cap: 3\n"
            "parameters: {x: {distribution: log_uniform, min: 1, max: 1000}}\n",
            [(4, "parameters", "x, max: expected the logarithm of a limit, got 1000")],
        ),
        (
            "program: none.py\nmethod: grid\n",
            [(1, "file", "there is no file 'none.py'")],
        ),
    ],
)
def test_what_radt_has_not_is_refused(
    sweep: SweepBench, text: str, expected: list[tuple[int | None, str, str]]
) -> None:
    assert "NO_SUCH" not in os.environ
    if "parameters:" not in text:
        text += "parameters: {x: {value: 1}}\n"

    found = sweep.write(text).problems()

    assert [(one.line, one.column) for one in found] == [each[:2] for each in expected]
    for problem, (_, _, cause) in zip(found, expected, strict=True):
        assert problem.cause.startswith(cause) and problem.remedy


def test_only_files_with_a_program_are_those_of_wandb(sweep: SweepBench) -> None:
    sweep.write(
        "file: train.py\ncommand: mine\nmetric: loss\nmethod: random\ntrials: 3\n"
        "parameters: {x: {distribution: log_uniform, min: 1, max: 9}}\n"
    )

    plan = sweep.plan()

    assert plan.warnings == ()
    assert all(run.columns == {"command": "mine", "metric": "loss"} for run in plan.runs)
    assert all(1 <= float(run.params[1]) <= 9 for run in plan.runs)
