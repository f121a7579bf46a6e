"""Docker rows of an experiment file on a real engine."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from radt.store.reader import StoreReader
from tests.support.bench import Bench, bench_in
from tests.support.docker import DockerEngine
from tests.support.docker_images import DASHBOARD_BASE, PYTHON

pytestmark = pytest.mark.docker

SCRIPT = """
import os, sys
import radt
with radt.Run() as run:
    run.log_metric("argument", float(sys.argv[-1]))
print("in a container:", os.path.exists("/.dockerenv"), os.environ.get("SECRET_OF_TEST"))
"""
FILE = f"""\
Experiment, Workload, Name, Devices, Environment, Listeners, File, Params
e, 1, one, cpu, docker:{PYTHON.tag}, ps@100ms, train.py, 1
e, 1, two, cpu, docker:{PYTHON.tag}, none, train.py, 2
"""


@pytest.fixture
def user(docker: DockerEngine) -> Iterator[Bench]:
    """Its containers run as nobody, who must be able to pass all folders above."""
    docker.have(PYTHON)
    with tempfile.TemporaryDirectory(prefix="radt-") as folder:
        Path(folder).chmod(0o755)
        home = Path(folder) / "data"
        with bench_in(Path(folder), columns=100, with_mlflow=False) as bench:
            bench.env["RADT_HOME"] = str(home)
            yield bench


def test_two_rows_run_together_in_containers(user: Bench, docker: DockerEngine) -> None:
    user.script("train.py", SCRIPT)
    user.env["SECRET_OF_TEST"] = "hush"
    user.radt(str(user.experiment(FILE)))
    with StoreReader(Path(user.env["RADT_HOME"]) / "radt.db") as reader:
        runs = {run.name: run for run in reader.runs()}
        assert {run.status for run in runs.values()} == {"FINISHED"}
        for name, value in (("one", 1.0), ("two", 2.0)):
            run = runs[name]
            series = {one.metric: one for one in reader.series([run.run_id])}
            found = reader.samples(run.run_id, series["argument"].series_no)
            assert list(found.values) == [value]
            output = (Path(run.spool) / "output.log").read_text()
            assert "in a container: True None" in output
            ours = f"--filter=label=radt.run={run.run_id}"  # others run beside
            assert docker.run("ps", "--all", "--quiet", ours) == ""


OWNER = 1000
#: What an image does not need to have: MLflow finds radt by its entry point.
MEASURED = """
import importlib.metadata, os, time
import radt
hooks = importlib.metadata.entry_points(group="mlflow.default_experiment_provider")
print("user", os.getuid(), "hooks", [hook.value for hook in hooks])
with radt.Run() as run:
    for step in range(20):
        run.log_metric("step", step)
        time.sleep(0.1)
open("result", "w").close()
"""
THROUGH_MLFLOW = """
import mlflow
mlflow.set_experiment("of the script")
with mlflow.start_run():
    mlflow.log_metric("accuracy", 0.5)
    mlflow.log_text("kept", "notes.txt")
"""


@pytest.fixture
def owner(docker: DockerEngine) -> Iterator[Bench]:
    """A folder of another user, with radt-data in it, in which root starts radt."""
    with tempfile.TemporaryDirectory(prefix="radt-") as folder:
        Path(folder).chmod(0o755)
        with bench_in(Path(folder), columns=200) as bench:
            os.chown(bench.folder, OWNER, OWNER)
            yield bench


@pytest.mark.long
def test_containers_of_a_folders_owner_are_measured_without_their_client_and_limited(
    owner: Bench, docker: DockerEngine
) -> None:
    docker.have(PYTHON)
    owner.env["RADT_TRACKING_URI"] = "none"
    owner.script("train.py", MEASURED)
    owner.script("big.py", "print(len(bytearray(1 << 30)))")
    own = f"cpu, docker:{PYTHON.tag}"
    owner.radt(
        str(
            owner.experiment(
                "Experiment, Workload, Name, Devices, Environment, Listeners, File, Memory\n"
                f"e, 1, small, {own}, top@200ms, train.py,\n"
                f"e, 1, big, {own}, none, big.py, 64MB\n"
            )
        ),
        code=1,
    )
    runs = {run.name: run for run in owner.reader.runs()}
    assert (runs["small"].status, runs["big"].status) == ("FINISHED", "OOM")
    assert runs["big"].end_reason.startswith("host memory: ")
    hook = "['radt.mlflow_plugin:RunFollower']"
    output = (Path(runs["small"].spool) / "output.log").read_text()
    assert output == f"user {OWNER} hooks {hook}\n"
    assert (owner.folder / "result").stat().st_uid == OWNER
    series = {one.metric: one for one in owner.reader.series([runs["small"].run_id])}

    def values(metric: str) -> list[float]:
        number = series[metric].series_no
        return list(owner.reader.samples(runs["small"].run_id, number).values)

    assert values("step") == list(range(20))
    assert set(values("process.count")) == {1}


@pytest.mark.long
def test_what_a_script_of_the_folders_owner_does_through_mlflow_is_its_runs(
    owner: Bench, docker: DockerEngine
) -> None:
    docker.have(DASHBOARD_BASE)
    owner.script("train.py", THROUGH_MLFLOW)
    owner.radt(
        str(
            owner.experiment(
                "Experiment, Workload, Devices, Environment, Listeners, File\n"
                f"e, 1, cpu, docker:{DASHBOARD_BASE.tag}, none, train.py\n"
            )
        )
    )
    owner.wait_delivered()
    (run,) = owner.reader.runs()
    assert "accuracy" in {series.metric for series in owner.reader.series([run.run_id])}
    assert run.mlflow_run_id is not None
    notes = owner.home / "artifacts" / run.mlflow_run_id / "artifacts" / "notes.txt"
    assert notes.read_text() == "kept"
    assert notes.stat().st_uid == OWNER
