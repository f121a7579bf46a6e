"""The interface to the other nodes, for workloads whose runs span several nodes.

Each node has a runner, which runs its part of every row: the same program with another
``RADT_NODE``. All nodes begin and end a workload together, and each run has one outcome. The runs
are recorded as the first node's parts, on the first node's clock.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from radt.experiment.plan import RunPlan
from radt.experiment.templates import (
    AT_START,
    MASTER_PLACEHOLDER,
    NODE_PLACEHOLDER,
    NODES_PLACEHOLDER,
)
from radt.runner.outcome import RunEnd

MASTER_ADDRESS, MASTER_PORT = "MASTER_ADDR", "MASTER_PORT"
NODE, NODES = "RADT_NODE", "RADT_NODES"
_NAMES = "|".join(AT_START)
_AT_START = re.compile(rf"\{{\{{(?P<kept>{_NAMES})\}}\}}|\{{(?P<name>{_NAMES})\}}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SharedWorkload:
    """The ids that all parts of a workload share; run ids and ports are keyed by letter."""

    workload_id: str
    run_ids: Mapping[str, str]
    ports: Mapping[str, int]


class MultiNode(Protocol):
    """The other nodes. For each workload, every method is called once, in this order."""

    #: Called from any thread when `failed` may have changed.
    on_news: Callable[[], None]

    def begin(self, letters: Sequence[str]) -> SharedWorkload:
        """Return the ids that all nodes use for the next workload.

        Raises:
            ClusterError: The first node is gone, or this node was asked to end.
        """

    def variables(self, letter: str) -> Mapping[str, str]:
        """Return the variables by which programs find the other nodes."""

    def meet(self) -> int | None:
        """Wait until all nodes are ready; return when to open the barrier, in monotonic ns here.

        Return None if it must not open: a part has failed, or this node was asked to end.
        """

    def released(self, stamps_ns: Mapping[str, int]) -> Mapping[str, int]:
        """Report when runs passed the barrier here, by run id; return the first node's times."""

    def ended(self, letter: str, ending: RunEnd) -> None:
        """Report how a part ended here; call it any time after `begin` and before `settle`."""

    @property
    def failed(self) -> Mapping[str, RunEnd]:
        """Return runs with an unfinished part on any node, with the first such end."""

    def settle(self) -> Mapping[str, RunEnd]:
        """Wait until all parts have ended; return the ends of the runs."""

    @property
    def tags(self) -> Mapping[str, str]:
        """Return the tags that describe the parts, as far as this node knows them."""


def placed(row: RunPlan, variables: Mapping[str, str]) -> RunPlan:
    """Return a row with node number, node count and first address filled into its Params.

    Args:
        row: The planned row, with placeholders for values that are known only at the start.
        variables: The program's variables; without those of `MultiNode.variables`, there is one
            node.
    """
    if not row.line or not any(map(_AT_START.search, row.params)):  # a script has no placeholders
        return row
    address = variables.get(MASTER_ADDRESS, "127.0.0.1")
    port = variables.get(MASTER_PORT) or str(free_ports(1)[0])
    values = {
        NODE_PLACEHOLDER.lower(): variables.get(NODE, "0"),
        NODES_PLACEHOLDER.lower(): variables.get(NODES, "1"),
        MASTER_PLACEHOLDER.lower(): f"{address}:{port}",
    }

    def filled(match: re.Match[str]) -> str:
        kept = match["kept"]
        return f"{{{kept}}}" if kept is not None else values[match["name"].lower()]

    return replace(row, params=tuple(_AT_START.sub(filled, word) for word in row.params))


def free_ports(count: int) -> list[int]:
    """Return ports that nothing listens on at present."""
    sockets = [socket.create_server(("", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in sockets]
    for server in sockets:
        server.close()
    return ports
