"""A job: one training as an object, which others schedule, move, pre-empt, swap and average."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from radt.errors import UsageError
from radt.training.randomness import OwnRandomness, RandomState


class Scheduler(Protocol):
    """What a job needs of a learning-rate scheduler of ``torch.optim.lr_scheduler``."""

    def step(self) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


class JobStatus(StrEnum):
    """What has become of a job."""

    READY = "ready"
    PAUSED = "paused"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def has_ended(self) -> bool:
        """Whether it will not train any more."""
        return self in (JobStatus.FINISHED, JobStatus.FAILED, JobStatus.CANCELLED)


class FailureKind(StrEnum):
    """Why a job failed."""

    EXCEPTION = "exception"
    NAN = "NaN"
    OUT_OF_MEMORY = "out of memory"
    PROCESS_LOST = "process lost"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a job failed, and the traceback where there is one."""

    kind: FailureKind
    message: str
    traceback: str = ""


class Each(StrEnum):
    """When the scheduler steps."""

    EPOCH = "epoch"
    STEP = "step"


Loss = Callable[[Any, Any], Tensor]
Step = Callable[[Any], Tensor]


class Job:
    """One training: its model, optimiser, data and random states, at a position in its epochs.

    Args:
        name: Name, unique among the jobs of a trainer.
        model: The model; ``model(inputs)`` is its output.
        optimizer: An optimiser of the model's parameters.
        loss: ``loss(output, target)`` is a tensor of one element.
        loader: Gives batches ``(inputs, target)``; None where the script passes them to `step`.
        epochs: How often the loader is gone through.
        priority: Lower numbers are served first (UnifiedNN, section on scheduling).
        scheduler: A learning-rate scheduler.
        schedule: Whether the scheduler steps after each epoch or after each step.
        step: Takes a batch and returns its loss, in place of forward, loss, backward, optimiser;
            for loss scaling, accumulation, several optimisers. What it keeps besides the model and
            `optimizer` is not in `state_dict`: a scaler, other optimisers, gradients.
        seed: Seed of the job's random states; if None, they begin as they are now.

    Attributes:
        epoch: Epochs that are complete.
        batches: Batches done in the epoch that is under way.
        steps: Batches done in all epochs.
        status: What has become of it.
        failure: Why it failed; None if it did not.
        is_updating: Whether the optimiser is changing parameters; it stays so if that fails.

    Raises:
        UsageError: An argument is invalid.
    """

    def __init__(
        self,
        name: str,
        model: nn.Module,
        optimizer: Optimizer,
        loss: Loss,
        loader: Iterable[Any] | None = None,
        *,
        epochs: int = 1,
        priority: int = 0,
        scheduler: Scheduler | None = None,
        schedule: Each | str = Each.EPOCH,
        step: Step | None = None,
        seed: int | None = None,
    ) -> None:
        if not name:
            raise UsageError("a job has no name", 'name it, as in Job("lenet", …)')
        if epochs < 1:
            raise UsageError(f"job {name}: epochs is {epochs}, expected 1 or more")
        if schedule not in list(Each):
            expected = " or ".join(f'"{each}"' for each in Each)
            raise UsageError(f'job {name}: schedule is "{schedule}", expected {expected}')
        self.name = name
        self.model = model
        self.optimizer = optimizer
        self.loss = loss
        self.loader = loader
        self.epochs = epochs
        self.priority = priority
        self.scheduler = scheduler
        self.schedule = Each(schedule)
        self.randomness = OwnRandomness(None if seed is None else RandomState.seeded(seed))
        self.epoch = 0
        self.batches = 0
        self.steps = 0
        self.status = JobStatus.READY
        self.failure: Failure | None = None
        self.is_updating = False
        self._step = step

    @property
    def has_plain_step(self) -> bool:
        """Whether a step is forward, loss, backward, optimiser: no `step` was given."""
        return self._step is None

    def step(self, batch: Any) -> Tensor:
        """Train on a batch with the job's random states, and return its loss without a graph."""
        with self.randomness.in_use():
            loss = self._plain_step(batch) if self._step is None else self._step(batch)
            if self.scheduler is not None and self.schedule is Each.STEP:
                self.scheduler.step()
        self.count_step()
        return loss.detach()

    def count_step(self) -> None:
        """Count a step."""
        self.batches += 1
        self.steps += 1

    def _plain_step(self, batch: Any) -> Tensor:
        inputs, target = batch
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(self.model(inputs), target)
        loss.backward()  # type: ignore[no-untyped-call]
        self.is_updating = True
        self.optimizer.step()
        self.is_updating = False
        return loss

    def end_epoch(self) -> None:
        """Count an epoch; the scheduler steps."""
        self.epoch += 1
        self.batches = 0
        if self.scheduler is not None and self.schedule is Each.EPOCH:
            self.scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """Return what the training goes on with: tensors and plain values.

        What a `step` of your own keeps besides is not in it.
        """
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "random": self.randomness.state.state_dict(),
            "epoch": self.epoch,
            "batches": self.batches,
            "steps": self.steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; models and optimisers must have the shapes of the state.

        Raises:
            KeyError, RuntimeError, ValueError: As the model or the optimiser finds the state.
        """
        self.model.load_state_dict(state["model"], strict=True)
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self.randomness.state = RandomState.from_state_dict(state["random"])
        self.epoch = state["epoch"]
        self.batches = state["batches"]
        self.steps = state["steps"]
