"""Batches of a loader for the jobs that read it, at a position that can be found again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from radt.errors import TrainingError
from radt.training.randomness import OwnRandomness, RandomState


class End(Enum):
    """What a feed gives after the last batch of an epoch."""

    EPOCH = "end of the epoch"


class Feed:
    """The batches of one epoch after another, drawn with the random states of a job.

    A loader's own ``generator`` is swapped, too, and those of its samplers, so that a loader that
    several jobs go through on their own gives each of them what it would give it alone.

    Args:
        loader: Gives the batches.
        randomness: The states from which the loader draws.
        epoch: Epochs that are complete at the beginning.

    Attributes:
        epoch: Epochs that are complete.
        batches: Batches given in the epoch under way.
    """

    def __init__(self, loader: Iterable[Any], randomness: OwnRandomness, epoch: int = 0) -> None:
        self.loader = loader
        self.randomness = randomness
        self.epoch = epoch
        self.batches = 0
        self._iterator: Iterator[Any] | None = None
        self._again: tuple[Any, RandomState] | None = None
        self._left: RandomState | None = None  # of a batch that was put back: from before it
        self._generators = _generators_of(loader)
        self._own = _states_of(self._generators)
        self._start: RandomState | None = None
        self._own_start = self._own
        self._before = (randomness.state, self._own)

    @property
    def position(self) -> tuple[int, int]:
        """Epochs that are complete, and batches given since."""
        return self.epoch, self.batches

    def next(self) -> Any | End:
        """Return the next batch, or `End.EPOCH` once after the last one of each epoch.

        Raises:
            TrainingError: The loader gives fewer batches than when the position was taken.
            Exception: As the loader raises it.
        """
        if self._again is not None:
            (batch, self._left), self._again = self._again, None
            self.batches += 1
            return batch
        self._left = None
        self._before = (self.randomness.state, self._own)
        with self.randomness.in_use(), self._own_generators():
            if self._iterator is None:
                self._iterator = self._begin() if self.batches == 0 else self._found_again()
            batch = next(self._iterator, End.EPOCH)
        if batch is End.EPOCH:
            self.close()
            self.epoch += 1
            self.batches = 0
        else:
            self.batches += 1
        return batch

    def again(self) -> Any:
        """Load the last batch once more, for jobs in lockstep of which one has changed it."""
        self.close()
        self.batches -= 1
        self.randomness.state, self._own = self._before
        return self.next()

    def put_back(self, batch: Any, randomness: RandomState) -> None:
        """Have a batch come again, whose step was left.

        Args:
            batch: The last batch.
            randomness: The random states from before it was given; `state_dict` has those from
                before it was loaded.
        """
        self._again = (batch, self._left or randomness)
        self.batches -= 1

    def _begin(self) -> Iterator[Any]:
        self._start = RandomState.current()
        self._own_start = _states_of(self._generators)
        return self._iterate()

    def _iterate(self) -> Iterator[Any]:
        if callable(set_epoch := getattr(self.loader, "set_epoch", None)):
            set_epoch(self.epoch)
        return iter(self.loader)

    def _found_again(self) -> Iterator[Any]:
        """Go through the epoch from its start again, as far as it was."""
        assert self._start is not None
        own = _states_of(self._generators)
        _set(self._generators, self._own_start)
        now = RandomState.current()
        self._start.restore()
        iterator = self._iterate()
        for done in range(self.batches):
            if next(iterator, End.EPOCH) is End.EPOCH:
                raise TrainingError(
                    f"the loader ended after {done} batches, of which {self.batches} had been used",
                    "go on with the data and the batch size that the training began with",
                )
        now.restore()
        _set(self._generators, own)
        return iterator

    @contextmanager
    def _own_generators(self) -> Iterator[None]:
        outside = _states_of(self._generators)
        _set(self._generators, self._own)
        try:
            yield
        finally:
            self._own = _states_of(self._generators)
            _set(self._generators, outside)

    def state_dict(self) -> dict[str, Any]:
        """Return the position: random states at the start of the epoch, and the batches since."""
        random, own = self.randomness.state, self._own
        if self._again is not None:
            random, own = self._again[1], self._before[1]
        return {
            "epoch": self.epoch,
            "batches": self.batches,
            "random": random.state_dict(),
            "start": None if self._start is None else self._start.state_dict(),
            "own": own,
            "own_start": self._own_start,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on at a position; the batches before it are loaded again at the next `next`."""
        self.close()
        self._again = None
        self.epoch = state["epoch"]
        self.batches = state["batches"]
        self.randomness.state = RandomState.from_state_dict(state["random"])
        start = state["start"]
        self._start = None if start is None else RandomState.from_state_dict(start)
        self._own, self._own_start = state["own"], state["own_start"]

    def fork(self) -> Feed:
        """Return a feed at the same position, for a job that goes on without the others."""
        own = Feed(self.loader, OwnRandomness(self.randomness.state))
        own.load_state_dict(self.state_dict())
        return own

    def close(self) -> None:
        """End the iteration, and with it the loader's workers."""
        self._iterator = None


def _generators_of(loader: Iterable[Any]) -> list[torch.Generator]:
    """Return the generators from which a loader draws, itself or as a ``DataLoader`` samples."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    samplers = (getattr(loader, "sampler", None), batch_sampler)
    drawing = (loader, *samplers, getattr(batch_sampler, "sampler", None))
    generators = [getattr(each, "generator", None) for each in drawing]
    found = {id(each): each for each in generators if isinstance(each, torch.Generator)}
    return list(found.values())


def _states_of(generators: Iterable[torch.Generator]) -> list[Tensor]:
    return [generator.get_state() for generator in generators]


def _set(generators: Iterable[torch.Generator], states: Iterable[Tensor]) -> None:
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)
