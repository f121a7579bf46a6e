"""Jobs on several devices: a step can be left at a boundary, and repeated on another device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from radt.errors import UsageError
from radt.training.job import Job
from radt.training.lease import DeviceLease
from radt.training.preemption import Boundaries, segments_of
from radt.training.randomness import RandomState
from radt.training.segments import mapped


class StepLeft(BaseException):
    """Leaves a step at a boundary; not an Exception, so that a job's step does not catch it.

    Args:
        lease: Held, of the device where the step is repeated; None if another job comes first.
    """

    def __init__(self, lease: DeviceLease | None) -> None:
        super().__init__()
        self.lease = lease


class Devices:
    """Devices on which jobs train, one at a time, each step under a lease with low priority.

    Where a higher priority wants the device (SwitchFlow), the step is left if another device is
    free: activations are dropped, parameters, buffers and the optimiser's state move there, and
    the same batch is repeated with the same random states. If none is free, the step waits at the
    boundary and keeps its activations. A job goes back to the first free device at its next epoch.

    Args:
        devices: In order of preference.
        max_segment_ms: Longest time between two boundaries.

    Raises:
        UsageError: There are no devices, one is given twice, or PyTorch does not know one.
    """

    def __init__(self, devices: Sequence[torch.device | str], max_segment_ms: float = 5.0) -> None:
        if not devices or len({str(device) for device in devices}) < len(devices):
            given = ", ".join(map(str, devices)) or "none"
            raise UsageError(f"devices are {given}", "Give each device once, the best one first")
        self._leases = [DeviceLease(device) for device in devices]
        self._max_segment_ms = max_segment_ms
        self._seats: dict[Job, _Seat] = {}
        self._step: _Step | None = None
        self.migrations = 0

    def step(
        self,
        job: Job,
        batch: Any,
        train: Callable[[Any], Tensor],
        is_interrupted: Callable[[], bool],
    ) -> Tensor | None:
        """Train a job on a batch, and return its loss; None if the step was left for another job.

        Args:
            job: The job; what it trains are the parameters of its model, with its optimiser.
            batch: The batch; its first part is the model's input.
            train: Does the step of the job on a batch, which lies on its device.
            is_interrupted: Whether another job comes first; asked at boundaries.
        """
        with job.randomness.in_use():
            return self._step_somewhere(job, batch, train, is_interrupted)

    def _step_somewhere(
        self,
        job: Job,
        batch: Any,
        train: Callable[[Any], Tensor],
        is_interrupted: Callable[[], bool],
    ) -> Tensor | None:
        lease: DeviceLease | None = self._free_lease(job)
        while lease is not None:
            before = None
            try:
                self._settle(job, lease, batch)
                before = _Before(job)
                step = self._step = _Step(lease, is_interrupted)
                # After the hooks of boundaries: at the first optimiser's, a step may be left.
                updates = register_optimizer_step_pre_hook(step.stays)
                try:
                    return train(_on(batch, lease.device))
                finally:
                    updates.remove()
            except StepLeft as left:
                following = left.lease
            finally:
                self._step = None
                lease.release()
            # After the exception, whose traceback has the activations.
            if before is not None:
                before.restore()
            self.migrations += following is not None
            lease = following
        return None

    def forget(self, job: Job) -> None:
        """Take the hooks from a job that has ended."""
        if (seat := self._seats.pop(job, None)) is not None:
            seat.boundaries.remove()

    def close(self) -> None:
        """Take the hooks from all jobs, and close the leases."""
        for job in list(self._seats):
            self.forget(job)
        for lease in self._leases:
            lease.close()

    def _free_lease(self, job: Job) -> DeviceLease:
        """Return a lease, held: of the job's device if it is free, else of another or any."""
        seat = self._seats.get(job)
        preferred = list(self._leases)
        if seat is not None and job.batches > 0:
            preferred.remove(seat.lease)
            preferred.insert(0, seat.lease)
        for lease in preferred:
            if lease.try_acquire():
                return lease
        preferred[0].acquire()
        return preferred[0]

    def _settle(self, job: Job, lease: DeviceLease, batch: Any) -> None:
        """Have the job on a device, with boundaries in its model."""
        seat = self._seats.get(job)
        if seat is not None and seat.lease is lease:
            return
        move(job, lease.device)
        if seat is not None:
            seat.lease = lease
            return
        inputs = batch[0] if isinstance(batch, list | tuple) else batch
        sample = _on(inputs, lease.device)
        segments = segments_of(job.model, sample, self._max_segment_ms, lease.boundary)
        boundaries = Boundaries(job.model, segments, self._reached, frees=True)
        self._seats[job] = _Seat(lease, boundaries)

    def _reached(self, _name: str) -> None:
        step = self._step
        if step is None:
            return  # not a step of the trainer: the script evaluates the model, say
        if step.may_be_left:
            if step.is_interrupted():
                raise StepLeft(None)
            if step.lease.is_wanted and (other := self._other_free(step.lease)) is not None:
                raise StepLeft(other)
        step.lease.boundary()

    def _other_free(self, lease: DeviceLease) -> DeviceLease | None:
        return next((it for it in self._leases if it is not lease and it.try_acquire()), None)


@dataclass(slots=True)
class _Seat:
    """Where a job is."""

    lease: DeviceLease
    boundaries: Boundaries


@dataclass(slots=True)
class _Step:
    """The step under way."""

    lease: DeviceLease
    is_interrupted: Callable[[], bool]
    may_be_left: bool = True
    _thread: int = field(default_factory=threading.get_ident)

    def stays(self, *_optimizer: object) -> None:
        """Note that an optimiser steps, of whatever model: what it changes cannot be put back."""
        self.may_be_left &= threading.get_ident() != self._thread


@dataclass(slots=True)
class _Before:
    """What a step changes before its optimiser's: buffers, gradients, random states."""

    job: Job
    _randomness: RandomState = field(init=False)
    _buffers: list[Tensor] = field(init=False)
    _gradients: list[Tensor | None] = field(init=False)

    def __post_init__(self) -> None:
        job = self.job
        self._randomness = RandomState.current()
        self._buffers = [buffer.clone() for buffer in job.model.buffers()]
        # A plain step begins without gradients; one of the script's may add to those it has.
        kept = [None if job.has_plain_step else p.grad for p in job.model.parameters()]
        self._gradients = [None if gradient is None else gradient.clone() for gradient in kept]

    def restore(self) -> None:
        """Have the job as it was."""
        job = self.job
        self._randomness.restore()
        for parameter, gradient in zip(job.model.parameters(), self._gradients, strict=True):
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, before in zip(job.model.buffers(), self._buffers, strict=True):
                buffer.copy_(before)


def move(job: Job, device: torch.device) -> None:
    """Move a job's parameters, buffers and optimiser state; the model's tensors stay the objects.

    Those of a loss that is a module move, too. Gradients are dropped if the job computes them anew
    in each step, and moved if not.

    Counters of steps of optimisers stay on the CPU where the optimiser wants them there.
    """
    modules = [job.model, *([job.loss] if isinstance(job.loss, nn.Module) else [])]
    for tensor in (each for whole in modules for each in (*whole.parameters(), *whole.buffers())):
        gradient, tensor.grad = tensor.grad, None
        tensor.data = tensor.data.to(device)
        if gradient is not None and not job.has_plain_step:
            tensor.grad = gradient.to(device)
    for group in job.optimizer.param_groups:
        with_counters = group.get("capturable") or group.get("fused")
        for parameter in group["params"]:
            state = job.optimizer.state.get(parameter, {})
            for key, value in state.items():
                if isinstance(value, Tensor):
                    stays = key == "step" and not with_counters
                    state[key] = value.to("cpu" if stays else device)


def _on(value: Any, device: torch.device) -> Any:
    return mapped(value, lambda tensor: tensor.to(device, non_blocking=True))
