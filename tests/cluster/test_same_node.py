"""``same-node = true``: all workloads of a file run on one node, also those of a later start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from radt.cluster.engine import ArrayRequest, Shape
from radt.cluster.settings import ClusterSettings
from radt.cluster.shaping import on_one_node
from radt.cluster.submission import JobArray
from radt.devices.machine import Machine
from radt.errors import UsageError
from radt.experiment.plan import ExperimentPlan, WorkloadKey
from radt.experiment.source import ExperimentFile
from radt.home import Home
from radt.listeners.api import Registry
from radt.model import RunStatus
from radt.store.records import RunRecord, WorkloadRecord
from radt.store.writer import StoreWriter
from radt.tags import CLUSTER_NODE
from tests.support.simulated import SimulatedEngine

SETTINGS = ClusterSettings(same_node=True)
ARRAYS = [
    JobArray(Shape(cpus=3), ((WorkloadKey("e", "cpu"),), (WorkloadKey("e", "cpu2"),))),
    JobArray(Shape(gpus=2, cpus=1, time_s=60.0), ((WorkloadKey("e", "gpu"),),)),
]
RUN = "0123456789abcdef0123456789abcdef"


def request(array: JobArray, intent: str) -> ArrayRequest:
    return ArrayRequest("e", intent, array.shape, range(len(array.jobs)), "", "")


@pytest.fixture
def plan(tmp_path: Path) -> ExperimentPlan:
    (tmp_path / "train.py").touch()
    path = tmp_path / "e.csv"
    path.write_text(f"Workload,Status,Run,File\nold,FINISHED,{RUN},train.py\ncpu,,,train.py\n")
    return ExperimentFile.read(path).plan(Machine.of_cluster(), Registry({}))


def test_all_jobs_run_where_the_largest_fits_first(plan: ExperimentPlan, tmp_path: Path) -> None:
    engine = SimulatedEngine(nodes=3, gpus=2, cpus=4)
    others = JobArray(Shape(gpus=1), ((WorkloadKey("x", "x"),),))
    engine.submit(request(others, "others"))  # on node1, which still has room for the first array
    engine.advance(1)
    arrays = on_one_node(ARRAYS, plan, SETTINGS, engine, Home(tmp_path / "home"))
    assert arrays == [replace(a, shape=replace(a.shape, node="node2")) for a in ARRAYS]
    names = [engine.submit(request(array, str(n))) for n, array in enumerate(arrays)]
    places = set()
    while engine.unended:
        places |= {state.nodes for state in engine.states(names).values()}
        engine.advance(10)
    assert places - {""} == {"node2"}


def test_a_later_start_goes_where_rows_have_finished(plan: ExperimentPlan, tmp_path: Path) -> None:
    home = Home(tmp_path / "home").create()
    with StoreWriter(home.store_path) as writer:
        writer.put_workload(WorkloadRecord("w", "e", "old", 1))
        writer.put_run(RunRecord(RUN, "w", "e", "old", "a", "", 1, status=RunStatus.FINISHED))
        writer.put_tags(RUN, {CLUSTER_NODE: "node3"})
    engine = SimulatedEngine(nodes=3, gpus=2, cpus=4)
    arrays = on_one_node(ARRAYS, plan, SETTINGS, engine, home)
    assert {array.shape.node for array in arrays} == {"node3"}


def test_several_nodes_are_not_one(plan: ExperimentPlan, tmp_path: Path) -> None:
    several = [*ARRAYS, JobArray(Shape(nodes=2), ((WorkloadKey("e", "wide"),),))]
    with pytest.raises(UsageError, match="a workload needs 2"):
        on_one_node(several, plan, SETTINGS, SimulatedEngine(), Home(tmp_path / "home"))
