"""The batch sampler: each sample's size goes to the workers together with its index.

Workers prefetch batches and may live for many epochs: a size that they kept would be a stale one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils.data import Dataset, Sampler

from radt.errors import LoaderError, described
from radt.loaders.progressive.schedule import PlannedBatch

#: Index of a sample, and the edge in pixels at which it is trained.
IndexAndSize = tuple[int, int]


class SizedBatchSampler(Sampler[list[IndexAndSize]]):
    """Give one rank's part of the planned batches as lists of (index, size).

    Args:
        rank: Whose part.
        world_size: Number of ranks.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank, self._world_size = rank, world_size
        #: What the next loop gives.
        self.batches: Sequence[PlannedBatch] = ()

    def __iter__(self) -> Iterator[list[IndexAndSize]]:
        for batch in self.batches:
            part = batch.part(self._rank, self._world_size).tolist()
            yield [(index, batch.size) for index in part]

    def __len__(self) -> int:
        return len(self.batches)


class SizedSamples(Dataset[Any]):
    """Samples of a dataset, transformed for a size; what workers call.

    Args:
        dataset: Gives a raw sample for an index.
        transform: Makes of it what is trained at a size.
    """

    def __init__(self, dataset: Any, transform: Callable[[Any, int], Any]) -> None:
        self._dataset, self._transform = dataset, transform

    def __getitem__(self, key: IndexAndSize) -> Any:
        """Return the transformed sample.

        Raises:
            LoaderError: The dataset or the transform raised an exception.
        """
        index, size = key
        try:
            return self._transform(self._dataset[index], size)
        except Exception as error:
            raise LoaderError(
                f"sample {index} cannot be loaded at {size} pixels: {described(error)}"
            ) from error
