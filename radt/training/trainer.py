"""Several jobs in one process: each trains as if it were alone, in the order of a policy."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from radt.errors import TrainingError, UsageError
from radt.run.notices import warn_once
from radt.training.checkpoints import Checkpoints
from radt.training.failures import (
    Attempts,
    BudgetError,
    DeviceLostError,
    check_loss,
    failure_of,
    free_caches,
    free_gradients,
    settle,
)
from radt.training.feed import End, Feed
from radt.training.fusion import Stack, Trial, Way, can_be_stacked, structure_of
from radt.training.job import Job, JobStatus
from radt.training.memory import Admission, bytes_of, tensors_of, with_peak
from radt.training.migration import Devices
from radt.training.policies import Candidate, Policy, policy_of
from radt.training.randomness import OwnRandomness, RandomState
from radt.training.records import JobRecord


class _Request(Enum):
    """What was asked for; it is done between two steps."""

    PAUSE = "pause"
    CANCEL = "cancel"


@dataclass(slots=True, kw_only=True, eq=False)
class _Place(Candidate):
    """A job in the trainer. Places with the same feed train in lockstep."""

    feed: Feed
    attempts: Attempts
    record: JobRecord
    structure: Hashable | None = None
    request: _Request | None = None
    is_unsaved: bool = True
    before: RandomState | None = None  # the last batch was loaded; with `preemptive`


def _loaded(feed: Feed, again: bool = False) -> Any:
    """Return the next batch, or the last one again; or the error that the loader raised."""
    try:
        return feed.again() if again else feed.next()
    except Exception as error:  # noqa: BLE001 - it ends all jobs that wait for this batch
        return error


class MultiTrainer:
    """Train several jobs in one process; losses of each are those of its plain loop, bit by bit.

    Fused jobs (``fuse="auto"``) are an exception: theirs differ in the last digits.

    ::

        with MultiTrainer(jobs, policy="sjf") as trainer:
            for job in trainer.run():
                torch.save(job.model.state_dict(), f"{job.name}.pt")

    One job trains at a time, with random states of its own (UnifiedNN). `pause`, `resume`,
    `cancel` and `add` may be called from other threads; they take effect after the step under way.
    A job that fails ends alone: an exception, a NaN with `stop_at_nan`, or no memory although its
    step was repeated with everything freed that could be. ``job.failure`` has the traceback.

    Args:
        jobs: The jobs; more may join by `add`.
        policy: ``fcfs``, ``priority``, ``sjf``, ``round_robin``, ``preemptive``, or a `Policy` of
            your own.
        memory: What all jobs together may use, in bytes or as ``"20GB"``. Each job's first step is
            measured (UnifiedNN, equations 1 and 2); jobs that do not fit wait for others to end. One
            that would not fit beside the other jobs that are ready fails.
        share_input: Whether jobs with the same loader object train in lockstep on each batch, which
            is loaded once. They must not change its tensors. A ``DataLoader`` needs a generator of
            its own; what a data set draws besides is drawn once for all.
        fuse: ``"auto"`` trains jobs of equal structure as one stacked model where that is faster.
        stop_at_nan: Whether a job fails at a loss that is NaN.
        checkpoint: Folder for the state of each job at each switch, from which a new start goes
            on. Batches of an epoch that was under way are loaded again up to its position.
        devices: Where jobs train with ``preemptive``, the preferred device first; a GPU if there
            is one, else the CPU, if empty. Others that use them with high priority have a
            `DeviceLease`; a job then goes on at another device that is free, or waits. A `step` of
            your own may be left and repeated, until the job's model is updated.
        max_segment_ms: With ``preemptive``, the longest time that others wait for a boundary.

    Attributes:
        ways: For jobs of equal structure, by their names: the way that was chosen, and the times
            of steps.

    Raises:
        UsageError: An argument is invalid, or two jobs have the same name.
        TrainingError: A checkpoint is of another training.
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
            Devices(devices or default, max_segment_ms) if self._policy.is_inside_steps else None
        )
        #: Whether jobs joined since the turn began; read at each boundary.
        self._has_joined = False
        self._admission = None if memory is None else Admission(bytes_of(memory))
        self._share_input = share_input
        self._is_fusing = fuse is not None
        self._stop_at_nan = stop_at_nan
        self._checkpoints = None if checkpoint is None else Checkpoints(Path(checkpoint))
        self._lock = threading.RLock()
        self._places: dict[str, _Place] = {}
        self._ended_names: set[str] = set()
        self._numbers, self._turns = count(1), count(1)
        self._ended: deque[Job] = deque()
        self._stack: Stack | None = None
        #: What holds while jobs are stacked: the random states from which they draw.
        self._stacked = ExitStack()
        self._is_closed = False
        self.ways: dict[tuple[str, ...], Trial] = {}
        jobs = list(jobs)
        # Kept as long as the trainer: the id of a loader that is gone may be that of another.
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
        """Have a job join.

        In another thread than that of `run`, make its model beforehand: initial weights are drawn
        from the global random states, which are those of the job that trains.

        Raises:
            UsageError: It has no loader, or one that others use, its name is taken, it is amid an
                epoch without a checkpoint, or the trainer is closed.
            TrainingError: Its checkpoint is of another training.
        """
        if job.loader is None:
            raise UsageError(f"job {job.name} has no loader", "give it one: Job(…, loader=…)")
        with self._lock:
            if self._is_closed:
                raise UsageError("the trainer is closed", "add jobs within its `with` block")
            if job.name in self._places or job.name in self._ended_names:
                raise UsageError(f"two jobs are named {job.name}", "give each job its own name")
            others = [place for place in self._places.values() if place.feed.loader is job.loader]
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
                self._ended_names.add(job.name)
                self._ended.append(job)
                return
            mates = (place.feed for place in others if place.feed.position == feed.position)
            if is_shared and (shared := next(mates, None)) is not None:
                if any(shared.randomness is other.job.randomness for other in others):
                    shared.randomness = OwnRandomness()  # until now it was of one job
                feed = shared
            self._places[job.name] = _Place(
                job,
                next(self._numbers),
                feed=feed,
                attempts=Attempts(job),
                record=JobRecord(job),
                structure=structure_of(job) if self._is_fusing else None,
            )
            self._has_joined = True

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
        """Stop a job after the step under way; `run` yields it. Its state stays as it is.

        Nothing happens if it has ended or is paused.

        Raises:
            UsageError: There is no such job.
        """
        self._ask(name, _Request.PAUSE)

    def cancel(self, name: str) -> None:
        """End a job after the step under way; `run` yields it. Nothing happens if it has ended.

        Raises:
            UsageError: There is no such job.
        """
        self._ask(name, _Request.CANCEL)

    def resume(self, name: str) -> None:
        """Have a paused job go on where it was; nothing happens if it is not paused.

        Raises:
            UsageError: There is no such job.
        """
        with self._lock:
            place = self._place(name)
            if place is None:
                return
            if place.request is _Request.PAUSE:
                place.request = None
            if place.job.status is JobStatus.PAUSED:
                place.job.status = JobStatus.READY
                place.joined = next(self._numbers)
                self._has_joined = True

    def _ask(self, name: str, request: _Request) -> None:
        with self._lock:
            place = self._place(name)
            if place is not None and place.request is not _Request.CANCEL:
                place.request = request

    def _place(self, name: str) -> _Place | None:
        if name not in self._places and name not in self._ended_names:
            known = ", ".join([*self._places, *self._ended_names]) or "none"
            raise UsageError(f"there is no job named {name}", f"jobs of this trainer: {known}")
        return self._places.get(name)

    # The order ---------------------------------------------------------------------------------

    def run(self) -> Iterator[Job]:
        """Train; yield each job as soon as it has finished, failed, or been paused or cancelled.

        It ends when no job is ready, or when those that are wait for memory that paused ones keep,
        which a warning says. Paused jobs go on after `resume`, with this call or the next.

        Raises:
            TrainingError: The trainer is closed, as after Ctrl-C; or the process can no longer use
                the device.
        """
        while True:
            self._answer_requests()
            while self._ended:
                self._save()
                yield self._ended.popleft()
            if self._is_closed:
                raise TrainingError(
                    "the trainer is closed",
                    "use it within its `with` block; after Ctrl-C, train anew, or from checkpoint=",
                )
            team = self._chosen()
            if team:
                try:
                    self._turn(team)
                except BaseException:  # amid a step, which nobody can finish or take back
                    self._is_closed = True
                    raise
                self._save()
            elif not self._ended:
                return

    def _ready(self) -> list[_Place]:
        with self._lock:
            return [place for place in self._places.values() if place.job.status is JobStatus.READY]

    def _chosen(self) -> list[_Place]:
        """Return the places of the next turn; none if no job can train."""
        with self._lock:
            ready = sorted(self._ready(), key=self._policy.rank)
            present = self._present()
            if able := self._fitting(ready, present):
                return self._team(able, ready)
            paused = [job for job in present if job.status is JobStatus.PAUSED]
            others = [job for job in present if job not in paused]
            if self._fitting(ready, others):
                names = ", ".join(job.name for job in paused)
                warn_once(
                    f"jobs wait for memory that paused ones keep ({names}): {ready[0].job.name} "
                    "goes on once they are resumed or cancelled, with the next run()"
                )
            elif ready:
                assert self._admission is not None
                error = BudgetError(self._admission.refusal(ready[0].job, others))
                self._fail(ready[0], error)
        return []

    def _team(self, able: Sequence[_Place], ready: Sequence[_Place]) -> list[_Place]:
        """Return the places that train with the first one: with its feed or its structure.

        Args:
            able: Those that fit into memory, by rank. The others of their feeds wait, out of
                lockstep.
            ready: All that are ready.
        """
        first = able[0]
        team = [place for place in able if place.feed is first.feed]
        if first.structure is not None and all(p.structure == first.structure for p in team):
            team = [
                place
                for place in able
                if place.structure == first.structure
                and place.feed.batches == first.feed.batches
                and all(p.structure == first.structure for p in able if p.feed is place.feed)
            ]
        for place in ready:
            if place not in able and any(place.feed is mate.feed for mate in team):
                place.feed = place.feed.fork()
        return team

    def _present(self) -> list[Job]:
        with self._lock:
            return [place.job for place in self._places.values()]

    def _fitting(self, places: Sequence[_Place], present: Sequence[Job]) -> list[_Place]:
        """Return the places whose steps fit into memory beside jobs that are there."""
        if self._admission is None:
            return list(places)
        fitting = self._admission.fitting([place.job for place in places], present)
        return [place for place in places if place.job in fitting]

    def _is_interrupted(self, team: Sequence[_Place]) -> bool:
        waiting = [place.job for place in self._ready() if all(place is not one for one in team)]
        if not waiting:
            return False
        running = min(team, key=self._policy.rank).job
        return any(self._policy.interrupts(job, running) for job in waiting)

    # Training ----------------------------------------------------------------------------------

    def _turn(self, team: list[_Place]) -> None:
        """Train a team until its epoch is complete, a job ends, or one with precedence waits."""
        number, before = next(self._turns), [place.served for place in team]
        self._has_joined = False
        with ExitStack() as spans:
            is_first = True
            for place in team:
                place.served, place.is_unsaved = number, True
                spans.enter_context(place.record.turn())
            if len(team) == 1:  # swapping random states takes longer than a small step
                spans.enter_context(team[0].job.randomness.in_use())
            try:
                while True:
                    is_complete = self._advance(team)
                    self._answer_requests()
                    if is_complete:
                        return
                    # First steps are measured, and optimisers then have their states.
                    is_changed = is_first or self._has_joined
                    is_first = False
                    all_fit = not is_changed or self._fitting(team, self._present()) == team
                    if self._ended or not all_fit or self._is_interrupted(team):
                        for place, served in zip(team, before, strict=True):
                            place.served = served  # it goes on first among its equals
                        return
            finally:
                self._separate()
                for place in team:
                    free_gradients(place.job)
                self._settle(team)

    def _settle(self, team: Iterable[_Place]) -> None:
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

    def _advance(self, team: Sequence[_Place]) -> bool:
        """Train each job of a team on its next batch; return whether an epoch is complete."""
        batches: dict[int, Any] = {}  # of each feed; or the error that it raised
        given: list[tuple[_Place, Any]] = []
        is_complete = False
        for place in team:
            try:
                self._at_work(place.job.name)
                if self._devices is not None:
                    place.before = RandomState.current(place.job.randomness.state.cuda_seed)
                if id(place.feed) not in batches:
                    batches[id(place.feed)] = _loaded(place.feed)
                batch = batches[id(place.feed)]
                if isinstance(batch, Exception):
                    self._fail(place, batch)
                    continue
                if batch is not End.EPOCH:
                    given.append((place, batch))
                    continue
                is_complete = True
                place.job.end_epoch()
                place.record.flush()
            except Exception as error:  # noqa: BLE001 - any error of a job ends that job alone
                self._fail(place, error)
                continue
            if place.job.epoch == place.job.epochs:
                self._end(place, JobStatus.FINISHED)
        if len(given) > 1 and given[0][0].structure is not None:
            self._either_way(given)
        else:
            self._loop(given)
        return is_complete

    def _loop(self, given: Sequence[tuple[_Place, Any]]) -> None:
        """Train one job after another."""
        given = list(given)
        for at, (place, batch) in enumerate(given):
            versions = [tensor._version for tensor in tensors_of(batch)]  # noqa: SLF001
            try:
                self._at_work(place.job.name)
                loss = self._step(place, batch)
                if loss is not None:
                    place.record.step(loss)
                elif place.before is not None:
                    place.feed.put_back(batch, place.before)
            except Exception as error:  # noqa: BLE001 - any error of a job ends that job alone
                self._fail(place, error)
            mates = [later for later, _ in given[at + 1 :] if later.feed is place.feed]
            if not mates:
                continue
            free_gradients(place.job)
            if versions != [tensor._version for tensor in tensors_of(batch)]:  # noqa: SLF001
                given[at + 1 :] = self._without_change(place, batch, given[at + 1 :])

    def _without_change(
        self, place: _Place, changed: Any, given: Sequence[tuple[_Place, Any]]
    ) -> list[tuple[_Place, Any]]:
        """Fail the job that changed a shared batch; load it again for the others."""
        message = f"job {place.job.name} has changed a batch that it shares with others"
        error = TrainingError(message, "clone what it writes to: x = x.clone()")
        if not place.job.status.has_ended:
            self._fail(place, error)
        mates = [later for later, batch in given if batch is changed]
        again = _loaded(mates[0].feed, again=True)
        memory = {tensor.data_ptr() for tensor in tensors_of(changed)}
        if any(tensor.data_ptr() in memory for tensor in tensors_of(again)):
            again = TrainingError(f"{message}, in the memory of the data", error.remedy)
        if isinstance(again, Exception):
            for later in mates:
                self._fail(later, again)
            return [(later, batch) for later, batch in given if batch is not changed]
        return [(later, again if batch is changed else batch) for later, batch in given]

    def _step(self, place: _Place, batch: Any) -> Tensor | None:
        """Train a job on a batch; return None if the step was left, to be repeated later."""
        others = [job for job in self._present() if job is not place.job]

        def step(batch: Any) -> Tensor:
            def attempt() -> Tensor:
                return place.attempts.step(batch, self._stop_at_nan, others)

            if self._admission is None:
                return attempt()
            return self._admission.measure(place.job, attempt)

        if self._devices is None:
            return step(batch)
        return self._devices.step(place.job, batch, step, partial(self._must_leave, place))

    def _must_leave(self, place: _Place) -> bool:
        return self._has_joined and self._is_interrupted([place])

    def _either_way(self, given: Sequence[tuple[_Place, Any]]) -> None:
        """Train jobs of equal structure stacked or one after another."""
        jobs = [place.job for place, _ in given]
        trial = self.ways.setdefault(tuple(job.name for job in jobs), Trial())
        batches = [batch for _, batch in given]
        trial.begin()
        if trial.way is Way.LOOP or not can_be_stacked(batches):
            self._separate()
            self._loop(given)
        else:
            try:
                if self._stack is None:
                    self._stack = Stack(jobs)
                    self._stacked.enter_context(jobs[0].randomness.in_use())
                losses = self._fused_step(self._stack, batches, trial)
            except Exception:  # noqa: BLE001 - one after another, the guilty one fails alone
                trial.chosen = Way.LOOP
                self._separate()
                self._loop(given)
            else:
                self._note(given, losses)
        trial.end()

    def _fused_step(self, stack: Stack, batches: Sequence[Any], trial: Trial) -> Tensor:
        """Do a step of a stack; the first one is measured where memory is limited."""
        if self._admission is None or trial.fused_bytes is not None:
            return stack.step(batches)
        losses, peak_bytes = with_peak(lambda: stack.step(batches), stack.device)
        trial.fused_bytes = peak_bytes + stack.bytes
        if not self._admission.allows(trial.fused_bytes, self._present()):
            trial.chosen = Way.LOOP
        return losses

    def _note(self, given: Sequence[tuple[_Place, Any]], losses: Tensor) -> None:
        for (place, _), loss in zip(given, losses, strict=True):
            try:
                check_loss(place.job, loss, self._stop_at_nan)
                place.record.step(loss)
            except Exception as error:  # noqa: BLE001 - any error of a job ends that job alone
                self._separate()
                self._fail(place, error)

    def _separate(self) -> None:
        if self._stack is not None:
            stack, self._stack = self._stack, None
            self._stacked.close()
            stack.separate()

    # Ends --------------------------------------------------------------------------------------

    def _answer_requests(self) -> None:
        with self._lock:
            for place in list(self._places.values()):
                request, place.request = place.request, None
                if place.job.status.has_ended:
                    continue
                if request is _Request.CANCEL:
                    self._end(place, JobStatus.CANCELLED)
                elif request is _Request.PAUSE and place.job.status is JobStatus.READY:
                    self._end(place, JobStatus.PAUSED)

    def _fail(self, place: _Place, error: Exception) -> None:
        place.job.failure = failure_of(error)
        self._end(place, JobStatus.FAILED, error)

    def _end(self, place: _Place, status: JobStatus, error: Exception | None = None) -> None:
        """Take a job out of its team; `run` yields it."""
        job = place.job
        with self._lock:
            job.status = status
            place.is_unsaved = True
            place.record.flush()
            if status.has_ended:
                place.record.finish(error)
            mates = [other for other in self._places.values() if other.feed is place.feed]
            if len(mates) > 1:
                place.feed = place.feed.fork()
            self._ended.append(job)
        if status is JobStatus.FAILED:
            free_gradients(job)
            free_caches()

    def _save(self) -> None:
        """Keep the states that have changed; forget jobs that have ended."""
        with self._lock:
            for place in list(self._places.values()):
                if place.is_unsaved and self._checkpoints is not None:
                    self._checkpoints.save(place.job, place.feed)
                place.is_unsaved = False
                if place.job.status.has_ended:
                    place.feed.close()
                    if self._devices is not None:
                        self._devices.forget(place.job)
                    self._ended_names.add(place.job.name)
                    del self._places[place.job.name]

    def close(self) -> None:
        """End loaders' iterations and files. A second call does nothing."""
        with self._lock:
            self._is_closed = True
            for place in self._places.values():
                place.feed.close()
            if self._checkpoints is not None:
                self._checkpoints.close()
            if self._devices is not None:
                self._devices.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
