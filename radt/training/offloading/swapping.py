"""A block's parameters and optimiser states on their way between a store and the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from radt.errors import UsageError
from radt.training.offloading.stores import Budget, FileStore, Layout, PinnedStore


@dataclass(frozen=True, slots=True)
class SavedView:
    """A view of a block's parameters that a backward pass needs, without their memory.

    Attributes:
        block: The block's number in its segment.
    """

    block: int
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @classmethod
    def of(cls, block: int, tensor: Tensor) -> SavedView:
        """Describe a view."""
        offset = int(tensor.storage_offset())
        return cls(block, tensor.dtype, offset, tuple(tensor.shape), tuple(tensor.stride()))


OptimizerClass = Callable[[Iterable[nn.Parameter]], Optimizer]


class SwappedBlock:
    """Parameters that are in a store, and on the device while passes need them.

    `load` and `update` run in the loading thread, everything else in the training's. On a CPU the
    optimiser works on the loaded parameters, and its states are in the store, too. For a GPU it
    works on the ones in the store, which is the host's memory.

    Args:
        parameters: Those of the block; none is in two blocks.
        store: Where they go; it is filled by `put_away`.
        budget: Counts what is loaded.
        device: Where passes run.
        optimizer_class: Makes an optimiser of parameters.
        states: The names of the optimiser's states of a parameter that have its shape.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        store: FileStore | PinnedStore,
        budget: Budget,
        device: torch.device,
        optimizer_class: OptimizerClass,
        states: StateNames,
    ) -> None:
        self.parameters = list(parameters)
        self._store = store
        self._budget = budget
        self._device = device
        self._trained = [parameter for parameter in parameters if parameter.requires_grad]
        self._masters = self._trained
        self._optimizer_class = optimizer_class
        self._optimizer: Optimizer | None = None
        self._layout = Layout.of(self.parameters)
        self._part = store.add(self._layout.byte_count)
        found = [(at, name, like) for at, p in enumerate(self._trained) for name, like in states(p)]
        self._state_names = [(at, name) for at, name, _ in found]
        self._state_layout = Layout.of(
            [
                torch.empty_like(self._trained[at], dtype=like, device="meta")
                for at, _, like in found
            ]
            if isinstance(store, FileStore)
            else []
        )
        self._state_part = store.add(self._state_layout.byte_count)
        self._has_states = False
        self._flat: Tensor | None = None
        self._gradients: list[Tensor | None] = []
        self._gradient_views: list[Tensor] = []
        self._made: torch.cuda.Event | None = None

    @property
    def parameter_bytes(self) -> int:
        """Bytes that loading takes."""
        return self._layout.byte_count

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients."""
        return sum(parameter.nbytes for parameter in self._pieces())

    @property
    def largest_gradient_bytes(self) -> int:
        """Bytes of the largest gradient."""
        return max((parameter.nbytes for parameter in self._pieces()), default=0)

    @property
    def state_bytes(self) -> int:
        """Bytes of the optimiser's states that are loaded for an update."""
        return self._state_layout.byte_count

    @property
    def update_bytes(self) -> int:
        """Bytes on the device while it is updated."""
        if isinstance(self._store, PinnedStore):
            return self.gradient_bytes
        return self.parameter_bytes + self.gradient_bytes + self.state_bytes

    def _pieces(self) -> list[Tensor]:
        """Return the trained parameters as they are when they are loaded, without memory."""
        return [
            torch.empty(piece.shape, dtype=piece.dtype, device="meta")
            for parameter, piece in zip(self.parameters, self._layout.pieces, strict=True)
            if parameter.requires_grad
        ]

    # In the training's thread --------------------------------------------------------------------

    def put_away(self) -> None:
        """Move the parameters from the model into the store."""
        self._layout.write(self._store, self._part, [p.detach().cpu() for p in self.parameters])
        if isinstance(self._store, PinnedStore) and self._optimizer is None:
            views = self._layout.tensors(self._store.parts[self._part])
            self._masters = [
                nn.Parameter(view)
                for view, parameter in zip(views, self.parameters, strict=True)
                if parameter.requires_grad
            ]
        if self._optimizer is None and self._masters:
            self._optimizer = self._optimizer_class(self._masters)
        self.detach()

    def attach(self) -> None:
        """Give the loaded parameters to the model."""
        assert self._flat is not None
        if self._flat.is_cuda:
            self._flat.record_stream(torch.cuda.current_stream(self._device))
        for parameter, view in zip(self.parameters, self._layout.tensors(self._flat), strict=True):
            parameter.data = view

    def detach(self) -> None:
        """Take the parameters from the model; the store has them."""
        for parameter in self.parameters:
            parameter.data = torch.empty(0, dtype=parameter.dtype, device=self._device)
        self._flat = None

    def drop(self) -> None:
        """Free the loaded parameters, which no pass has changed."""
        if self._flat is not None:
            self.detach()
            self._budget.give(self.parameter_bytes)

    def storage_pointer(self) -> int:
        """Return where the loaded parameters are in memory."""
        assert self._flat is not None
        return self._flat.untyped_storage().data_ptr()

    def saved(self, view: SavedView) -> Tensor:
        """Return a view into the parameters as they are loaded now."""
        assert self._flat is not None
        tensor = torch.empty(0, dtype=view.dtype, device=self._flat.device)
        return tensor.set_(self._flat.untyped_storage(), view.offset, view.shape, view.stride)

    def keep_gradients(self) -> list[RemovableHandle]:
        """Move each gradient, once it is made, into memory that does not come from malloc."""
        layout = Layout.of(self._pieces())

        def keep(at: int, parameter: Tensor) -> None:
            if not self._gradient_views:
                flat = self._budget.buffers.take(layout.byte_count)
                self._gradient_views = layout.tensors(flat)
            view, gradient = self._gradient_views[at], parameter.grad
            if gradient is not view and gradient is not None and not gradient.is_sparse:
                parameter.grad = view.copy_(gradient)  # later micro-batches add to it

        return [
            parameter.register_post_accumulate_grad_hook(partial(keep, at))  # type: ignore[no-untyped-call]
            for at, parameter in enumerate(self._trained)
        ]

    def drop_gradients(self) -> None:
        """Free the gradients."""
        for parameter in self._trained:
            parameter.grad = None
        self._gradient_views = []

    def hand_over(self) -> None:
        """Take the gradients, for `update`."""
        self._gradients = [parameter.grad for parameter in self._trained]
        if isinstance(self._store, PinnedStore):
            for parameter in self._trained:
                parameter.grad = None
            self._made = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._made.record(torch.cuda.current_stream(self._device))
            self.drop()

    def set_hyperparameters(self, optimizer: Optimizer) -> None:
        """Use the learning rate and all other settings of an optimiser."""
        if self._optimizer is not None:
            (group,) = self._optimizer.param_groups
            settings = optimizer.param_groups[0].items()
            group.update({name: value for name, value in settings if name != "params"})

    # In the loading thread -----------------------------------------------------------------------

    def load(self) -> None:
        """Load the parameters."""
        if self._flat is None:
            self._budget.take(self.parameter_bytes)
            self._flat = self._store.read(self._part)

    def update(self, keep: bool) -> None:
        """Step the optimiser on the host and write back; free all but, if asked, the parameters."""
        if self._optimizer is not None:
            if isinstance(self._store, PinnedStore):
                self._update_on_host(self._store)
            else:
                self._update_loaded()
        for master in self._masters:
            master.grad = None
        self.drop_gradients()
        self._gradients = []
        self._budget.give(self.gradient_bytes)
        if not keep:
            self.drop()
        else:
            self.load()

    def _update_loaded(self) -> None:
        assert self._optimizer is not None
        self._budget.take(self.state_bytes)
        self._read_states(self._store.read)
        self._optimizer.step()
        self._layout.write(self._store, self._part, [p.detach() for p in self.parameters])
        self._write_states()
        self._budget.give(self.state_bytes)

    def _update_on_host(self, store: PinnedStore) -> None:
        assert self._optimizer is not None
        assert self._made is not None
        self._made.synchronize()  # the gradients are complete
        with torch.cuda.stream(store.stream):
            for master, gradient in zip(self._masters, self._gradients, strict=True):
                master.grad = None if gradient is None else gradient.cpu()
        self._optimizer.step()

    def _read_states(self, read: Callable[[int], Tensor]) -> None:
        if not self._has_states or not self._state_names or self._optimizer is None:
            return
        views = self._state_layout.tensors(read(self._state_part))
        for (at, name), view in zip(self._state_names, views, strict=True):
            state = self._optimizer.state[self._masters[at]]
            if name in state:  # a parameter without gradients has none
                state[name] = view

    def _write_states(self) -> None:
        """Write the states into the store; small ones, such as numbers of steps, stay."""
        assert self._optimizer is not None
        for (at, name), piece in zip(self._state_names, self._state_layout.pieces, strict=True):
            state = self._optimizer.state.get(self._masters[at], {})
            if isinstance(state.get(name), Tensor):
                alone = Layout((piece,), 0)
                # Loading a checkpoint gives states the type of their parameter.
                alone.write(self._store, self._state_part, [state[name].to(piece.dtype)])
                state[name] = torch.empty(0, dtype=piece.dtype)
                self._has_states = True

    def rehearse_update(self) -> float:
        """Do what an update does, with a new optimiser and gradients of zero; then drop all of it.

        Returns:
            The duration of the optimiser's step in seconds.
        """
        parameters = [p.detach() for p in self.parameters]
        on_disk = isinstance(self._store, FileStore)
        if on_disk:
            self._layout.write(self._store, self._part, parameters)
        masters = [nn.Parameter(p.detach().cpu()) for p in self._trained]
        if not masters:
            return 0.0
        optimizer = self._optimizer_class(masters)
        for master in masters:
            master.grad = torch.zeros_like(master)
        optimizer.step()  # makes the states
        begin_s = time.perf_counter()
        optimizer.step()
        step_s = time.perf_counter() - begin_s
        if on_disk:
            states = [optimizer.state[masters[at]][name] for at, name in self._state_names]
            self._state_layout.write(self._store, self._state_part, states)
        return step_s

    # Whole states, while nothing is trained ------------------------------------------------------

    def give_back(self) -> None:
        """Put the parameters into the model, on the host."""
        self.drop()
        views = self._layout.tensors(self._store.host_copy(self._part))
        for parameter, view in zip(self.parameters, views, strict=True):
            parameter.data = view
            parameter.grad = None

    def show_states(self, optimizer: Optimizer) -> None:
        """Put copies of the states into an optimiser of the model."""
        if self._optimizer is None:
            return
        on_disk = isinstance(self._store, FileStore)
        if on_disk:
            self._read_states(self._store.host_copy)
        for parameter, master in zip(self._trained, self._masters, strict=True):
            if master in self._optimizer.state:
                optimizer.state[parameter] = _copied(self._optimizer.state[master])
        if on_disk:
            for at, name in self._state_names:
                state = self._optimizer.state.get(self._masters[at], {})
                if name in state:
                    state[name] = torch.empty(0)

    def take_states(self, optimizer: Optimizer) -> None:
        """Go on with the states that an optimiser of the model has."""
        if self._optimizer is None:
            return
        self._optimizer.state.clear()
        self._has_states = False
        for parameter, master in zip(self._trained, self._masters, strict=True):
            if parameter in optimizer.state:
                self._optimizer.state[master] = _copied(optimizer.state[parameter])
        if isinstance(self._store, FileStore):
            self._write_states()


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.clone() if isinstance(value, Tensor) else value for name, value in state.items()
    }


class StateNames:
    """The optimiser's states that have the shape of their parameter, by trying it.

    Args:
        optimizer_class: Makes an optimiser of parameters.

    Raises:
        UsageError: It cannot be made of parameters alone, or cannot make a step.
    """

    def __init__(self, optimizer_class: OptimizerClass) -> None:
        self._optimizer_class = optimizer_class
        self._known: dict[tuple[int, torch.dtype], list[tuple[str, torch.dtype]]] = {}

    def __call__(self, parameter: Tensor) -> list[tuple[str, torch.dtype]]:
        """Return names and types for parameters of its number of dimensions and type."""
        kind = parameter.dim(), parameter.dtype
        if kind not in self._known:
            self._known[kind] = self._tried(*kind)
        return self._known[kind]

    def _tried(self, dimensions: int, dtype: torch.dtype) -> list[tuple[str, torch.dtype]]:
        shape = [2 + at for at in range(dimensions)]  # no other state has it by chance
        probe = nn.Parameter(torch.zeros(shape, dtype=dtype))
        probe.grad = torch.zeros_like(probe)
        try:
            optimizer = self._optimizer_class([probe])
            optimizer.step()
        except Exception as error:  # the class is the user's
            raise UsageError(
                f"offload: optimizer_class cannot train a parameter: {error}",
                "Expected a class or function of parameters alone, whose step takes nothing: "
                "offload(…, optimizer_class=partial(AdamW, lr=1e-3))",
            ) from error
        return [
            (name, value.dtype)
            for name, value in optimizer.state[probe].items()
            if isinstance(value, Tensor) and value.shape == probe.shape
        ]
