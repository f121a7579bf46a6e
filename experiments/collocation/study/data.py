"""The data sets of the study by name, generated or from files, as batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler

from study.files import ImageFolder, cifar10, imagenet64
from study.generated import GeneratedClicks, GeneratedImages
from study.recommender import CRITEO_ROWS, capped


class Data(StrEnum):
    """What can be trained on."""

    CIFAR10 = "cifar10"
    IMAGENET64 = "imagenet64"
    IMAGENET = "imagenet"
    CLICKS = "clicks"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large a data set is; ``classes`` and ``pixels`` of images only."""

    train: int
    validation: int
    classes: int = 0
    pixels: int = 0

    def __post_init__(self) -> None:
        if min(self.train, self.validation) < 1:
            raise ValueError("a data set has at least one sample for training and for validation")


#: As published. Of clicks, a block of the study: 102,400 batches of 2,048.
PUBLISHED: dict[Data, Sizes] = {
    Data.CIFAR10: Sizes(50_000, 10_000, 10, 32),
    Data.IMAGENET64: Sizes(1_281_167, 50_000, 1000, 64),
    Data.IMAGENET: Sizes(1_281_167, 50_000, 1000, 224),
    Data.CLICKS: Sizes(102_400 * 2_048, 1_000_000),
}


@dataclass(frozen=True, slots=True)
class Place:
    """A data set, and where its files are: ``cifar10``, or ``cifar10=/data/cifar-10-batches-py``.

    Attributes:
        data: Which.
        folder: None for generated data.
    """

    data: Data
    folder: Path | None = None

    @classmethod
    def parse(cls, text: str) -> Place:
        """Read what ``--data`` says.

        Raises:
            ValueError: It names no data set, or files of one that can only be generated.
        """
        name, _, folder = text.partition("=")
        if name not in list(Data):
            raise ValueError(f"no data set {name!r}; there are {', '.join(Data)}")
        data = Data(name)
        if folder and data is Data.CLICKS:
            raise ValueError("clicks can only be generated")
        return cls(data, Path(folder) if folder else None)


@dataclass(frozen=True, slots=True)
class Split:
    """What is trained on, and what is validated on."""

    train: Dataset[Any]
    validation: Dataset[Any]


def open_images(place: Place, sizes: Sizes, seed: int) -> tuple[Split, Sizes]:
    """A data set of images, and how large it is: files know themselves how many there are.

    Raises:
        ValueError: Files are missing, or are of another size.
    """
    if place.folder is None:
        made = (
            GeneratedImages(sizes.train, sizes.classes, sizes.pixels, seed),
            GeneratedImages(sizes.validation, sizes.classes, sizes.pixels, seed, sizes.train),
        )
        return Split(*made), sizes
    train: Dataset[Any]
    validation: Dataset[Any]
    classes, pixels = sizes.classes, sizes.pixels
    match place.data:
        case Data.CIFAR10:
            train, validation = (cifar10(place.folder, train=part) for part in (True, False))
            classes, pixels = PUBLISHED[Data.CIFAR10].classes, PUBLISHED[Data.CIFAR10].pixels
        case Data.IMAGENET64:
            train, validation = (
                imagenet64(place.folder, sizes.pixels, train=part) for part in (True, False)
            )
        case _:
            train = (folders := ImageFolder(place.folder / "train", sizes.pixels))
            validation = ImageFolder(place.folder / "val", sizes.pixels)
            classes = folders.classes
    return Split(train, validation), Sizes(len(train), len(validation), classes, pixels)


def open_clicks(sizes: Sizes, max_rows: int, seed: int) -> Split:
    """Generated clicks, of categories with at most so many values."""
    rows = capped(CRITEO_ROWS, max_rows)
    return Split(
        GeneratedClicks(sizes.train, rows, seed),
        GeneratedClicks(sizes.validation, rows, seed, sizes.train),
    )


class Scattered(Sampler[int]):
    """So many samples of a data set in an order of their own each epoch, without a list of all.

    A data set of 200 million clicks has no shuffled list that would fit: where only some are asked
    for, each is drawn by itself.
    """

    def __init__(self, total: int, count: int, seed: int) -> None:
        super().__init__()
        self._total, self._count = total, count
        self._random = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        for start in range(0, self._count, 1 << 16):
            size = min(1 << 16, self._count - start)
            yield from torch.randint(self._total, (size,), generator=self._random).tolist()


def batches(
    data: Dataset[Any],
    batch_size: int,
    *,
    samples: int,
    seed: int | None,
    workers: int,
    pinned: bool,
) -> DataLoader[Any]:
    """Batches of a data set, made by workers.

    Args:
        data: It.
        batch_size: Samples in a batch; the last one is left out where it would be smaller, unless
            it is the only one.
        samples: How many samples an epoch takes, at most all.
        seed: Of the order; None for the data set's own.
        workers: Processes that make them; 0 for the training process itself.
        pinned: Put them where a GPU fetches them from.
    """
    total = len(data)  # type: ignore[arg-type]
    samples = min(samples, total)
    order: Sampler[int] | range
    if seed is None:
        order = range(samples)
    elif samples == total:
        order = RandomSampler(range(total), generator=torch.Generator().manual_seed(seed))
    else:
        order = Scattered(total, samples, seed)
    return DataLoader(
        data,
        batch_size,
        sampler=order,
        num_workers=workers,
        collate_fn=_as_it_is,
        pin_memory=pinned,
        drop_last=seed is not None and samples >= batch_size,
        persistent_workers=workers > 0,
    )


def _as_it_is(batch: Any) -> Any:
    """Our data sets give whole batches."""
    return batch
