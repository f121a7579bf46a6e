"""Measured memory of jobs, and which of them fit together (UnifiedNN, equations 1 and 2).

A process with several jobs that train one at a time needs the resident memory of all of them, plus
the largest memory of a single step.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from radt.loaders.batches import tensors_of
from radt.training.job import Job
from radt.units import parse_memory_bytes, size

Result = TypeVar("Result")


def bytes_of(memory: str | int) -> int:
    """Return a size in bytes: ``"20GB"`` are 20 × 1,000³, ``"20GiB"`` are 20 × 1,024³.

    Raises:
        UsageError: It is not a size.
    """
    return memory if isinstance(memory, int) else parse_memory_bytes(memory, kilo=1000)


def resident_bytes(job: Job) -> int:
    """Return the bytes that a job keeps between steps: parameters, buffers, optimiser state."""
    storages = {s.data_ptr(): s.nbytes() for s in map(_storage, job.resident_tensors)}
    return sum(storages.values())


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()


def with_peak(work: Callable[[], Result], device: torch.device) -> tuple[Result, int]:
    """Call ``work``. Return its result and the peak of additional tensor memory in bytes.

    On CUDA, these are the allocator's numbers. Elsewhere tensors are counted, without temporary
    memory inside operations.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        result = work()
        return result, torch.cuda.max_memory_allocated(device) - before
    counter = _Counter()
    with counter:
        result = work()
    return result, counter.peak_bytes


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count the memory of tensors that operations return."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = self.peak_bytes = 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {id(_storage(tensor)) for tensor in tensors_of([args, kwargs])}
        result = func(*args, **(kwargs or {}))
        for tensor in tensors_of(result):
            storage = _storage(tensor)
            if id(storage) not in inputs and id(storage) not in self._known:
                self._known[id(storage)] = storage.nbytes()
                weakref.finalize(storage, self._freed, id(storage))
                self.bytes += storage.nbytes()
        self.peak_bytes = max(self.peak_bytes, self.bytes)
        return result

    def _freed(self, key: int) -> None:
        self.bytes -= self._known.pop(key)


class Admission:
    """Decides which jobs may train, so that all jobs in memory and one step fit into a budget.

    A job's first step is measured. Until then, only its gradients are counted.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._step_bytes: dict[str, int] = {}

    def measure(self, job: Job, step: Callable[[], Tensor]) -> Tensor:
        """Run a step of a job, and measure the first one."""
        if job.name in self._step_bytes:
            return step()
        parameter = next(job.model.parameters(), torch.empty(0))
        loss, self._step_bytes[job.name] = with_peak(step, parameter.device)
        return loss

    def needed_bytes(self, job: Job, present: Iterable[Job]) -> int:
        """Return the bytes needed to train a job while it and others are in memory."""
        return self._needed_step_bytes(job) + sum(map(resident_bytes, present))

    def _needed_step_bytes(self, job: Job) -> int:
        measured = self._step_bytes.get(job.name)
        if measured is not None:
            return measured
        return sum(p.nbytes for p in job.model.parameters() if p.requires_grad)

    def fitting(self, jobs: Iterable[Job], present: Iterable[Job]) -> list[Job]:
        """Return the jobs that can train, one at a time, while others are in memory."""
        left_bytes = self._budget_bytes - sum(map(resident_bytes, present))
        return [job for job in jobs if self._needed_step_bytes(job) <= left_bytes]

    def allows(self, extra_bytes: int, present: Iterable[Job]) -> bool:
        """Return True if this many additional bytes fit beside all jobs in memory."""
        return extra_bytes + sum(map(resident_bytes, present)) <= self._budget_bytes

    def refusal(self, job: Job, present: Sequence[Job]) -> str:
        """Return why a job cannot train."""
        needed = size(self.needed_bytes(job, present))
        others = len(present) - 1
        return (
            f"job {job.name} and {others} jobs that wait need {needed}, of which "
            f"{size(self._step_bytes.get(job.name))} is its step; memory allows "
            f"{size(self._budget_bytes)}"
        )
