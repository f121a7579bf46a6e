"""The state of a server's random numbers, to go on elsewhere where an epoch began.

An epoch's order and augmentations come from the generators of Python, NumPy and PyTorch and from
the loader's own. With their states of the epoch's beginning, another process makes the same epoch.
"""

from __future__ import annotations

import random
from base64 import b64decode, b64encode
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

Json = dict[str, Any]


def state_of(loader: object) -> Json:
    """Return the states in JSON values, about 20 kB."""
    version, numbers, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, _text(np.array(numbers[:-1], np.uint32)), numbers[-1], gauss],
        "numpy": [name, _text(np.asarray(keys)), position, has_gauss, cached],
        "torch": _text(torch.get_rng_state().numpy()),
        "loader": [_text(generator.get_state().numpy()) for generator in _generators(loader)],
        "draws_seed": _draws_seed(loader),
    }


def restore(state: Json, loader: object) -> None:
    """Set the states that `state_of` returned, perhaps in another process."""
    version, numbers, position, gauss = state["python"]
    random.setstate((version, (*_array(numbers, np.uint32).tolist(), position), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, _array(keys, np.uint32), *rest))
    torch.set_rng_state(_tensor(state["torch"]))
    for generator, text in zip(_generators(loader), state["loader"], strict=True):
        generator.set_state(_tensor(text))
    if isinstance(loader, DataLoader) and state["draws_seed"] and not _draws_seed(loader):
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)


def begun(loader: Any, state: Json) -> Iterator[Any]:
    """Begin the epoch of a state that has been restored, or is the loader's."""
    if state["draws_seed"] or not _draws_seed(loader):
        return iter(loader)
    generator, loader.generator = loader.generator, torch.Generator()
    try:
        return iter(loader)
    finally:
        loader.generator = generator


def _draws_seed(loader: object) -> bool:
    """Whether an epoch begins with a seed for workers: not if a DataLoader's live on."""
    return isinstance(loader, DataLoader) and getattr(loader, "_iterator", None) is None


def _generators(loader: object) -> Iterator[torch.Generator]:
    """The generators of a DataLoader and its samplers, each once."""
    seen: set[int] = set()
    batch_sampler = getattr(loader, "batch_sampler", None)
    inner = getattr(batch_sampler, "sampler", None)
    for owner in (loader, getattr(loader, "sampler", None), batch_sampler, inner):
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator) and id(generator) not in seen:
            seen.add(id(generator))
            yield generator


def _text(array: np.ndarray) -> str:
    return b64encode(array.tobytes()).decode()


def _array(text: str, dtype: type[np.generic]) -> np.ndarray:
    return np.frombuffer(b64decode(text), dtype).copy()


def _tensor(text: str) -> torch.Tensor:
    return torch.from_numpy(_array(text, np.uint8))
