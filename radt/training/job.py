"""A job: one training as an object that others can schedule, move, preempt, swap and average."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from radt.errors import UsageError
from radt.loaders.batches import moved, tensors_of
from radt.loaders.protocol import chosen
from radt.loaders.randomness import RandomState
from radt.training.calling import Call, Loss, Objective
from radt.training.randomness import OwnRandomness
from radt.training.weights import WeightAccess, Weights, model_tensors, weights_of


class Scheduler(Protocol):
    """The methods of ``torch.optim.lr_scheduler`` that a job needs."""

    def step(self) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


class JobStatus(StrEnum):
    """Status of a job."""

    READY = "ready"
    PAUSED = "paused"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def has_ended(self) -> bool:
        """True if it will not train any more."""
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


Step = Callable[[Any], Tensor]


@dataclass(frozen=True, slots=True)
class JobTensors:
    """All tensors that a job trains, by name.

    Attributes:
        model: The model's parameters and buffers.
        others: Those of a loss that is a module, and other tensors that the optimiser updates, such
            as masters in single precision of parameters in half precision.
    """

    model: dict[str, Tensor]
    others: dict[str, Tensor]

    @property
    def all(self) -> list[Tensor]:
        """Return all of them, in an order that depends only on the names."""
        return [*self.model.values(), *self.others.values()]


class Job:
    """One training: its model, optimiser, data and random states, at a position in its epochs.

    Args:
        name: Name, unique among the jobs of a trainer.
        model: The model; ``model(inputs)`` is its output.
        optimizer: An optimiser of the model's parameters.
        loss: ``loss(output, target)`` is a tensor of one element; None if the model returns its
            loss, as those of Hugging Face do with labels. See `Objective`.
        loader: Yields batches: ``(inputs, target)``, or a mapping of the model's arguments, whose
            tensors are moved to the model's device. None where the script passes them to `step`.
        epochs: Number of passes over the loader.
        priority: Lower numbers are served first (UnifiedNN, section on scheduling).
        scheduler: A learning-rate scheduler.
        schedule: Whether the scheduler steps after each epoch or after each step.
        step: Takes a batch, on the model's device, and returns its loss, in place of forward, loss,
            backward, optimiser; for loss scaling, accumulation, several optimisers. `state_dict`
            has nothing that it keeps besides the model and `optimizer`: a scaler, other optimisers,
            gradients.
        seed: Seed of the job's random states; if None, they start from the current states.

    Attributes:
        epoch: Number of complete epochs.
        batches: Batches done in the current epoch.
        steps: Batches done in all epochs.
        status: Status of the job.
        failure: Why it failed; None if it did not.
        is_updating: Whether the optimiser is changing parameters; stays True if that fails.

    Raises:
        UsageError: An argument is invalid.
    """

    def __init__(
        self,
        name: str,
        model: nn.Module,
        optimizer: Optimizer,
        loss: Loss | None = None,
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
        self.name = name
        self.model = model
        self.optimizer = optimizer
        self.objective = Objective(loss, f"job {name}")
        self.loader = loader
        self.epochs = epochs
        self.priority = priority
        self.scheduler = scheduler
        self.schedule = chosen(Each, f"job {name}: schedule", schedule)
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
        """True if a step is forward, loss, backward, optimiser: no `step` was given."""
        return self._step is None

    @property
    def loss(self) -> Loss | None:
        """The function of output and target; None if the model returns its loss."""
        return self.objective.loss

    @property
    def weights(self) -> Weights:
        """The model's parameters and buffers, wherever they are."""
        return weights_of(self.model)

    @property
    def device(self) -> torch.device:
        """Device of the model; the CPU if it has no parameters."""
        return next(self.model.parameters(), torch.empty(0)).device

    def moved(self, batch: Any) -> Any:
        """Return a batch on the model's device."""
        return moved(batch, self.device)

    def call(self, batch: Any) -> Call:
        """Return the call of the model for a batch; with a `step`, for its first part."""
        if self.has_plain_step:
            return self.objective.split(self.model, batch)[0]
        return Call.of(self.model, batch[0] if isinstance(batch, (list, tuple)) else batch)

    def step(self, batch: Any) -> Tensor:
        """Train on a batch with the job's random states. Return its loss without a graph."""
        batch = self.moved(batch)
        with self.randomness.in_use():
            loss = self._plain_step(batch) if self._step is None else self._step(batch)
            if self.scheduler is not None and self.schedule is Each.STEP:
                self.scheduler.step()
        self.count_step()
        return loss.detach()

    def count_step(self) -> None:
        """Count a step, and step a scheduler that steps after each."""
        self.batches += 1
        self.steps += 1

    def _plain_step(self, batch: Any) -> Tensor:
        call, target = self.objective.split(self.model, batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.objective.value(call(self.model), target)
        loss.backward()  # type: ignore[no-untyped-call]
        self.is_updating = True
        self.optimizer.step()
        self.is_updating = False
        return loss

    def end_epoch(self) -> None:
        """Count an epoch, and step a scheduler that steps after each."""
        self.epoch += 1
        self.batches = 0
        if self.scheduler is not None and self.schedule is Each.EPOCH:
            self.scheduler.step()

    @contextmanager
    def tensors(self, access: WeightAccess, with_states: bool = False) -> Iterator[JobTensors]:
        """Load all trained tensors into memory within the block. Use this to copy or change them.

        Args:
            access: How they are used.
            with_states: Whether to load the optimiser's states, too, if they are elsewhere.

        Raises:
            TrainingError: A step was interrupted in the middle.
        """
        with self.weights.in_memory(access, self.optimizer if with_states else None) as own:
            yield JobTensors(own, self._others(own))

    def _others(self, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        if isinstance(self.loss, nn.Module):
            found = {f"loss.{key}": each for key, each in model_tensors(self.loss).items()}
        known = {id(each) for each in (*own.values(), *found.values())}
        for at, group in enumerate(self.optimizer.param_groups):
            for number, parameter in enumerate(group["params"]):
                if id(parameter) not in known:
                    found[f"optimizer.{at}.{number}"] = parameter
        return found

    @property
    def resident_tensors(self) -> list[Tensor]:
        """Return the tensors in memory between steps: weights and the optimiser's states."""
        own = model_tensors(self.model)
        states = tensors_of(list(self.optimizer.state.values()))
        return [*own.values(), *self._others(own).values(), *states]

    def learned_state(self) -> dict[str, Any]:
        """Return the state of model and optimiser, without random states and position."""
        with self.tensors(WeightAccess.READ, with_states=True) as tensors:
            return {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
                "others": {name: each.detach() for name, each in tensors.others.items()},
            }

    def load_learned_state(self, state: Mapping[str, Any]) -> None:
        """Load the learned state of another training. Random states and position are unchanged.

        Raises:
            KeyError, RuntimeError, ValueError: The model or the optimiser rejects the state.
        """
        with self.tensors(WeightAccess.REPLACE, with_states=True) as tensors:
            own, others = tensors.others, state.get("others", {})
            if own.keys() != others.keys():
                raise ValueError(
                    f"besides the model, the state has {list(others)}, expected {list(own)}"
                )
            self.model.load_state_dict(state["model"], strict=True)
            self.optimizer.load_state_dict(state["optimizer"])
            with torch.no_grad():
                for name, tensor in own.items():
                    tensor.copy_(others[name])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])

    def state_dict(self) -> dict[str, Any]:
        """Return the state from which the training can continue: tensors and plain values.

        It lacks anything else that a custom `step` keeps.
        """
        return self.learned_state() | {
            "random": self.randomness.state.state_dict(),
            "epoch": self.epoch,
            "batches": self.batches,
            "steps": self.steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state. Models and optimisers must have the shapes of the state.

        Raises:
            KeyError, RuntimeError, ValueError: The model or the optimiser rejects the state.
        """
        self.load_learned_state(state)
        self.randomness.state = RandomState.from_state_dict(state["random"])
        self.epoch = state["epoch"]
        self.batches = state["batches"]
        self.steps = state["steps"]
