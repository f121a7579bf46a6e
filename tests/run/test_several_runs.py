"""Several runs in one process: each has its own name, parameters and values."""

from __future__ import annotations

from dataclasses import replace

import pytest
from mlflow.tracking import MlflowClient

from radt.model import RunStatus
from tests.run import several
from tests.run.conftest import Alone
from tests.run.several import expected, trials
from tests.support.bench import wait_until

pytestmark = pytest.mark.shared_collector

SCRIPTS = ["THREADS", "TASKS", "LOOP", "TRACKIO", "WANDB", "CREATE_NEW"]


@pytest.mark.quick_variants(2)
@pytest.mark.parametrize("script", SCRIPTS)
def test_each_is_a_run_of_its_own(alone: Alone, script: str) -> None:
    _, err = alone.run(getattr(several, script))
    assert err == ""
    assert trials(alone.reader) == [expected(n) for n in range(3)]
    assert {run.status for run in alone.reader.runs()} == {RunStatus.FINISHED}
    if script != "WANDB":  # where they have no names
        names = {run.name: alone.reader.params(run.run_id)["n"] for run in alone.reader.runs()}
        assert names == {f"trial {n}": str(n) for n in range(3)}


@pytest.mark.quick_variants(1)
@pytest.mark.mlflow
@pytest.mark.parametrize("script", ["MLFLOW_LOOP", "MLFLOW_THREADS", "MLFLOW_CLIENT"])
def test_each_run_of_mlflow_is_one_of_radt(alone: Alone, script: str) -> None:
    _, err = alone.run(getattr(several, script))
    assert "radt:" not in err
    assert trials(alone.reader) == [expected(n) for n in range(3)]
    runs = alone.reader.runs()
    assert {run.name for run in runs} == {f"trial {n}" for n in range(3)}
    experiment = "mine" if script == "MLFLOW_CLIENT" else "script0"
    assert {run.experiment for run in runs} == {experiment}

    # MLflow has those runs and no others, each with its own values, once.
    wait_until(
        lambda: all(run.mlflow_run_id for run in alone.reader.runs()), "the uploader knows them"
    )
    client = MlflowClient(runs[0].tracking_uri)
    ids = [one.experiment_id for one in client.search_experiments()]
    found = {run.info.run_id: run for run in client.search_runs(ids)}
    assert set(found) == {run.mlflow_run_id for run in alone.reader.runs()}
    for run in alone.reader.runs():
        stored = found[str(run.mlflow_run_id)]
        n = int(stored.data.params["n"])
        assert client.get_experiment(stored.info.experiment_id).name == experiment
        history = client.get_metric_history(stored.info.run_id, "loss")
        assert [(one.step, one.value) for one in history] == expected(n).loss


NESTED = """\
import radt; radt.autolog()
import mlflow
with mlflow.start_run(run_name="search"):
    for n in range(2):
        with mlflow.start_run(run_name=f"trial {n}", nested=True):
            mlflow.log_param("n", n)
            for step in range(3): mlflow.log_metric("loss", 10 * n + step, step=step)
    mlflow.log_metric("best", 0.5)
"""


@pytest.mark.long
@pytest.mark.mlflow
def test_nested_runs_of_mlflow_are_children_in_one_experiment(alone: Alone) -> None:
    _, err = alone.run(NESTED)
    assert "radt:" not in err
    assert trials(alone.reader) == [expected(n, f"a.trial {n}") for n in range(2)]
    parent = next(run for run in alone.reader.runs() if run.letter == "a")
    assert parent.name == "search" and parent.experiment == "script0"
    wait_until(
        lambda: all(run.mlflow_run_id for run in alone.reader.runs()), "the uploader knows them"
    )
    client = MlflowClient(parent.tracking_uri)
    stored = [client.get_run(str(run.mlflow_run_id)) for run in alone.reader.runs()]
    assert len({run.info.experiment_id for run in stored}) == 1
    above = {run.info.run_name: run.data.tags.get("mlflow.parentRunId") for run in stored}
    top = next(run.info.run_id for run in stored if run.info.run_name == "search")
    assert above == {"search": None, "trial 0": top, "trial 1": top}


INSIDE = """\
import asyncio, contextvars, threading, radt
def log(name): radt.log_metric(name, 1)
def in_thread(work, *arguments):
    thread = threading.Thread(target=work, args=arguments); thread.start(); thread.join()
async def task(): radt.log_metric("task", 1)
async def tasks(): await asyncio.create_task(task()); await asyncio.to_thread(log, "to_thread")
with radt.Run(name="outer") as outer:
    log("here")
    in_thread(log, "thread")  # a data loader's, a callback's
    in_thread(outer.log_metric, "given", 1)
    in_thread(contextvars.copy_context().run, log, "copied")
    asyncio.run(tasks())
    with radt.Run(name="ignored", params={"more": 1}) as inner: log("inner")
    def begin():
        with radt.Run(name="other") as other: radt.log_metric("own", 1); outer.log_metric("both", 1)
    in_thread(begin)
    log("end")
"""


def test_what_belongs_to_a_block_stays_with_it(alone: Alone) -> None:
    """Threads and tasks without a block of their own, and blocks within it."""
    _, err = alone.run(INSIDE)
    assert err == ""
    runs = {run.name: run for run in alone.reader.runs()}
    assert set(runs) == {"outer", "other"}
    names = {
        name: {one.metric for one in alone.reader.series([run.run_id]) if one.listener == "run"}
        for name, run in runs.items()
    }
    assert names["other"] == {"own"}
    assert names["outer"] == {
        *("here", "thread", "given", "copied", "task", "to_thread", "inner", "both", "end")
    }
    assert alone.reader.params(runs["outer"].run_id)["more"] == "1"


AMBIGUOUS = """\
import threading, radt
opened, logged = threading.Barrier(3), threading.Event()
def train(n):
    with radt.Run(name=f"trial {n}"): opened.wait(60); logged.wait(60)
threads = [threading.Thread(target=train, args=(n,)) for n in range(2)]
for thread in threads: thread.start()
opened.wait(60)
radt.log_metric("whose", 1); radt.log_metric("whose", 2)
logged.set()
for thread in threads: thread.join()
"""


def test_values_that_could_be_of_any_run_are_refused_with_a_word(alone: Alone) -> None:
    _, err = alone.run(AMBIGUOUS)
    (message,) = err.splitlines()
    assert "several runs are open" in message and "'MainThread'" in message
    series = alone.reader.series([run.run_id for run in alone.reader.runs()])
    assert not any(one.metric == "whose" for one in series)


ENVIRONMENT = """\
import os, subprocess, sys, threading, radt
names = ("RADT_RUN_ID", "RADT_RUN_DIR", "RADT_HOME")
before = [os.environ.get(name) for name in names]
CHILD = "import radt, sys; radt.active_run() and radt.log_metric(sys.argv[1], 1)"
def start(name): subprocess.run([sys.executable, "-c", CHILD, name], check=True)
def other(opened, done):
    with radt.Run(name="other"): opened.set(); done.wait(60)
opened, done = threading.Event(), threading.Event()
thread = threading.Thread(target=other, args=(opened, done))
with radt.Run(name="first") as run:
    start("alone"); assert os.environ["RADT_RUN_ID"] == run.id
    thread.start(); opened.wait(60)
    assert "RADT_RUN_ID" not in os.environ
    start("whose")
    done.set(); thread.join()
    start("again")
assert [os.environ.get(name) for name in names] == before
"""


def test_a_process_joins_the_run_that_it_certainly_belongs_to(alone: Alone) -> None:
    alone.run(ENVIRONMENT)
    series = alone.reader.series([run.run_id for run in alone.reader.runs()])
    assert {one.metric for one in series if one.listener == "run"} == {"alone", "again"}


EXIT = """\
import contextlib, sys, radt
{begin}
radt.log({{"a": 1}})
def end():
    with contextlib.suppress(ValueError):
        try: sys.exit({code})
        finally: radt.log({{"b": 2}})
{end}
"""
BY_INIT, BY_MLFLOW = "radt.init()", "radt.autolog(); import mlflow; mlflow.start_run()"
CAUGHT = "try: end()\nexcept SystemExit: pass"


@pytest.mark.quick_variants(2)
@pytest.mark.parametrize("begin", [BY_INIT, pytest.param(BY_MLFLOW, marks=pytest.mark.mlflow)])
@pytest.mark.parametrize(
    ("end", "code", "returned", "reason"),
    [
        ("end()", "3", 3, "exit code 3"),
        ("end()", "'bad data'", 1, "exit code bad data"),
        ("end()", "0", 0, ""),
        (CAUGHT, "3", 0, ""),
        ("import argparse; argparse.ArgumentParser().parse_args(['--x'])", "0", 2, "exit code 2"),
        ("raise ValueError('boom')", "0", 1, "ValueError: boom"),
    ],
)
def test_how_a_run_without_a_block_ends(
    alone: Alone, begin: str, end: str, code: str, returned: int, reason: str
) -> None:
    alone.run(EXIT.format(begin=begin, end=end, code=code), code=returned)
    (run,) = alone.reader.runs()
    status = RunStatus.FAILED if reason else RunStatus.FINISHED
    assert (run.status, run.end_reason) == (status, reason)
    if begin is BY_MLFLOW and returned == 3:
        wait_until(lambda: alone.reader.runs()[0].mlflow_run_id is not None, "MLflow has the run")
        mlflow_run = str(alone.reader.runs()[0].mlflow_run_id)
        client = MlflowClient(run.tracking_uri)
        wait_until(lambda: client.get_run(mlflow_run).info.status == "FAILED", "its status is said")


POOL = """\
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
import radt
def train(n):
    with radt.Run(name=f"trial {n}", params={"n": n}) as run:
        for step in range(3): run.log_metric("loss", 10 * n + step, step)
if __name__ == "__main__":
    with radt.Run(name="search") as run:
        with ProcessPoolExecutor(2, mp_context=get_context(sys.argv[1])) as pool:
            list(pool.map(train, range(3)))
"""


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_blocks_of_worker_processes_are_children(alone: Alone, method: str) -> None:
    alone.run(POOL, method)
    assert [replace(trial, letter="") for trial in trials(alone.reader)] == [
        expected(n, "") for n in range(3)
    ]
    assert {run.letter for run in alone.reader.runs()} == {"a", *(f"a.trial {n}" for n in range(3))}
