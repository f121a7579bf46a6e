"""The nodes of a job whose runs are spread over several: what their runners say to each other.

The first node (`radt.cluster.firstnode`) claims the attempt, writes how rows stand, and decides: it
says when a workload begins, when its barrier opens, which runs have failed and how they have ended.
The others (`radt.cluster.othernode`) meet it at an address in the shared folder, and tell it what
happens on them. Times of all nodes are those of the first node's clock (`radt.clock.Clock.agree`).

Who loses the other ends its runs: the connection of a runner that has died is closed, and that of a
node without power or network ends within half a minute (`radt.cluster.link`). What waits for
another node ends with its connection, and soon after the job is asked to end.
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
from radt.runner.outcome import RunEnd
from radt.runner.spread import MASTER_ADDRESS, MASTER_PORT, NODE, NODES, SharedWorkload
from radt.tags import CLUSTER_PARTS

#: How long nodes of a job wait for each other to come; the folder may show files a minute late.
MEET_S = 300.0
#: How long a stopped job waits for the ends of the other nodes' parts.
SETTLE_S = 15.0
#: What it then has left at least, to bring its part into the shared folder.
_LAST_S = 6.0
#: How often the folder and signals are looked at, which wake nobody.
LOOK_S = 0.2
#: Where the first node of an attempt is.
MEETING = "meeting.json"


@dataclass(frozen=True, slots=True)
class Hello:
    """First message of a node to the first one; ``problem`` is why it cannot run the job, or ""."""

    node: int
    name: str
    problem: str


class Kind(StrEnum):
    """What a message between nodes says; ``round`` in it counts workloads."""

    BEGIN = "begin"  # ids and ports of the next workload
    READY = "ready"  # the part here stands at the barrier; how the clock here is
    OPEN = "open"  # when it opens
    RELEASED = "released"  # when the runs went on here
    ENDED = "ended"  # how a part has ended here
    OVER = "over"  # all parts here have ended; how the clock is now
    ENDS = "ends"  # runs that are to end everywhere, or at last how all have ended
    ARRIVED = "arrived"  # all of a run's part is in the shared folder
    DONE = "done"  # all of this node is there; or the first one begins nothing more


@dataclass(slots=True)
class Round:
    """What is known of a workload; by letters of rows or numbers of nodes."""

    shared: SharedWorkload | None = None
    ready: set[int] = field(default_factory=set)
    opens_ns: int | None = None
    stamps_ns: dict[int, dict[str, int]] = field(default_factory=dict)
    failed: dict[str, RunEnd] = field(default_factory=dict)
    over: set[int] = field(default_factory=set)
    parts: dict[int, RunPart] = field(default_factory=dict)
    settled: dict[str, RunEnd] | None = None

    def fail(self, letter: str, ending: RunEnd) -> bool:
        """Note the first end of a part that has not finished; return whether it is that."""
        if ending.status is RunStatus.FINISHED or letter in self.failed:
            return False
        self.failed[letter] = ending
        return True


def lost(name: str, problem: str) -> str:
    """Return that a node was lost, and what was wrong with its last message, if anything."""
    return f"{name} was lost" + (f": {problem}" if problem else "")


class Team:
    """What both sides have in common; see `radt.runner.spread.Spread`.

    All that is known of the other nodes is kept under ``_news``, which is notified of changes.
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
        #: Nodes that take no more part, and why.
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
        """Wait; return whether it came to be so, or the job was asked to end so long before."""
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

    def _tell(self) -> None:
        self._news.notify_all()
        self.on_news()
