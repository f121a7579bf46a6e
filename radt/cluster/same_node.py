"""All workloads of a file on one node (``same-node = true``), where they compare best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from radt.cluster.engine import Engine
from radt.cluster.script import array_request
from radt.cluster.settings import ClusterSettings
from radt.cluster.shape import JobArray, Shape
from radt.errors import UsageError
from radt.experiment.plan import ExperimentPlan
from radt.home import Home
from radt.model import RunStatus
from radt.tags import CLUSTER_NODE


def on_one_node(
    arrays: Sequence[JobArray],
    plan: ExperimentPlan,
    settings: ClusterSettings,
    engine: Engine,
    home: Home,
) -> Sequence[JobArray]:
    """Return the arrays with the node that all of their jobs are to run on.

    It is the one of the file's rows that have finished, else where the engine would start the
    largest job first. Whether every shape fits there, the engine is asked later.

    Args:
        arrays: At least one.
        plan: The file's.
        settings: Of the cluster.
        engine: Of the cluster.
        home: Has the runs of rows that have finished.

    Raises:
        UsageError: A workload wants several nodes.
        ClusterError: The engine does not say where.
    """
    shapes = [array.shape for array in arrays]
    most = max(shape.nodes for shape in shapes)
    if most > 1:
        raise UsageError(
            f"same-node in {settings.source} runs all on one node, and a workload needs {most}",
            "Remove same-node, or the numbers in Nodes",
        )
    node = _node_before(plan, home)
    if not node:
        array = replace(arrays[0], shape=_largest(shapes))
        folder = settings.submissions(home.path) / "test"
        node = engine.pick(
            array_request(folder, 0, array, settings, name=plan.name, intent="radt: a test")
        )
    return [replace(array, shape=replace(array.shape, node=node)) for array in arrays]


def _largest(shapes: Sequence[Shape]) -> Shape:
    """Return a shape as large as the largest of them, if they want GPUs of one type."""
    return replace(
        max(shapes, key=lambda shape: shape.gpus),
        cpus=max(shape.cpus or 0 for shape in shapes) or None,
        memory_bytes=max(shape.memory_bytes or 0 for shape in shapes) or None,
        exclusive=any(shape.exclusive for shape in shapes),
    )


def _node_before(plan: ExperimentPlan, home: Home) -> str:
    """The node on which rows of the file have finished; "" if none has on a cluster."""
    finished = [run.run_id for run in plan.runs if run.status is RunStatus.FINISHED and run.run_id]
    if not finished or not home.store_path.exists():
        return ""
    from radt.store.reader import StoreReader  # needs SQLAlchemy, see `radt.store.peek`

    with StoreReader(home.store_path) as reader:
        tags = reader.tags_of(finished)
    nodes = (tags[run_id].get(CLUSTER_NODE, "") for run_id in finished if run_id in tags)
    return next(filter(None, nodes), "")
