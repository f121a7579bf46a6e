"""Models of equal structure as one, with stacked parameters, buffers and optimiser states."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.func import functional_call, vmap

from radt.training.job import Each, Job, Loss
from radt.training.memory import tensors_of

#: Optimisers whose update of an element depends on that element only, so that they can be given
#: the parameters of several models in one tensor.
_ELEMENTWISE = frozenset(
    {optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop, optim.Adagrad, optim.Adadelta}
    | {optim.Adamax, optim.NAdam, optim.RAdam}
)
_SCALARS = (bool, int, float, str, type(None))
#: What `structure_of` finds by names, or what is stacked.
_PARTS = frozenset({"_parameters", "_buffers", "_modules"})


def structure_of(job: Job) -> Hashable | None:
    """Return what jobs must have in common to be fused; None if a job cannot be fused."""
    optimizer = job.optimizer
    settings = [value for group in optimizer.param_groups for value in group.values()]
    if (
        not job.has_plain_step
        or type(optimizer) not in _ELEMENTWISE
        or (job.scheduler is not None and job.schedule is Each.STEP)
        or any(isinstance(value, Tensor) for value in settings)
        or not callable(getattr(job.loader, "__len__", None))
    ):
        return None
    groups = {id(p): at for at, group in enumerate(optimizer.param_groups) for p in group["params"]}
    if not groups.keys() <= {id(parameter) for parameter in job.model.parameters()}:
        return None
    return (
        tuple(_module(name, part, _PARTS) for name, part in job.model.named_modules()),
        tuple(
            (name, p.shape, p.dtype, str(p.device), p.requires_grad, groups.get(id(p)))
            for name, p in job.model.named_parameters()
        ),
        tuple((name, b.shape, b.dtype) for name, b in job.model.named_buffers()),
        type(optimizer),
        _loss(job.loss),
        len(job.loader),  # type: ignore[arg-type]
    )


def _loss(loss: Loss) -> Hashable:
    """Return what losses have in common; their tensors are not stacked, so that they are it."""
    if not isinstance(loss, nn.Module):
        return id(loss)
    return tuple(_module(name, part, {"_modules"}) for name, part in loss.named_modules())


def _module(name: str, module: nn.Module, apart: AbstractSet[str]) -> Hashable:
    settings = [(key, _setting(each)) for key, each in vars(module).items() if key not in apart]
    return name, type(module), repr(sorted(settings))


def _setting(value: Any) -> str:
    """Return what equal settings have in common: a function, say, is equal to itself only."""
    if isinstance(value, _SCALARS):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return f"{type(value)} {[_setting(part) for part in value]}"
    if isinstance(value, dict):
        return f"{type(value)} {[(repr(key), _setting(part)) for key, part in value.items()]}"
    if isinstance(value, (set, frozenset)):
        return f"{type(value)} {sorted(map(_setting, value))}"
    return f"{type(value)} {id(value)}"


class Stack:
    """The parameters, buffers and optimiser states of jobs, stacked until `separate`.

    Args:
        jobs: Jobs with the same `structure_of`, as many steps done.

    Attributes:
        is_updating: Whether the optimiser is changing parameters; it stays so if that fails.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = list(jobs)
        self._model, self._loss = jobs[0].model, jobs[0].loss
        named = [dict(job.model.named_parameters()) for job in jobs]
        self._own = {name: [each[name] for each in named] for name in named[0]}
        self._parameters = {
            name: torch.stack([p.detach() for p in own]).requires_grad_()
            for name, own in self._own.items()
            if own[0].requires_grad
        }
        self._fixed = {
            name: torch.stack(list(own))
            for name, own in self._own.items()
            if not own[0].requires_grad
        }
        buffers = [dict(job.model.named_buffers()) for job in jobs]
        self._own_buffers = {name: [each[name] for each in buffers] for name in buffers[0]}
        self._buffers = {name: torch.stack(own) for name, own in self._own_buffers.items()}
        self._slices: list[_Slice] = []
        self.is_updating = False
        self._optimizer = self._stacked_optimizer()

    @property
    def device(self) -> torch.device:
        """Where the models are."""
        return next(iter(self._parameters.values())).device

    @property
    def bytes(self) -> int:
        """Return the bytes that are held besides those of the jobs."""
        parts = [self._parameters, self._fixed, self._buffers, dict(self._optimizer.state)]
        return sum(tensor.nbytes for tensor in tensors_of(parts))

    def _stacked_optimizer(self) -> optim.Optimizer:
        """Return one optimiser, with a group for successive jobs with equal settings."""
        groups: list[dict[str, Any]] = []
        for at in range(len(self._jobs[0].optimizer.param_groups)):
            names = [
                name
                for name, own in self._own.items()
                if name in self._parameters and _is_in(own[0], self._jobs[0], at)
            ]
            for first, last in self._runs(at, names):
                slices = [self._slice(name, first, last) for name in names]
                self._slices += slices
                settings = _settings(self._jobs[first], at)
                groups.append({**settings, "params": [each.parameter for each in slices]})
        kind: Any = type(self._jobs[0].optimizer)
        optimizer: optim.Optimizer = kind(groups)
        for each in self._slices:
            states = [self._state(at, each.name) for at in range(each.first, each.last)]
            if states[0]:
                optimizer.state[each.parameter] = {
                    key: torch.stack([state[key] for state in states])
                    if _is_of_elements(key, value, each.parameter.shape[1:])
                    else _copy(value)
                    for key, value in states[0].items()
                }
        return optimizer

    def _runs(self, group: int, names: Sequence[str]) -> list[tuple[int, int]]:
        rules = [self._rules(at, group, names) for at in range(len(self._jobs))]
        starts = [at for at in range(len(rules)) if at == 0 or rules[at] != rules[at - 1]]
        return list(zip(starts, [*starts[1:], len(self._jobs)], strict=True))

    def _rules(self, at: int, group: int, names: Sequence[str]) -> object:
        scalars = [
            (key, value.item() if isinstance(value, Tensor) else value)
            for name in names
            for key, value in self._state(at, name).items()
            if not _is_of_elements(key, value, self._own[name][at].shape)
        ]
        return _settings(self._jobs[at], group), scalars

    def _state(self, at: int, name: str) -> dict[str, Any]:
        state: dict[str, Any] = self._jobs[at].optimizer.state.get(self._own[name][at], {})
        return state

    def _slice(self, name: str, first: int, last: int) -> _Slice:
        return _Slice(name, first, last, self._parameters[name][first:last].detach())

    def step(self, batches: Sequence[Any]) -> Tensor:
        """Train each model on its batch; return the losses, one for each.

        Raises:
            Exception: As the model raises it; unless `is_updating`, nothing has been changed.
        """
        (inputs, target), dims = _stacked_batch(batches)
        buffers = {name: buffer.clone() for name, buffer in self._buffers.items()}
        losses: Tensor = vmap(self._loss_of, in_dims=(0, 0, 0, dims, dims), randomness="different")(
            self._parameters, self._fixed, buffers, inputs, target
        )
        # No loss depends on another model: the gradients of the sum are those of each.
        found = torch.autograd.grad(losses.sum(), list(self._parameters.values()))
        gradients = dict(zip(self._parameters, found, strict=True))
        self._buffers = buffers
        for each in self._slices:
            each.parameter.grad = gradients[each.name][each.first : each.last]
        self.is_updating = True
        self._optimizer.step()
        self.is_updating = False
        for job in self._jobs:
            job.count_step()
        return losses.detach()

    def _loss_of(
        self,
        parameters: dict[str, Tensor],
        fixed: dict[str, Tensor],
        buffers: dict[str, Tensor],
        inputs: Tensor,
        target: Tensor,
    ) -> Tensor:
        state = {**parameters, **fixed, **buffers}
        return self._loss(functional_call(self._model, state, (inputs,)), target)

    def separate(self) -> None:
        """Give each job its parameters, buffers and optimiser's state."""
        with torch.no_grad():
            for name, stacked in [*self._parameters.items(), *self._buffers.items()]:
                own = self._own.get(name) or self._own_buffers[name]
                for each, value in zip(own, stacked, strict=True):
                    each.copy_(value)
        for part in self._slices:
            state = self._optimizer.state.get(part.parameter, {})
            for at in range(part.first, part.last):
                own_state = self._jobs[at].optimizer.state[self._own[part.name][at]]
                for key, value in state.items():
                    is_of_elements = _is_of_elements(key, value, part.parameter.shape)
                    own_state[key] = _copy(value[at - part.first] if is_of_elements else value)


@dataclass(frozen=True, slots=True)
class _Slice:
    """A parameter of successive jobs."""

    name: str
    first: int
    last: int
    parameter: Tensor


def _is_in(parameter: nn.Parameter, job: Job, group: int) -> bool:
    return any(parameter is other for other in job.optimizer.param_groups[group]["params"])


def _settings(job: Job, group: int) -> dict[str, Any]:
    settings = job.optimizer.param_groups[group]
    return {key: value for key, value in settings.items() if key != "params"}


def _is_of_elements(key: str, value: Any, shape: torch.Size) -> bool:
    """Return whether an optimiser's state has a value for each element of its parameter."""
    return key != "step" and isinstance(value, Tensor) and value.shape == shape


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _stacked_batch(batches: Sequence[Any]) -> tuple[tuple[Tensor, Tensor], int | None]:
    """Return one batch for all models, or a stack of one for each, and the dimension of models."""
    first = batches[0]
    if all(batch is first for batch in batches):
        inputs, target = first
        return (inputs, target), None
    inputs, target = (torch.stack(parts) for parts in zip(*batches, strict=True))
    return (inputs, target), 0


def can_be_stacked(batches: Sequence[Any]) -> bool:
    """Return whether batches are pairs of tensors with equal shapes."""
    distinct = {id(batch): batch for batch in batches}.values()
    return len({_shapes(batch) for batch in distinct}) == 1 and all(map(_is_pair, distinct))


def _shapes(batch: Any) -> tuple[torch.Size, ...]:
    return tuple(tensor.shape for tensor in tensors_of(batch))


def _is_pair(batch: Any) -> bool:
    return (
        isinstance(batch, (tuple, list))
        and len(batch) == 2
        and all(isinstance(part, Tensor) for part in batch)
    )
