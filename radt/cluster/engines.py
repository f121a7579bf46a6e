"""The engine of a cluster."""

from __future__ import annotations

from radt.cluster.engine import Engine
from radt.cluster.settings import ClusterSettings


def open_engine(
    settings: ClusterSettings,  # noqa: ARG001 - there is one kind as yet
    patience_s: float | None = None,
) -> Engine:
    """Return the engine of a cluster; nothing is asked of it yet.

    Args:
        settings: Of the cluster.
        patience_s: How long an answer may take; None for as long as it usually waits.
    """
    from radt.cluster.slurm import Slurm

    return Slurm(patience_s)
