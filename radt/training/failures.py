"""What a job's errors are, and how a step that ran out of memory is repeated exactly."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from radt.errors import TrainingError, described
from radt.training.job import Failure, FailureKind, Job
from radt.training.randomness import RandomState

#: What PyTorch's errors say where memory is short, besides `torch.OutOfMemoryError`.
_OUT_OF_MEMORY = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "not enough memory")


class NanLossError(TrainingError):
    """The loss is NaN."""


class BudgetError(TrainingError):
    """A job needs more memory than the trainer may use."""


class DeviceLostError(TrainingError):
    """The CUDA context of this process can no longer be used; only a new process can go on."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error is about memory of the device or of the machine."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)


def failure_of(error: Exception) -> Failure:
    """Return what to say of an error that ended a job."""
    if isinstance(error, NanLossError):
        kind = FailureKind.NAN
    elif isinstance(error, BudgetError) or is_out_of_memory(error):
        kind = FailureKind.OUT_OF_MEMORY
    else:
        kind = FailureKind.EXCEPTION
    return Failure(kind, described(error), "".join(traceback.format_exception(error)))


class Attempts:
    """Steps of a job; one that runs out of memory is repeated once, with the job alone.

    It is repeated with the same buffers and random states, so that the training is the same. It is
    not repeated once the optimiser has begun to change parameters, nor if the job has a `step` of
    its own: nobody knows what that had changed.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._buffers = list(job.model.buffers())
        self._saved: list[Tensor] = []

    def step(self, batch: Any, stop_at_nan: bool, others: Iterable[Job]) -> Tensor:
        """Train on a batch.

        Args:
            batch: The batch.
            stop_at_nan: Whether a NaN is an error.
            others: Jobs whose gradients are freed before a step is repeated.

        Raises:
            NanLossError: The loss is NaN.
            Exception: As the step raises it.
        """
        with self._job.randomness.in_use():
            loss = self._attempt(batch, others)
        check_loss(self._job, loss, stop_at_nan)
        return loss

    def _attempt(self, batch: Any, others: Iterable[Job]) -> Tensor:
        if not self._job.has_plain_step:
            return self._job.step(batch)
        randomness = RandomState.current()
        self._keep_buffers()
        try:
            return self._job.step(batch)
        except Exception as error:
            if self._job.is_updating or not is_out_of_memory(error):
                raise
        # Outside of the handler: the error's traceback holds the activations.
        for job in (self._job, *others):
            free_gradients(job)
        free_caches()
        randomness.restore()
        with torch.no_grad():
            for buffer, saved in zip(self._buffers, self._saved, strict=True):
                buffer.copy_(saved)
        return self._job.step(batch)

    def _keep_buffers(self) -> None:
        if self._buffers and not self._saved:
            self._saved = [torch.empty_like(buffer) for buffer in self._buffers]
        with torch.no_grad():
            for buffer, saved in zip(self._buffers, self._saved, strict=True):
                saved.copy_(buffer)


def check_loss(job: Job, loss: Tensor, stop_at_nan: bool) -> None:
    """Check a loss.

    Raises:
        NanLossError: The loss is NaN, and that is an error.
    """
    if stop_at_nan and bool(loss.isnan()):
        raise NanLossError(
            f"job {job.name}: the loss is NaN in epoch {job.epoch + 1}, batch {job.batches}",
            "lower the learning rate, or clip gradients",
        )


def free_gradients(job: Job) -> None:
    """Free the gradients of a job that computes them anew in each step."""
    if job.has_plain_step:
        job.optimizer.zero_grad(set_to_none=True)


def free_caches() -> None:
    """Give back what nobody uses."""
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def settle(job: Job) -> None:
    """Wait until the device has done a job's work, so that its errors are its own.

    Raises:
        DeviceLostError: The device's context is lost.
    """
    if next(job.model.parameters(), torch.empty(0)).device.type != "cuda":
        return
    try:
        torch.cuda.synchronize()
    except Exception as error:
        raise DeviceLostError(
            f"job {job.name} left the GPU in an error that only a new process gets rid of "
            f"({described(error)})",
            "start the script with python -m radt.training.guard to have the others go on",
        ) from error
