"""The nodes of a job whose runs span several: the messages between their runners.

The first node (`FirstNode`) claims the attempt, writes the statuses of rows, and decides: when a
workload begins, when its barrier opens, which runs have failed and how they have ended. The others
(`OtherNode`) connect to its address, which is in the shared folder, and report their events to it.
All times are on the first node's clock (`radt.clock.Clock.agree`).

A node that loses the connection ends its runs: the connection of a dead runner is closed by its
kernel, and that of a node without power or network ends within half a minute (`radt.cluster.link`).
Every wait for another node ends with its connection, and soon after the job is asked to end.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from radt.cluster.node import NodeStop
from radt.model import RunStatus
from radt.parts import RunPart, to_tag
from radt.runner.multinode import (
    MASTER_ADDRESS,
    MASTER_PORT,
    NODE,
    NODES,
    SharedWorkload,
)
from radt.runner.outcome import RunEnd
from radt.tags import CLUSTER_PARTS

#: Seconds that the nodes of a job wait for each other; the folder may show files a minute late.
MEET_S = 300.0
#: Seconds that a stopped job waits for the ends of the other nodes' parts.
SETTLE_S = 15.0
#: Minimum time in s that this wait leaves for sending its own part to the shared folder.
_LAST_S = 6.0
#: Seconds between checks of the folder and of signals, which cannot wake a waiting thread.
LOOK_S = 0.2
#: File with the address of an attempt's first node.
MEETING = "meeting.json"


@dataclass(frozen=True, slots=True)
class Hello:
    """A node's first message to the first node; ``problem`` is why it cannot run the job, or ""."""

    node: int
    name: str
    problem: str


class Kind(StrEnum):
    """The kind of a message between nodes; its ``round`` counts workloads."""

    BEGIN = "begin"  # ids and ports of the next workload
    READY = "ready"  # the local part is at the barrier; reading of the local clock
    OPEN = "open"  # when the barrier opens
    RELEASED = "released"  # when the local runs passed it
    ENDED = "ended"  # how a local part has ended
    OVER = "over"  # all local parts have ended; reading of the local clock
    ENDS = "ends"  # runs that must end on all nodes, or finally how all have ended
    ARRIVED = "arrived"  # all of a run's part is in the shared folder
    DONE = "done"  # all data of this node is sent; from the first node: no more workloads


@dataclass(slots=True)
class Round:
    """The state of a workload, keyed by letters of rows or numbers of nodes."""

    shared: SharedWorkload | None = None
    ready: set[int] = field(default_factory=set)
    opens_ns: int | None = None
    stamps_ns: dict[int, dict[str, int]] = field(default_factory=dict)
    failed: dict[str, RunEnd] = field(default_factory=dict)
    over: set[int] = field(default_factory=set)
    parts: dict[int, RunPart] = field(default_factory=dict)
    settled: dict[str, RunEnd] | None = None

    def fail(self, letter: str, ending: RunEnd) -> bool:
        """Record how a part failed; return True if it is the first failure of its run."""
        if ending.status is RunStatus.FINISHED or letter in self.failed:
            return False
        self.failed[letter] = ending
        return True


def lost(name: str, problem: str) -> str:
    """Return a message that a node was lost, with the error in its last message, if any."""
    return f"{name} was lost" + (f": {problem}" if problem else "")


class MultiNodeSide:
    """The common part of both sides; see `radt.runner.multinode.MultiNode`.

    ``_news`` guards the state of the other nodes and is notified of changes.
    """

    def __init__(self, number: int, nodes: int, address: str, stop: NodeStop) -> None:
        self.number = number
        self._nodes = nodes
        self._address = address
        self._stop = stop
        self.on_news: Callable[[], None] = lambda: None
        #: Called when all parts of a run are in the shared folder, as far as this node knows.
        self.on_arrived: Callable[[str], None] = lambda _: None
        self._news = threading.Condition(threading.RLock())
        self._rounds: defaultdict[int, Round] = defaultdict(Round)
        self._current = 0
        #: Nodes that no longer take part, and why.
        self._gone: dict[int, str] = {}

    @property
    def _round(self) -> Round:
        return self._rounds[self._current]

    def variables(self, letter: str) -> Mapping[str, str]:
        shared = self._round.shared
        assert shared is not None
        return {
            MASTER_ADDRESS: self._address,
            MASTER_PORT: str(shared.ports[letter]),
            NODE: str(self.number),
            NODES: str(self._nodes),
        }

    @property
    def failed(self) -> Mapping[str, RunEnd]:
        with self._news:
            return dict(self._round.failed)

    @property
    def tags(self) -> Mapping[str, str]:
        with self._news:
            parts = [part for _, part in sorted(self._round.parts.items())]
        return {CLUSTER_PARTS: to_tag(parts)} if parts else {}

    @property
    def _why_gone(self) -> str:
        return "; ".join(self._gone.values())

    def _wait(self, is_so: Callable[[], bool], *, stopped_s: float = 0.0) -> bool:
        """Wait until `is_so`; return False if it is not `stopped_s` after a stop request."""
        until_s: float | None = None
        with self._news:
            while not is_so():
                if self._stop:
                    if until_s is None:
                        latest_s = self._stop.deadline_s - _LAST_S
                        until_s = min(time.monotonic() + stopped_s, latest_s)
                    if time.monotonic() >= until_s:
                        return False
                self._news.wait(LOOK_S)
        return True

    def _notify(self) -> None:
        self._news.notify_all()
        self.on_news()
