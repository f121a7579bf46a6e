"""Pinned host memory, for GPU copies without the CPU, of exactly the requested size.

PyTorch's ``pin_memory=True`` rounds up to a power of two, which can double a large model.
"""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

from radt import units
from radt.errors import TrainingError
from radt.loaders import pinned as memory


def pinned(byte_count: int) -> Tensor:
    """Return new bytes that are pinned until `radt.loaders.pinned.unpin`.

    Raises:
        TrainingError: The host has too little memory, or may not pin it.
    """
    try:
        flat = torch.frombuffer(mmap.mmap(-1, max(1, byte_count)), dtype=torch.uint8)
    except OSError as error:
        raise _error(byte_count, error) from error
    pin(flat)
    return flat[:byte_count]


def pin(flat: Tensor) -> None:
    """Pin the memory of a flat tensor until `radt.loaders.pinned.unpin`.

    Raises:
        TrainingError: It cannot be pinned.
    """
    try:
        memory.pin(flat)
    except RuntimeError as error:
        raise _error(flat.untyped_storage().nbytes(), error) from error


def _error(byte_count: int, error: Exception) -> TrainingError:
    return TrainingError(
        f"the host cannot pin {units.size(byte_count)} of memory: {error}",
        "Give the job more memory, and raise the limit of locked memory (ulimit -l)",
    )
