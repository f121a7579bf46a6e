"""Jobs on several devices: a step can be abandoned at a boundary and repeated on another device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from radt.errors import UsageError
from radt.loaders.batches import moved
from radt.training.failures import free_gradients
from radt.training.job import Job
from radt.training.lease import DeviceLease
from radt.training.preemption import Boundaries, segments_of
from radt.training.weights import BeforeStep


class StepLeft(BaseException):
    """Abandons a step at a boundary. Not an Exception, so that a job's step does not catch it.

    Args:
        lease: The held lease of the device where the step is repeated; None if another job goes
            first.
    """

    def __init__(self, lease: DeviceLease | None) -> None:
        super().__init__()
        self.lease = lease


class JobDevices:
    """Devices on which jobs train, one at a time, each step under a lease with low priority.

    If a higher priority wants the device (SwitchFlow) and another device is free, the step is
    abandoned: activations are dropped, parameters, buffers and the optimiser's state move there,
    and the same batch is repeated with the same random states. If none is free, the step waits at
    the boundary and keeps its activations. In its next epoch, a job returns to the first free
    device.

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
        """Train a job on a batch. Return its loss; None if the step was abandoned for another job.

        Args:
            job: The job, whose optimiser trains the parameters of its model.
            batch: The batch.
            train: Runs the job's step on a batch on the job's device.
            is_interrupted: Returns True if another job goes first; called at boundaries.
        """
        lease: DeviceLease | None = self._free_lease(job)
        while lease is not None:
            before = None
            try:
                self._settle(job, lease, batch)
                before = BeforeStep(job.model, with_gradients=not job.has_plain_step)
                step = self._step = _Step(lease, is_interrupted)
                # Registered after the boundaries' hooks: at the first optimiser, a step may still
                # be abandoned.
                updates = register_optimizer_step_pre_hook(step.stays)
                try:
                    return train(moved(batch, lease.device))
                finally:
                    updates.remove()
            except StepLeft as left:
                following = left.lease
            finally:
                self._step = None
                lease.release()
            # Outside the handler, because the exception's traceback keeps the activations alive.
            if before is not None:
                before.restore()
                free_gradients(job)
            self.migrations += following is not None
            lease = following
        return None

    def forget(self, job: Job) -> None:
        """Remove the hooks from a job that has ended."""
        if (seat := self._seats.pop(job, None)) is not None:
            seat.boundaries.remove()

    def close(self) -> None:
        """Remove the hooks from all jobs, and close the leases."""
        for job in list(self._seats):
            self.forget(job)
        for lease in self._leases:
            lease.close()

    def _free_lease(self, job: Job) -> DeviceLease:
        """Return a held lease: of the job's device if free, else of any free one. May wait."""
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
        """Move the job to the lease's device. Set boundaries in its model on first use."""
        seat = self._seats.get(job)
        if seat is not None and seat.lease is lease:
            return
        move(job, lease.device)
        if seat is not None:
            seat.lease = lease
            return
        sample = job.call(batch).on(lease.device)
        segments = segments_of(job.model, sample, self._max_segment_ms, lease.boundary)
        boundaries = Boundaries(job.model, segments, self._reached, frees=True)
        self._seats[job] = _Seat(lease, boundaries)

    def _reached(self, _name: str) -> None:
        step = self._step
        if step is None:
            return  # not a step of the trainer, for example an evaluation by the script
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
    """The lease and the boundaries of a job."""

    lease: DeviceLease
    boundaries: Boundaries


@dataclass(slots=True)
class _Step:
    """The current step."""

    lease: DeviceLease
    is_interrupted: Callable[[], bool]
    may_be_left: bool = True
    _thread: int = field(default_factory=threading.get_ident)

    def stays(self, *_optimizer: object) -> None:
        """Note that an optimiser, of any model, is stepping: its changes cannot be undone."""
        self.may_be_left &= threading.get_ident() != self._thread


def move(job: Job, device: torch.device) -> None:
    """Move a job's parameters, buffers and optimiser state. The tensor objects stay the same.

    This includes a loss that is a module. Gradients are dropped if the job computes new ones in
    each step, and moved otherwise.

    Step counters of optimisers stay on the CPU where the optimiser wants them there.
    """
    modules = [job.model, *([job.loss] if isinstance(job.loss, nn.Module) else [])]
    own = [each for whole in modules for each in (*whole.parameters(), *whole.buffers())]
    moving = set(map(id, own))
    for tensor in own:
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
                    # Masters in single precision are not moved, so their state stays with them.
                    there = device if id(parameter) in moving else parameter.device
                    state[key] = value.to("cpu" if stays else there)
