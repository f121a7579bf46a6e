"""A GPU for `offload` that is memory of the host: its store, streams, events and pinning.

Parameters are copied to and from it as for a real one, and its optimisers work on the host.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from radt.training.offloading import offloaded
from radt.training.offloading.stores import Buffers, PinnedStore


class _Stream:
    """A stream or an event: on the host all work is done when a call returns."""

    def __init__(self, *_: object) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def wait_event(self, event: object) -> None:
        pass

    def record(self, stream: object) -> None:
        pass


class _Store(PinnedStore):
    def read(self, part: int) -> Tensor:
        return super().read(part).clone()  # `to` copies nothing where the device is the same


def install(patch: pytest.MonkeyPatch) -> list[int]:
    """Have `offload` use it; return the list of the sizes that are pinned at the time."""
    pinned: list[tuple[int, int]] = []
    sizes: list[int] = []

    def register(address: int, nbytes: int, _flags: int) -> None:
        pinned.append((address, nbytes))
        sizes[:] = [each for _, each in pinned]

    def unregister(address: int) -> None:
        pinned[:] = [each for each in pinned if each[0] != address]
        sizes[:] = [each for _, each in pinned]

    def store(_device: torch.device, _folder: Path, _buffers: Buffers, _cache: bool) -> Any:
        return _Store(torch.device("cpu"))

    runtime = SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=unregister)
    patch.setattr(offloaded, "_store_for", store)
    patch.setattr(torch.cuda, "Stream", _Stream)
    patch.setattr(torch.cuda, "Event", _Stream)
    patch.setattr(torch.cuda, "current_stream", _Stream)
    patch.setattr(torch.cuda, "stream", lambda _stream: nullcontext())
    patch.setattr(torch.cuda, "cudart", lambda: runtime)
    patch.setattr(torch.cuda, "check_error", lambda _result: None)
    return sizes
