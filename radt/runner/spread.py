"""What the runner of a workload needs of the other nodes, where its runs are spread over several.

Each node has a runner, which runs its part of every row: the same program, with another
``RADT_NODE``. All of them begin and end a workload together, and its runs have one outcome. The
first node's parts are what the runs are recorded as; its clock is that of all.
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
    """What the parts of a workload have in common; by letter the ids and ports of its runs."""

    workload_id: str
    run_ids: Mapping[str, str]
    ports: Mapping[str, int]


class Spread(Protocol):
    """The other nodes, one workload after the other: each method is called once, in this order."""

    #: Called from any thread when `failed` may have changed.
    on_news: Callable[[], None]

    def begin(self, letters: Sequence[str]) -> SharedWorkload:
        """Return what all nodes call the next workload.

        Raises:
            ClusterError: The first node is gone, or this one is asked to end.
        """

    def variables(self, letter: str) -> Mapping[str, str]:
        """Return what programs find the others by."""

    def meet(self) -> int | None:
        """Wait until all nodes are ready; return when the barrier opens, in monotonic ns here.

        None if it does not: a part has failed, or this node is asked to end.
        """

    def released(self, stamps_ns: Mapping[str, int]) -> Mapping[str, int]:
        """Tell when the runs went on here, by run id; on the first node, return that of all."""

    def ended(self, letter: str, ending: RunEnd) -> None:
        """Tell how a part has ended here; at any time after `begin`, and before `settle`."""

    @property
    def failed(self) -> Mapping[str, RunEnd]:
        """Runs of which a part has not finished somewhere, with the first such end."""

    def settle(self) -> Mapping[str, RunEnd]:
        """Wait for the ends of all parts; return those of the runs."""

    @property
    def tags(self) -> Mapping[str, str]:
        """What is recorded of the parts, as far as it is known here."""


def placed(row: RunPlan, variables: Mapping[str, str]) -> RunPlan:
    """Return a row with its node, their number, and the first one's address in its Params.

    Args:
        row: As planned, when none of them is known yet.
        variables: Of its program; without those of `Spread.variables` it has one node.
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
    """Return ports that nobody listens on at present."""
    sockets = [socket.create_server(("", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in sockets]
    for server in sockets:
        server.close()
    return ports
