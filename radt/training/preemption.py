"""Training steps that can be interrupted between segments of the model, forward and backward."""

from __future__ import annotations

import itertools
import statistics
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from radt.errors import TrainingError, UsageError
from radt.loaders.batches import tensors_of
from radt.run.notices import warn_once
from radt.training.calling import Call
from radt.training.lease import DeviceLease
from radt.training.weights import BeforeStep, weights_of

Model = TypeVar("Model", bound=nn.Module)
Reached = Callable[[str], None]

#: Name of the boundary before the step of an optimiser.
OPTIMIZER = "the optimizer"
#: Maximum number of stretches in a note.
_NAMED = 3


#: Name of the stretch at the start of a pass.
_FIRST = "the first module"


@dataclass(frozen=True, slots=True)
class Block:
    """One measured call of a module of the model.

    Attributes:
        name: The module's name in the model: ``layers.3``.
        forward_s: Duration of its forward pass, and of the code up to the next one.
        backward_s: Duration of its backward pass.
    """

    name: str
    forward_s: float = 0.0
    backward_s: float = 0.0


@dataclass(frozen=True, slots=True)
class BlockSegment:
    """Successive blocks between two boundaries."""

    blocks: tuple[Block, ...]


def plan(blocks: Iterable[Block], max_segment_s: float) -> list[BlockSegment]:
    """Return the fewest segments whose forward and backward passes stay within ``max_segment_s``.

    A block that is longer becomes a segment by itself.

    Args:
        blocks: In the order of their calls.
        max_segment_s: Longest duration of each pass.
    """
    parts: list[list[Block]] = []
    forward_s = backward_s = 0.0
    for block in blocks:
        forward_s += block.forward_s
        backward_s += block.backward_s
        if parts and max(forward_s, backward_s) <= max_segment_s:
            parts[-1].append(block)
        else:
            parts.append([block])
            forward_s, backward_s = block.forward_s, block.backward_s
    return [BlockSegment(tuple(part)) for part in parts]


def preemptible(
    model: Model, lease: DeviceLease, sample: Any, *, max_segment_ms: float = 5.0
) -> Model:
    """Make a model yield its device to higher priorities at boundaries within its passes.

    ::

        lease = DeviceLease("cuda:0", priority="low")
        model = preemptible(model, lease, inputs)
        for inputs, target in loader:
            with lease:
                ...  # forward, backward, optimiser

    The modules are measured, and boundaries are set between them so that no segment is longer than
    ``max_segment_ms`` (SwitchFlow). Higher priorities get the device between measured passes, too.
    At a boundary where nobody waits, training continues at once; otherwise it waits there, with its
    activations and random states, until the device is back. A note on standard error names
    stretches that are longer.

    Args:
        model: The model, in training mode, on the lease's device. It is returned, with hooks.
        lease: The lease under which it trains.
        sample: Inputs of a batch, as ``model(sample)`` takes them; a mapping of its arguments.
        max_segment_ms: Longest time between two boundaries.

    Raises:
        UsageError: ``max_segment_ms`` is not positive.
        TrainingError: The model is compiled, or is one module that takes longer.
    """
    with nullcontext() if lease.held else lease:
        segments = segments_of(model, sample, max_segment_ms, lease.boundary)
        boundaries = Boundaries(model, segments, lambda _name: lease.boundary())
        weakref.finalize(model, boundaries.remove_global_hook)
    return model


def segments_of(
    model: nn.Module, sample: Any, max_segment_ms: float, between: Callable[[], None]
) -> list[BlockSegment]:
    """Return the segments of a model. Warn about those that are too long.

    Args:
        model: The model.
        sample: Its inputs.
        max_segment_ms: Longest duration of each pass of a segment.
        between: Called between measurements, when others may have the device.

    Raises:
        UsageError, TrainingError: As in `preemptible`.
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
    if reason := weights_of(model).elsewhere:
        raise TrainingError(
            f"{name} cannot be cut into segments: it {reason}",
            "Share its device otherwise, such as in processes of their own",
        )
    blocks = measured(model, sample, between)
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
    """Hooks that call ``reached(name of a module)`` when a step reaches a boundary.

    Boundaries are before the forward pass of each segment but the first, before the backward pass
    of each segment, and before the optimiser's step. The graph is unchanged. In the backward pass,
    a boundary is where the first block of the following segment has computed a parameter's
    gradient. Such a hook is registered once, which costs less than a hook on the node of each
    output: that takes 50 µs between large modules, as its code is no longer in any cache.

    Args:
        model: The model.
        segments: Its segments.
        reached: Called at each boundary; an exception abandons the step.
        frees: Whether such an exception must free the activations. After one in a parameter's hook,
            PyTorch keeps the pending computations; so all boundaries are at outputs instead.
    """

    def __init__(
        self,
        model: nn.Module,
        segments: Sequence[BlockSegment],
        reached: Reached,
        *,
        frees: bool = False,
    ) -> None:
        self._reached = reached
        # Keeps the parameters alive, so that no id is reused by another model's.
        self._parameters = {id(parameter): parameter for parameter in model.parameters()}
        self._hooks = [register_optimizer_step_pre_hook(self._before_step)]
        modules = dict(model.named_modules())
        for name in dict.fromkeys(segment.blocks[0].name for segment in segments[1:]):
            hook = partial(_report, reached, name)
            self._hooks.append(modules[name].register_forward_pre_hook(hook))
        alone = {} if frees else _parameters_alone(modules, segments)
        ends = dict.fromkeys(segment.blocks[-1].name for segment in segments[-1:])
        for before, segment in itertools.pairwise(segments):
            name = before.blocks[-1].name
            parameter = next((alone[b.name] for b in segment.blocks if b.name in alone), None)
            if parameter is None:
                ends[name] = None
            else:
                accumulated = partial(_report, reached, name)
                hook = parameter.register_post_accumulate_grad_hook(accumulated)  # type: ignore[no-untyped-call]
                self._hooks.append(hook)
        for name in ends:
            hook_after = partial(self._after_forward, name)
            self._hooks.append(modules[name].register_forward_hook(hook_after))

    def remove(self) -> None:
        """Remove all hooks."""
        for hook in self._hooks:
            hook.remove()

    def remove_global_hook(self) -> None:
        """Remove the global hook of a model that is gone."""
        self._hooks[0].remove()

    def _after_forward(self, name: str, _module: nn.Module, _args: Any, output: Any) -> None:
        node = next((t.grad_fn for t in tensors_of(output) if t.grad_fn is not None), None)
        if node is not None:
            node.register_prehook(partial(_report, self._reached, name))

    def _before_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        groups = optimizer.param_groups
        if any(id(each) in self._parameters for group in groups for each in group["params"]):
            self._reached(OPTIMIZER)


def _report(reached: Reached, name: str, *_of_hook: object) -> None:
    """Report the boundary. Not a method, as that would keep the model's parameters alive."""
    reached(name)


def _parameters_alone(
    modules: dict[str, nn.Module], segments: Sequence[BlockSegment]
) -> dict[str, nn.Parameter]:
    """Return a parameter of each block whose gradient comes from a single call of one module."""
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
    """A part of a pass between two boundaries.

    Attributes:
        begin: Name of the module where it begins.
        is_backward: Whether it is part of the backward pass.
        duration_s: Its duration.
    """

    begin: str
    is_backward: bool
    duration_s: float


def stretches(
    model: nn.Module,
    segments: Sequence[BlockSegment],
    sample: Any,
    between: Callable[[], None] = lambda: None,
    repeats: int = 3,
) -> list[Stretch]:
    """Measure the parts between boundaries in whole passes, including code between modules.

    The sum of the outputs stands for the loss. Gradients, buffers and random states are unchanged.
    ``between`` is called at boundaries and is not part of the measured times.
    """
    device = next(itertools.chain(model.parameters(), model.buffers()), torch.empty(0)).device
    begin, is_backward, begin_s = "", False, 0.0
    found: list[Stretch] = []

    def mark(name: str) -> None:
        nonlocal begin, is_backward, begin_s
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(Stretch(begin, is_backward, time.perf_counter() - begin_s))
        between()
        # Gradients are disabled while hooks of a backward pass run.
        begin, is_backward, begin_s = name, not torch.is_grad_enabled(), time.perf_counter()

    boundaries = Boundaries(model, segments, mark)
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    wanted = [parameter for parameter, _ in gradients if parameter.requires_grad]
    passes: list[list[Stretch]] = []
    before = BeforeStep(model)
    try:
        with torch.enable_grad():
            for _ in range(repeats):
                before.restore()
                for parameter, _ in gradients:
                    parameter.grad = None
                mark(_FIRST)
                found = []
                output = Call.of(model, sample)(model)
                results = [t for t in tensors_of(output) if t.requires_grad]
                if results and wanted:
                    ones = [torch.ones_like(result) for result in results]
                    torch.autograd.backward(results, ones, inputs=wanted)
                mark("the end")
                passes.append(found)
    finally:
        boundaries.remove()
        before.restore()
        for parameter, gradient in gradients:
            parameter.grad = gradient
    return [
        replace(same[0], duration_s=statistics.median(each.duration_s for each in same))
        for same in zip(*passes, strict=False)
    ]


def measured(model: nn.Module, sample: Any, between: Callable[[], None]) -> list[Block]:
    """Measure the calls of innermost modules, which call no other module, in their order.

    The arguments are those of `stretches`.
    """
    names = _innermost(model, sample, between)
    calls = Counter(names)
    found = stretches(model, [BlockSegment((Block(name),)) for name in names], sample, between)
    durations_s: dict[tuple[str, bool], float] = defaultdict(float)
    for each in found:
        name = names[0] if each.begin == _FIRST else each.begin
        durations_s[name, each.is_backward] += each.duration_s / calls[name]
    return [Block(name, durations_s[name, False], durations_s[name, True]) for name in names]


def _innermost(model: nn.Module, sample: Any, between: Callable[[], None]) -> list[str]:
    """Return the names of the modules whose calls call no other module."""
    found: list[str] = []
    open_calls: list[bool] = []  # True where a module has called another one

    def enter(_module: nn.Module, _args: object) -> None:
        if open_calls:
            open_calls[-1] = True
        open_calls.append(False)
        between()

    def leave(name: str, _module: nn.Module, _args: object, _output: object) -> None:
        if not open_calls.pop():
            found.append(name)

    before = BeforeStep(model)
    with ExitStack() as undo, torch.no_grad():
        undo.callback(before.restore)
        for name, module in model.named_modules():
            undo.enter_context(module.register_forward_pre_hook(enter))
            undo.enter_context(module.register_forward_hook(partial(leave, name)))
        Call.of(model, sample)(model)
    return found


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
