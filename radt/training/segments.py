"""Blocks and segments of a model: the units between which it can be interrupted or swapped."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from radt.errors import UsageError
from radt.training.randomness import RandomState


@dataclass(frozen=True, slots=True)
class Block:
    """One call of a module of the model, as measured.

    Attributes:
        name: The module's name in the model: ``layers.3``.
        forward_s: Duration of its forward pass.
        backward_s: Duration of its backward pass.
        parameter_bytes: Bytes of its parameters and buffers.
        output_bytes: Bytes of its output for the sample batch.
    """

    name: str
    forward_s: float
    backward_s: float
    parameter_bytes: int
    output_bytes: int


@dataclass(frozen=True, slots=True)
class Segment:
    """Successive blocks between two boundaries."""

    blocks: tuple[Block, ...]

    @property
    def forward_s(self) -> float:
        """Duration of the forward pass."""
        return sum(block.forward_s for block in self.blocks)

    @property
    def backward_s(self) -> float:
        """Duration of the backward pass."""
        return sum(block.backward_s for block in self.blocks)

    @property
    def parameter_bytes(self) -> int:
        """Bytes of the parameters and buffers."""
        return sum(block.parameter_bytes for block in self.blocks)

    @property
    def output_bytes(self) -> int:
        """Bytes that the last block hands to the next segment."""
        return self.blocks[-1].output_bytes


def plan(blocks: Iterable[Block], max_segment_s: float) -> list[Segment]:
    """Return the fewest segments whose forward and backward passes are no longer than asked.

    A block that is longer by itself is a segment of its own.

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
    return [Segment(tuple(part)) for part in parts]


def profile(
    model: nn.Module,
    sample: Any,
    blocks: Sequence[str] | None = None,
    device: torch.device | str | None = None,
    repeats: int = 5,
    between: Callable[[], None] = lambda: None,
) -> list[Block]:
    """Measure the blocks of a model, in the order of their calls.

    ``model(sample)`` is run where the model is, without a graph. At each block, copies of its
    parameters, its buffers and its inputs go to the device, where it is measured alone; so no more
    than one block is there at a time. The model, its gradients and the random states stay as they
    were.

    Args:
        model: The model, in the mode (training or not) that is to be measured.
        sample: Its input, of the size that it will have.
        blocks: Names of modules, none within another; those that call no other module if None.
        device: Where to measure; where the model is if None.
        repeats: How often each block is measured, after a warm-up; times are medians.
        between: Called before each pass of a block, outside of what is measured, and between the
            modules of a pass that looks for blocks: there others may have the device.

    Raises:
        UsageError: A block is not a module of the model, is not called, or is in another.
    """
    modules = dict(model.named_modules())
    _check_names(blocks, modules)
    with unchanged(model):
        names = _innermost(model, modules, sample, between) if blocks is None else list(blocks)
        chosen = {name: modules[name] for name in names}
        where = device if device is None else torch.device(device)
        return _Profiler(chosen, where, repeats, between).measured(model, sample)


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """At the end of the block, the model's buffers and the random states are as before it."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    states = RandomState.current()
    try:
        yield
    finally:
        states.restore()
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


def _check_names(blocks: Sequence[str] | None, modules: dict[str, nn.Module]) -> None:
    for name in blocks or ():
        if name not in modules:
            known = ", ".join(list(modules)[1:9])
            raise UsageError(f'the model has no module "{name}"', f"It has {known}, …")
        for other in blocks or ():
            if other != name and f"{other}.".startswith(f"{name}." if name else ""):
                raise UsageError(f'block "{other}" is within block "{name}"', "Give one of them")


def _innermost(
    model: nn.Module, modules: dict[str, nn.Module], sample: Any, between: Callable[[], None]
) -> list[str]:
    """Return the names of the modules with a call in which no other module is called."""
    found: dict[str, None] = {}
    open_calls: list[bool] = []  # whether each has called another module

    def enter(_module: nn.Module, _args: object) -> None:
        if open_calls:
            open_calls[-1] = True
        open_calls.append(False)
        between()

    def leave(name: str) -> Callable[[nn.Module, object, object], None]:
        def hook(_module: nn.Module, _args: object, _output: object) -> None:
            if not open_calls.pop():
                found[name] = None

        return hook

    with ExitStack() as hooks, torch.no_grad():
        for name, module in modules.items():
            hooks.enter_context(module.register_forward_pre_hook(enter))
            hooks.enter_context(module.register_forward_hook(leave(name)))
        model(sample)
    return list(found)


class _Profiler:
    """Measure each call of the given modules within one forward pass of their model."""

    def __init__(
        self,
        modules: dict[str, nn.Module],
        device: torch.device | None,
        repeats: int,
        between: Callable[[], None],
    ) -> None:
        self._modules = modules
        self._device = device
        self._repeats = repeats
        self._between = between
        self._found: list[Block] = []
        self._measuring = False
        #: Whether a block before had parameters to train, so that inputs need gradients.
        self._trained = False

    def measured(self, model: nn.Module, sample: Any) -> list[Block]:
        with ExitStack() as hooks, torch.no_grad():
            for name, module in self._modules.items():
                hook = module.register_forward_pre_hook(self._hook(name), with_kwargs=True)
                hooks.enter_context(hook)
            model(sample)
        if missing := set(self._modules) - {block.name for block in self._found}:
            raise UsageError(f'the model does not call block "{min(missing)}"', "Leave it out")
        return self._found

    def _hook(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            if not self._measuring:
                self._measuring = True
                try:
                    self._found.append(self._measure(name, module, args, kwargs))
                finally:
                    self._measuring = False

        return hook

    def _measure(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> Block:
        owned = [*module.named_parameters(), *module.named_buffers()]
        device = self._device or device_of([args, kwargs, *(tensor for _, tensor in owned)])
        copies = {
            key: tensor.detach().to(device, copy=True).requires_grad_(tensor.requires_grad)
            for key, tensor in owned
        }
        inputs = mapped((args, kwargs), lambda tensor: self._input(tensor, device))
        wanted = [t for t in [*copies.values(), *tensors(inputs)] if t.requires_grad]
        output = None
        forwards_s, backwards_s = [], []
        for _ in range(self._repeats + 1):
            # Clones, as a module may write to its inputs, which autograd forbids with leaves.
            again_args, again_kwargs = mapped(inputs, _clone)
            self._between()
            synchronize(device)
            begin_s = time.perf_counter()
            with torch.set_grad_enabled(bool(wanted)):
                output = functional_call(module, copies, again_args, again_kwargs)
            synchronize(device)
            middle_s = time.perf_counter()
            results = [tensor for tensor in tensors(output) if tensor.requires_grad]
            gradients = [torch.ones_like(result) for result in results]
            self._between()
            synchronize(device)
            backward_s = time.perf_counter()
            if results:
                torch.autograd.grad(results, wanted, gradients, allow_unused=True)
                synchronize(device)
            backwards_s.append(time.perf_counter() - backward_s)
            forwards_s.append(middle_s - begin_s)
        self._trained |= any(parameter.requires_grad for parameter in module.parameters())
        return Block(
            name,
            statistics.median(forwards_s[1:]),
            statistics.median(backwards_s[1:]),
            sum(tensor.nbytes for _, tensor in owned),
            sum(tensor.nbytes for tensor in tensors(output)),
        )

    def _input(self, tensor: Tensor, device: torch.device) -> Tensor:
        needs_gradient = self._trained and tensor.is_floating_point()
        return tensor.detach().to(device).clone().requires_grad_(needs_gradient)


def _clone(tensor: Tensor) -> Tensor:
    with torch.enable_grad():
        return tensor.clone()


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return tuples, lists and dicts with their tensors changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # a named tuple
        return type(value)(*(mapped(part, change) for part in value))
    if isinstance(value, tuple | list):
        return type(value)(mapped(part, change) for part in value)
    if isinstance(value, dict):
        return {key: mapped(part, change) for key, part in value.items()}
    return value


def tensors(value: Any) -> list[Tensor]:
    """Return the tensors in tuples, lists and dicts."""
    found: list[Tensor] = []
    mapped(value, lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return found


def device_of(values: Any) -> torch.device:
    """Return the device of the first tensor; the CPU if there is none."""
    return next((tensor.device for tensor in tensors(values)), torch.device("cpu"))


def synchronize(device: torch.device) -> None:
    """Wait for what was launched on a device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
