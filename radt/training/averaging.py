"""Replicas of one training on a slow network: each trains alone, and now and then they average."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from itertools import compress
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from radt.errors import MissingPackageError, TrainingError, UsageError
from radt.loaders.paced import PacedMetrics, span
from radt.run.notices import say
from radt.training.job import Job
from radt.training.weights import WeightAccess, is_low, masters_of

try:
    from radt.training.exchange import Exchange, averaged, cause_of, sum_dtype
    from radt.training.lighthouse import address_of, answering, own_address
    from radt.training.meeting import Attendance, MeetingRound, Presence
    from radt.training.transport import (
        State,
        StateServer,
        check_sendable,
        fetch,
        own_secret,
        reachable,
    )
except ModuleNotFoundError as error:
    raise MissingPackageError(
        f"ElasticAverager needs {error.name}, which is not installed",
        "pip install 'radt[elastic]'",
    ) from error

#: Polling interval while waiting for other replicas.
_POLL_S = 0.1
#: After this time, report how many replicas are missing.
_PATIENCE_S = 20.0
#: A replica that leaves waits up to this long for the others to finish the round, and checks at
#: this interval that they are still there.
_LEAVE_S = 10.0
_LOOK_S = 0.5
#: Maximum number of failed rounds in a row. Each lost replica fails one round; more failures have
#: another cause.
_MOST_FAILURES = 10


class ElasticAverager:
    """Average the parameters of replicas every `global_batch` samples, which changes training.

    Local SGD (Stich 2019), or DiLoCo with an `outer` optimiser: each replica is a process with a
    whole model and its own data. A round begins when all replicas together have trained on
    `global_batch` samples; then parameters and buffers become the mean, weighted by the number of
    samples of each replica (Atom, section 3.4). Replicas come and go: a new one gets model,
    optimiser and scheduler from a peer at the next round; if one is killed, the others repeat the
    round without it. After that, each replica keeps its own optimiser and random states.

    ::

        with ElasticAverager(job, global_batch=512, group="gpt") as averager:
            while averager.samples < 1_000_000:
                loss = job.step(next(batches))
                averager.did(32)

    The replicas meet at a lighthouse, a process: a row with the role service (``-m
    radt.training.lighthouse --group gpt``), or one that you start. Replicas on other machines need
    its address. While it is away, rounds wait for it. Replicas and lighthouse each listen on one
    address, which is 127.0.0.1 on a single machine; there, other users cannot fetch state. Replicas
    on several machines need a trusted network.

    Args:
        job: The training; its model, optimiser and scheduler are used.
        global_batch: Samples of all replicas from one round to the next.
        group: Name of the group.
        replicas: Number of replicas at which training begins. Later, it continues with fewer.
        outer: Makes the outer optimiser of DiLoCo:
            ``lambda parameters: SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)``.
        plan: Facts that a joining replica needs besides the state, as JSON.
        lighthouse: Address, ``http://HOST:PORT``; if None, that in ``TORCHFT_LIGHTHOUSE``, or of
            the lighthouse of this group on this machine.
        timeout_s: A replica that is silent for this long within a round is dropped.

    Attributes:
        rounds: Rounds since training began; the same in all replicas.
        samples: Samples of all replicas in these rounds; the same in all replicas.
        replicas: Replicas at the last round.
        plan: The group's plan.

    Raises:
        UsageError: An argument is invalid.
        MissingPackageError: torchft or safetensors is not installed.
    """

    def __init__(
        self,
        job: Job,
        *,
        global_batch: int,
        group: str,
        replicas: int = 1,
        outer: Callable[[Iterable[nn.Parameter]], Optimizer] | None = None,
        plan: Mapping[str, Any] | None = None,
        lighthouse: str | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        if global_batch < 1:
            raise UsageError(f"global_batch is {global_batch}, expected 1 or more samples")
        if replicas < 1:
            raise UsageError(f"replicas is {replicas}, expected 1 or more")
        if not group:
            raise UsageError("the group has no name", 'name it, as in group="gpt"')
        address_of(group, lighthouse)  # raises if the address is not valid
        if any(hasattr(parameter, "device_mesh") for parameter in job.model.parameters()):
            raise UsageError(
                "the model's parameters are sharded, and a replica has a part of each alone",
                "Average models of which each replica has the whole, or shard without averaging",
            )
        self._job, self._global_batch, self._group = job, global_batch, group
        self._first_replicas, self._given_lighthouse = replicas, lighthouse
        self._timeout_s = timeout_s
        self.plan = dict(plan or {})
        self.rounds = self.samples = self.replicas = 0
        for piece in job.weights.layout.pieces:
            if piece.dtype.is_complex:
                raise UsageError(
                    f"{piece.name} of the model is complex, which cannot be averaged",
                    "Keep real and imaginary parts in two tensors, or as torch.view_as_real(…)",
                )
        self._anchor: list[nn.Parameter] = []
        self._outer: Optimizer | None = None
        if outer is not None:
            # The parameters after the last round, which DiLoCo's optimiser updates.
            with job.tensors(WeightAccess.READ) as tensors:
                self._anchor = [
                    nn.Parameter(each.detach().to("cpu", sum_dtype(each)).clone())
                    for each in tensors.all
                    if isinstance(each, nn.Parameter)
                ]
            self._outer = outer(self._anchor)
        self._settings = self._described()
        self._step = 0  # rounds, including those of replicas that only joined
        self._pending = 0  # samples since the last round
        self._failures = 0  # in a row
        self._round = MeetingRound("", ())
        self._metrics = PacedMetrics("averaging")
        self._closing: list[Callable[[], None]] = []

    def __enter__(self) -> Self:
        """Join the group: wait for `replicas`, or for the next round of a running training.

        Raises:
            TrainingError: No lighthouse answers within a minute; the group has another model or
                `global_batch`; the state of the job cannot be sent.
        """
        check_sendable(self._state())
        lighthouse = answering(self._group, self._given_lighthouse)
        host = own_address(lighthouse)
        is_local = ip_address(host).is_loopback  # otherwise replicas may be on several machines
        self._secret = own_secret() if is_local else ""
        try:
            self._exchange = Exchange(host, self._timeout_s)
            self._closing.append(self._exchange.close)
            self._server = StateServer(host, self._secret, self._timeout_s)
            self._closing.append(self._server.close)
            self._attendance = Attendance(lighthouse, self._group, self._given_lighthouse)
            self._closing.append(self._attendance.close)
            self._meet()
            say_after_s = time.monotonic() + _PATIENCE_S
            while self.samples == 0 and self.replicas < self._first_replicas:
                if time.monotonic() > say_after_s:
                    say_after_s = math.inf
                    whose = ", for this machine's replicas only," if is_local else ""
                    say(
                        f"{self.replicas} of {self._first_replicas} replicas of group "
                        f"{self._group!r} are at the lighthouse{whose} at {lighthouse}"
                    )
                time.sleep(_POLL_S)
                self._meet()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Average the samples since the last round, unless the block failed, and leave."""
        try:
            if kind is None:
                if self._pending:
                    self._call_others()
                    self._meet()
                self._wait_until_others_have_it()
        finally:
            self.close()

    def close(self) -> None:
        """Leave at once. The others continue without the samples since the last round."""
        while self._closing:
            self._closing.pop()()

    def did(self, samples: int) -> bool:
        """Count the samples of a step, and average if all replicas have done enough.

        Args:
            samples: Samples of this replica since the last call; may be 0.

        Returns:
            True if there was a round.

        Raises:
            UsageError: `samples` is negative.
            TrainingError: The group does not continue with this replica.
        """
        if samples < 0:
            raise UsageError(f"samples is {samples}, expected 0 or more")
        if not self._closing:
            raise UsageError("the averager is not in use", "call did() within its with block")
        self._pending += samples
        counted = self._exchange.count(self._samples_key, samples)
        if counted is not None and counted < self._global_batch:
            return False
        # Either enough samples are done, or the replica with the store is gone. In both cases the
        # others start a round, too.
        self._meet()
        return True

    @property
    def _samples_key(self) -> str:
        return f"samples/{self._round.name}"

    def _ended_key(self, one: Presence) -> str:
        return f"ended/{self._round.name}/{one.replica}"

    def _call_others(self) -> None:
        """Make the others start a round at their next `did`."""
        self._exchange.count(self._samples_key, self._global_batch)

    def _meet(self) -> None:
        """Take part in a round, and repeat it until it succeeds."""
        began_s = time.monotonic()
        with span("average"):
            while not self._attempt():
                pass
        self._metrics.record(time=time.monotonic() - began_s, replicas=float(self.replicas))

    def _attempt(self) -> bool:
        """Take part in a round once. Return True if this replica has its result."""
        settings = self._settings
        mine = Presence(
            self._attendance.replica,
            self._server.address,
            self._exchange.address,
            self._step,
            self._pending,
            self._exchange.mesh,
            self._exchange.mesh_size,
            settings,
        )
        meeting = self._attendance.next_round(mine)
        # All replicas are at this round, so the last one's counts are obsolete.
        self._exchange.forget([self._samples_key, *map(self._ended_key, self._round.present)])
        self._round = meeting
        self._server.withdraw()  # the replicas that joined in the last round have the state
        leading = meeting.leading
        if settings != leading.settings:
            raise TrainingError(
                f"this replica has {settings}, and the group {self._group!r} has "
                f"{leading.settings}",
                "Start all replicas with the same model, optimiser and arguments, or in a group "
                "of another name",
            )
        active = [one.replica for one in meeting.active]
        rank = active.index(mine.replica) if mine.replica in active else None
        state, has_means = None, False
        try:
            self._exchange.use_store(meeting.present[0].store_address)
            if rank is None:
                state = fetch(leading.state_address, meeting.name, self._secret, self._timeout_s)
            elif meeting.samples:
                self._average(meeting, rank)
                has_means = True
        except (RuntimeError, OSError) as error:
            self._repeat(error)
            return False
        self._failures = 0
        if state is not None:
            self._load(state)
        else:
            self._step += 1
        if has_means:
            self.rounds += 1
            self.samples += meeting.samples
        if rank == 0 and len(active) < len(meeting.present):
            self._server.offer(meeting.name, self._state())
        self._pending = 0
        self.replicas = len(meeting.present)
        self._exchange.count(self._ended_key(mine), 1)
        return True

    def _repeat(self, error: Exception) -> None:
        """Prepare to repeat a round after a replica was lost or silent.

        Some of the others may have finished the round, so they are called to the next one.
        """
        self._failures += 1
        if self._failures == _MOST_FAILURES:
            raise TrainingError(
                f"{_MOST_FAILURES} rounds of group {self._group!r} failed one after another, the "
                f"last one by {cause_of(error)}",
                "Check that the machines reach each other on all ports",
            ) from error
        say(f"a round of group {self._group!r} is repeated: {cause_of(error)}")
        self._exchange.disconnect()
        self._call_others()

    def _average(self, meeting: MeetingRound, rank: int) -> None:
        """Average the active replicas. Unless an error is raised, all of them have the mean."""
        weight, exchange = self._pending / meeting.samples, None
        if len(meeting.active) > 1:
            if not _connected(meeting.active):
                self._exchange.connect(meeting.name, rank, len(meeting.active))
            exchange = self._exchange
        # Optimiser states may hold masters of parameters with low precision.
        has_masters = any(is_low(piece.dtype) for piece in self._job.weights.layout.pieces)
        with self._job.tensors(WeightAccess.CHANGE, has_masters) as tensors, torch.no_grad():
            masters = masters_of(self._job.optimizer)
            means = averaged([masters.get(each, each) for each in tensors.all], weight, exchange)
            if exchange is not None:
                exchange.confirm()
            if self._outer is not None:
                means = self._moved(tensors.all, means)
            for tensor, mean in zip(tensors.all, means, strict=True):
                tensor.copy_(mean)
                if (master := masters.get(tensor)) is not None:
                    master.copy_(mean)

    def _moved(self, tensors: Sequence[Tensor], means: Sequence[Tensor]) -> list[Tensor]:
        """Return the means, with the parameters' means updated by the outer optimiser."""
        assert self._outer is not None
        are_parameters = [isinstance(each, nn.Parameter) for each in tensors]
        for anchor, mean in zip(self._anchor, compress(means, are_parameters), strict=True):
            anchor.grad = anchor - mean
        self._outer.step()
        self._outer.zero_grad(set_to_none=True)
        anchors = iter(self._anchor)
        return [
            next(anchors).detach() if is_one else mean
            for mean, is_one in zip(means, are_parameters, strict=True)
        ]

    def _wait_until_others_have_it(self) -> None:
        """Wait until the others have the round's result, which they read from this replica."""
        deadline_s = time.monotonic() + _LEAVE_S
        here = list(self._round.present)
        with suppress(RuntimeError):  # the replica with the store was killed or left first
            while time.monotonic() < deadline_s:
                if self._exchange.wait([self._ended_key(one) for one in here], _LOOK_S):
                    return
                # Stop waiting for replicas that were killed or have left.
                here = [one for one in here if reachable(one.state_address, _LOOK_S)]

    def _described(self) -> str:
        """Return a description of the settings that all replicas must share."""
        pieces = self._job.weights.layout.pieces
        shapes = [[piece.name, list(piece.shape), str(piece.dtype)] for piece in pieces]
        model = hashlib.sha256(json.dumps(shapes).encode()).hexdigest()[:8]
        optimizer = type(self._job.optimizer).__name__
        outer = "" if self._outer is None else f", outer {type(self._outer).__name__}"
        return f"global_batch {self._global_batch}, model {model}, {optimizer}{outer}"

    def _state(self) -> State:
        """Return the state from which a joining replica continues."""
        return {
            "job": self._job.learned_state(),
            "anchor": [anchor.detach() for anchor in self._anchor],
            "outer": None if self._outer is None else self._outer.state_dict(),
            "step": self._step,
            "rounds": self.rounds,
            "samples": self.samples,
            "plan": self.plan,
        }

    @torch.no_grad()
    def _load(self, state: State) -> None:
        self._job.load_learned_state(state["job"])
        for anchor, value in zip(self._anchor, state["anchor"], strict=True):
            anchor.copy_(value)
        if self._outer is not None:
            self._outer.load_state_dict(state["outer"])
        self._step, self.rounds = state["step"], state["rounds"]
        self.samples, self.plan = state["samples"], state["plan"]


def _connected(active: tuple[Presence, ...]) -> bool:
    """Return True if the replicas are already connected with each other and nobody else."""
    meshes = {one.mesh for one in active}
    return len(meshes) == 1 and meshes != {""} and active[0].mesh_size == len(active)
