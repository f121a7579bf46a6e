"""Validate a copy of the model while the next epoch trains."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from torch import nn

from radt.errors import UsageError
from radt.loaders.paced import PacedMetrics, span
from radt.loaders.protocol import chosen
from radt.run.notices import say
from radt.run.run import active_run
from radt.training.evaluation import Evaluate, Sums, ValidationLane, ValidatorDied, means
from radt.training.snapshot import Snapshot, SnapshotMemory
from radt.training.validation_process import Payload, ProcessLane, refuse_inside_a_validator
from radt.training.validation_thread import ThreadLane
from radt.training.weights import WeightAccess, weights_of

#: One for the current validation, one for the previous result.
_SLOTS = 2


class Where(StrEnum):
    """Where validation runs."""

    PROCESS = "process"
    THREAD = "thread"


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """The result of one epoch.

    Attributes:
        epoch: The epoch that was submitted.
        metrics: Mean of each metric; empty after a failure.
        snapshot: The weights that were validated: save its ``state_dict()``, not the model's.
        failure: Why there are no metrics; empty if there are.
        duration_s: Duration of the validation.
    """

    epoch: int
    metrics: dict[str, float]
    snapshot: Snapshot
    failure: str
    duration_s: float


@dataclass(slots=True)
class Timing:
    """Time that overlapping could save, and did save.

    Attributes:
        training_s: Duration of each epoch, from the end of one `submit` to the next.
        validation_s: Duration of each validation.
        wait_s: Time that each `submit` and `wait` waited for a validation.
        copy_s: Duration of each copy.
        reached_s: Time from the creation of the validator to the end of `close`.
    """

    training_s: list[float] = field(default_factory=list)
    validation_s: list[float] = field(default_factory=list)
    wait_s: list[float] = field(default_factory=list)
    copy_s: list[float] = field(default_factory=list)
    reached_s: float = 0.0

    @property
    def bound_s(self) -> float:
        """Return E·max(T, V) + min(T, V), for E epochs; 0 if there were none.

        T and V are the fastest epoch and the fastest validation, as estimates of their durations
        without overlap.
        """
        if not self.training_s or not self.validation_s:
            return 0.0
        train_s, validate_s = min(self.training_s), min(self.validation_s)
        return len(self.validation_s) * max(train_s, validate_s) + min(train_s, validate_s)


@dataclass(slots=True)
class _Running:
    """The current validation."""

    snapshot: Snapshot
    span: AbstractContextManager[object]
    outcomes: list[Sums | BaseException | None]
    began_s: float


class OverlappedValidator:
    """Validate each epoch's weights while the next epoch trains; training stays bit-identical.

    `submit` copies parameters and buffers, and returns. ``evaluate(model, part, parts)`` validates
    a copy of the model in evaluation mode without gradients, and returns `Sums`. The means are
    logged at the epoch that was submitted. Results come one epoch late: where the next step depends
    on them (``ReduceLROnPlateau``, early stopping), decide one epoch later or call `wait`, which
    has the effect of serial validation.

    In a process (the default), ``evaluate`` and the model's class are imported by another
    interpreter, which draws its own random numbers. In a thread, both may be closures, and
    ``evaluate`` must not draw from global generators: give each ``DataLoader`` a generator.

    The idea is from ol.data (section 3). Unlike there, parts of unequal size are averaged exactly.

    Args:
        evaluate: Validates one of ``parts`` parts of the data.
        model: The training model. With ``DistributedDataParallel``, pass ``.module`` on rank 0.
        parts: Number of processes or threads, each of which evaluates a part.
        where: ``"process"`` or ``"thread"``.

    Attributes:
        timing: Durations so far; complete after `close`.

    Raises:
        UsageError: An argument is invalid; ``evaluate`` or the model cannot be imported by another
            process, or the model cannot be copied.
        TrainingError: There is no memory for two copies of the model.
    """

    def __init__(
        self,
        evaluate: Evaluate,
        model: nn.Module,
        *,
        parts: int = 1,
        where: Where | str = Where.PROCESS,
    ) -> None:
        refuse_inside_a_validator()
        if parts < 1:
            raise UsageError(f"parts is {parts}, expected 1 or more")
        where = chosen(Where, "where", where)
        self.timing = Timing()
        self._memory = SnapshotMemory(model, _SLOTS)
        try:
            with weights_of(model).in_memory(WeightAccess.READ):
                self._lanes = _lanes(evaluate, model, self._memory, parts, where)
        except BaseException:
            self._memory.close()
            raise
        self._changed = threading.Condition()
        self._running: _Running | None = None
        self._results: dict[int, ValidationResult] = {}
        self._fresh: list[ValidationResult] = []
        self._error: BaseException | None = None
        self._submitted = 0
        self._is_closed = self._is_aborted = False
        self._metrics = PacedMetrics("validation")
        self._queues: list[queue.SimpleQueue[_Running | None]] = [
            queue.SimpleQueue() for _ in self._lanes
        ]
        # Daemons, so that a script that ends without `close` does not wait for them.
        self._threads = [
            threading.Thread(
                target=self._work, args=(part,), name=f"radt-validator-{part}", daemon=True
            )
            for part in range(parts)
        ]
        for thread in self._threads:
            thread.start()
        self._began_s = self._resumed_s = time.perf_counter()
        self._trained_s = 0.0

    def submit(self, epoch: int) -> None:
        """Copy the model and start validating the copy, after the previous validation has ended.

        Raises:
            UsageError: The epoch was submitted before, or the validator is closed.
            TrainingError: ``evaluate`` raised in an earlier epoch, or the model's tensors are not
                those it had at the beginning.
        """
        if self._is_closed:
            raise UsageError("the validator is closed", "Submit inside its `with` block")
        wait_s = self._wait_for(lambda: self._running is None)
        self._raise_error()
        if epoch in self._results:
            raise UsageError(f"epoch {epoch} was submitted before", "Number the epochs")
        began_s = time.perf_counter()
        snapshot = self._memory.take(self._submitted % _SLOTS, epoch)
        self._resumed_s = time.perf_counter()
        self.timing.training_s.append(self._trained_s)
        self.timing.copy_s.append(self._resumed_s - began_s)
        self._trained_s = 0.0
        self._submitted += 1
        validating = span("validate")
        validating.__enter__()
        running = _Running(snapshot, validating, [None] * len(self._lanes), self._resumed_s)
        self._running = running
        for lane in self._queues:
            lane.put(running)
        self._metrics.record(wait=wait_s)

    def finished(self) -> list[ValidationResult]:
        """Return the results since the last call, in the order of submission.

        Raises:
            TrainingError: ``evaluate`` raised; the message has its traceback.
        """
        with self._changed:
            self._raise_error()
            fresh, self._fresh = self._fresh, []
        return fresh

    def wait(self, epoch: int) -> ValidationResult:
        """Wait for the result of an epoch. `finished` will not return it again.

        Raises:
            UsageError: The epoch was not submitted.
            TrainingError: ``evaluate`` raised; the message has its traceback.
        """
        running = self._running
        if running is not None and running.snapshot.epoch == epoch:
            self._wait_for(lambda: epoch in self._results)
        with self._changed:
            self._raise_error()
            if epoch not in self._results:
                raise UsageError(f"epoch {epoch} was not submitted", f"Call submit({epoch}) before")
            result = self._results[epoch]
            self._fresh = [other for other in self._fresh if other is not result]
        return result

    def close(self) -> None:
        """Wait for the last result, and end threads and processes. Harmless if repeated.

        Raises:
            TrainingError: ``evaluate`` raised, and neither `submit` nor `finished` has reported it.
        """
        if self._is_closed:
            return
        try:
            self._wait_for(lambda: self._running is None)
        finally:
            self._end()
        self.timing.reached_s = time.perf_counter() - self._began_s
        self._metrics.flush(bound=self.timing.bound_s, reached=self.timing.reached_s)
        self._raise_error()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:  # nobody waits for the result of a training that failed
            self._end()

    def _end(self) -> None:
        """End the threads and processes, even during a validation."""
        if self._is_closed:
            return
        self._is_closed = True
        self._is_aborted = self._running is not None
        for lane, tasks in zip(self._lanes, self._queues, strict=True):
            if self._is_aborted:
                lane.kill()
            tasks.put(None)
        for thread in self._threads:
            thread.join()
        self._memory.close()

    def _wait_for(self, condition: Callable[[], bool]) -> float:
        """Wait for a condition. Return the waiting time. The time before counts as training."""
        began_s = time.perf_counter()
        self._trained_s += began_s - self._resumed_s
        with self._changed:
            self._changed.wait_for(condition)
        self._resumed_s = time.perf_counter()
        self.timing.wait_s.append(self._resumed_s - began_s)
        return self._resumed_s - began_s

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    # In the threads of lanes ----------------------------------------------------------------------

    def _work(self, part: int) -> None:
        lane = self._lanes[part]
        try:
            try:
                lane.prepare()
            except BaseException as error:  # noqa: BLE001 - as below; the next epoch tries again
                self._error = error
            while (running := self._queues[part].get()) is not None:
                try:
                    outcome: Sums | BaseException = lane.evaluate(running.snapshot)
                except BaseException as error:  # noqa: BLE001 - it is raised where one waits for it
                    outcome = error
                with self._changed:
                    running.outcomes[part] = outcome
                    if None not in running.outcomes:
                        self._complete(running)
        finally:
            lane.close()

    def _complete(self, running: _Running) -> None:
        """Log the means once all parts are done, and publish the result."""
        duration_s = time.perf_counter() - running.began_s
        running.span.__exit__(None, None, None)
        epoch, metrics, failure, error = running.snapshot.epoch, {}, "", None
        try:
            metrics = _merged(running.outcomes)
            if (run := active_run()) is not None:
                run.log_metrics(metrics, step=epoch)
        except ValidatorDied as death:
            failure = str(death)
            if not self._is_aborted:
                say(f"epoch {epoch} was not validated, and training goes on: {failure}")
        except BaseException as raised:  # noqa: BLE001 - as in `_work`
            metrics, failure, error = {}, str(raised), raised
        result = ValidationResult(epoch, metrics, running.snapshot, failure, duration_s)
        self._results[epoch] = result
        if error is None:
            self._fresh.append(result)
        else:
            self._error = error
        if not failure:
            self.timing.validation_s.append(duration_s)
        self._running = None
        self._changed.notify_all()


def _merged(outcomes: list[Sums | BaseException | None]) -> dict[str, float]:
    """Return the means over all parts, or raise the first error, preferably of ``evaluate``."""
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    for error in sorted(errors, key=lambda error: isinstance(error, ValidatorDied)):
        raise error
    return means([outcome for outcome in outcomes if isinstance(outcome, Sums)])


def _lanes(
    evaluate: Evaluate, model: nn.Module, memory: SnapshotMemory, parts: int, where: Where
) -> list[ValidationLane]:
    if where is Where.THREAD:
        return [ThreadLane(evaluate, model, memory.layout, part, parts) for part in range(parts)]
    payload = Payload(evaluate, model, memory.layout)
    return [ProcessLane(payload, memory, part, parts) for part in range(parts)]
