"""The first node of a job whose runs span several; see `radt.cluster.multinode`."""

from __future__ import annotations

import json
import os
import platform
import queue
import secrets
import socket
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict

from radt.clock import Clock
from radt.cluster.attempt import JobAttempt, put
from radt.cluster.link import Message, NodeLink
from radt.cluster.multinode import (
    LOOK_S,
    MEET_S,
    MEETING,
    SETTLE_S,
    MessageKind,
    MultiNodeSide,
    lost,
)
from radt.cluster.node import NOTICED, NodeStop
from radt.errors import ClusterError, described
from radt.experiment.status import RowStatus
from radt.model import RunStatus
from radt.parts import RunPart
from radt.peers import GREETING_S, Reception
from radt.runner.multinode import SharedWorkload, free_ports
from radt.runner.outcome import RunEnd

#: Delay in ns between all nodes being ready and the barrier's opening; enough to reach every node.
OPENING_NS = 100_000_000


class FirstNode(MultiNodeSide):
    """The node that leads. It claims the attempt and decides how runs end.

    Args:
        attempt: The attempt that it has claimed.
        rows: The statuses that earlier attempts left.
        nodes: Number of the job's nodes.
        stop: Asked to end when another node is lost.
        unfit: Notes that a node cannot run the job, and returns why nothing runs.
    """

    def __init__(
        self,
        attempt: JobAttempt,
        rows: Mapping[int, RowStatus],
        nodes: int,
        stop: NodeStop,
        unfit: Callable[[str], str],
    ) -> None:
        # The node where srun was called, the job's first, at the address that Slurm uses for it.
        address = os.environ.get("SLURM_LAUNCH_NODE_IPADDR") or platform.node()
        super().__init__(0, nodes, address, stop)
        self._attempt = attempt
        self._rows = rows
        self._unfit = unfit
        self._visitors: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        #: Why the last connection was rejected.
        self._problem = ""
        self._links: dict[int, NodeLink] = {}
        self._names: dict[int, str] = {}
        self._arrived: defaultdict[str, set[int]] = defaultdict(set)
        self._run_ids: set[str] = set()
        #: Nodes that have sent everything to the shared folder, or why they have not.
        self._done: dict[int, str] = {}

    def start(self) -> None:
        """Wait for the other nodes.

        Raises:
            ClusterError: A node does not connect, or cannot run the job.
        """
        Clock.agree(Clock.at_hand().offset_ns)
        secret = secrets.token_hex(32)
        server = socket.create_server(("", 0))
        where = {"address": self._address, "port": server.getsockname()[1], "secret": secret}
        reception = Reception(server, secret, self._visitors.put, self._note)
        try:
            put(self._attempt.path / MEETING, json.dumps(where))
            end_s = time.monotonic() + MEET_S
            while len(self._links) < self._nodes - 1:
                if self._stop:
                    raise ClusterError(self._stop.reason)
                if time.monotonic() > end_s:
                    came = ", ".join(["this one", *self._names.values()])
                    raise ClusterError(
                        f"of the job's {self._nodes} nodes only {came} came together"
                        f"{self._problem}",
                        f"Check that its nodes reach {self._address} by TCP",
                    )
                with suppress(queue.Empty):
                    self._take(self._visitors.get(timeout=LOOK_S))
        finally:
            (self._attempt.path / MEETING).unlink(missing_ok=True)
            reception.close()

    def _note(self, error: Exception) -> None:
        self._problem = f"; {described(error)}"

    def _take(self, connection: socket.socket) -> None:
        """Accept a node that knows the secret; one that disconnects or is silent tries again."""
        try:
            link = NodeLink(connection)
            hello = link.receive(GREETING_S)
            number, name, problem = hello["node"], hello["name"], hello["problem"]
        except (OSError, ClusterError, KeyError) as error:
            self._note(error)
            connection.close()
            return
        if number not in range(1, self._nodes) or number in self._links:
            self._note(ClusterError(f"expected another node of the job, found node {number}"))
            link.close()
            return
        if problem:
            link.close()
            raise ClusterError(self._unfit(problem))
        rows = {line: asdict(row) for line, row in self._rows.items()}
        link.send({"rows": rows, "wall_ns": Clock.at_hand().offset_ns})
        with self._news:
            self._names[number] = name
            self._links[number] = link
        link.listen(
            lambda message: self._hear(number, message),
            lambda problem: self._lose(number, lost(name, problem)),
        )

    # Called by a workload -------------------------------------------------------------------------

    def begin(self, letters: Sequence[str]) -> SharedWorkload:
        ports = dict(zip(letters, free_ports(len(letters)), strict=True))
        shared = SharedWorkload(
            uuid.uuid4().hex, {letter: uuid.uuid4().hex for letter in letters}, ports
        )
        with self._news:
            if self._gone:
                raise ClusterError(self._why_gone)
            self._current += 1
            self._round.shared = shared
            self._run_ids.update(shared.run_ids.values())
        self._say(MessageKind.BEGIN, **asdict(shared))
        return shared

    def meet(self) -> int | None:
        others = set(self._links)
        if not self._wait(lambda: bool(self._round.failed) or self._round.ready >= others):
            return None
        if self.failed:
            return None
        opens_ns = time.monotonic_ns() + OPENING_NS
        self._say(MessageKind.OPEN, at_ns=opens_ns)
        return opens_ns

    def released(self, stamps_ns: Mapping[str, int]) -> Mapping[str, int]:
        def all_reported() -> bool:
            reported = self._round.stamps_ns.keys() | self._round.over | self._gone.keys()
            return reported >= self._links.keys()

        self._wait(all_reported)
        with self._news:
            of_all = dict(stamps_ns)
            for number, stamps in self._round.stamps_ns.items():
                of_all |= {f"{run_id}@{number}": stamp for run_id, stamp in stamps.items()}
        return of_all

    def ended(self, letter: str, ending: RunEnd) -> None:
        with self._news:
            if self._round.fail(letter, ending):
                self._say_ends(self._round.failed)

    def settle(self) -> Mapping[str, RunEnd]:
        self._wait(
            lambda: self._round.over | self._gone.keys() >= self._links.keys(), stopped_s=SETTLE_S
        )
        with self._news:
            round_ = self._round
            assert round_.shared is not None
            for number in sorted(self._links.keys() - round_.over):
                self._fail_all(f"{self._names[number]} did not end its part")
            finished = RunEnd(RunStatus.FINISHED)
            endings = dict.fromkeys(round_.shared.ports, finished) | round_.failed
            round_.settled = endings
            self._say_ends(endings, is_settled=True)
        return endings

    # The end --------------------------------------------------------------------------------------

    def arrived(self, run_id: str, number: int = 0) -> None:
        """Note that a run's part is completely in the shared folder."""
        with self._news:
            self._arrived[run_id].add(number)
            is_all = len(self._arrived[run_id]) == self._nodes
            is_child = run_id not in self._run_ids  # a child run belongs to one node's process
        if is_all or is_child:
            self.on_arrived(run_id)

    def finish(self, reason: str, unsent: str, deadline_s: Callable[[], float]) -> str:
        """Wait until the other nodes have sent everything; return what is missing.

        Args:
            reason: Why this node does not run all of its rows; "" if it has.
            unsent: What this node could not send; "" for nothing.
            deadline_s: Returns the current deadline on the monotonic clock.
        """
        self._say(MessageKind.DONE, reason=reason)
        with self._news:
            while self._links.keys() - self._done.keys() - self._gone.keys():
                if time.monotonic() >= deadline_s():
                    return unsent or "not all was sent from another node"
                self._news.wait(LOOK_S)
            lost = [why for number, why in self._gone.items() if number not in self._done]
            return next(filter(None, (unsent, *self._done.values(), *lost)), "")

    def close(self) -> None:
        """Disconnect."""
        with self._news:
            self._done |= dict.fromkeys(self._links.keys() - self._done.keys(), "")
        for link in self._links.values():
            link.close()

    # Messages -------------------------------------------------------------------------------------

    def _say(self, kind: MessageKind, **more: object) -> None:
        for link in list(self._links.values()):
            link.send({"kind": kind, "round": self._current, **more})

    def _say_ends(self, ends: Mapping[str, RunEnd], *, is_settled: bool = False) -> None:
        of_letters = {letter: asdict(end) for letter, end in ends.items()}
        self._say(MessageKind.ENDS, ends=of_letters, is_settled=is_settled)

    def _fail_all(self, reason: str) -> None:
        round_ = self._round
        if round_.shared is not None and round_.settled is None:
            for letter in round_.shared.ports:
                round_.fail(letter, RunEnd(RunStatus.KILLED, reason))
            self._say_ends(round_.failed)

    def _hear(self, number: int, message: Message) -> None:
        if (kind := MessageKind(message["kind"])) is MessageKind.ARRIVED:
            self.arrived(message["run"], number)
            return
        with self._news:
            round_ = self._rounds[message["round"]]
            match kind:
                case MessageKind.READY:
                    round_.parts[number] = RunPart(**message["part"])
                    round_.ready.add(number)
                case MessageKind.RELEASED:
                    round_.stamps_ns[number] = message["stamps_ns"]
                case MessageKind.ENDED if round_ is self._round:
                    reason = str(message["reason"])
                    if reason not in NOTICED:  # the engine signals all nodes, so name none
                        reason = f"{reason} (on {self._names[number]})".lstrip()
                    if round_.fail(message["letter"], RunEnd(RunStatus(message["status"]), reason)):
                        self._say_ends(round_.failed)
                case MessageKind.OVER:
                    if message["part"] is not None:
                        round_.parts[number] = RunPart(**message["part"])
                    round_.over.add(number)
                case MessageKind.DONE:
                    self._done[number] = message["unsent"]
                    why = message["reason"] or "its part of the job has ended"
                    self._lose(number, f"{self._names[number]}: {why}")
            self._notify()

    def _lose(self, number: int, reason: str) -> None:
        with self._news:
            if number in self._gone:
                return
            self._gone[number] = reason
            if number not in self._round.over:
                self._fail_all(reason)
            self._notify()
            was_lost = number not in self._done
        if was_lost:
            self._stop.request_once(reason)
