"""Data made up where it is used: nothing is downloaded or stored, and there is something to learn.

A sample follows from the seed and its number alone. Batches are made when they are asked for, in
the loader's workers, as real ones are read and decoded: a data set of any size takes no memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from study.draws import uniform
from study.recommender import DENSE_FEATURES

#: Cells of a class's pattern along a side, and its brightest value; noise has the rest of a byte.
_CELLS = 8
_CONTRAST = 96
#: Noise is cut out of so many random bytes more than an image has.
_NOISE_BYTES = 1 << 20

_LABEL, _NOISE = 0, 1
_FIRST_DENSE, _FIRST_CATEGORY, _CLICKED = 10, 100, 1000
#: How skewed categories are: a few values are in most samples, as in logs of clicks.
_SKEW = 4.0
#: Of numbers that are uniform between 0 and 1.
_DEVIATION = 12**-0.5
#: How much a category's value, and a number, speak for or against a click.
_CATEGORY_WEIGHT, _DENSE_WEIGHT = 0.3, 0.8


class GeneratedImages(Dataset[tuple[Tensor, Tensor]]):
    """Images of a class's coarse pattern under noise, as bytes, with their class.

    Args:
        count: How many.
        classes: Of how many classes.
        pixels: Height and width.
        seed: Makes the patterns, which training and validation share.
        first: Number of the first image: validation's follow those of training.
    """

    def __init__(self, count: int, classes: int, pixels: int, seed: int, first: int = 0) -> None:
        self._count, self._classes, self._seed, self._first = count, classes, seed, first
        self._shape = (3, pixels, pixels)
        random = np.random.default_rng(seed)
        self._patterns = random.integers(
            0, _CONTRAST, (classes, 3, _CELLS, _CELLS), dtype=np.uint8, endpoint=False
        )
        self._cells = np.arange(pixels) * _CELLS // pixels
        size = 3 * pixels * pixels
        self._noise = random.integers(0, 256 - _CONTRAST, _NOISE_BYTES + size, dtype=np.uint8)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        images, labels = self.__getitems__([number])
        return images[0], labels[0]

    def __getitems__(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """A batch: shapes (N, 3, pixels, pixels) and (N,)."""
        samples = np.asarray(numbers, dtype=np.int64) + self._first
        labels = (uniform(self._seed, samples, _LABEL) * self._classes).astype(np.int64)
        offsets = (uniform(self._seed, samples, _NOISE) * _NOISE_BYTES).astype(np.int64)
        size = int(np.prod(self._shape))
        images = np.stack([self._noise[offset : offset + size] for offset in offsets])
        images = images.reshape(len(samples), *self._shape)
        images += self._patterns[labels][:, :, self._cells[:, None], self._cells]
        return torch.from_numpy(images), torch.from_numpy(labels)


class GeneratedClicks(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """What a page showed and whether it was clicked: 13 numbers, a value of each category, 0 or 1.

    Args:
        count: How many.
        rows: Values of each category.
        seed: Makes what speaks for a click, which training and validation share.
        first: Number of the first: validation's follow those of training.
    """

    def __init__(self, count: int, rows: Sequence[int], seed: int, first: int = 0) -> None:
        self._count, self._rows, self._seed, self._first = count, tuple(rows), seed, first
        self._weights = np.random.default_rng(seed).normal(0, _DENSE_WEIGHT, DENSE_FEATURES)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        dense, categories, clicked = self.__getitems__([number])
        return dense[0], categories[0], clicked[0]

    def __getitems__(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """A batch: shapes (N, 13), (N, categories) and (N,)."""
        samples = np.asarray(numbers, dtype=np.int64) + self._first
        dense = np.stack(
            [uniform(self._seed, samples, _FIRST_DENSE + at) for at in range(DENSE_FEATURES)],
            axis=1,
        )
        dense = (dense - 0.5) / _DEVIATION
        categories = np.stack(
            [
                (uniform(self._seed, samples, _FIRST_CATEGORY + at) ** _SKEW * count).astype(int)
                for at, count in enumerate(self._rows)
            ],
            axis=1,
        )
        chance = 1 / (1 + np.exp(-(dense @ self._weights + self._opinion(categories))))
        clicked = uniform(self._seed, samples, _CLICKED) < chance
        return (
            torch.from_numpy(dense.astype(np.float32)),
            torch.from_numpy(categories),
            torch.from_numpy(clicked.astype(np.float32)),
        )

    def _opinion(self, categories: NDArray[np.int64]) -> NDArray[np.float64]:
        """How much the categories' values speak for a click; each always says the same."""
        total = np.zeros(len(categories))
        for at, count in enumerate(self._rows):
            if count > 1:
                says = uniform(self._seed + 1, categories[:, at], _FIRST_CATEGORY + at)
                total += np.where(says < 0.5, -_CATEGORY_WEIGHT, _CATEGORY_WEIGHT)
        return total
