"""The interface of all loaders, with the method names of `torch.utils.data` and torchdata."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Generic, Self, TypeVar

from radt.errors import UsageError

Batch = TypeVar("Batch")
Choice = TypeVar("Choice", bound=StrEnum)


class Loader(ABC, Generic[Batch]):
    """Return the batches of one epoch after another, in place of a ``DataLoader``.

    ``for batch in loader`` is one epoch. Each loop continues with the epoch after the last one,
    unless `set_epoch` chose another. A loader is a context manager that releases its resources on
    exit.
    """

    @abstractmethod
    def __iter__(self) -> Iterator[Batch]:
        """Return the batches of an epoch, or its rest after `load_state_dict`.

        Raises:
            LoaderError: The data cannot be loaded.
        """

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of batches of the current epoch, or of the next one between epochs."""

    @abstractmethod
    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next loop, counted from 0, as for a ``DistributedSampler``.

        After `load_state_dict`, the epoch of the state keeps its position.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the position as JSON values. `load_state_dict` continues with the next batch."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the last batch that the loader with this state returned.

        Raises:
            LoaderError: The state belongs to a loader with other data or options.
        """

    def close(self) -> None:
        """Release processes, memory and files. Harmless if repeated."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def chosen(options: type[Choice], what: str, value: str) -> Choice:
    """Return the member of an enumeration that an argument names.

    Raises:
        UsageError: There is no such member.
    """
    try:
        return options(value)
    except ValueError:
        expected = " or ".join(f'"{option}"' for option in options)
        raise UsageError(f'{what} is "{value}", expected {expected}') from None


def length_of(dataset: Any, loader: type[Loader[Any]]) -> int:
    """Return the number of samples of a dataset that a loader samples from.

    Raises:
        UsageError: The dataset has no length.
    """
    try:
        return len(dataset)
    except TypeError as error:
        raise UsageError(
            f"{loader.__name__} needs a dataset with a length, and {type(dataset).__name__} has "
            "none",
            "Use a dataset with __len__ and __getitem__",
        ) from error
