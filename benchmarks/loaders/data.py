"""Data whose decoding costs more than anything else, and data that are there already."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

BATCH = 64
STORED_PX, TRAINED_PX = 256, 224
#: One batch of float32 images.
BATCH_MB = BATCH * 3 * TRAINED_PX**2 * 4 / 1e6
#: Different images; an epoch takes them again and again.
_KEPT = 512
#: A benchmark is stopped, it does not come to an end.
_SAMPLES = 10_000 * BATCH


def write_images(folder: Path) -> None:
    """Write JPEGs of 256×256 pixels, about 23 KB each."""
    for number in range(_KEPT):
        chance = np.random.default_rng(number)
        texture = np.kron(chance.normal(0.5, 0.15, (32, 32, 3)), np.ones((8, 8, 1)))
        noise = chance.normal(0, 0.035, (STORED_PX, STORED_PX, 1))
        image = (np.clip(texture + noise, 0, 1) * 255).astype(np.uint8)
        Image.fromarray(image).save(folder / f"{number}.jpg", quality=85)


class Pixels(StrEnum):
    """What a batch has for each pixel and colour."""

    #: The training converts them where it trains.
    BYTES = "bytes"
    FLOATS = "float32"


class Jpegs(Dataset[Tensor]):
    """A random crop of 224×224 pixels of each."""

    def __init__(self, folder: str, pixels: Pixels) -> None:
        self._folder, self._pixels = Path(folder), pixels

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, number: int) -> Tensor:
        chance = np.random.default_rng(number)
        top, left = chance.integers(0, STORED_PX - TRAINED_PX + 1, 2)
        with Image.open(self._folder / f"{number % _KEPT}.jpg") as image:
            pixels = np.asarray(image)[top : top + TRAINED_PX, left : left + TRAINED_PX]
        crop = torch.from_numpy(pixels.transpose(2, 0, 1).copy())
        return crop if self._pixels is Pixels.BYTES else crop.float().div_(255)


def decoding(folder: str, workers: int, pixels: str) -> DataLoader[Any]:
    """Return a loader that is bound by decoding."""
    warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than cores
    generator = torch.Generator().manual_seed(0)
    images = Jpegs(folder, Pixels(pixels))
    return DataLoader(images, BATCH, shuffle=True, generator=generator, num_workers=workers)


class Ready:
    """A loader that costs nothing: the same batch again and again."""

    def __init__(self) -> None:
        self._batch = torch.rand(BATCH, 3, TRAINED_PX, TRAINED_PX)

    def __iter__(self) -> Iterator[Tensor]:
        while True:
            yield self._batch


def ready() -> Ready:
    """Return a loader that costs nothing."""
    return Ready()


def look_at(batch: Tensor) -> float:
    """Read a thousandth of a batch."""
    return float(batch[:, :, ::32, ::32].sum())
