"""The engine of a cluster."""

from __future__ import annotations

from radt.cluster.engine import Engine
from radt.cluster.settings import ClusterSettings


def open_engine(settings: ClusterSettings) -> Engine:  # noqa: ARG001 - there is one kind as yet
    """Return the engine of a cluster; nothing is asked of it yet."""
    from radt.cluster.slurm import Slurm

    return Slurm()
