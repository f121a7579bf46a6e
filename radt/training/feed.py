"""Batches of a loader for the jobs that read it, with a position that can be restored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any

from radt.errors import TrainingError
from radt.loaders.randomness import RandomState, generators_of, set_states, states_of
from radt.training.randomness import OwnRandomness


class End(Enum):
    """Sentinel after the last batch of an epoch."""

    EPOCH = "end of the epoch"


class Feed:
    """The batches of one epoch after another, drawn with the random states of a job.

    The generators of the loader and its samplers are swapped, too. So if several jobs iterate over
    the same loader separately, each gets the batches that it would get alone.

    Args:
        loader: The source of the batches.
        randomness: The states from which the loader draws.
        epoch: Number of complete epochs at the beginning.

    Attributes:
        epoch: Number of complete epochs.
        batches: Number of batches returned in the current epoch.
    """

    def __init__(self, loader: Iterable[Any], randomness: OwnRandomness, epoch: int = 0) -> None:
        self.loader = loader
        self.randomness = randomness
        self.epoch = epoch
        self.batches = 0
        self._iterator: Iterator[Any] | None = None
        self._again: tuple[Any, RandomState] | None = None
        self._left: RandomState | None = None  # from before a batch that was put back
        self._generators = generators_of(loader)
        self._own = states_of(self._generators)
        self._start: RandomState | None = None
        self._own_start = self._own
        self._before = (randomness.state, self._own)

    @property
    def position(self) -> tuple[int, int]:
        """Complete epochs, and batches returned since."""
        return self.epoch, self.batches

    def next(self) -> Any | End:
        """Return the next batch, or `End.EPOCH` once after the last one of each epoch.

        Raises:
            TrainingError: The loader yields fewer batches than when the position was saved.
            Exception: Any error of the loader.
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
        """Load the last batch again, for jobs in lockstep after one has changed it."""
        self.close()
        self.batches -= 1
        self.randomness.state, self._own = self._before
        return self.next()

    def put_back(self, batch: Any, randomness: RandomState) -> None:
        """Put back a batch whose step was abandoned, so that it comes next.

        Args:
            batch: The last batch.
            randomness: The random states from before it was returned. `state_dict` uses the states
                from before it was loaded.
        """
        self._again = (batch, self._left or randomness)
        self.batches -= 1

    def _begin(self) -> Iterator[Any]:
        self._start = RandomState.current()
        self._own_start = states_of(self._generators)
        return self._iterate()

    def _iterate(self) -> Iterator[Any]:
        if callable(set_epoch := getattr(self.loader, "set_epoch", None)):
            set_epoch(self.epoch)
        return iter(self.loader)

    def _found_again(self) -> Iterator[Any]:
        """Iterate over the epoch from its start again, up to the position."""
        assert self._start is not None
        own = states_of(self._generators)
        set_states(self._generators, self._own_start)
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
        set_states(self._generators, own)
        return iterator

    @contextmanager
    def _own_generators(self) -> Iterator[None]:
        outside = states_of(self._generators)
        set_states(self._generators, self._own)
        try:
            yield
        finally:
            self._own = states_of(self._generators)
            set_states(self._generators, outside)

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
        """Continue at a position. The next `next` loads the batches before it again."""
        self.close()
        self._again = None
        self.epoch = state["epoch"]
        self.batches = state["batches"]
        self.randomness.state = RandomState.from_state_dict(state["random"])
        start = state["start"]
        self._start = None if start is None else RandomState.from_state_dict(start)
        self._own, self._own_start = state["own"], state["own_start"]

    def fork(self) -> Feed:
        """Return a feed at the same position, for a job that continues without the others."""
        own = Feed(self.loader, OwnRandomness(self.randomness.state))
        own.load_state_dict(self.state_dict())
        return own

    def close(self) -> None:
        """End the iteration, and the loader's workers."""
        self._iterator = None
