"""Training steps that can be interrupted between segments of the model, forward and backward."""

from __future__ import annotations

import itertools
import statistics
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from radt.errors import TrainingError, UsageError
from radt.run.notices import warn_once
from radt.training.lease import DeviceLease
from radt.training.segments import (
    Segment,
    device_of,
    plan,
    profile,
    synchronize,
    tensors,
    unchanged,
)

Model = TypeVar("Model", bound=nn.Module)
Reached = Callable[[str], None]

#: Name of the boundary before the step of an optimiser.
OPTIMIZER = "the optimizer"
#: How many stretches a note names.
_NAMED = 3


def preemptible(
    model: Model, lease: DeviceLease, sample: Any, *, max_segment_ms: float = 5.0
) -> Model:
    """Have a model give its device to higher priorities at boundaries within its passes.

    ::

        lease = DeviceLease("cuda:0", priority="low")
        model = preemptible(model, lease, inputs)
        for inputs, target in loader:
            with lease:
                ...  # forward, backward, optimiser

    The modules are measured, and boundaries set between them, so that no segment is longer than
    asked (SwitchFlow). Higher priorities get the device between measured passes, too. At a boundary
    where nobody waits, training goes on at once; else it waits there, with its activations and its
    random states, until the device is back. A note on standard error names stretches that are
    longer than asked.

    Args:
        model: The model, in training mode, on the lease's device. It is returned, with hooks.
        lease: The lease under which it trains.
        sample: Inputs of a batch, as ``model(sample)`` takes them.
        max_segment_ms: Longest time between two boundaries.

    Raises:
        UsageError: ``max_segment_ms`` is not positive.
        TrainingError: The model is compiled, or is one module that takes longer than asked.
    """
    with nullcontext() if lease.held else lease:
        segments = segments_of(model, sample, max_segment_ms, lease.boundary)
        boundaries = Boundaries(model, segments, lambda _name: lease.boundary())
        weakref.finalize(model, boundaries.remove_global_hook)
    return model


def segments_of(
    model: nn.Module, sample: Any, max_segment_ms: float, between: Callable[[], None]
) -> list[Segment]:
    """Return the segments of a model, and note those that are longer than asked.

    Args:
        model: The model.
        sample: Its inputs.
        max_segment_ms: Longest duration of each pass of a segment.
        between: Called outside of what is measured: there others may have the device.

    Raises:
        UsageError, TrainingError: As `preemptible`.
    """
    if not max_segment_ms > 0:
        raise UsageError(f"max_segment_ms is {max_segment_ms}, expected more than 0")
    name = type(model).__name__
    if any(
        isinstance(m, torch.jit.ScriptModule) or hasattr(m, "_orig_mod") for m in model.modules()
    ):
        raise TrainingError(
            f"{name} cannot be cut into segments: it is compiled", "Use the model without compiling"
        )
    blocks = profile(model, sample, between=between)
    longest_ms = 1e3 * max(max(block.forward_s, block.backward_s) for block in blocks)
    if len(blocks) == 1 and longest_ms > max_segment_ms:
        raise TrainingError(
            f"{name} cannot be cut into segments: it is one module, "
            f"which takes {longest_ms:.1f} ms; max_segment_ms is {max_segment_ms:g}",
            "Have it call parts of itself as modules, or use smaller batches",
        )
    segments = plan(blocks, max_segment_ms / 1e3)
    _note(name, stretches(model, segments, sample, between), max_segment_ms)
    return segments


class Boundaries:
    """Hooks that say when a step reaches a boundary: they call ``reached(name of a module)``.

    Boundaries are before the forward pass of each segment but the first, before the backward pass
    of each segment, and before the optimiser's step. The graph stays as it is. In the backward pass
    they are where the first block of the segment behind has made a parameter's gradient: a hook
    that is there once costs less than one for the node of each output, which takes 50 µs between
    large modules, as by then no cache has its code.

    Args:
        model: The model.
        segments: Its segments.
        reached: Called at each boundary; an exception of it leaves the step.
        frees: Whether activations must be free after such an exception. From a parameter's hook,
            PyTorch keeps what was to be computed next; so boundaries are at all outputs instead.
    """

    def __init__(
        self,
        model: nn.Module,
        segments: Sequence[Segment],
        reached: Reached,
        *,
        frees: bool = False,
    ) -> None:
        self._reached = reached
        # With the parameters: the id of one that is gone may be another model's.
        self._parameters = {id(parameter): parameter for parameter in model.parameters()}
        self._hooks = [register_optimizer_step_pre_hook(self._before_step)]
        modules = dict(model.named_modules())
        for name in dict.fromkeys(segment.blocks[0].name for segment in segments[1:]):
            hook = partial(self._before_forward, name)
            self._hooks.append(modules[name].register_forward_pre_hook(hook))
        alone = {} if frees else _parameters_alone(modules, segments)
        ends = dict.fromkeys(segment.blocks[-1].name for segment in segments[-1:])
        for before, segment in itertools.pairwise(segments):
            name = before.blocks[-1].name
            parameter = next((alone[b.name] for b in segment.blocks if b.name in alone), None)
            if parameter is None:
                ends[name] = None
            else:
                accumulated = partial(_gradient_made, reached, name)
                hook = parameter.register_post_accumulate_grad_hook(accumulated)  # type: ignore[no-untyped-call]
                self._hooks.append(hook)
        for name in ends:
            hook_after = partial(self._after_forward, name)
            self._hooks.append(modules[name].register_forward_hook(hook_after))

    def remove(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()

    def remove_global_hook(self) -> None:
        """Take away the one that is not of the model, which is gone."""
        self._hooks[0].remove()

    def _before_forward(self, name: str, _module: nn.Module, _args: Any) -> None:
        self._reached(name)

    def _after_forward(self, name: str, _module: nn.Module, _args: Any, output: Any) -> None:
        node = next((t.grad_fn for t in tensors(output) if t.grad_fn is not None), None)
        if node is not None:
            node.register_prehook(partial(self._before_backward, name))

    def _before_backward(self, name: str, _gradients: Sequence[Tensor | None]) -> None:
        self._reached(name)

    def _before_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        groups = optimizer.param_groups
        if any(id(each) in self._parameters for group in groups for each in group["params"]):
            self._reached(OPTIMIZER)


def _gradient_made(reached: Reached, name: str, _parameter: Tensor) -> None:
    """Say so; without the boundaries themselves, which would keep the parameter alive."""
    reached(name)


def _parameters_alone(
    modules: dict[str, nn.Module], segments: Sequence[Segment]
) -> dict[str, nn.Parameter]:
    """Return a parameter of each block, where one call of one module makes its gradient."""
    calls = Counter(block.name for segment in segments for block in segment.blocks)
    owners = Counter(p for each in modules.values() for p in each.parameters(recurse=False))
    return {
        name: parameter
        for name in calls
        for parameter in modules[name].parameters(recurse=False)
        if calls[name] == owners[parameter] == 1 and parameter.requires_grad
    }


@dataclass(frozen=True, slots=True)
class Stretch:
    """What runs between two boundaries.

    Attributes:
        begin: Name of the module where it begins.
        duration_s: Its duration.
    """

    begin: str
    duration_s: float


def stretches(
    model: nn.Module,
    segments: Sequence[Segment],
    sample: Any,
    between: Callable[[], None] = lambda: None,
    repeats: int = 3,
) -> list[Stretch]:
    """Measure what runs between boundaries in whole passes, code between modules included.

    The sum of the outputs stands for the loss. Gradients, buffers and random states stay.
    ``between`` is called at boundaries, and belongs to none of the stretches.
    """
    device = device_of([*model.parameters(), *model.buffers()])
    begin = "", 0.0
    found: list[Stretch] = []

    def mark(name: str) -> None:
        nonlocal begin
        synchronize(device)
        found.append(Stretch(begin[0], time.perf_counter() - begin[1]))
        between()
        begin = name, time.perf_counter()

    boundaries = Boundaries(model, segments, mark)
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    wanted = [parameter for parameter, _ in gradients if parameter.requires_grad]
    for parameter, _ in gradients:
        parameter.grad = None
    passes: list[list[Stretch]] = []
    try:
        with unchanged(model), torch.enable_grad():
            for _ in range(repeats):
                mark("the first module")
                found = []
                results = [t for t in tensors(model(sample)) if t.requires_grad]
                if results and wanted:
                    ones = [torch.ones_like(result) for result in results]
                    torch.autograd.backward(results, ones, inputs=wanted)
                mark("the end")
                for parameter in model.parameters():
                    parameter.grad = None
                passes.append(found)
    finally:
        boundaries.remove()
        for parameter, gradient in gradients:
            parameter.grad = gradient
    return [
        Stretch(same[0].begin, statistics.median(each.duration_s for each in same))
        for same in zip(*passes, strict=False)
    ]


def _note(name: str, found: Sequence[Stretch], max_segment_ms: float) -> None:
    long = [each for each in found if each.duration_s * 1e3 > max_segment_ms]
    if not long:
        return
    long.sort(key=lambda each: -each.duration_s)
    named = [f"{each.duration_s * 1e3:.1f} ms from {each.begin}" for each in long[:_NAMED]]
    warn_once(
        f"{len(long)} of {len(found)} segments of {name} are longer than max_segment_ms="
        f"{max_segment_ms:g}: {', '.join(named)}{', …' if len(long) > _NAMED else ''}. "
        "Boundaries are between modules: split these modules, or use smaller batches"
    )
