"""Models of equal structure as one, with stacked parameters, buffers and optimiser states."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.func import functional_call, vmap

from radt.loaders.batches import tensors_of
from radt.training.calling import Loss
from radt.training.chain import Chain, cross_entropies, has_fast_losses, is_chain
from radt.training.job import Each, Job

#: Optimisers that update each element independently, so that one tensor can hold the parameters of
#: several models.
_ELEMENTWISE = frozenset(
    {optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop, optim.Adagrad, optim.Adadelta}
    | {optim.Adamax, optim.NAdam, optim.RAdam}
)
_SCALARS = (bool, int, float, str, type(None))
#: Attributes that `structure_of` compares by name, or that are stacked.
_PARTS = frozenset({"_parameters", "_buffers", "_modules"})


def structure_of(job: Job) -> Hashable | None:
    """Return the properties that fused jobs must share; None if a job cannot be fused."""
    optimizer = job.optimizer
    settings = [value for group in optimizer.param_groups for value in group.values()]
    if (
        not job.has_plain_step
        or job.loss is None
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
    """Return True if there are hooks on gradients, or before or after an update."""
    own = [job.optimizer, *job.model.parameters()]
    names = (
        *("_backward_hooks", "_post_accumulate_grad_hooks"),
        *("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"),
    )
    return any(getattr(each, name, None) for each in own for name in names)


def _loss(loss: Loss) -> Hashable:
    """Return what equal losses share. Their tensors are not stacked, so they must be the same."""
    if not isinstance(loss, nn.Module):
        return id(loss)
    return tuple(_module(name, part, {"_modules"}) for name, part in loss.named_modules())


def _module(name: str, module: nn.Module, apart: AbstractSet[str]) -> Hashable:
    settings = [(key, _setting(each)) for key, each in vars(module).items() if key not in apart]
    return name, type(module), repr(sorted(settings))


def _setting(value: Any) -> str:
    """Return what equal settings have in common. A function is equal only to itself."""
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
        jobs: Jobs with the same `structure_of` and the same number of steps done.

    Attributes:
        is_updating: Whether the optimiser is changing parameters; stays True if that fails.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = list(jobs)
        assert jobs[0].loss is not None
        self._model, self._loss = jobs[0].model, jobs[0].loss
        self._chain = Chain(self._model, len(jobs)) if is_chain(self._model) else None
        named = [dict(job.model.named_parameters()) for job in jobs]
        self._own = {name: [each[name] for each in named] for name in named[0]}
        buffers = [dict(job.model.named_buffers()) for job in jobs]
        self._own_buffers = {name: [each[name] for each in buffers] for name in buffers[0]}
        self._buffers = {name: torch.stack(own) for name, own in self._own_buffers.items()}
        groups = jobs[0].optimizer.param_groups
        in_groups = {id(p) for group in groups for p in group["params"] if p.requires_grad}
        stacked = {name: torch.stack([p.detach() for p in own]) for name, own in self._own.items()}
        self._parameters = {
            name: values.requires_grad_()
            for name, values in stacked.items()
            if id(self._own[name][0]) in in_groups
        }
        self._fixed = {k: values for k, values in stacked.items() if k not in self._parameters}
        self.is_updating = False
        self._rows: list[_Rows] = []
        self._optimizer = self._stacked_optimizer()

    @property
    def device(self) -> torch.device:
        """Device of the models."""
        return next(iter(self._parameters.values())).device

    @property
    def bytes(self) -> int:
        """Size in bytes of the tensors beyond the jobs' own."""
        parts = [self._parameters, self._fixed, self._buffers, dict(self._optimizer.state)]
        return sum(tensor.nbytes for tensor in tensors_of(parts))

    def _stacked_optimizer(self) -> optim.Optimizer:
        """Return one optimiser, with a group for successive jobs with equal settings."""
        groups: list[dict[str, Any]] = []
        for number, group in enumerate(self._jobs[0].optimizer.param_groups):
            chosen = {id(parameter) for parameter in group["params"]}
            names = [name for name in self._parameters if id(self._own[name][0]) in chosen]
            if not names:
                continue
            rules = [self._rules(at, number, names) for at in range(len(self._jobs))]
            starts = [at for at in range(len(rules)) if at == 0 or rules[at] != rules[at - 1]]
            for first, last in zip(starts, [*starts[1:], len(rules)], strict=True):
                rows = [
                    _Rows(name, first, last, self._parameters[name].detach()[first:last])
                    for name in names
                ]
                self._rows += rows
                settings = _settings(self._jobs[first], number)
                groups.append({**settings, "params": [each.values for each in rows]})
        kind: Any = type(self._jobs[0].optimizer)
        optimizer: optim.Optimizer = kind(groups)
        for each in self._rows:
            states = [self._state(at, each.name) for at in range(each.first, each.last)]
            for key, value in states[0].items():
                optimizer.state[each.values][key] = (
                    torch.stack([state[key] for state in states])
                    if _is_of_elements(key, value, self._own[each.name][0].shape)
                    else _copy(value)
                )
        return optimizer

    def _rules(self, at: int, group: int, names: Sequence[str]) -> object:
        """Return the settings that jobs must share to be updated as one tensor."""
        scalars = [
            [
                None if _is_of_elements(key, value, self._own[name][at].shape) else _plain(value)
                for key, value in self._state(at, name).items()
            ]
            for name in names
        ]
        return _settings(self._jobs[at], group), scalars

    def _state(self, at: int, name: str) -> dict[str, Any]:
        state: dict[str, Any] = self._jobs[at].optimizer.state.get(self._own[name][at], {})
        return state

    def step(self, batches: Sequence[Any]) -> Tensor:
        """Train each model on its batch. Return one loss per model.

        Raises:
            Exception: Any error of the model. Unless `is_updating`, nothing has changed.
        """
        inputs, target, dims = _stacked_batch(batches)
        buffers = {name: buffer.clone() for name, buffer in self._buffers.items()}
        losses = self._losses(buffers, inputs, target, dims)
        # Losses do not depend on other models, so the gradients of the sum are those of each.
        trained = list(self._parameters.values())
        found = torch.autograd.grad(losses, trained, torch.ones_like(losses))
        self._buffers = buffers
        gradients = dict(zip(self._parameters, found, strict=True))
        for rows in self._rows:
            rows.values.grad = gradients[rows.name][rows.first : rows.last]
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
        """Return parameters, buffers and optimiser state to each job."""
        with torch.no_grad():
            for name, stacked in [*self._parameters.items(), *self._buffers.items()]:
                own = self._own.get(name) or self._own_buffers[name]
                for each, value in zip(own, stacked, strict=True):
                    each.copy_(value)
        for rows in self._rows:
            state = self._optimizer.state.get(rows.values, {})
            for key, value in state.items():
                is_of_elements = _is_of_elements(key, value, rows.values.shape)
                for at in range(rows.first, rows.last):
                    own_state = self._jobs[at].optimizer.state[self._own[rows.name][at]]
                    own_state[key] = _copy(value[at - rows.first] if is_of_elements else value)


@dataclass(frozen=True, slots=True)
class _Rows:
    """A parameter of successive jobs with the same settings, as one tensor for the optimiser."""

    name: str
    first: int
    last: int
    values: Tensor


def _settings(job: Job, group: int) -> dict[str, Any]:
    settings = job.optimizer.param_groups[group]
    return {key: value for key, value in settings.items() if key != "params"}


def _is_of_elements(key: str, value: Any, shape: torch.Size) -> bool:
    """Return True if an optimiser's state has a value for each element of its parameter."""
    is_scalar = key in ("step", "mu_product")
    return not is_scalar and isinstance(value, Tensor) and value.shape == shape


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _stacked_batch(batches: Sequence[Any]) -> tuple[Tensor, Tensor, int | None]:
    """Return stacked or shared inputs and targets, and the models' dimension of the inputs."""
    first = batches[0]
    if all(batch is first for batch in batches):
        return first[0], first[1], None
    inputs, target = (torch.stack(parts) for parts in zip(*batches, strict=True))
    return inputs, target, 0


def can_be_stacked(batches: Sequence[Any]) -> bool:
    """Return True if batches are pairs of tensors with equal shapes."""
    distinct = {id(batch): batch for batch in batches}.values()
    shapes = {tuple(tensor.shape for tensor in tensors_of(batch)) for batch in distinct}
    return len(shapes) == 1 and all(map(_is_pair, distinct))


def _is_pair(batch: Any) -> bool:
    return (
        isinstance(batch, (tuple, list))
        and len(batch) == 2
        and all(isinstance(part, Tensor) for part in batch)
    )
