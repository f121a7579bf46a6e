"""Several jobs in one process: each trains as if it were alone, in the order of a policy."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from radt.errors import TrainingError, UsageError
from radt.training.checkpoints import Checkpoints
from radt.training.failures import DeviceLostError, settle, train
from radt.training.feed import Feed
from radt.training.fusion import Fusion, Trial
from radt.training.job import Job, JobStatus
from radt.training.lockstep import Lockstep
from radt.training.memory import Admission, bytes_of
from radt.training.migration import JobDevices
from radt.training.policies import Policy, policy_of
from radt.training.queue import Queue, QueuedJob
from radt.training.randomness import OwnRandomness
from radt.training.records import JobRecord
from radt.training.stack import structure_of


class MultiTrainer:
    """Train several jobs in one process; each job's losses are bit-identical to its plain loop.

    Fused jobs (``fuse="auto"``) are an exception: their losses differ in the last digits.

    ::

        with MultiTrainer(jobs, policy="sjf") as trainer:
            for job in trainer.run():
                torch.save(job.model.state_dict(), f"{job.name}.pt")

    One job trains at a time, with its own random states (UnifiedNN). `pause`, `resume`, `cancel`
    and `add` may be called from other threads; they take effect after the current step. A job fails
    alone, without the others: after an exception, at a NaN with `stop_at_nan`, or if memory is
    insufficient even after its step was repeated with all possible memory freed. ``job.failure``
    has the traceback.

    Args:
        jobs: The jobs; more may join by `add`.
        policy: ``fcfs``, ``priority``, ``sjf``, ``round_robin``, ``preemptive``, or your own
            `Policy`.
        memory: What all jobs together may use, in bytes or as ``"20GB"``. Each job's first step is
            measured (UnifiedNN, equations 1 and 2); jobs that do not fit wait for others to end.
            If none fits beside the others that are ready, one fails.
        share_input: Whether jobs with the same loader object train in lockstep on each batch, which
            is loaded once. They must not change its tensors. A ``DataLoader`` needs its own
            generator; other random numbers of a data set are drawn once for all jobs.
        fuse: ``"auto"`` trains jobs of equal structure as one stacked model where that is faster.
        stop_at_nan: Whether a job fails at a NaN loss.
        checkpoint: Folder for the state of each job at each switch, from which a restart continues.
            Batches of an interrupted epoch are loaded again up to its position.
        devices: Where jobs train with ``preemptive``, the preferred device first. If empty, a GPU
            if there is one, else the CPU. Others that use them with high priority have a
            `DeviceLease`; a job then continues on another free device, or waits. A custom `step`
            may be abandoned and repeated, until the job's model is updated.
        max_segment_ms: With ``preemptive``, the longest time that others wait for a boundary.

    Attributes:
        ways: For jobs of equal structure, by their names: the way that was chosen, and the times
            of steps.

    Raises:
        UsageError: An argument is invalid, or two jobs have the same name.
        TrainingError: A checkpoint belongs to another training.
    """

    def __init__(
        self,
        jobs: Iterable[Job] = (),
        *,
        policy: str | Policy = "fcfs",
        memory: str | int | None = None,
        share_input: bool = False,
        fuse: str | None = None,
        stop_at_nan: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        devices: Sequence[torch.device | str] = (),
        max_segment_ms: float = 5.0,
    ) -> None:
        if fuse not in (None, "auto"):
            raise UsageError(f'fuse is "{fuse}"', 'expected "auto" or None')
        self._policy = policy_of(policy)
        if devices and not self._policy.is_inside_steps:
            raise UsageError(f"policy {policy} has no devices", 'use policy="preemptive"')
        if self._policy.is_inside_steps and (share_input or fuse):
            raise UsageError(
                f"with policy {policy}, jobs do not train in lockstep",
                "leave out share_input and fuse",
            )
        default = ["cuda" if torch.cuda.is_available() else "cpu"]
        self._devices = (
            JobDevices(devices or default, max_segment_ms) if self._policy.is_inside_steps else None
        )
        self._admission = None if memory is None else Admission(bytes_of(memory))
        self._share_input = share_input
        self._is_fusing = fuse is not None
        self._stop_at_nan = stop_at_nan
        self._checkpoints = None if checkpoint is None else Checkpoints(Path(checkpoint))
        self._queue = Queue(self._policy, self._admission)
        self._turns = count(1)
        self._is_closed = False
        self.ways: dict[tuple[str, ...], Trial] = {}
        jobs = list(jobs)
        # Kept as long as the trainer, so that no loader's id is reused.
        given = [job.loader for job in jobs] if share_input else []
        self._shared = [each for each in given if sum(each is other for other in given) > 1]
        try:
            for job in jobs:
                self.add(job)
        except BaseException:
            self.close()
            raise

    # Control, from any thread ------------------------------------------------------------------

    def add(self, job: Job) -> None:
        """Add a job.

        In another thread than that of `run`, create its model beforehand: initial weights are drawn
        from the global random states, which belong to the running job.

        Raises:
            UsageError: It has no loader, or one that others use; its name is taken; it is in the
                middle of an epoch without a checkpoint; or the trainer is closed.
            TrainingError: Its checkpoint belongs to another training.
        """
        if job.loader is None:
            raise UsageError(f"job {job.name} has no loader", "give it one: Job(…, loader=…)")
        if self._devices is not None and (reason := job.weights.elsewhere):
            raise UsageError(
                f"job {job.name} {reason}, and cannot be left inside a step or moved",
                'use another policy than "preemptive", or train it without offload',
            )
        with self._queue.lock:
            if self._is_closed:
                raise UsageError("the trainer is closed", "add jobs within its `with` block")
            if self._queue.has(job.name):
                raise UsageError(f"two jobs are named {job.name}", "give each job its own name")
            places = self._queue.places.values()
            others = [place for place in places if place.feed.loader is job.loader]
            if others:
                self._check_shared(job, others[0].job)
            known = any(job.loader is shared for shared in self._shared)
            is_shared = self._share_input and (known or bool(others))
            feed = Feed(job.loader, OwnRandomness() if is_shared else job.randomness, job.epoch)
            if self._checkpoints is not None:
                self._checkpoints.load(job, feed)
            if feed.position != (job.epoch, job.batches):
                raise UsageError(
                    f"job {job.name} has done {job.batches} batches of an epoch outside of this "
                    "trainer, which does not know which ones",
                    "add jobs at the begin of an epoch, or go on with checkpoint=",
                )
            if job.status in (JobStatus.READY, JobStatus.FINISHED):
                is_done = job.epoch >= job.epochs
                job.status = JobStatus.FINISHED if is_done else JobStatus.READY
            if job.status.has_ended:
                self._queue.forget(job)
                self._queue.ended.append(job)
                return
            # Not those of the current turn: their next batch may already be loading.
            waiting = (other.feed for other in others if other not in self._queue.team)
            mates = (other for other in waiting if other.position == feed.position)
            if is_shared and (shared := next(mates, None)) is not None:
                if any(shared.randomness is other.job.randomness for other in others):
                    shared.randomness = OwnRandomness()  # until now it belonged to one job
                feed = shared
            place = QueuedJob(
                job,
                feed=feed,
                record=JobRecord(job),
                structure=structure_of(job) if self._is_fusing else None,
            )
            self._queue.join(place)

    def _check_shared(self, job: Job, other: Job) -> None:
        loader = job.loader
        names = f"jobs {other.name} and {job.name}"
        if not self._share_input:
            if hasattr(loader, "close") or getattr(loader, "persistent_workers", False):
                raise UsageError(
                    f"{names} have the same loader, which gives one epoch at a time",
                    "give each its own, or use share_input=True",
                )
        elif isinstance(loader, DataLoader) and loader.generator is None:
            raise UsageError(
                f"{names} share a DataLoader that draws from the random states of its job",
                "give it its own: DataLoader(…, generator=torch.Generator().manual_seed(0))",
            )

    def pause(self, name: str) -> None:
        """Stop a job after the current step; `run` yields it. Its state is kept.

        Does nothing if it has ended or is paused.

        Raises:
            UsageError: There is no such job.
        """
        self._queue.ask(name, JobStatus.PAUSED)

    def cancel(self, name: str) -> None:
        """End a job after the current step; `run` yields it. Does nothing if it has ended.

        Raises:
            UsageError: There is no such job.
        """
        self._queue.ask(name, JobStatus.CANCELLED)

    def resume(self, name: str) -> None:
        """Continue a paused job where it stopped. Does nothing if it is not paused.

        Raises:
            UsageError: There is no such job.
        """
        self._queue.resume(name)

    # Training ----------------------------------------------------------------------------------

    def run(self) -> Iterator[Job]:
        """Train. Yield each job as soon as it has finished, failed, or been paused or cancelled.

        Ends when no job is ready, or when all ready jobs wait for memory that paused ones keep,
        with a warning. Paused jobs continue after `resume`, in this call or the next.

        Raises:
            TrainingError: The trainer is closed, as after Ctrl-C; or the process can no longer use
                the device.
        """
        while True:
            self._queue.answer_requests()
            while self._queue.ended:
                self._save()
                yield self._queue.ended.popleft()
            if self._is_closed:
                raise TrainingError(
                    "the trainer is closed",
                    "use it within its `with` block; after Ctrl-C, train anew, or from checkpoint=",
                )
            team = self._queue.next_team()
            if team:
                try:
                    self._turn(team)
                except BaseException:  # in a step that can be neither finished nor undone
                    self._is_closed = True
                    raise
                self._queue.team = []
                self._save()
            elif not self._queue.ended:
                return

    def _turn(self, team: list[QueuedJob]) -> None:
        """Train a team until its epoch is complete, a job ends, or a job with precedence waits."""
        number, before = next(self._turns), [place.served for place in team]
        self._queue.has_joined = False
        lockstep = Lockstep(
            team,
            self._train,
            self._at_work,
            fusion=self._fusion(team),
            stop_at_nan=self._stop_at_nan,
            may_be_left=self._devices is not None,
        )
        with ExitStack() as spans:
            is_first = True
            for place in team:
                place.served, place.is_unsaved = number, True
                spans.enter_context(place.record.turn())
            if len(team) == 1:  # swapping random states takes longer than a small step
                spans.enter_context(team[0].job.randomness.in_use())
            try:
                while True:
                    is_complete = lockstep.advance()
                    for place in team:
                        if not place.is_ready:
                            self._queue.leave(place)
                    self._queue.answer_requests()
                    if is_complete:
                        return
                    # Before its first step, a job's memory and optimiser states are unknown.
                    is_changed = is_first or self._queue.has_joined
                    is_first = False
                    all_fit = not is_changed or self._queue.fits(team)
                    if self._queue.ended or not all_fit or self._queue.is_interrupted(team):
                        for place, served in zip(team, before, strict=True):
                            place.served = served  # it goes first among its equals
                        return
            finally:
                lockstep.close()
                self._settle(team)

    def _fusion(self, team: Sequence[QueuedJob]) -> Fusion | None:
        structures = {place.structure for place in team}
        if len(team) == 1 or len(structures) > 1 or None in structures:
            return None
        jobs = [place.job for place in team]
        names = tuple(job.name for job in jobs)
        if names not in self.ways:
            self.ways[names] = self._trial_of_most(names) or Trial()
        allows = None if self._admission is None else self._allows
        return Fusion(jobs, self.ways[names], allows)

    def _trial_of_most(self, names: Sequence[str]) -> Trial | None:
        """Return the trial of a larger team of which these jobs are more than half."""
        for known, trial in self.ways.items():
            if trial.chosen and set(names) < set(known) and 2 * len(names) > len(known):
                return Trial(trial.chosen, trial.reason)
        return None

    def _allows(self, extra_bytes: int) -> bool:
        assert self._admission is not None
        return self._admission.allows(extra_bytes, self._queue.present())

    def _settle(self, team: Iterable[QueuedJob]) -> None:
        try:
            for place in team:
                settle(place.job)
        except DeviceLostError:
            if self._checkpoints is not None:
                self._checkpoints.close(is_lost=True)
            raise
        self._at_work("")

    def _at_work(self, name: str) -> None:
        if self._checkpoints is not None:
            self._checkpoints.at_work(name)

    def _train(self, place: QueuedJob, batch: Any) -> Tensor | None:
        """Train a job on a batch. Return None if the step was abandoned, to be repeated later."""
        others = [job for job in self._queue.present() if job is not place.job]

        def step(batch: Any) -> Tensor:
            def attempt() -> Tensor:
                return train(place.job, batch, self._stop_at_nan, others)

            if self._admission is None:
                return attempt()
            return self._admission.measure(place.job, attempt)

        if self._devices is None:
            return step(batch)
        with place.job.randomness.in_use():
            return self._devices.step(place.job, batch, step, partial(self._must_leave, place))

    def _must_leave(self, place: QueuedJob) -> bool:
        return self._queue.has_joined and self._queue.is_interrupted([place])

    def _save(self) -> None:
        """Save the states that have changed, and forget jobs that have ended."""
        with self._queue.lock:
            for place in list(self._queue.places.values()):
                if place.is_unsaved and self._checkpoints is not None:
                    self._checkpoints.save(place.job, place.feed)
                place.is_unsaved = False
                if place.job.status.has_ended:
                    place.feed.close()
                    if self._devices is not None:
                        self._devices.forget(place.job)
                    self._queue.forget(place.job)

    def close(self) -> None:
        """End the loaders' iterations and close files. Harmless if repeated."""
        with self._queue.lock:
            self._is_closed = True
            for place in self._queue.places.values():
                place.feed.close()
            if self._checkpoints is not None:
                self._checkpoints.close()
            if self._devices is not None:
                self._devices.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
