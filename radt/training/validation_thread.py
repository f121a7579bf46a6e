"""Validate in a thread of the training process."""

from __future__ import annotations

import copy
import os
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from radt.errors import TrainingError, UsageError, described
from radt.training.evaluation import Evaluate, Sums, ValidationLane, evaluated, targets_of
from radt.training.layout import Layout
from radt.training.snapshot import Snapshot


class ThreadLane(ValidationLane):
    """Evaluates a copy of the model in the calling thread, on a separate CUDA stream.

    Args:
        evaluate: The user's function.
        model: The model, which is copied.
        layout: Layout of its snapshots.
        part: Number of the part.
        parts: Number of parts.

    Raises:
        UsageError: The model cannot be copied.
    """

    def __init__(
        self, evaluate: Evaluate, model: nn.Module, layout: Layout, part: int, parts: int
    ) -> None:
        try:
            replica = copy.deepcopy(model)
        except Exception as error:
            raise UsageError(
                f"the model cannot be copied with copy.deepcopy: {described(error)}",
                "Keep tensors with gradients out of its attributes, or validate between epochs",
            ) from error
        self._evaluate, self._replica, self._part, self._parts = evaluate, replica, part, parts
        self._targets = targets_of(replica, layout)
        devices = {tensor.device for tensor in self._targets if tensor.is_cuda}
        self._streams = [torch.cuda.Stream(device) for device in devices]  # type: ignore[no-untyped-call]
        self._guard: TorchDispatchMode | None = _NoGlobalDraws()

    def evaluate(self, snapshot: Snapshot) -> Sums:
        try:
            with ExitStack() as stack:
                for stream in self._streams:
                    stack.enter_context(torch.cuda.stream(stream))
                snapshot.copy_to(self._targets)
                if self._guard is not None:
                    stack.enter_context(self._guard)
                sums = evaluated(self._evaluate, self._replica, self._part, self._parts)
                for stream in self._streams:
                    stream.synchronize()
        except Exception as error:
            raise TrainingError(
                f"evaluate failed in epoch {snapshot.epoch}: {described(error)}"
            ) from error
        self._guard = None
        return sums


class _NoGlobalDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses draws from the global generator, which the training uses at the same time.

    It intercepts each operation of its thread, which takes time, so only the first validation uses
    it.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._process = os.getpid()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if (
            torch.Tag.nondeterministic_seeded in func.tags
            and kwargs.get("generator") is None
            # Attention draws only for dropout, which is off in evaluation mode.
            and all(argument.name != "dropout_p" for argument in func._schema.arguments)  # noqa: SLF001
            and os.getpid() == self._process  # a worker has its own generators
        ):
            raise TrainingError(
                f"it draws global random numbers ({func}), which would change the training",
                "Give its DataLoader(…) generator=torch.Generator(), or validate in a process",
            )
        return func(*args, **kwargs)
