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

import json
import platform
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from radt.clock import Clock
from radt.cluster.attempt import JobAttempt
from radt.cluster.link import ClockReading, Message, NodeLink
from radt.cluster.node import NodeStop, node_name, this_start
from radt.cluster.spool import Spool
from radt.cluster.submission import JobKey
from radt.errors import ClusterError
from radt.experiment.status import RowStatus
from radt.model import RunStatus
from radt.parts import RunPart, to_tag
from radt.peers import prove
from radt.runner.multinode import MASTER_ADDRESS, MASTER_PORT, NODE, NODES, SharedWorkload
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


class MessageKind(StrEnum):
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
class WorkloadRound:
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
        self._rounds: defaultdict[int, WorkloadRound] = defaultdict(WorkloadRound)
        self._current = 0
        #: Nodes that no longer take part, and why.
        self._gone: dict[int, str] = {}

    @property
    def _round(self) -> WorkloadRound:
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


_CONNECT_S = 30.0


class OtherNode(MultiNodeSide):
    """A node that follows the first. Made by `joined`."""

    def __init__(
        self,
        number: int,
        nodes: int,
        address: str,
        link: NodeLink,
        welcome: Message,
        attempt: JobAttempt,
        stop: NodeStop,
    ) -> None:
        super().__init__(number, nodes, address, stop)
        self._link = link
        self.attempt = attempt
        self.rows = {int(line): RowStatus(**row) for line, row in welcome["rows"].items()}
        self._wall_ns = int(welcome["wall_ns"])
        self._fixed_ns = 0
        self._before: ClockReading | None = None
        self._is_done = False
        link.listen(self._hear, self._lose)

    @classmethod
    def joined(
        cls, spool: Spool, job: JobKey, number: int, problem: str, stop: NodeStop
    ) -> OtherNode | None:
        """Connect to the first node; return None if nothing is to be run here.

        Args:
            spool: The submission.
            job: The job.
            number: The number of this node.
            problem: Why this node cannot run the job; "" if it can.
            stop: Ends the wait.

        Raises:
            ClusterError: The first node cannot be reached.
        """
        nodes = spool.submission.arrays[job.array].shape.nodes
        end_s = time.monotonic() + MEET_S
        why = ""
        while time.monotonic() < end_s and not stop:
            try:
                if (attempt := _own_attempt(spool, job)) is not None:
                    with suppress(FileNotFoundError):  # it is not there yet, or no longer
                        where = dict(json.loads((attempt.path / MEETING).read_bytes()))
                        return cls._met(where, number, nodes, problem, attempt, stop)
                    if attempt.view().ended:
                        return None
            except (OSError, ClusterError, ValueError) as error:
                why = f": {error}"
            time.sleep(LOOK_S)
        if stop:
            return None
        raise ClusterError(f"the first node of the job does not come{why}")

    @classmethod
    def _met(
        cls,
        where: Message,
        number: int,
        nodes: int,
        problem: str,
        attempt: JobAttempt,
        stop: NodeStop,
    ) -> OtherNode | None:
        address = where["address"]
        connection = socket.create_connection((address, where["port"]), _CONNECT_S)
        try:
            prove(connection, where["secret"], is_server=False, timeout_s=_CONNECT_S)
            link = NodeLink(connection)
            link.send({"node": number, "name": node_name(), "problem": problem})
            if problem:
                link.close()
                return None
            return cls(number, nodes, address, link, link.receive(), attempt, stop)
        except BaseException:
            connection.close()
            raise

    def start(self) -> None:
        """Use the first node's clock from now on.

        Raises:
            ClusterError: It does not answer.
        """
        self._fixed_ns = self._link.read_clock().offset_ns
        Clock.agree(self._fixed_ns + self._wall_ns)

    # Called by a workload -------------------------------------------------------------------------

    def begin(self, letters: Sequence[str]) -> SharedWorkload:
        with self._news:
            self._current += 1
            self._wait(lambda: self._round.shared is not None or bool(self._gone))
            shared = self._round.shared
        if shared is None:
            raise ClusterError(self._stop.reason if self._stop else self._why_gone)
        if shared.ports.keys() != set(letters):
            raise ClusterError("the first node begins another workload")
        return shared

    def meet(self) -> int | None:
        try:
            before = self._before = self._link.read_clock()
        except ClusterError:
            return None  # the connection is being lost
        self._say(MessageKind.READY, part=self._part(before))
        self._wait(lambda: bool(self._round.opens_ns or self._round.failed or self._gone))
        opens_ns = self._round.opens_ns
        return None if opens_ns is None or self.failed else opens_ns - before.offset_ns

    def released(self, stamps_ns: Mapping[str, int]) -> Mapping[str, int]:
        offset_ns = self._before.offset_ns if self._before is not None else self._fixed_ns
        on_first_ns = {run_id: stamp + offset_ns for run_id, stamp in stamps_ns.items()}
        self._say(MessageKind.RELEASED, stamps_ns=on_first_ns)
        return stamps_ns

    def ended(self, letter: str, ending: RunEnd) -> None:
        self._say(MessageKind.ENDED, letter=letter, **asdict(ending))

    def settle(self) -> Mapping[str, RunEnd]:
        before, self._before = self._before, None
        part = None
        if before is not None and not self._gone:
            with suppress(ClusterError):
                part = self._part(before, self._link.read_clock())
        self._say(MessageKind.OVER, part=part)
        self._wait(
            lambda: self._round.settled is not None or bool(self._gone), stopped_s=2 * SETTLE_S
        )
        with self._news:
            if self._round.settled is not None:
                return self._round.settled
            lost = RunEnd(RunStatus.KILLED, self._why_gone or self._stop.reason)
            shared = self._round.shared
            return dict.fromkeys(shared.ports if shared is not None else (), lost)

    def _part(self, before: ClockReading, after: ClockReading | None = None) -> Message:
        """Return the error bound of times here, which all use the offset from the job's start."""
        error_ns = max(
            abs(reading.offset_ns - self._fixed_ns) + reading.error_ns
            for reading in (before, after or before)
        )
        drift_ns = None if after is None else after.offset_ns - before.offset_ns
        host = platform.node()
        return asdict(RunPart(self.number, node_name(), host, self._fixed_ns, error_ns, drift_ns))

    # The end --------------------------------------------------------------------------------------

    def arrived(self, run_id: str) -> None:
        """Report that a run's part is completely in the shared folder."""
        self._say(MessageKind.ARRIVED, run=run_id)
        self.on_arrived(run_id)

    def finish(self, reason: str, unsent: str, _deadline_s: Callable[[], float]) -> str:
        """Report that everything is sent, or why not; return the reason. See `FirstNode.finish`."""
        self._is_done = True
        self._say(MessageKind.DONE, reason=reason, unsent=unsent)
        return unsent

    def close(self) -> None:
        """Disconnect."""
        self._is_done = True
        self._link.close()

    # Messages -------------------------------------------------------------------------------------

    def _say(self, kind: MessageKind, **more: object) -> None:
        self._link.send({"kind": kind, "round": self._current, **more})

    def _hear(self, message: Message) -> None:
        with self._news:
            round_ = self._rounds[message["round"]]
            match MessageKind(message["kind"]):
                case MessageKind.BEGIN:
                    round_.shared = SharedWorkload(
                        message["workload_id"], message["run_ids"], message["ports"]
                    )
                case MessageKind.OPEN:
                    round_.opens_ns = int(message["at_ns"])
                case MessageKind.ENDS:
                    ends = {
                        letter: RunEnd(RunStatus(end["status"]), end["reason"])
                        for letter, end in message["ends"].items()
                    }
                    if message["is_settled"]:
                        round_.settled = ends
                    else:
                        round_.failed = ends
                case MessageKind.DONE:
                    why = message["reason"] or "it begins nothing more"
                    self._gone.setdefault(0, f"the first node: {why}")
            self._notify()

    def _lose(self, problem: str) -> None:
        reason = lost("the first node", problem)
        with self._news:
            self._gone.setdefault(0, reason)
            self._notify()
            was_lost = not self._is_done
        if was_lost:
            self._stop.request_once(reason)


def _own_attempt(spool: Spool, job: JobKey) -> JobAttempt | None:
    """Return the attempt that the first node has claimed in this start; None before."""
    here = this_start()
    for attempt in reversed(spool.attempts(job)):
        first = attempt.view().start
        if first is not None and (first.job_id, first.restarts) == (here.job_id, here.restarts):
            return attempt
    return None
