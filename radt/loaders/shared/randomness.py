"""The state of a server's random numbers, to repeat an epoch in another process.

An epoch's order and augmentations depend on the generators of Python, NumPy and PyTorch and on the
loader's own. With their states at the epoch's start, another process produces the same epoch.
"""

from __future__ import annotations

import io
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import DataLoader

from radt.loaders.randomness import RandomState, generators_of, set_states, states_of

Json = dict[str, Any]


def state_of(loader: object) -> Json:
    """Return the states as JSON values, about 20 kB. CUDA's are left out: a server draws none."""
    states = replace(RandomState.current(), cuda=()).state_dict()
    states["loader"] = states_of(generators_of(loader))
    torch.save(states, file := io.BytesIO())
    return {"states": b64encode(file.getvalue()).decode(), "draws_seed": _draws_seed(loader)}


def restore(state: Json, loader: object) -> None:
    """Set the states that `state_of` returned, perhaps in another process."""
    states = torch.load(io.BytesIO(b64decode(state["states"])), weights_only=True)
    if "cuda" not in states:  # saved by an earlier radt
        version, numbers, gauss = states["python"]
        states |= {"python": [version, torch.tensor(numbers), gauss], "cuda": [], "cuda_seed": None}
    RandomState.from_state_dict(states).restore()
    set_states(generators_of(loader), states["loader"])
    if isinstance(loader, DataLoader) and state["draws_seed"] and not _draws_seed(loader):
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)


def begun(loader: Any, state: Json) -> Iterator[Any]:
    """Start the epoch of a state that was just restored or returned by `state_of`."""
    if state["draws_seed"] or not _draws_seed(loader):
        return iter(loader)
    generator, loader.generator = loader.generator, torch.Generator()
    try:
        return iter(loader)
    finally:
        loader.generator = generator


def _draws_seed(loader: object) -> bool:
    """Return True if an epoch starts by drawing a seed for workers; not if workers persist."""
    return isinstance(loader, DataLoader) and getattr(loader, "_iterator", None) is None
