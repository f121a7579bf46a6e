"""Replicas of one training on a slow network: each trains alone, now and then they average."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from radt.errors import MissingPackageError, TrainingError, UsageError, described
from radt.loaders.paced import PacedMetrics
from radt.run.notices import say
from radt.run.run import active_run
from radt.training.job import Job

try:
    from radt.training.exchange import Exchange, add_quietly, averaged
    from radt.training.lighthouse_search import FoundLighthouse, own_address
    from radt.training.meeting import Attendance, Presence, Round
    from radt.training.transport import (
        State,
        StateServer,
        check_sendable,
        fetch,
        reachable,
    )
except ModuleNotFoundError as error:
    raise MissingPackageError(
        f"ElasticAverager needs {error.name}, which is not installed",
        "pip install 'radt[elastic]'",
    ) from error

#: How often replicas that wait for others look again.
_POLL_S = 0.1
#: After so long they say how many are missing.
_PATIENCE_S = 20.0
#: A replica that leaves lets the others finish the round before it closes its connections, and
#: looks so often whether they are there.
_LEAVE_S = 10.0
_LOOK_S = 0.5
#: Each failure is a replica that is gone. More in a row are none: something else is wrong.
_MOST_FAILURES = 10


class ElasticAverager:
    """Average the parameters of replicas every `global_batch` samples, which changes training.

    Local SGD (Stich 2019), or DiLoCo with an `outer` optimiser: each replica is a process with a
    whole model and its own data. A round begins when all replicas together have done `global_batch`
    samples; then parameters and buffers become the mean, weighted by the samples that each replica
    did (Atom, section 3.4). Replicas come and go: a new one gets model, optimiser and scheduler
    from a peer at the next round; if one is killed, the others repeat the round without it.
    Optimiser states and random states stay each replica's own after that.

    ::

        with ElasticAverager(job, global_batch=512, group="gpt") as averager:
            while averager.samples < 1_000_000:
                loss = job.step(next(batches))
                averager.did(32)

    The replicas meet at a lighthouse, a process. On one machine the first replica starts it, unless
    a row with the role service does (``-m radt.training.lighthouse --group gpt``), and it ends when
    nobody is left; several machines need its address. If it is away, rounds wait until it is there
    again. Replicas and lighthouse listen at one address each, which on one machine is 127.0.0.1;
    there, other users get no state. Replicas on several machines need a trusted network.

    Args:
        job: The training; its model, optimiser and scheduler are used.
        global_batch: Samples of all replicas from one round to the next.
        group: Name of the group.
        replicas: Training begins when so many are there; later, fewer go on.
        outer: Makes the outer optimiser of DiLoCo:
            ``lambda parameters: SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)``.
        plan: What a replica that joins needs to know beside the state, as JSON.
        lighthouse: Address, ``http://HOST:PORT``; if None, that in ``TORCHFT_LIGHTHOUSE``, or of
            the lighthouse of this group on this machine, which is started if there is none.
        timeout_s: A replica that sends nothing for so long within a round is given up.

    Attributes:
        rounds: Rounds since training began; the same in all replicas.
        samples: Samples in them, of all replicas; the same in all.
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
        if lighthouse is not None and not lighthouse.startswith("http://"):
            raise UsageError(f"lighthouse is {lighthouse!r}, expected http://HOST:PORT")
        self._job, self._global_batch, self._group = job, global_batch, group
        self._first_replicas, self._given_lighthouse = replicas, lighthouse
        self._timeout_s = timeout_s
        self.plan = dict(plan or {})
        self.rounds = self.samples = self.replicas = 0
        for name, tensor in [*job.model.named_parameters(), *job.model.named_buffers()]:
            if tensor.is_complex():
                raise UsageError(
                    f"{name} of the model is complex, which cannot be averaged",
                    "Keep real and imaginary parts in two tensors, or as torch.view_as_real(…)",
                )
        self._parameters = list(job.model.parameters())
        self._buffers = list(job.model.buffers())
        # What all had after the last round, which DiLoCo's optimiser moves.
        self._anchor = [nn.Parameter(p.detach().cpu().clone()) for p in self._parameters if outer]
        self._outer = outer(self._anchor) if outer else None
        self._step = 0  # rounds, those of replicas that only joined included
        self._pending = 0  # samples since the last round
        self._failures = 0  # in a row
        self._round = Round("", ())
        self._metrics = PacedMetrics("averaging")
        self._closing: list[Callable[[], None]] = []

    def __enter__(self) -> Self:
        """Join the group: wait for `replicas`, or for the next round of a training under way.

        Raises:
            TrainingError: No lighthouse answers within a minute, or it cannot be started; the group
                has another model or `global_batch`; the state of the job cannot be sent.
        """
        check_sendable(self._state())
        lighthouse = FoundLighthouse(self._group, self._given_lighthouse)
        self._closing.append(lighthouse.close)
        try:
            host, self._secret = own_address(lighthouse.address), lighthouse.secret
            self._exchange = Exchange(host, self._timeout_s)
            self._closing.append(self._exchange.close)
            self._server = StateServer(host, self._secret, self._timeout_s)
            self._closing.append(self._server.close)
            self._attendance = Attendance(lighthouse, self._group)
            self._closing.append(self._attendance.close)
            self._meet()
            say_after_s = time.monotonic() + _PATIENCE_S
            while self.samples == 0 and self.replicas < self._first_replicas:
                if time.monotonic() > say_after_s:
                    say_after_s = math.inf
                    whose = ", for this machine's replicas only," if lighthouse.is_local else ""
                    say(
                        f"{self.replicas} of {self._first_replicas} replicas of group "
                        f"{self._group!r} are at the lighthouse{whose} at {lighthouse.address}"
                    )
                time.sleep(_POLL_S)
                self._meet()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Average what was done since the last round, unless the block failed, and leave."""
        try:
            if kind is None:
                if self._pending:
                    self._call_others()
                    self._meet()
                self._wait_until_others_have_it()
        finally:
            self.close()

    def close(self) -> None:
        """Leave at once; the others go on without what was done since the last round."""
        while self._closing:
            self._closing.pop()()

    def did(self, samples: int) -> bool:
        """Count the samples of a step, and average if all replicas have done enough.

        Args:
            samples: Samples of this replica since the last call; may be 0.

        Returns:
            Whether there was a round.

        Raises:
            UsageError: `samples` is negative.
            TrainingError: The group does not go on with this replica.
        """
        if samples < 0:
            raise UsageError(f"samples is {samples}, expected 0 or more")
        if not self._closing:
            raise UsageError("the averager is not in use", "call did() within its with block")
        self._pending += samples
        counted = add_quietly(self._exchange, self._samples_key, samples)
        if counted is not None and counted < self._global_batch:
            return False
        # All is done, or whoever counted is gone: then the others come to a round, too.
        self._meet()
        return True

    @property
    def _samples_key(self) -> str:
        return f"samples/{self._round.name}"

    def _ended_key(self, one: Presence) -> str:
        return f"ended/{self._round.name}/{one.replica}"

    def _call_others(self) -> None:
        """Let the others come to a round at their next `did`."""
        add_quietly(self._exchange, self._samples_key, self._global_batch)

    def _meet(self) -> None:
        """Take part in a round, repeated until it succeeds."""
        began_s = time.monotonic()
        run = active_run()
        with nullcontext() if run is None else run.span("average"):
            while not self._attempt():
                pass
        self._metrics.record(time=time.monotonic() - began_s, replicas=float(self.replicas))

    def _attempt(self) -> bool:
        """Take part in a round once; return whether this replica has its result."""
        settings = self._settings()
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
        # All are at this round: nobody needs the last one's counts.
        self._exchange.forget([self._samples_key, *map(self._ended_key, self._round.present)])
        self._round = meeting
        self._server.withdraw()  # who joined in the round before has it
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
        means = state = None
        try:
            self._exchange.use_store(meeting.present[0].store_address)
            if rank is None:
                state = fetch(leading.state_address, meeting.name, self._secret, self._timeout_s)
            elif meeting.samples:
                means = self._means(meeting, rank)
        except (RuntimeError, OSError) as error:
            self._repeat(error)
            return False
        self._failures = 0
        if state is not None:
            self._load(state)
        else:
            self._step += 1
        if means is not None:
            self._take(means)
            self.rounds += 1
            self.samples += meeting.samples
        if rank == 0 and len(active) < len(meeting.present):
            self._server.offer(meeting.name, self._state())
        self._pending = 0
        self.replicas = len(meeting.present)
        add_quietly(self._exchange, self._ended_key(mine), 1)
        return True

    def _repeat(self, error: Exception) -> None:
        """Get ready to repeat a round: a replica is gone, or silent.

        Some of the others may have the round's result; they are called to the next one.
        """
        self._failures += 1
        if self._failures == _MOST_FAILURES:
            raise TrainingError(
                f"{_MOST_FAILURES} rounds of group {self._group!r} failed one after another, the "
                f"last one by {described(error)}",
                "Check that the machines reach each other on all ports",
            ) from error
        say(f"a round of group {self._group!r} is repeated: {described(error)}")
        self._exchange.disconnect()
        self._call_others()

    def _means(self, meeting: Round, rank: int) -> list[Tensor]:
        active = meeting.active
        weight = self._pending / meeting.samples
        tensors = [*self._parameters, *self._buffers]
        if len(active) == 1:
            return averaged(tensors, weight, None)
        if not _connected(active):
            self._exchange.connect(meeting.name, rank, len(active))
        means = averaged(tensors, weight, self._exchange)
        self._exchange.confirm()
        return means

    @torch.no_grad()
    def _take(self, means: list[Tensor]) -> None:
        if self._outer is not None:
            for anchor, mean in zip(self._anchor, means, strict=False):  # buffers have none
                anchor.grad = anchor - mean
            self._outer.step()
            self._outer.zero_grad(set_to_none=True)
            means = [*self._anchor, *means[len(self._anchor) :]]
        for tensor, mean in zip([*self._parameters, *self._buffers], means, strict=True):
            tensor.copy_(mean)

    def _wait_until_others_have_it(self) -> None:
        """Stay until the others have the round's result; they read it from this replica."""
        deadline_s = time.monotonic() + _LEAVE_S
        here = list(self._round.present)
        with suppress(RuntimeError):  # that of the counts was killed, or left first
            while time.monotonic() < deadline_s:
                if self._exchange.wait([self._ended_key(one) for one in here], _LOOK_S):
                    return
                # One that was killed, and one that left, is waited for no more.
                here = [one for one in here if reachable(one.state_address, _LOOK_S)]

    def _settings(self) -> str:
        shapes = [
            [name, list(tensor.shape), str(tensor.dtype)]
            for name, tensor in [
                *self._job.model.named_parameters(),
                *self._job.model.named_buffers(),
            ]
        ]
        model = hashlib.sha256(json.dumps(shapes).encode()).hexdigest()[:8]
        outer = "" if self._outer is None else f", outer {type(self._outer).__name__}"
        optimizer = type(self._job.optimizer).__name__
        return f"global_batch {self._global_batch}, model {model}, {optimizer}{outer}"

    def _state(self) -> State:
        """Return what a replica that joins goes on with."""
        job = self._job
        return {
            "model": job.model.state_dict(),
            "optimizer": job.optimizer.state_dict(),
            "scheduler": None if job.scheduler is None else job.scheduler.state_dict(),
            "anchor": [anchor.detach() for anchor in self._anchor],
            "outer": None if self._outer is None else self._outer.state_dict(),
            "step": self._step,
            "rounds": self.rounds,
            "samples": self.samples,
            "plan": self.plan,
        }

    @torch.no_grad()
    def _load(self, state: State) -> None:
        job = self._job
        job.model.load_state_dict(state["model"])
        job.optimizer.load_state_dict(state["optimizer"])
        if job.scheduler is not None:
            job.scheduler.load_state_dict(state["scheduler"])
        for anchor, value in zip(self._anchor, state["anchor"], strict=True):
            anchor.copy_(value)
        if self._outer is not None:
            self._outer.load_state_dict(state["outer"])
        self._step, self.rounds = state["step"], state["rounds"]
        self.samples, self.plan = state["samples"], state["plan"]


def _connected(active: tuple[Presence, ...]) -> bool:
    """Return whether the replicas have connections among just themselves from a round before."""
    meshes = {one.mesh for one in active}
    return len(meshes) == 1 and meshes != {""} and active[0].mesh_size == len(active)
