"""The Environment column from an experiment file to the store."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import radt
from radt.usage import KERNEL, OF_SCRIPT, OF_TREE
from tests.support.bench import Bench, stop_collectors
from tests.support.environments import Tools, Workbench, make_wheel

SCRIPT = """
import radt, sys, time
with radt.Run() as run:
    run.log_metric("argument", float(sys.argv[-1]))
    begun_s = time.process_time()
    while time.process_time() < begun_s + 0.5: pass
print("in", sys.prefix)
"""
FILE = """
Experiment, Workload, Name, Devices, Environment      , Listeners, File    , Params
e         , 1       , uv  , cpu    , uv               , none     , train.py, 1
e         , 1       , box , cpu    , docker:python:3.12, none, train.py, 2
e         , 2       , ml  , cpu    ,                  , none     , project , value=3
"""


@pytest.fixture
def user(bench: Workbench, tools: Tools) -> Iterator[Bench]:
    """A user with an experiment folder, docker, and a container image."""
    tools.install("docker")
    python = Path(sys.executable).resolve()
    image = {"id": "sha256:1", "env": [f"PATH={python.parent}:/usr/bin:/bin"]}
    state = {"images": {"python:3.12": image}, "registry": {}}
    (tools.state / "docker.json").write_text(json.dumps(state))
    env = dict(os.environ, NO_COLOR="1", COLUMNS="100", RADT_COLLECTOR_IDLE_S="2")
    del env["RADT_HOME"]
    yield Bench(bench.folder, env)
    stop_collectors(Path(env["RADT_RUNTIME_DIR"]))


def test_rows_run_where_they_ask_to(user: Bench, bench: Workbench) -> None:
    make_wheel(bench.folder / "wheels", "radtdemo")
    bench.write("requirements.txt", "--no-index\n--find-links wheels\nradtdemo\n")
    bench.write("train.py", SCRIPT)
    bench.write("project/train.py", SCRIPT)
    bench.write("project/python_env.yaml", "dependencies: []\n")
    bench.write(
        "project/MLproject",
        "entry_points:\n  main:\n    parameters: {value: float}\n"
        "    command: 'python train.py {value}'\n",
    )
    user.radt(str(user.experiment(FILE.lstrip())))
    user.wait_delivered()
    runs = {run.name: run for run in user.reader.runs()}
    assert {run.status for run in runs.values()} == {"FINISHED"}
    for name, value in (("uv", 1.0), ("box", 2.0), ("ml", 3.0)):
        recorded = user.reader.series([runs[name].run_id])
        (series,) = [one for one in recorded if one.metric == "argument"]
        found = user.reader.samples(runs[name].run_id, series.series_no)
        assert list(found.values) == [value]
        totals = radt.totals(runs[name].run_id, home=user.home)
        # No more than an instant of it is that of docker's client.
        assert totals["cpu_time_s"] > 0.5
        kernel = [one for one in user.reader.series([runs[name].run_id]) if one.listener == KERNEL]
        assert {one.method for one in kernel} == {OF_SCRIPT if name == "box" else OF_TREE}
        artifacts = user.home / "artifacts" / str(runs[name].mlflow_run_id) / "artifacts"
        packages = (artifacts / "environment/packages.txt").read_text()
        assert ("radtdemo==1.0" in packages) == (name == "uv")
        assert "mlflow" not in packages  # radt's own environment has it
