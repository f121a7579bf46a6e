"""The work of an `EchoLoader`'s processes: decode, keep, reuse, augment, collate."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from radt.errors import LoaderError, described
from radt.loaders.echo.buffer import GivenUpError, SampleBuffer, Turn
from radt.loaders.echo.fills import AUGMENTATION, Action, Epoch, EpochPlan, Sizes
from radt.loaders.layout import LaidOut
from radt.loaders.plan import generator

#: Augments a decoded sample for training. The generator depends on the epoch and the use.
Augment = Callable[[Any, np.random.Generator], Any]
Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True, slots=True)
class Task:
    """A batch to make."""

    epoch: Epoch
    turn: Turn


@dataclass(frozen=True, slots=True)
class BatchFailure:
    """Why a worker could not make a batch."""

    message: str
    remedy: str | None
    traceback: str

    def error(self) -> LoaderError:
        error = LoaderError(self.message, self.remedy)
        error.add_note(self.traceback)
        return error


class WorkerBatches(Dataset[tuple[Any, int, int] | BatchFailure]):
    """The dataset of the workers' ``DataLoader``: each item is a batch."""

    def __init__(
        self,
        dataset: Dataset[Any],
        augment: Augment | None,
        collate: Collate,
        sizes: Sizes,
        buffer: SampleBuffer,
    ) -> None:
        self._dataset, self._augment, self._collate = dataset, augment, collate
        self._sizes, self._buffer = sizes, buffer

    def __getitem__(self, task: Task) -> tuple[Any, int, int] | BatchFailure:
        try:
            return self._made(task)
        except GivenUpError:
            return BatchFailure("the loop over the loader has ended", None, "")
        except Exception as error:  # noqa: BLE001 - the loop over the batches raises it
            # Others may wait for samples of this batch, which will not come.
            self._buffer.give_up(task.turn)
            if isinstance(error, LoaderError):
                return BatchFailure(error.message, error.remedy, traceback.format_exc())
            message = f"a batch of epoch {task.epoch.number} cannot be made: {described(error)}"
            return BatchFailure(message, None, traceback.format_exc())

    def _made(self, task: Task) -> tuple[Any, int, int]:
        """Return a batch, and the numbers of samples decoded and reused for it."""
        samples: list[Any] = []
        decoded = echoed = 0
        first = task.turn.batch == task.epoch.first_batch
        for action in _plan(self._sizes, task.epoch).actions(task.turn.batch):
            sample = None
            if action.decode:
                decoded += action.counted
                sample = self._decode(action, task, sizes_slots=first)
                first = False
            if action.use is not None:
                if not action.decode:
                    sample = self._buffer.read(self._slot(action), action.fill, task.turn)
                echoed += action.use > 0
                samples.append(self._augmented(sample, action, task.epoch))
        return self._collate(samples), decoded, echoed

    def _decode(self, action: Action, task: Task, *, sizes_slots: bool) -> Any:
        """Return a decoded sample of the dataset. Put it into the buffer if it has further uses."""
        with _naming(action.index, "decoded"):
            sample = self._dataset[action.index]
        reads = action.uses_left - (action.use is not None)
        if reads or (sizes_slots and task.epoch.repeats > 1):
            with _naming(action.index, "buffered"):
                self._buffer.write(
                    self._slot(action),
                    action.fill,
                    LaidOut(sample),
                    reads,
                    task.turn,
                    after=action.after,
                    sizes=sizes_slots,
                )
        return sample

    def _augmented(self, sample: Any, action: Action, epoch: Epoch) -> Any:
        if self._augment is None:
            return sample
        assert action.use is not None
        key = (epoch.number, AUGMENTATION, action.index, action.use)
        with _naming(action.index, "augmented"):
            return self._augment(sample, generator(self._sizes.seed, *key))

    def _slot(self, action: Action) -> int:
        return action.fill % 2 * self._sizes.buffer + action.place


@lru_cache(maxsize=2)
def _plan(sizes: Sizes, epoch: Epoch) -> EpochPlan:
    return EpochPlan(sizes, epoch)


@contextmanager
def _naming(index: int, done: str) -> Iterator[None]:
    """Name the sample in errors of its dataset, its augmentation or the buffer."""
    try:
        yield
    except GivenUpError:
        raise
    except LoaderError as error:
        message = f"sample {index} cannot be {done}: {error.message}"
        raise LoaderError(message, error.remedy) from error
    except Exception as error:
        message = f"sample {index} cannot be {done}: {described(error)}"
        raise LoaderError(message, None) from error
