"""Errors of jobs, and the repetition of steps that ran out of memory."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from radt.errors import TrainingError, described
from radt.training.job import Failure, FailureKind, Job
from radt.training.weights import BeforeStep

#: Messages of PyTorch for a lack of memory, besides `torch.OutOfMemoryError`.
_OUT_OF_MEMORY = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "not enough memory")


class NanLossError(TrainingError):
    """The loss is NaN."""


class BudgetError(TrainingError):
    """A job needs more memory than the trainer may use."""


class DeviceLostError(TrainingError):
    """The CUDA context of this process is unusable; only a new process can continue."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an error is a lack of device or host memory."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)


def failure_of(error: Exception) -> Failure:
    """Return the description of an error that ended a job."""
    if isinstance(error, NanLossError):
        kind = FailureKind.NAN
    elif isinstance(error, BudgetError) or is_out_of_memory(error):
        kind = FailureKind.OUT_OF_MEMORY
    else:
        kind = FailureKind.EXCEPTION
    return Failure(kind, described(error), "".join(traceback.format_exception(error)))


def train(job: Job, batch: Any, stop_at_nan: bool, others: Iterable[Job]) -> Tensor:
    """Train a job on a batch. Repeat a step that runs out of memory once, with the job alone.

    Buffers and random states are restored first, so that the training is unchanged. There is no
    repetition once the optimiser has begun to change parameters, nor if the job has a custom
    `step`: its side effects are unknown.

    Args:
        job: The job.
        batch: The batch.
        stop_at_nan: Whether a NaN is an error.
        others: Jobs whose gradients are freed before a step is repeated.

    Raises:
        NanLossError: The loss is NaN.
        Exception: Any error of the step.
    """
    with job.randomness.in_use():
        loss = _plain_step(job, batch, others) if job.has_plain_step else job.step(batch)
    check_loss(job, loss, stop_at_nan)
    return loss


def _plain_step(job: Job, batch: Any, others: Iterable[Job]) -> Tensor:
    before = BeforeStep(job.model)
    try:
        return job.step(batch)
    except Exception as error:
        if job.is_updating or not is_out_of_memory(error):
            raise
    # Outside the handler, because the error's traceback keeps the activations alive.
    for each in (job, *others):
        free_gradients(each)
    free_caches()
    before.restore()
    return job.step(batch)


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
    """Free the gradients of a job that computes new ones in each step."""
    if job.has_plain_step:
        job.optimizer.zero_grad(set_to_none=True)


def free_caches() -> None:
    """Return unused memory to the device."""
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def settle(job: Job) -> None:
    """Wait until the device has finished a job's work, to attribute its errors to the job.

    Raises:
        DeviceLostError: The CUDA context is lost.
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
