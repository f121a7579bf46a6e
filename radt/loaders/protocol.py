"""What every loader does, with the method names of `torch.utils.data` and torchdata."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

Batch = TypeVar("Batch")


class Loader(ABC, Generic[Batch]):
    """Give the batches of one epoch after another; a loader takes the place of a ``DataLoader``.

    ``for batch in loader`` is one epoch. Each such loop is the epoch after the last one, unless
    `set_epoch` named another. A loader is a context manager and releases what it holds at its end.
    """

    @abstractmethod
    def __iter__(self) -> Iterator[Batch]:
        """Return the batches of an epoch, or its rest after `load_state_dict`.

        Raises:
            LoaderError: The data cannot be loaded.
        """

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of batches of the epoch that comes next, or that is under way."""

    @abstractmethod
    def set_epoch(self, epoch: int) -> None:
        """Name the epoch of the next loop, from 0, as for a ``DistributedSampler``.

        After `load_state_dict`, the epoch of the state keeps its position.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the position in JSON values; `load_state_dict` goes on with the next batch."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after the last batch that the loader with this state gave.

        Raises:
            LoaderError: The state is of a loader with other data or options.
        """

    def close(self) -> None:
        """Release processes, memory and files. A second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
