"""Check on a copy of a model that it can be trained at every size."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from radt.errors import LoaderError, described
from radt.loaders.batches import mapped, tensors_of


@dataclass(frozen=True, slots=True)
class SizeCheck:
    """The result for one size.

    Args:
        size: Edge of the images in pixels.
        batch_size: Samples in a full batch.
        peak_bytes: Peak memory that PyTorch used on the GPU for a full batch; None on a CPU.
    """

    size: int
    batch_size: int
    peak_bytes: int | None


def check_sizes(
    model: torch.nn.Module,
    batches: Iterable[tuple[int, Any]],
    batch_at: Callable[[int], int],
    loss: Callable[[torch.nn.Module, Any], torch.Tensor] | None,
) -> list[SizeCheck]:
    """Run a copy of the model at every size; `ProgressiveLoader.check` has the details.

    Args:
        model: The model, which is not changed.
        batches: Each size with a batch of two samples.
        batch_at: Samples in a full batch at a size.
        loss: Function of the model and a batch, or None.

    Raises:
        LoaderError: The model cannot take a size, or gets new parameters from it.
    """
    tried = copy.deepcopy(model).train()
    device = next((one.device for one in tried.parameters()), torch.device("cpu"))
    expected: list[str] | None = None
    results = []
    for size, batch in batches:
        full = batch_at(size)
        rows = torch.arange(full if device.type == "cuda" else 2)
        placed = mapped(batch, lambda tensor: tensor[rows % len(tensor)].to(device))  # noqa: B023
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        try:
            (loss or _sum)(tried, placed).backward()  # type: ignore[no-untyped-call]
        except Exception as error:
            raise LoaderError(
                f"the model cannot be trained at {size} pixels: {described(error)}",
                "Use global pooling before its linear layers, or raise min_size",
            ) from error
        tried.zero_grad(set_to_none=True)
        names = [name for name, _ in tried.named_parameters()]
        if expected is not None and names != expected:
            raise LoaderError(
                f"the model has other parameters at {size} pixels than at smaller sizes",
                "Use global pooling before its linear layers",
            )
        expected = names
        peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
        results.append(SizeCheck(size, full, peak))
    return results


def _sum(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    scores = model(next(tensors_of(batch)))
    return next(tensors_of(scores)).float().sum()
