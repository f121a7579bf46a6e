"""Train a model with more parameters than memory: ``step = offload(model, …)``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.hooks import RemovableHandle

from radt import units
from radt.errors import UsageError
from radt.training.job import Job
from radt.training.offloading.executor import Executor
from radt.training.offloading.graph import ModelGraph
from radt.training.offloading.loading import Swapper
from radt.training.offloading.measuring import Measurement
from radt.training.offloading.passes import Passes, PassSegment
from radt.training.offloading.planning import Plan, planned
from radt.training.offloading.stores import Budget, FileStore, PinnedStore, give_memory_back
from radt.training.offloading.swapping import OptimizerClass, StateNames, SwappedBlock
from radt.training.randomness import RandomState

#: Where large temporary files belong (file-hierarchy(7)); /tmp is in memory on many systems.
_FOLDER = Path("/var/tmp")  # noqa: S108
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?B)")
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_NO_LIMIT = 1 << 60

MicroBatch = tuple[Any, Any]


def offload(
    model: nn.Module,
    *,
    optimizer_class: OptimizerClass,
    loss: Callable[[Any, Any], Tensor],
    sample: MicroBatch,
    memory: str | int,
    device: torch.device | str = "cpu",
    accumulate: int | str = "auto",
    recompute: bool | str = "auto",
    blocks: Sequence[nn.Module] | None = None,
    folder: Path | str = _FOLDER,
    page_cache: bool = True,
    ahead: bool = True,
    name: str = "offload",
) -> OffloadedStep:
    """Train with some of the parameters in memory; losses are those of the plain loop, bit by bit.

    The model is cut into segments. While micro-batches pass one, a thread loads the next one, and
    the optimiser updates the one before on the host. For a GPU, the host's memory holds parameters
    and optimiser states; on a CPU a file does. The plain loop with the same losses is ::

        for inputs, target in micro_batches:
            (loss(model(inputs), target) / len(micro_batches)).backward()
        optimizer.step()
        optimizer.zero_grad()

    Args:
        model: The model, on the CPU and in the mode in which it will be trained; its parameters are
            away until `close`.
        optimizer_class: Makes an optimiser of parameters: ``AdamW``, ``partial(SGD, lr=0.1)``. It
            must treat each parameter by itself, as those of ``torch.optim`` do apart from LBFGS.
        loss: ``loss(output, target)`` is a tensor of one element.
        sample: A micro-batch ``(inputs, target)`` of the largest size.
        memory: Budget for parameters, gradients and activations on the device: ``"6GB"``, or
            bytes; on a CPU also for optimiser states in use. What a single operation needs besides
            is not counted.
        device: Where to train.
        accumulate: Micro-batches of a step, C; ``"auto"`` takes the fewest that hide loading.
        recompute: Whether backward passes compute segments again instead of keeping activations;
            ``"auto"`` takes the faster way that fits.
        blocks: Modules that the model calls one after another, if it cannot be traced.
        folder: Where the file is, on a CPU.
        page_cache: Whether the kernel may cache the file in free memory.
        ahead: False loads each segment when it is needed, to show what loading ahead is worth; the
            plan expects True.
        name: Name of the job.

    Returns:
        A function of a list of micro-batches, to be closed; its plan is in `plan`.

    Raises:
        TrainingError: The budget is too small (names the smallest one), the model cannot be traced,
            or the disk is full.
        UsageError: An argument is invalid.

    Source: Atom, X. Wu 2023, chapter 3.
    """
    memory_bytes = _bytes(memory)
    _check(model, sample, accumulate, recompute)
    where = torch.device(device)
    graph = ModelGraph(model, blocks)
    budget = Budget(_NO_LIMIT)
    store: FileStore | PinnedStore
    if where.type == "cuda":
        store = PinnedStore(where)
    else:
        store = FileStore(Path(folder), budget.buffers, page_cache)
    step = OffloadedStep(graph, store, budget, where, optimizer_class, loss, name)
    try:
        step._begin(  # noqa: SLF001
            sample,
            memory_bytes,
            accumulate if isinstance(accumulate, int) else None,
            recompute if isinstance(recompute, bool) else None,
            ahead,
        )
    except BaseException:
        step.close()
        raise
    return step


class OffloadedStep:
    """``step(micro_batches)`` trains and returns the mean loss; made by `offload`.

    Attributes:
        plan: Segments, bytes, times and C; ``print(step.plan)``.
        job: The training as a job. Its optimiser has the settings, such as learning rates; the
            optimiser's states are in ``job.state_dict()``.
    """

    plan: Plan

    def __init__(
        self,
        graph: ModelGraph,
        store: FileStore | PinnedStore,
        budget: Budget,
        device: torch.device,
        optimizer_class: OptimizerClass,
        loss: Callable[[Any, Any], Tensor],
        name: str,
    ) -> None:
        self._graph = graph
        self._store = store
        self._device = device
        self._loss = loss
        self._budget = budget
        self._hooks: list[RemovableHandle] = []
        self._executor: Executor | None = None
        self._is_away = False
        self._is_closed = False
        self._sample_bytes = 0
        try:
            self._optimizer = optimizer_class(graph.model.parameters())
            _check_groups(self._optimizer)
            states = StateNames(optimizer_class)

            def swapped(parameters: Sequence[nn.Parameter]) -> SwappedBlock:
                common = self._budget, device, optimizer_class, states
                return SwappedBlock(parameters, store, *common)

            self._blocks = [swapped(block.parameters) for block in graph.blocks]
            self._shared = swapped(graph.shared) if graph.shared else None
            if isinstance(store, FileStore):
                self._hooks = [hook for block in self._blocks for hook in block.keep_gradients()]
        except BaseException:
            store.close()
            raise
        self.job = OffloadedJob(self, name, graph.model, self._optimizer, loss)

    def _begin(
        self,
        sample: MicroBatch,
        memory_bytes: int,
        accumulate: int | None,
        recompute: bool | None,
        ahead: bool,
    ) -> None:
        """Move the parameters away, measure, and plan."""
        self._store.reserve()
        self._is_away = True
        for block in self._all():
            block.put_away()
        self._move_buffers(self._device)
        if self._shared is not None:
            self._shared.load()
            self._shared.attach()
        inputs, target = tree_map(
            lambda leaf: leaf.to(self._device) if isinstance(leaf, Tensor) else leaf, sample
        )
        self._sample_bytes = _tensor_bytes(inputs)
        measured = Measurement(
            self._graph, self._blocks, self._loss, self._device, self._budget.buffers
        ).measure(inputs, target)
        fixed_bytes = sum(buffer.nbytes for buffer in self._graph.model.buffers())
        gradient_bytes = 0
        if self._shared is not None:
            gradient_bytes = self._shared.gradient_bytes
            fixed_bytes += self._shared.parameter_bytes + gradient_bytes + self._shared.state_bytes
        self.plan = planned(
            measured,
            memory_bytes,
            fixed_bytes,
            gradient_bytes,
            self._sample_bytes,
            accumulate,
            recompute,
        )
        self._budget.limit_bytes = memory_bytes
        self._budget.used_bytes = 0
        self._budget.take(
            sum(buffer.nbytes for buffer in self._graph.model.buffers())
            + (0 if self._shared is None else self._shared.parameter_bytes)
        )
        self._budget.peak_bytes = self._budget.recent_bytes = 0
        ends = [0]
        for segment in self.plan.segments:
            ends.append(ends[-1] + len(segment.blocks))
        segments = [
            PassSegment(
                self._graph,
                self._graph.blocks[begin:end],
                self._blocks[begin:end],
                sum(block.kept_bytes for block in measured.blocks[begin:end]),
            )
            for begin, end in pairwise(ends)
        ]
        passes = Passes(
            self._graph,
            self._shared,
            self._loss,
            self._device,
            self._budget,
            measured.draws,
            self.plan.recompute,
        )
        is_cpu = self._device.type == "cpu"
        if is_cpu:
            give_memory_back()  # of the whole model, and of the measurement
        swapper = Swapper(segments, self._shared, ahead, is_cpu)
        self._executor = Executor(segments, swapper, passes, self._optimizer, self._budget)

    def __call__(self, micro_batches: Sequence[MicroBatch]) -> Tensor:
        """Train on micro-batches; return the mean of their losses.

        Args:
            micro_batches: ``(inputs, target)`` each; at most as many as planned, and none larger
                than the sample.

        Raises:
            TrainingError: Loading or writing failed, the budget is exceeded, or the step before was
                interrupted in the middle.
            UsageError: There are too many micro-batches, or one is too large; or a module is in
                another mode (training or not) than when it was planned.
        """
        # The plain loop draws from the process's generators: the job's are theirs.
        self.job.randomness.state = RandomState.current()
        loss = self.job.step(micro_batches)
        self.job.randomness.state.restore()
        return loss

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were counted at once."""
        return self._budget.peak_bytes

    @property
    def loads(self) -> list[int]:
        """How often each segment was loaded."""
        return list(self._running().swapper.loads)

    def wait(self) -> None:
        """Wait until the first segment, the last one of a step, is updated: to time steps, say."""
        self._running().swapper.wait()

    def close(self) -> None:
        """End the thread, give the model its parameters back, on the CPU, and free the store."""
        if self._is_closed:
            return
        self._is_closed = True
        with ExitStack() as stack:
            stack.callback(self._store.close)
            stack.callback(self._give_back)  # also if the last update has failed
            if self._executor is not None:
                stack.callback(self._executor.swapper.close)
                self._executor.rest()

    def _give_back(self) -> None:
        for hook in self._hooks:
            hook.remove()
        if self._is_away:
            for block in self._all():
                block.give_back()
            self._move_buffers(torch.device("cpu"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _train(self, micro_batches: Any) -> Tensor:
        """Check and do a step."""
        self._graph.check_modes()
        count = len(micro_batches)
        if not 1 <= count <= self.plan.accumulate:
            raise UsageError(
                f"offload: a step got {count} micro-batches, "
                f"the plan is for 1 to {self.plan.accumulate}",
                f"Plan for more: offload(…, accumulate={count})",
            )
        for inputs, _ in micro_batches:
            if _tensor_bytes(inputs) > self._sample_bytes:
                raise UsageError(
                    f"offload: a micro-batch has {units.size(_tensor_bytes(inputs))} of inputs, "
                    f"the sample had {units.size(self._sample_bytes)}",
                    "Give the largest one as sample",
                )
        return self._running().step(micro_batches)

    def _running(self) -> Executor:
        if self._executor is None or self._is_closed:
            raise UsageError("this offloaded step is closed", "Make a new one: offload(model, …)")
        return self._executor

    def _all(self) -> list[SwappedBlock]:
        return [*self._blocks, *([] if self._shared is None else [self._shared])]

    def _move_buffers(self, device: torch.device) -> None:
        for module in self._graph.model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                module._buffers[name] = buffer.to(device)  # noqa: SLF001, as Module.to does

    @contextmanager
    def _all_in_memory(self, replaced: bool = False) -> Iterator[None]:
        """Have all parameters in the model, and all states in its optimiser, within the block."""
        executor = self._running()
        executor.rest()
        if not replaced:
            executor.swapper.check_whole()
        for block in self._all():
            block.give_back()
            if not replaced:
                block.show_states(self._optimizer)
        try:
            yield
            if replaced:
                for block in self._all():
                    block.take_states(self._optimizer)
                executor.swapper.restored()
        finally:
            for block in self._all():
                if replaced:
                    block.put_away()
                block.detach()
            self._optimizer.state.clear()
            if self._shared is not None:
                self._shared.load()
                self._shared.attach()
            executor.counted_anew()


class OffloadedJob(Job):
    """An offloaded training as a job: a batch of its loader is a list of micro-batches.

    Its `state_dict` needs memory for all parameters and states, and loads into the job of the plain
    model and optimiser, too.
    """

    def __init__(
        self,
        step: OffloadedStep,
        name: str,
        model: nn.Module,
        optimizer: Optimizer,
        loss: Callable[[Any, Any], Tensor],
    ) -> None:
        super().__init__(name, model, optimizer, loss, step=step._train)  # noqa: SLF001
        self._offloaded = step

    def state_dict(self) -> dict[str, Any]:
        """Return all that the training goes on with: tensors and plain values.

        Raises:
            TrainingError: A step was interrupted in the middle, or an update failed.
        """
        with self._offloaded._all_in_memory():  # noqa: SLF001
            state = super().state_dict()
        for name, _ in self.model.named_buffers():  # they stay, and training changes them
            if name in state["model"]:
                state["model"][name] = state["model"][name].clone()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, of an offloaded job or of one of the plain model and optimiser."""
        with self._offloaded._all_in_memory(replaced=True):  # noqa: SLF001
            super().load_state_dict(state)
        self.randomness.state.restore()  # a step called by the script goes on from these


def _check(model: nn.Module, sample: Any, accumulate: int | str, recompute: bool | str) -> None:
    if not isinstance(sample, tuple | list) or len(sample) != 2:
        raise UsageError("offload: sample is not a micro-batch (inputs, target)")
    if not (accumulate == "auto" or (isinstance(accumulate, int) and accumulate >= 1)):
        raise UsageError(f'offload: accumulate is {accumulate!r}, expected "auto" or 1 or more')
    if recompute not in ("auto", True, False):
        raise UsageError(f'offload: recompute is {recompute!r}, expected "auto", True or False')
    for name, parameter in model.named_parameters():
        if parameter.device.type != "cpu":
            raise UsageError(
                f"offload: parameter {name} is on {parameter.device}, expected it on the CPU",
                "Build the model on the CPU; offload loads its segments where they are needed",
            )


def _check_groups(optimizer: Optimizer) -> None:
    if len(optimizer.param_groups) != 1:
        raise UsageError(
            "offload: optimizer_class makes several groups of parameters, expected one",
            "Use the same settings for all of them, as in partial(AdamW, lr=1e-3)",
        )


def _bytes(memory: str | int) -> int:
    if isinstance(memory, int) and memory > 0:
        return memory
    match = _SIZE.fullmatch(str(memory).strip())
    if match is None:
        raise UsageError(f'offload: memory is {memory!r}, expected bytes or a size such as "6GB"')
    return int(float(match[1]) * _UNITS[match[2]])


def _tensor_bytes(value: Any) -> int:
    return sum(leaf.nbytes for leaf in tree_leaves(value) if isinstance(leaf, Tensor))
