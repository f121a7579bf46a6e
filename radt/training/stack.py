"""Models of equal structure as one, with stacked parameters, buffers and optimiser states."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.func import functional_call, vmap

from radt.training.chain import Chain, cross_entropies, has_fast_losses, is_chain
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
        or _has_hooks(job)
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


def _has_hooks(job: Job) -> bool:
    """Return whether something is to be called with gradients, or before or after an update."""
    own = [job.optimizer, *job.model.parameters()]
    names = (
        *("_backward_hooks", "_post_accumulate_grad_hooks"),
        *("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"),
    )
    return any(getattr(each, name, None) for each in own for name in names)


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
        self._chain = Chain(self._model, len(jobs)) if is_chain(self._model) else None
        named = [dict(job.model.named_parameters()) for job in jobs]
        self._own = {name: [each[name] for each in named] for name in named[0]}
        buffers = [dict(job.model.named_buffers()) for job in jobs]
        self._own_buffers = {name: [each[name] for each in buffers] for name in buffers[0]}
        self._buffers = {name: torch.stack(own) for name, own in self._own_buffers.items()}
        self._parts = self._updated_parts()
        self._parameters = {
            name: values.detach().requires_grad_()
            for part in self._parts
            for name, values in part.split(part.values).items()
        }
        self._trained = list(self._parameters.values())
        self._gradients = [
            values for part in self._parts for values in part.split(part.gradient).values()
        ]
        self._fixed = {
            name: torch.stack([parameter.detach() for parameter in own])
            for name, own in self._own.items()
            if name not in self._parameters
        }
        self.is_updating = False
        self._optimizer = self._stacked_optimizer()

    @property
    def device(self) -> torch.device:
        """Where the models are."""
        return self._parts[0].values.device

    @property
    def bytes(self) -> int:
        """Return the bytes that are held besides those of the jobs."""
        values = [tensor for part in self._parts for tensor in (part.values, part.gradient)]
        parts = [values, self._fixed, self._buffers, dict(self._optimizer.state)]
        return sum(tensor.nbytes for tensor in tensors_of(parts))

    def _updated_parts(self) -> list[_Part]:
        """Return the parameters that the optimiser changes, those together that it treats alike."""
        first = self._jobs[0]
        parts: dict[tuple[int, torch.dtype, torch.device, str], list[str]] = {}
        for at, group in enumerate(first.optimizer.param_groups):
            updated = {id(parameter) for parameter in group["params"] if parameter.requires_grad}
            for name, (parameter, *_) in self._own.items():
                if id(parameter) in updated:
                    states = [self._scalars(job, name) for job in range(len(self._jobs))]
                    key = (at, parameter.dtype, parameter.device, repr(states))
                    parts.setdefault(key, []).append(name)
        return [
            _Part(at, {name: self._own[name][0].shape for name in names}, self._rows(names))
            for (at, *_), names in parts.items()
        ]

    def _rows(self, names: Iterable[str]) -> Tensor:
        own = [[self._own[name][at].detach() for name in names] for at in range(len(self._jobs))]
        return torch.stack([_flat(tensors) for tensors in own])

    def _stacked_optimizer(self) -> optim.Optimizer:
        """Return one optimiser, with a group for successive jobs with equal settings."""
        groups: list[dict[str, Any]] = []
        for part in self._parts:
            rules = [self._rules(at, part) for at in range(len(self._jobs))]
            starts = [at for at in range(len(rules)) if at == 0 or rules[at] != rules[at - 1]]
            for first, last in zip(starts, [*starts[1:], len(rules)], strict=True):
                part.rows.append(_Rows(first, last, part.values[first:last]))
                part.rows[-1].values.grad = part.gradient[first:last]
                settings = _settings(self._jobs[first], part.group)
                groups.append({**settings, "params": [part.rows[-1].values]})
        kind: Any = type(self._jobs[0].optimizer)
        optimizer: optim.Optimizer = kind(groups)
        for part in self._parts:
            shape = next(iter(part.shapes.values()))
            for rows in part.rows:
                states = [
                    [self._state(at, name) for name in part.shapes]
                    for at in range(rows.first, rows.last)
                ]
                for key, value in states[0][0].items():
                    optimizer.state[rows.values][key] = (
                        torch.stack([_flat([state[key] for state in own]) for own in states])
                        if _is_of_elements(key, value, shape)
                        else _copy(value)
                    )
        return optimizer

    def _rules(self, at: int, part: _Part) -> object:
        """Return what jobs have in common whose elements of a part may be updated as one tensor."""
        return _settings(self._jobs[at], part.group), self._scalars(at, next(iter(part.shapes)))

    def _scalars(self, at: int, name: str) -> list[tuple[str, Any]]:
        """Return the optimiser's state of a parameter; None in place of values of each element."""
        shape = self._own[name][at].shape
        return [
            (key, None if _is_of_elements(key, value, shape) else _plain(value))
            for key, value in self._state(at, name).items()
        ]

    def _state(self, at: int, name: str) -> dict[str, Any]:
        state: dict[str, Any] = self._jobs[at].optimizer.state.get(self._own[name][at], {})
        return state

    def step(self, batches: Sequence[Any]) -> Tensor:
        """Train each model on its batch; return the losses, one for each.

        Raises:
            Exception: As the model raises it; unless `is_updating`, nothing has been changed.
        """
        inputs, target, dims = _stacked_batch(batches)
        buffers = {name: buffer.clone() for name, buffer in self._buffers.items()}
        losses = self._losses(buffers, inputs, target, dims)
        # No loss depends on another model: the gradients of the sum are those of each.
        found = torch.autograd.grad(losses, self._trained, torch.ones_like(losses))
        self._buffers = buffers
        for gradient, new in zip(self._gradients, found, strict=True):
            gradient.copy_(new)
        self.is_updating = True
        self._optimizer.step()
        self.is_updating = False
        for job in self._jobs:
            job.count_step()
        return losses.detach()

    def _losses(
        self, buffers: dict[str, Tensor], inputs: Tensor, target: Tensor, dims: int | None
    ) -> Tensor:
        losses: Tensor
        if self._chain is not None and inputs.dim() > (1 if dims is None else 2):
            parameters = {**self._parameters, **self._fixed}
            outputs = self._chain.outputs(parameters, inputs, is_shared=dims is None)
            if has_fast_losses(self._loss, target):
                return cross_entropies(outputs, target, is_shared=dims is None)
            losses = vmap(self._loss, in_dims=(0, dims), randomness="different")(outputs, target)
        else:
            losses = vmap(self._loss_of, in_dims=(0, 0, 0, dims, dims), randomness="different")(
                self._parameters, self._fixed, buffers, inputs, target
            )
        return losses

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
        for part in self._parts:
            for rows in part.rows:
                state = self._optimizer.state.get(rows.values, {})
                for key, value in state.items():
                    is_of_elements = _is_of_elements(key, value, rows.values.shape)
                    for at in range(rows.first, rows.last):
                        row = part.split(value[at - rows.first]) if is_of_elements else {}
                        for name in part.shapes:
                            own_state = self._jobs[at].optimizer.state[self._own[name][at]]
                            own_state[key] = _copy(row.get(name, value))


@dataclass(slots=True)
class _Part:
    """Parameters of all jobs that an optimiser treats alike.

    Attributes:
        group: Number of their group in each job's optimiser.
        shapes: Their shapes in one model, by their names.
        values: A row for each job.
        gradient: Of the values.
        rows: Rows of jobs with the same settings, each one tensor for the optimiser.
    """

    group: int
    shapes: dict[str, torch.Size]
    values: Tensor
    gradient: Tensor = field(init=False)
    rows: list[_Rows] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gradient = torch.empty_like(self.values)

    def split(self, row: Tensor) -> dict[str, Tensor]:
        """Return the values of each parameter in a row, or in several ones."""
        lengths = [shape.numel() for shape in self.shapes.values()]
        parts = zip(self.shapes.items(), torch.split(row, lengths, -1), strict=True)
        return {name: values.view(*row.shape[:-1], *shape) for (name, shape), values in parts}


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of successive jobs."""

    first: int
    last: int
    values: Tensor


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _settings(job: Job, group: int) -> dict[str, Any]:
    settings = job.optimizer.param_groups[group]
    return {key: value for key, value in settings.items() if key != "params"}


def _is_of_elements(key: str, value: Any, shape: torch.Size) -> bool:
    """Return whether an optimiser's state has a value for each element of its parameter."""
    is_scalar = key in ("step", "mu_product")
    return not is_scalar and isinstance(value, Tensor) and value.shape == shape


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _stacked_batch(batches: Sequence[Any]) -> tuple[Tensor, Tensor, int | None]:
    """Return inputs and targets for all models, or stacks of them, and the dimension of models."""
    first = batches[0]
    if all(batch is first for batch in batches):
        return first[0], first[1], None
    inputs, target = (torch.stack(parts) for parts in zip(*batches, strict=True))
    return inputs, target, 0


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
