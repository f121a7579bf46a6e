"""Jobs in lockstep: in each step, every job trains on its next batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from radt.errors import TrainingError
from radt.loaders.batches import tensors_of
from radt.loaders.randomness import RandomState
from radt.training.failures import check_loss, free_gradients
from radt.training.feed import End, Feed
from radt.training.fusion import Fusion
from radt.training.job import JobStatus
from radt.training.queue import QueuedJob
from radt.training.stack import can_be_stacked

#: Trains a job on a batch. Returns None if the step was abandoned, to be repeated later.
Train = Callable[[QueuedJob, Any], Tensor | None]


@dataclass(slots=True)
class _Task:
    """A job and the batch that it trains on."""

    place: QueuedJob
    batch: Any


class Lockstep:
    """Jobs that train in lockstep, often a single one. A job that fails or ends keeps its place.

    Args:
        places: Places with the same feed, or with the same structure.
        train: Trains one job on a batch.
        at_work: Called with the name of the running job.
        fusion: Trains them at once; None if they train one after another.
        stop_at_nan: Whether a job fails at a NaN loss. Used for fused steps; `train` checks itself.
        may_be_left: Whether `train` may abandon a step.
    """

    def __init__(
        self,
        places: Sequence[QueuedJob],
        train: Train,
        at_work: Callable[[str], None],
        *,
        fusion: Fusion | None = None,
        stop_at_nan: bool = False,
        may_be_left: bool = False,
    ) -> None:
        self._places = places
        self._train = train
        self._at_work = at_work
        self._fusion = fusion
        self._stop_at_nan = stop_at_nan
        self._may_be_left = may_be_left

    def advance(self) -> bool:
        """Train each job on its next batch. Return True if an epoch is complete."""
        loaded: dict[int, Any] = {}  # batch of each feed, or the loader's error
        moved: dict[tuple[int, torch.device], Any] = {}  # batches on the devices of the jobs
        tasks: list[_Task] = []
        is_complete = False
        for place in self._places:
            try:
                self._at_work(place.job.name)
                if self._may_be_left:
                    place.before = RandomState.current(place.job.randomness.state.cuda_seed)
                if id(place.feed) not in loaded:
                    loaded[id(place.feed)] = _loaded(place.feed)
                batch = loaded[id(place.feed)]
                if isinstance(batch, Exception):
                    place.fail(batch)
                elif batch is End.EPOCH:
                    is_complete = True
                    self._end_epoch(place)
                elif self._may_be_left:  # its device is chosen when it trains
                    tasks.append(_Task(place, batch))
                else:
                    there = id(place.feed), place.job.device
                    if there not in moved:
                        moved[there] = place.job.moved(batch)
                    tasks.append(_Task(place, moved[there]))
            except Exception as error:  # noqa: BLE001 - any error of a job ends only that job
                place.fail(error)
        if self._fusion is None:
            self._one_after_another(tasks)
        else:
            self._either_way(tasks, self._fusion)
        return is_complete

    def close(self) -> None:
        """Return each job's state to its own model and optimiser, without gradients."""
        if self._fusion is not None:
            self._fusion.separate()
        for place in self._places:
            free_gradients(place.job)

    @staticmethod
    def _end_epoch(place: QueuedJob) -> None:
        place.job.end_epoch()
        place.record.flush()
        if place.job.epoch == place.job.epochs:
            place.end(JobStatus.FINISHED)

    def _one_after_another(self, tasks: Sequence[_Task]) -> None:
        for at, task in enumerate(tasks):
            place, batch = task.place, task.batch
            if not place.is_ready:  # the batch could not be loaded again
                continue
            versions = _versions(batch)
            try:
                self._at_work(place.job.name)
                loss = self._train(place, batch)
                if loss is not None:
                    place.record.step(loss)
                elif place.before is not None:
                    place.feed.put_back(batch, place.before)
            except Exception as error:  # noqa: BLE001 - any error of a job ends only that job
                place.fail(error)
            mates = [later for later in tasks[at + 1 :] if later.place.feed is place.feed]
            if mates:
                free_gradients(place.job)
                if versions != _versions(batch):
                    _without_change(task, mates)

    def _either_way(self, tasks: Sequence[_Task], fusion: Fusion) -> None:
        """Train jobs at once or one after another, as their trial decides."""
        batches = [task.batch for task in tasks]
        if len(tasks) < len(self._places) or not can_be_stacked(batches):
            fusion.separate()
            self._one_after_another(tasks)
            return
        fusion.trial.begin()
        try:
            losses = fusion.step(batches)
        except Exception as error:  # noqa: BLE001 - the joint update stopped midway
            for task in tasks:
                task.place.fail(error)
            return
        if losses is None:
            self._one_after_another(tasks)
            if all(task.place.is_ready for task in tasks):
                fusion.give_up()
        else:
            for task, loss in zip(tasks, losses.unbind(), strict=True):
                self._take(task.place, loss)
        fusion.trial.end()

    def _take(self, place: QueuedJob, loss: Tensor) -> None:
        try:
            check_loss(place.job, loss, self._stop_at_nan)
            place.record.step(loss)
        except Exception as error:  # noqa: BLE001 - any error of a job ends only that job
            place.fail(error)


def _loaded(feed: Feed, again: bool = False) -> Any:
    """Return the next batch, or the last one again, or the loader's error."""
    try:
        return feed.again() if again else feed.next()
    except Exception as error:  # noqa: BLE001 - it ends all jobs that wait for this batch
        return error


def _versions(batch: Any) -> list[int]:
    """Return the number of in-place writes to each tensor of a batch."""
    return [tensor._version for tensor in tensors_of(batch)]  # noqa: SLF001


def _without_change(task: _Task, mates: Sequence[_Task]) -> None:
    """Fail a job that changed a shared batch, and load the batch again for the others."""
    message = f"job {task.place.job.name} has changed a batch that it shares with others"
    error = TrainingError(message, "clone what it writes to: x = x.clone()")
    if task.place.is_ready:
        task.place.fail(error)
    again = _loaded(mates[0].place.feed, again=True)
    memory = {tensor.data_ptr() for tensor in tensors_of(task.batch)}
    if any(tensor.data_ptr() in memory for tensor in tensors_of(again)):
        again = TrainingError(f"{message}, in the memory of the data", error.remedy)
    for mate in mates:
        if isinstance(again, Exception):
            mate.place.fail(again)
        else:
            mate.batch = again
