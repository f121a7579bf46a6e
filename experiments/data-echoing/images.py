"""Images as JPEGs in memory: generated ones, or CIFAR-10's; and what is done with each.

The class of a generated image is the direction of a fine grating, whose phase and place differ,
below noise: a network has to learn the texture, and few samples are not enough for it.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset

CLASSES = 10
#: Edge of what is trained on.
EDGE = 32
_PADDING = 4


@dataclass(frozen=True)
class Jpegs(Dataset[tuple[Tensor, int]]):
    """Compressed images; an item is one of them, decoded, at the size for training."""

    files: list[bytes]
    labels: list[int]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with Image.open(io.BytesIO(self.files[index])) as image:
            small = image.convert("RGB").resize((EDGE, EDGE), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(small)).permute(2, 0, 1), self.labels[index]


def augment(sample: tuple[Tensor, int], chance: np.random.Generator) -> tuple[Tensor, int]:
    """Shift by up to 4 pixels and change the brightness."""
    image, label = sample
    top, left = (int(at) for at in chance.integers(0, 2 * _PADDING + 1, 2))
    padded = functional.pad(image, (_PADDING,) * 4)[:, top : top + EDGE, left : left + EDGE]
    return scaled(padded) * float(chance.uniform(0.8, 1.2)), label


def augment_and_mirror(
    sample: tuple[Tensor, int], chance: np.random.Generator
) -> tuple[Tensor, int]:
    """As `augment`, and mirror half of them: photographs keep their class, gratings do not."""
    image, label = augment(sample, chance)
    return (image.flip(2) if chance.random() < 0.5 else image), label


def plain(sample: tuple[Tensor, int]) -> tuple[Tensor, int]:
    """Scale only: for validation."""
    return scaled(sample[0]), sample[1]


def scaled(image: Tensor) -> Tensor:
    """Return bytes as numbers around 0."""
    return image.float() / 64 - 2


def generated(count: int, edge: int, seed: int) -> Jpegs:
    """Return so many images of ``edge`` pixels."""
    labels = [number % CLASSES for number in range(count)]
    return Jpegs([_drawn(label, edge, seed, at) for at, label in enumerate(labels)], labels)


def _drawn(label: int, edge: int, seed: int, number: int) -> bytes:
    chance = np.random.default_rng((seed, number))
    rows, columns = np.mgrid[0:edge, 0:edge] / edge
    angle = np.pi * (label + chance.normal(0, 0.12)) / CLASSES
    along = rows * np.cos(angle) + columns * np.sin(angle)
    grating = np.sin(2 * np.pi * (6 * along + chance.random()))
    top, left = chance.uniform(0.3, 0.7, 2)
    window = np.exp(-((rows - top) ** 2 + (columns - left) ** 2) / 0.04)
    colour = chance.uniform(0.3, 1.0, 3)
    coarse = chance.normal(0, 1, (EDGE, EDGE, 1)).repeat(edge // EDGE, 0).repeat(edge // EDGE, 1)
    noise = 0.5 * coarse + 0.2 * chance.normal(0, 1, (edge, edge, 1))
    image = (grating * window)[..., None] * colour + noise
    file = io.BytesIO()
    levels = np.clip(128 + 50 * image, 0, 255).astype(np.uint8)
    Image.fromarray(levels).save(file, "JPEG", quality=90)
    return file.getvalue()


def cifar10(folder: Path) -> tuple[Jpegs, Jpegs]:
    """Return CIFAR-10's samples for training and for validation as JPEGs.

    Raises:
        FileNotFoundError: The folder has not the published Python batches.
    """
    train = [folder / f"data_batch_{number}" for number in range(1, 6)]
    return _batches(train), _batches([folder / "test_batch"])


def _batches(paths: list[Path]) -> Jpegs:
    files, labels = [], []
    for path in paths:
        with path.open("rb") as file:
            batch = pickle.load(file, encoding="latin1")
        for pixels, label in zip(batch["data"], batch["labels"], strict=True):
            made = io.BytesIO()
            image = Image.fromarray(pixels.reshape(3, 32, 32).transpose(1, 2, 0))
            image.save(made, "JPEG", quality=95)
            files.append(made.getvalue())
            labels.append(int(label))
    return Jpegs(files, labels)
