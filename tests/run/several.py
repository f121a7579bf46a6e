"""Scripts that open several runs in one process, and what a store says of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from radt.model import SOFTWARE
from radt.store.reader import StoreReader

#: Three trainings, each with its name, its parameter and its values: 0, 1, 2 and 10, 11, 12 …
TRAIN = """\
import asyncio, sys, threading
from concurrent.futures import ThreadPoolExecutor
import radt
together = threading.Barrier(3)

def values(n): return [10.0 * n + step for step in range(3)]

def train(n):
    with radt.Run(name=f"trial {n}", params={"n": n}) as run:
        for step, value in enumerate(values(n)):
            together.wait(60)  # all of them are open
            (run if step else radt).log_metric("loss", value, step)
            together.wait(60)

async def train_task(n):
    with radt.Run(name=f"trial {n}", params={"n": n}):
        for step, value in enumerate(values(n)):
            radt.log_metric("loss", value, step)
            await asyncio.sleep(0)  # the others have a turn

async def train_tasks():
    await asyncio.gather(*(train_task(n) for n in range(3)))
"""
THREADS = TRAIN + "with ThreadPoolExecutor(3) as pool: list(pool.map(train, range(3)))\n"
TASKS = TRAIN + "asyncio.run(train_tasks())\n"
#: One after the other: blocks, Trackio's way (`init` for each, one `finish`), and W&B's.
LOOP = """\
import radt
for n in range(3):
    with radt.Run(name=f"trial {n}", params={"n": n}) as run:
        for step in range(3): run.log_metric("loss", 10 * n + step, step)
"""
TRACKIO = """\
import radt as trackio
for n in range(3):
    trackio.init(project="script0", name=f"trial {n}", config={"n": n})
    for step in range(3): trackio.log({"loss": 10 * n + step})
trackio.finish()
"""
WANDB = """\
import radt as wandb
for n in range(3):
    run = wandb.init(project="script0", config={"n": n}, reinit="finish_previous")
    for step in range(3): run.log({"loss": 10 * n + step})
    wandb.finish()
"""
CREATE_NEW = """\
import radt as wandb
runs = [wandb.init(name=f"trial {n}", config={"n": n}, reinit="create_new") for n in range(3)]
assert len({run.id for run in runs}) == 3
for step in range(3):
    for n, run in enumerate(runs): run.log({"loss": 10 * n + step})
for run in runs: run.finish()
"""
#: Two ranks, each with all blocks: the second one's values are beside those of the first.
RANKS = """\
import os, subprocess, sys
if "RANK" not in os.environ:
    ranks = [subprocess.Popen([sys.executable, __file__], env={**os.environ, "RANK": str(rank)})
             for rank in range(2)]
    raise SystemExit(max(rank.wait() for rank in ranks))
import radt
for n in range(3):
    with radt.Run(name=f"trial {n}", params={"n": n}) as run:
        metric = "loss" if os.environ["RANK"] == "0" else "beside"
        for step in range(3): run.log_metric(metric, 10 * n + step, step)
"""
#: The same through MLflow; the names that it has are its own.
MLFLOW_LOOP = """\
import radt; radt.autolog()
import mlflow
for n in range(3):
    with mlflow.start_run(run_name=f"trial {n}"):
        mlflow.log_param("n", n)
        for step in range(3): mlflow.log_metric("loss", 10 * n + step, step=step)
"""
MLFLOW_THREADS = """\
import threading, radt; radt.autolog()
import mlflow
together = threading.Barrier(3)
def train(n):
    with mlflow.start_run(run_name=f"trial {n}"):
        mlflow.log_param("n", n)
        for step in range(3):
            together.wait(60)
            mlflow.log_metric("loss", 10 * n + step, step=step)
threads = [threading.Thread(target=train, args=(n,)) for n in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
MLFLOW_CLIENT = """\
import radt; radt.autolog()
from mlflow.tracking import MlflowClient
client = MlflowClient()
experiment = client.create_experiment("mine")
runs = [client.create_run(experiment, run_name=f"trial {n}").info.run_id for n in range(3)]
for n, run in enumerate(runs): client.log_param(run, "n", n)
for step in range(3):
    for n, run in enumerate(runs): client.log_metric(run, "loss", 10 * n + step, step=step)
for run in runs: client.set_terminated(run)
"""


@dataclass(frozen=True)
class Trial:
    """A run: the parameter n and the values of the metric loss."""

    n: str
    loss: list[tuple[int, float]]
    letter: str = "a"


def expected(n: int, letter: str = "a") -> Trial:
    return Trial(str(n), [(step, 10.0 * n + step) for step in range(3)], letter)


def trials(reader: StoreReader) -> list[Trial]:
    """The runs with values, by parameter."""
    found = []
    for run in reader.runs():
        series = [
            one
            for one in reader.series([run.run_id])
            if one.listener == SOFTWARE and one.metric == "loss"
        ]
        for one in series:
            samples: Any = reader.samples(run.run_id, one.series_no)
            loss = list(zip(samples.steps.tolist(), samples.values.tolist(), strict=True))
            found.append(Trial(reader.params(run.run_id).get("n", ""), loss, run.letter))
    return sorted(found, key=lambda trial: trial.n)
