"""Samples for training and validation: JPEGs that are decoded each time, or tensors in memory."""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

CLASSES = 10
STORED_PX, TRAINED_PX = 256, 224
#: So many different JPEGs; each is used again with other crops.
_DIFFERENT = 64


class Jpegs(Dataset[tuple[Tensor, int]]):
    """Random crops of generated JPEGs; the crop depends on the number of the sample only."""

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed = count, seed
        self.files = [_drawn(seed, number) for number in range(_DIFFERENT)]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        chance = np.random.default_rng((self.seed, number))
        edge = int(STORED_PX * chance.uniform(0.5, 1) ** 0.5)
        left, top = (int(at) for at in chance.integers(0, STORED_PX - edge + 1, 2))
        which = number % _DIFFERENT
        with Image.open(io.BytesIO(self.files[which])) as image:
            cropped = image.resize(
                (TRAINED_PX, TRAINED_PX),
                Image.Resampling.BICUBIC,
                (left, top, left + edge, top + edge),
            )
        return torch.from_numpy(np.array(cropped)).permute(2, 0, 1), which % CLASSES


class InMemory(Dataset[tuple[Tensor, int]]):
    """Small images that are tensors already."""

    def __init__(self, count: int, seed: int, edge: int = 32) -> None:
        chance = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, CLASSES, (count,), generator=chance)
        noise = torch.randint(0, 156, (count, 3, edge, edge), generator=chance)
        self.images = (noise + 10 * self.labels[:, None, None, None]).to(torch.uint8)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        return self.images[number], int(self.labels[number])


def _drawn(seed: int, number: int) -> bytes:
    """Return a JPEG of about 22 KB; the class is the place and colour of a blob."""
    chance, label = np.random.default_rng((seed, number)), number % CLASSES
    rows, columns = np.mgrid[0:STORED_PX, 0:STORED_PX] / STORED_PX
    angle = 2 * np.pi * label / CLASSES
    place = 0.5 + 0.3 * np.cos(angle), 0.5 + 0.3 * np.sin(angle)
    blob = np.exp(-((rows - place[0]) ** 2 + (columns - place[1]) ** 2) / 0.02)
    colour = np.array([label, CLASSES - label, CLASSES / 2]) / CLASSES
    texture = np.kron(chance.normal(0, 0.1, (32, 32, 3)), np.ones((8, 8, 1)))
    noise = chance.normal(0, 0.035, (STORED_PX, STORED_PX, 1))
    image = np.clip(blob[..., None] * colour + 0.3 + texture + noise, 0, 1)
    file = io.BytesIO()
    Image.fromarray((image * 255).astype(np.uint8)).save(file, "JPEG", quality=85)
    return file.getvalue()
