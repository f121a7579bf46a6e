"""Scripts written for W&B and Trackio, with one line changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass

import pytest
from mlflow.tracking import MlflowClient

import radt
from radt.home import RunDir
from radt.journal.reader import JournalReader
from radt.model import RunStatus
from tests.run.conftest import TIMEOUT_S, Alone, Joined
from tests.run.wandb_snippets import SNIPPETS, Snippet
from tests.support.bench import wait_until
from tests.support.journal import Found

pytestmark = pytest.mark.shared_collector

#: As in W&B's own quickstart and examples, but for the first line.
WANDB_SCRIPT = """\
import radt as wandb

import argparse
import random

wandb.login()
parser = argparse.ArgumentParser()
parser.add_argument("--momentum", type=float, default=0.9)
args = parser.parse_args()

run = wandb.init(
    entity="my-team",
    project="vision",
    name="resnet-a",
    group="sizes",
    tags=["baseline", "v2"],
    notes="first try",
    config={"learning_rate": 0.02, "architecture": "CNN", "optimizer": {"name": "sgd", "decay": 0}},
)
config = wandb.config
config.update(args)
config.update({"epochs": 3}, allow_val_change=True)
config.batch_size = 64
config["dataset"] = "CIFAR-10"
assert config.learning_rate == 0.02 and config["architecture"] == "CNN"
assert wandb.config.optimizer["name"] == "sgd" and config.get("nothing", 7) == 7
assert run.config.momentum == 0.9 and "epochs" in wandb.config

wandb.define_metric("val/*", step_metric="epoch")
wandb.watch(object(), log="all")
run.watch(object())

for epoch in range(config.epochs):
    acc = 1 - 2 ** -(epoch + 1)
    wandb.log({"train": {"acc": acc, "loss": 1 - acc}}, commit=False)
    wandb.log({"epoch": epoch, "examples": [wandb.Image("a.png")]})
wandb.log({"late": 1}, step=10)
wandb.log({"table": wandb.Table(columns=["a"], data=[[1]]), "note": "text"})
run.log({"last": True})

wandb.run.summary["best_acc"] = 0.875
run.summary.update({"verdict": "good"})
run.summary.best_loss = 0.125
assert run.summary["train.acc"] == 0.875
if wandb.run:
    print(wandb.run.id, wandb.run.name, run.id, run.name, run.dir != "")
wandb.run.name = "other"
with open("model.pt", "w") as file:
    file.write("weights")
wandb.save("*.pt")
wandb.finish()
assert not wandb.run
print(run.id, run.name, run.summary["best_acc"])
"""


def _values(alone: Alone, run_id: str, metric: str) -> list[tuple[int, float]]:
    (series,) = [one for one in alone.reader.series([run_id]) if one.metric == metric]
    samples = alone.reader.samples(run_id, series.series_no)
    steps = [0] * len(samples) if samples.steps is None else samples.steps.tolist()
    return list(zip(steps, samples.values.tolist(), strict=True))


def test_a_plain_wandb_script(alone: Alone) -> None:
    out, err = alone.run(WANDB_SCRIPT)
    (run,) = alone.reader.runs()
    first, last = out.splitlines()
    assert first == f"{run.run_id} resnet-a {run.run_id} resnet-a True"
    assert last == f"{run.run_id} other 0.875"
    assert (run.experiment, run.workload, run.name) == ("vision", "sizes", "other")
    assert run.status is RunStatus.FINISHED

    assert _values(alone, run.run_id, "train.acc") == [(0, 0.5), (1, 0.75), (2, 0.875)]
    assert _values(alone, run.run_id, "epoch") == [(0, 0.0), (1, 1.0), (2, 2.0)]
    # A step that is given is not over: what comes without one belongs to it.
    assert _values(alone, run.run_id, "late") == [(10, 1.0)]
    assert _values(alone, run.run_id, "last") == [(11, 1.0)]
    assert [value for _, value in _values(alone, run.run_id, "best_acc")] == [0.875]
    assert [value for _, value in _values(alone, run.run_id, "best_loss")] == [0.125]

    params = alone.reader.params(run.run_id)
    del params["File"]
    assert params == {
        "learning_rate": "0.02",
        "architecture": "CNN",
        "momentum": "0.9",
        "epochs": "3",
        "optimizer.name": "sgd",
        "optimizer.decay": "0",
        "batch_size": "64",
        "dataset": "CIFAR-10",
    }
    tags = alone.reader.tags(run.run_id)
    assert (tags["tags"], tags["notes"], tags["verdict"]) == ("baseline, v2", "first try", "good")
    artifacts = alone.home / "runs" / run.run_id / "artifacts"
    assert (artifacts / "model.pt").read_text() == "weights"
    table = json.loads((artifacts / "tables" / "table" / "step-10.json").read_text())
    assert table == {"columns": ["a"], "data": [[1]]}

    messages = err.splitlines()
    expected = ["define_metric", "watch", "'examples'", "'note'"]
    assert len(messages) == len(expected), err
    for message, part in zip(messages, expected, strict=True):
        assert message.startswith("radt: ")
        assert part in message


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize(
    ("ending", "code", "status"),
    [
        ("wandb.finish(exit_code=1)", 0, RunStatus.FAILED),
        ("raise ValueError('boom')", 1, RunStatus.FAILED),
        ("", 0, RunStatus.FINISHED),  # nothing said so: the process ended
    ],
)
def test_how_it_ends(alone: Alone, ending: str, code: int, status: RunStatus) -> None:
    alone.run(f"import radt as wandb\nwandb.init()\nwandb.log({{'a': 1}})\n{ending}\n", code=code)
    (run,) = alone.reader.runs()
    assert run.status is status


def test_several_runs_in_one_process_and_init_in_with(alone: Alone) -> None:
    alone.run(
        "import radt as wandb\n"
        "for lr in (1, 2):\n"
        "    run = wandb.init(project='loop', config={'lr': lr})\n"
        "    assert wandb.init(config={'more': 1}) is run\n"
        "    wandb.log({'a': lr})\n"
        "    wandb.finish()\n"
        "with wandb.init(name='with') as run:\n"
        "    run.log({'a': 3})\n"
        "wandb.init(name='first')\n"
        "wandb.init(name='second', reinit=True)\n"
        "wandb.log({'a': 4})\n"
        "wandb.init(name='off', reinit=True, mode='disabled')\n"
        "wandb.log({'a': 5})\n"
        "wandb.finish()\n"
    )
    runs = {run.name: run for run in alone.reader.runs()}
    assert len(alone.reader.runs()) == 5
    assert {run.status for run in alone.reader.runs()} == {RunStatus.FINISHED}
    assert _values(alone, runs["second"].run_id, "a") == [(0, 4.0)]
    assert _values(alone, runs["with"].run_id, "a") == [(0, 3.0)]
    assert "off" not in runs and alone.reader.series([runs["first"].run_id])[0].metric != "a"


def test_inside_a_row_it_is_the_rows_run(joined: Joined) -> None:
    """Also in a process that the script starts, without an init."""
    joined.env |= {"RADT_NAME": "row a", "RADT_MLFLOW_RUN_ID": "f" * 32}
    child = "import radt as wandb; wandb.log({'c': 1}); wandb.log({'c': 2})"
    out, err = joined.run(
        "import radt as wandb, subprocess, sys\n"
        "run = wandb.init(project='ignored', name='ignored', config={'lr': 0.1})\n"
        "wandb.log({'a': 1})\n"
        f"subprocess.run([sys.executable, '-c', {child!r}], check=True)\n"
        "print(run.id, run.name)\n"
        "wandb.finish()\n"
    )
    assert (out, err) == (f"{'f' * 32} row a\n", "")
    found = joined.found()
    assert (found.values("a"), found.steps("a")) == ([1.0], [0])
    assert found.processes == {"", "child 1"}
    assert (found.values("c", "child 1"), found.steps("c", "child 1")) == ([1.0, 2.0], [0, 1])
    assert found.batches[0].params == {"lr": "0.1"}


def test_without_a_run_it_is_said_and_the_script_goes_on(joined: Joined) -> None:
    for name in ("RADT_RUN_ID", "RADT_RUN_DIR"):
        joined.env.pop(name)
    out, err = joined.run(
        "import radt as wandb\n"
        "assert not wandb.run\n"
        "try: wandb.run.id\n"
        "except AttributeError as error: print(error)\n"
        "wandb.log({'a': 1})\n"
        "wandb.config.update({'lr': 1})\n"
        "wandb.finish()\n"
    )
    assert out == "module 'radt.run' has no attribute 'id': no run is open\n"
    assert err == "radt: there is no run yet: call radt.init() first; nothing is recorded\n"
    assert [path.name for path in joined.folder.iterdir()] == ["script0.py"]


def test_a_with_block_logs_the_same_way(joined: Joined) -> None:
    joined.run(
        "import copy, radt\n"
        "with radt.Run() as run:\n"
        "    run.log({'a': 1})\n"
        "    run.config.lr = 0.1\n"
        "    assert radt.config['lr'] == 0.1 and radt.run.config.lr == 0.1\n"
        "    for values in (run.config, radt.config):\n"
        "        assert copy.copy(values) == copy.deepcopy(values) == {'lr': 0.1}\n"
        "    assert radt.active_run() is run and radt.summary == {'a': 1.0}\n"
        "    for wrong in (lambda: run.log(3), lambda: run.log({'a': 1}, step=True)):\n"
        "        try: wrong()\n"
        "        except TypeError: pass\n"
        "        else: raise SystemExit(3)\n"
        "    try: run.config.nothing\n"
        "    except AttributeError as error: assert 'there is lr' in str(error)\n"
        "    run.finish()\n"
        "assert not radt.run\n"
    )
    found = joined.found()
    assert (found.values("a"), found.steps("a")) == ([1.0], [0])


def test_importing_radt_is_light() -> None:
    """Nothing but the standard library, and of that and of radt as little as it was."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", "import sys, radt; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stdout.split())
    assert {name for name in loaded if name.split(".")[0] == "radt"} == {"radt", "radt.load"}
    assert not {"mlflow", "torch", "numpy", "pandas", "sqlalchemy", "asyncio"} & loaded


def test_every_name_has_its_docstring() -> None:
    for name in ("init", "log", "finish", "save", "watch", "define_metric", "login", "Image"):
        assert getattr(radt, name).__doc__


@pytest.mark.long
def test_a_script_on_its_own(alone: Alone) -> None:
    """Variables of W&B, renaming, alerts: each has its value in the store, or its message."""
    told = alone.folder.parent / "told.json"
    alone.env |= {
        "WANDB_PROJECT": "of a variable",
        "WANDB_NAME": "begun",
        "WANDB_RUN_GROUP": "sizes",
        "WANDB_TAGS": "a, b",
        "WANDB_NOTES": "why",
        "WANDB_MODE": "offline",
        "RADT_NOTIFY": f"tee '{told}'",
    }
    out, err = alone.run(
        "import radt as wandb, sys\n"
        "run = wandb.init(config={'lr': 1})\n"
        "print(run.name, run.project, run.group, run.tags, run.notes)\n"
        "assert wandb.init() is run and not hasattr(run, 'mode')\n"
        "child = run.child('part')\n"
        "assert child.project == run.project and child.group == 'sizes'\n"
        "run.name, child.name = f'lr {run.config.lr}', 'renamed'\n"
        "assert wandb.run.name == 'lr 1' and wandb.init() is run\n"
        "child.log({'a': 1}); child.finish()\n"
        "run.alert('low', 'accuracy', level='WARN')\n"
        "print(run.name, 'mlflow' in sys.modules)\n"
    )
    assert out == "begun of a variable sizes ('a', 'b') why\nlr 1 False\n"
    assert err == ""
    notification = json.loads(told.read_text())
    assert (notification["event"], notification["experiment"]) == ("alert", "of a variable")
    assert notification["text"] == "lr 1: WARN: low: accuracy"
    assert {(run.name, run.experiment, run.workload) for run in alone.reader.runs()} == {
        ("lr 1", "of a variable", "sizes"),
        ("renamed", "of a variable", "sizes"),
    }
    (run,) = [run for run in alone.reader.runs() if run.name == "lr 1"]
    tags = alone.reader.tags(run.run_id)
    assert (tags["tags"], tags["notes"], tags["alert.low"]) == ("a, b", "why", "WARN: accuracy")


def test_switched_off_by_a_variable_of_wandb(alone: Alone) -> None:
    script = "import radt as wandb\nwandb.init(); wandb.log({'a': 1}); wandb.finish()\n"
    _, err = alone.run(script, WANDB_MODE="disabled")
    assert err == "radt: nothing is recorded: WANDB_MODE is disabled\n"
    assert not alone.home.exists()


@pytest.mark.long
@pytest.mark.mlflow
def test_a_new_name_is_also_in_mlflow(alone: Alone) -> None:
    alone.run(
        "import radt\n"
        "with radt.Run(name='old') as run:\n"
        "    run.name = 'new'\n"
        "    run.set_tracking_uri  # MLflow's: it waits for MLflow's run\n"
    )
    (run,) = alone.reader.runs()
    client = MlflowClient(run.tracking_uri)
    name = lambda: client.get_run(str(run.mlflow_run_id)).info.run_name  # noqa: E731
    wait_until(lambda: name() == "new", "MLflow has its new name")


def test_an_alert_that_cannot_be_sent_is_said(alone: Alone) -> None:
    script = "import radt\nradt.init(); radt.alert('low', 'text'); radt.finish()\n"
    _, err = alone.run(script, RADT_NOTIFY="/no/such/command")
    assert err.startswith("radt: an alert was not sent: Command '/no/such/command' of --notify")


# Snippets -------------------------------------------------------------------------------------

#: Runs each snippet as a script of a row of its own, all in one process.
_DRIVER = """\
import contextlib, io, json, os, sys
from pathlib import Path
import radt as wandb
from radt.run import notices

for number, source in enumerate(json.load(sys.stdin)):
    folder = Path("runs", str(number)).resolve()
    folder.mkdir(parents=True)
    os.environ |= {"RADT_RUN_ID": f"{number:032x}", "RADT_RUN_DIR": str(folder)}
    notices._told.clear()
    error, err = "", io.StringIO()
    with contextlib.redirect_stderr(err):
        try:
            exec(source, {"wandb": wandb, "run": wandb.init(project="ignored")})
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
        wandb.finish()
    print(json.dumps([error, err.getvalue().splitlines(), "mlflow" in sys.modules]), flush=True)
"""


@dataclass(frozen=True)
class _Result:
    error: str
    lines: list[str]
    loaded_mlflow: bool
    run_dir: RunDir


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[Snippet, _Result]:
    folder = tmp_path_factory.mktemp("snippets")
    (folder / "folder").mkdir()
    for name, text in {
        "w.pt": "weights",
        "folder/x.txt": "x",
        "plain.yaml": "lr: 0.1\nopt: {name: sgd}\n",
        "wandb.yaml": "wandb_version: 1\nlr: {desc: '', value: 0.1}\nopt: {value: {name: sgd}}\n",
    }.items():
        (folder / name).write_text(text)
    row = {"RADT_NAME": "row a", "RADT_EXPERIMENT": "vision", "RADT_WORKLOAD": "sizes"}
    done = subprocess.run(
        [sys.executable, "-c", _DRIVER],
        input=json.dumps([snippet.source for snippet in SNIPPETS]),
        cwd=folder,
        env=dict(os.environ, MPLBACKEND="agg", RADT_HOME=str(folder / "home"), **row),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert not (folder / "home").exists()
    lines = done.stdout.splitlines()
    return {
        snippet: _Result(*json.loads(line), RunDir(folder / "runs" / str(number)))
        for number, (snippet, line) in enumerate(zip(SNIPPETS, lines, strict=True))
    }


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda snippet: snippet.source)
def test_what_scripts_commonly_do(results: dict[Snippet, _Result], snippet: Snippet) -> None:
    """It is recorded, or the first call names what is not; MLflow is neither loaded nor awaited."""
    result = results[snippet]
    assert snippet.raises in result.error and bool(result.error) == bool(snippet.raises)
    assert not result.loaded_mlflow
    assert len(result.lines) == len(snippet.warns), result.lines
    for line, part in zip(result.lines, snippet.warns, strict=True):
        assert line.startswith("radt: ") and part in line
    found = Found(JournalReader(result.run_dir.journal, {}))
    found.read(final=True)
    assert {name: found.values(name) for name in snippet.values} == dict(snippet.values)
    tags = {name: text for batch in found.batches for name, text in batch.tags.items()}
    params = {name: text for batch in found.batches for name, text in batch.params.items()}
    assert (tags, params) == (dict(snippet.tags), dict(snippet.params))
    artifacts = result.run_dir.artifacts
    files = {str(path.relative_to(artifacts)) for path in artifacts.rglob("*") if path.is_file()}
    assert files == set(snippet.files)
