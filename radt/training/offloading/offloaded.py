"""Train a model with more parameters than memory: ``step = offload(model, …)``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from radt import units
from radt.errors import UsageError
from radt.loaders.batches import moved, tensors_of
from radt.loaders.randomness import RandomState
from radt.training.calling import Loss, Objective
from radt.training.job import Job
from radt.training.layout import Layout
from radt.training.memory import bytes_of
from radt.training.offloading.executor import Clipping, OffloadExecutor
from radt.training.offloading.forward import ForwardOnly
from radt.training.offloading.graph import ModelGraph
from radt.training.offloading.measuring import Measurement
from radt.training.offloading.optimizers import OptimizerClass, StateNames, cannot_train
from radt.training.offloading.passes import Passes, PassSegment
from radt.training.offloading.planning import Plan, planned
from radt.training.offloading.stores import (
    Budget,
    Buffers,
    FileStore,
    PinnedStore,
    give_memory_back,
)
from radt.training.offloading.swapping import SwappedBlock
from radt.training.weights import WeightAccess, Weights, model_tensors, moved_back, moved_elsewhere

#: Folder for large temporary files (file-hierarchy(7)); /tmp is in memory on many systems.
_FOLDER = Path("/var/tmp")  # noqa: S108
_NO_LIMIT = 1 << 60


def offload(
    model: nn.Module,
    *,
    optimizer_class: OptimizerClass,
    loss: Loss | None = None,
    sample: Any,
    memory: str | int,
    device: torch.device | str = "cpu",
    accumulate: int | str = "auto",
    clip_norm: float | None = None,
    recompute: bool | str = "auto",
    blocks: Sequence[nn.Module] | None = None,
    folder: Path | str = _FOLDER,
    page_cache: bool = True,
    ahead: bool = True,
    name: str = "offload",
) -> OffloadedStep:
    """Train with some of the parameters in memory; losses are bit-identical to the plain loop's.

    The model is cut into segments. While micro-batches pass one, a thread loads the next one, and
    the optimiser updates the previous one on the host. For a GPU, the host's memory holds
    parameters and optimiser states; on a CPU a file does. The plain loop with the same losses is ::

        for inputs, target in micro_batches:
            (loss(model(inputs), target) / len(micro_batches)).backward()
        optimizer.step()
        optimizer.zero_grad()

    Args:
        model: The model, on the CPU and in the mode in which it will be trained; its parameters are
            removed until `close`.
        optimizer_class: Makes the optimiser of the model's parameters: ``AdamW``,
            ``partial(SGD, lr=0.1)``, or ``lambda _: model.configure_optimizers()`` for one with
            several groups. It must treat each parameter independently, as all of ``torch.optim`` do
            except LBFGS.
        loss: ``loss(output, target)`` is a tensor of one element; None if the model returns its
            loss, as those of Hugging Face do with labels.
        sample: A micro-batch of the largest size: ``(inputs, target)``, or what `Job` takes.
        memory: Budget for parameters, gradients and activations on the device: ``"6GB"``, or
            bytes; on a CPU also for optimiser states in use. Temporary memory of single operations
            is not counted.
        device: Where to train.
        accumulate: Micro-batches per step, C; ``"auto"`` takes the fewest that hide loading.
        clip_norm: Maximum norm of all gradients, as in ``clip_grad_norm_``. Gradients are then kept
            in the store until the last one is known, and a CPU loads each segment once more for its
            update.
        recompute: Whether backward passes compute segments again instead of keeping activations;
            ``"auto"`` takes the faster way that fits.
        blocks: Modules that the model calls one after another, if it can be neither traced nor
            exported.
        folder: Folder of the file, on a CPU.
        page_cache: Whether the kernel may cache the file in free memory.
        ahead: False loads each segment when it is needed, to measure the gain of loading ahead; the
            plan assumes True.
        name: Name of the job.

    Returns:
        A function of a list of micro-batches, to be closed; its plan is in `plan`.

    Raises:
        TrainingError: The budget is too small (names the smallest one), the model cannot be traced,
            or the disk is full.
        UsageError: An argument is invalid.

    Source: Atom, X. Wu 2023, chapter 3.
    """
    memory_bytes = bytes_of(memory)
    _check(model, accumulate, recompute, clip_norm)
    where = torch.device(device)
    objective = Objective(loss, "offload")
    call, _ = objective.split(model, sample)
    graph = ModelGraph(model, call, objective, where, blocks)
    budget = Budget(_NO_LIMIT)
    store = _store_for(where, Path(folder), budget.buffers, page_cache)
    step = OffloadedStep(graph, store, budget, where, optimizer_class, objective, clip_norm, name)
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
    """``step(micro_batches)`` trains and returns the mean loss; created by `offload`.

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
        objective: Objective,
        clip_norm: float | None,
        name: str,
    ) -> None:
        self._graph = graph
        self._store = store
        self._device = device
        self._objective = objective
        self._budget = budget
        self._clipping = None
        if clip_norm is not None:
            self._clipping = Clipping(clip_norm, list(graph.model.parameters()))
        self._hooks: list[RemovableHandle] = []
        self._forward: ForwardOnly | None = None
        self._weights = _AwayWeights(self)
        self._executor: OffloadExecutor | None = None
        self._is_away = False
        self._is_closed = False
        self._sample_bytes = 0
        try:
            try:
                self._optimizer = optimizer_class(graph.model.parameters())
            except Exception as error:  # user code
                raise cannot_train(error) from error
            _check_parameters(self._optimizer, graph.model)
            states = StateNames(self._optimizer)

            def swapped(parameters: Sequence[nn.Parameter]) -> SwappedBlock:
                common = self._budget, device, self._optimizer, states, clip_norm is not None
                return SwappedBlock(parameters, store, *common)

            self._blocks = [swapped(block.parameters) for block in graph.blocks]
            self._shared = swapped(graph.shared) if graph.shared else None
            if isinstance(store, FileStore):
                self._hooks = [hook for block in self._blocks for hook in block.keep_gradients()]
        except BaseException:
            store.close()
            raise
        self.job = OffloadedJob(self, name, graph.model, self._optimizer, objective.loss)

    def _begin(
        self,
        sample: Any,
        memory_bytes: int,
        accumulate: int | None,
        recompute: bool | None,
        ahead: bool,
    ) -> None:
        """Move the parameters away, measure, and plan."""
        self._store.reserve()
        self._is_away = True
        moved_elsewhere(self._weights)
        for block in self._all():
            block.put_away()
        self._move_buffers(self._device)
        if self._shared is not None:
            self._shared.load()
            self._shared.attach()
        self._sample_bytes = self._input_bytes(sample)
        call, target = self._objective.split(self._graph.model, moved(sample, self._device))
        passes = Passes(self._graph, self._shared, self._objective, self._device, self._budget)
        blocks = Measurement(passes, self._blocks).measure(call, target)
        fixed_bytes = sum(buffer.nbytes for buffer in self._graph.model.buffers())
        gradient_bytes = 0
        if self._shared is not None:
            gradient_bytes = self._shared.gradient_bytes
            fixed_bytes += self._shared.parameter_bytes + gradient_bytes + self._shared.state_bytes
        self.plan = planned(
            blocks,
            memory_bytes,
            sum(block.parameter_bytes for block in self._all()),
            fixed_bytes,
            gradient_bytes,
            self._sample_bytes,
            accumulate,
            recompute,
        )
        passes.recompute = self.plan.recompute
        self._budget.limit_bytes = memory_bytes
        self._budget.used_bytes = 0
        self._budget.take(
            sum(buffer.nbytes for buffer in self._graph.model.buffers())
            + (0 if self._shared is None else self._shared.parameter_bytes)
        )
        self._budget.peak_bytes = self._budget.recent_bytes = 0
        ends = (0, *self.plan.ends)
        segments = [
            PassSegment(
                self._graph,
                self._graph.blocks[begin:end],
                self._blocks[begin:end],
                segment.kept_bytes,
            )
            for segment, (begin, end) in zip(self.plan.segments, pairwise(ends), strict=True)
        ]
        is_cpu = isinstance(self._store, FileStore)
        if is_cpu:
            give_memory_back()  # of the whole model, and of the measurement
        self._executor = OffloadExecutor(
            segments,
            self._shared,
            passes,
            self._optimizer,
            self._budget,
            self._clipping,
            ahead=ahead,
            is_cpu=is_cpu,
        )
        self._forward = ForwardOnly(self._graph, ends, self._executor)

    def __call__(self, micro_batches: Sequence[Any]) -> Tensor:
        """Train on micro-batches. Return the mean of their losses.

        Args:
            micro_batches: Each like the sample; at most as many as planned, and none larger.

        Raises:
            TrainingError: Loading or writing failed, the budget is exceeded, or the previous step
                was interrupted in the middle.
            UsageError: There are too many micro-batches, or one is too large; or a module is in
                another mode (training or not) than when it was planned.
        """
        # The plain loop draws from the process's generators, so the job uses their states.
        self.job.randomness.state = RandomState.current()
        loss = self.job.step(micro_batches)
        self.job.randomness.state.restore()
        return loss

    @property
    def peak_bytes(self) -> int:
        """The peak of counted bytes."""
        return self._budget.peak_bytes

    @property
    def loads(self) -> list[int]:
        """Number of loads of each segment."""
        return list(self._running().loads)

    def wait(self) -> None:
        """Wait for the update of the first segment, the last one of a step, to time steps."""
        self._running().wait()

    def close(self) -> None:
        """End the thread, return the parameters to the model, on the CPU, and free the store."""
        if self._is_closed:
            return
        self._is_closed = True
        with ExitStack() as stack:
            stack.callback(self._store.close)
            stack.callback(self._give_back)  # even if the last update failed
            if self._executor is not None:
                stack.callback(self._executor.close)
                self._executor.rest()

    def _give_back(self) -> None:
        for hook in self._hooks:
            hook.remove()
        if self._forward is not None:
            self._forward.disable()
        if self._is_away:
            for block in self._all():
                block.give_back()
            self._move_buffers(torch.device("cpu"))
            moved_back(self._graph.model)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _train(self, micro_batches: Any) -> Tensor:
        """Check the micro-batches and run a step."""
        self._graph.check_modes()
        count = len(micro_batches)
        if not 1 <= count <= self.plan.accumulate:
            raise UsageError(
                f"offload: a step got {count} micro-batches, "
                f"the plan is for 1 to {self.plan.accumulate}",
                f"Plan for more: offload(…, accumulate={count})",
            )
        for micro_batch in micro_batches:
            if (input_bytes := self._input_bytes(micro_batch)) > self._sample_bytes:
                raise UsageError(
                    f"offload: a micro-batch has {units.size(input_bytes)} of inputs, "
                    f"the sample had {units.size(self._sample_bytes)}",
                    "Give the largest one as sample",
                )
        model = self._graph.model
        return self._running().step([self._objective.split(model, each) for each in micro_batches])

    def _input_bytes(self, micro_batch: Any) -> int:
        call, _ = self._objective.split(self._graph.model, micro_batch)
        return sum(tensor.nbytes for tensor in tensors_of([call.args, call.kwargs]))

    def _running(self) -> OffloadExecutor:
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
    def _all_in_memory(self, access: WeightAccess, optimizer: Optimizer | None) -> Iterator[None]:
        """Load all parameters and buffers into the model, on the host, within the block.

        Args:
            access: How they are used.
            optimizer: Also gets all states within the block; the model's, or None.
        """
        executor = self._running()
        executor.rest()
        is_whole = access is not WeightAccess.REPLACE
        if is_whole:
            executor.check_whole()
        for block in self._all():
            block.give_back()
            if is_whole and optimizer is not None:
                block.show_states(optimizer)
        self._move_buffers(torch.device("cpu"))
        if self._forward is not None:
            self._forward.disable()
        is_changed = access is WeightAccess.REPLACE
        try:
            yield
            is_changed |= access is WeightAccess.CHANGE
            if is_changed and optimizer is not None:
                for block in self._all():
                    block.take_states(optimizer)
            if access is WeightAccess.REPLACE:
                executor.restored()
        finally:
            for block in self._all():
                if is_changed:
                    block.put_away()
                block.detach()
            self._optimizer.state.clear()
            self._move_buffers(self._device)
            if self._shared is not None:
                self._shared.load()
                self._shared.attach()
            executor.counted_anew()
            if self._forward is not None:
                self._forward.enable()


class _AwayWeights(Weights):
    """The weights of an offloaded model."""

    elsewhere = "is offloaded"

    def __init__(self, step: OffloadedStep) -> None:
        super().__init__(step._graph.model)  # noqa: SLF001
        self._step = step
        self._layout = Layout.of(model_tensors(self.model), "cpu")
        self._parameter_count = super().parameter_count

    @property
    def layout(self) -> Layout:
        """All of them are on the CPU while they are in memory."""
        return self._layout

    @property
    def parameter_count(self) -> int:
        """See `Weights`."""
        return self._parameter_count

    @contextmanager
    def in_memory(
        self, access: WeightAccess, optimizer: Optimizer | None = None
    ) -> Iterator[dict[str, Tensor]]:
        """See `Weights`."""
        with self._step._all_in_memory(access, optimizer):  # noqa: SLF001
            yield model_tensors(self.model)


class OffloadedJob(Job):
    """An offloaded training as a job: a batch of its loader is a list of micro-batches.

    Its `state_dict` needs memory for all parameters and states. It can also be loaded into the job
    of the plain model and optimiser.
    """

    def __init__(
        self,
        step: OffloadedStep,
        name: str,
        model: nn.Module,
        optimizer: Optimizer,
        loss: Loss | None,
    ) -> None:
        super().__init__(name, model, optimizer, loss, step=step._train)  # noqa: SLF001

    def moved(self, batch: Any) -> Any:
        """Return a batch unchanged: micro-batches are moved one by one."""
        return batch

    def learned_state(self) -> dict[str, Any]:
        """Return copies of the tensors; see `Job`.

        Raises:
            TrainingError: A step was interrupted in the middle, or an update failed.
        """
        state = super().learned_state()
        for name, _ in self.model.named_buffers():  # training changes them in place
            if name in state["model"]:
                state["model"][name] = state["model"][name].clone()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of an offloaded job, or of one of the plain model and optimiser."""
        super().load_state_dict(state)
        self.randomness.state.restore()  # a step called by the script continues from these


def _store_for(
    device: torch.device, folder: Path, buffers: Buffers, page_cache: bool
) -> FileStore | PinnedStore:
    if device.type == "cuda":
        return PinnedStore(device)
    return FileStore(folder, buffers, page_cache)


def _check(
    model: nn.Module, accumulate: int | str, recompute: bool | str, clip_norm: float | None
) -> None:
    if clip_norm is not None and not clip_norm > 0:
        raise UsageError(f"offload: clip_norm is {clip_norm}, expected more than 0")
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


def _check_parameters(optimizer: Optimizer, model: nn.Module) -> None:
    known = set(model.parameters())
    if any(parameter not in known for g in optimizer.param_groups for parameter in g["params"]):
        raise UsageError(
            "offload: optimizer_class trains parameters that are not the model's",
            "Make those of a loss a part of the model; masters belong into states",
        )
