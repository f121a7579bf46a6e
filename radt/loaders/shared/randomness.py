"""The state of a server's random numbers, to repeat an epoch in another process.

An epoch's order and augmentations depend on the generators of Python, NumPy and PyTorch and on the
loader's own. With their states at the epoch's start, another process produces the same epoch.
"""

from __future__ import annotations

import io
import random
from base64 import b64decode, b64encode
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

Json = dict[str, Any]


def state_of(loader: object) -> Json:
    """Return the states as JSON values, about 20 kB."""
    name, keys, *rest = np.random.get_state(legacy=True)
    states = {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
        "torch": torch.get_rng_state(),
        "loader": [generator.get_state() for generator in generators_of(loader)],
    }
    torch.save(states, file := io.BytesIO())
    return {"states": b64encode(file.getvalue()).decode(), "draws_seed": _draws_seed(loader)}


def restore(state: Json, loader: object) -> None:
    """Set the states that `state_of` returned, perhaps in another process."""
    states = torch.load(io.BytesIO(b64decode(state["states"])), weights_only=True)
    random.setstate(states["python"])
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(states["torch"])
    for generator, own in zip(generators_of(loader), states["loader"], strict=True):
        generator.set_state(own)
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


def generators_of(loader: object) -> list[torch.Generator]:
    """Return the generators from which a loader draws, including those of its samplers."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    samplers = (getattr(loader, "sampler", None), batch_sampler)
    drawing = (loader, *samplers, getattr(batch_sampler, "sampler", None))
    generators = (getattr(each, "generator", None) for each in drawing)
    return list({id(g): g for g in generators if isinstance(g, torch.Generator)}.values())
