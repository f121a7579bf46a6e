"""Swap a block's parameters and optimiser states between a store and the device."""

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

from radt.training.layout import Layout
from radt.training.offloading.optimizers import StateNames, optimizer_like
from radt.training.offloading.stores import Budget, FileStore, PinnedStore


@dataclass(frozen=True, slots=True)
class ParameterView:
    """A view of a block's parameters that a backward pass needs, without its memory.

    Attributes:
        block: The block's number in its segment.
    """

    block: int
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @classmethod
    def of(cls, block: int, tensor: Tensor) -> ParameterView:
        """Describe a view."""
        offset = int(tensor.storage_offset())
        return cls(block, tensor.dtype, offset, tuple(tensor.shape), tuple(tensor.stride()))


#: Modifies the gradients of parameters.
Clip = Callable[[Iterable[nn.Parameter]], None]


class SwappedBlock:
    """Parameters that are in a store, and on the device while passes need them.

    `load`, `set_aside` and `update` run in other threads, everything else in the training's thread.
    On a CPU the optimiser works on the loaded parameters, and its states are in the store, too. For
    a GPU it works on those in the store, which is host memory.

    Args:
        parameters: The block's parameters; none is in two blocks.
        store: Their store, which `put_away` fills.
        budget: Counts loaded bytes.
        device: Where passes run.
        optimizer: The optimiser of the model; each block has one with its class and settings.
        states: The names of the optimiser's states of a parameter that have its shape.
        keeps_gradients: Whether a file reserves space for gradients, too, for `set_aside`.

    Attributes:
        parameter_bytes: Bytes that are loaded.
        gradient_bytes: Bytes of all gradients.
        largest_gradient_bytes: Bytes of the largest gradient.
        state_bytes: Bytes of the optimiser's states that are loaded for an update.
        norms: Norms of the gradients that `hand_over` took, by parameter.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        store: FileStore | PinnedStore,
        budget: Budget,
        device: torch.device,
        optimizer: Optimizer,
        states: StateNames,
        keeps_gradients: bool = False,
    ) -> None:
        self.parameters = list(parameters)
        self._store = store
        self._budget = budget
        self._device = device
        self._trained = [parameter for parameter in parameters if parameter.requires_grad]
        self._masters = self._trained
        self._of_model = optimizer
        self._optimizer: Optimizer | None = None
        self._layout = Layout.of(_numbered(self.parameters))
        self.parameter_bytes = self._layout.byte_count
        self._part = store.add(self.parameter_bytes)
        found = [(at, name, like) for at, p in enumerate(self._trained) for name, like in states(p)]
        self._state_names = [(at, name) for at, name, _ in found]
        self._state_layout = Layout.of(
            _numbered(
                torch.empty_like(self._trained[at], dtype=like, device="meta")
                for at, _, like in found
            )
            if isinstance(store, FileStore)
            else {}
        )
        self.state_bytes = self._state_layout.byte_count
        self._state_part = store.add(self.state_bytes)
        self._has_states = False
        self._flat: Tensor | None = None
        self._gradients: list[Tensor | None] = []
        self._gradient_views: list[Tensor] = []
        like_loaded = [
            torch.empty(piece.shape, dtype=piece.dtype, device="meta")
            for parameter, piece in zip(self.parameters, self._layout.pieces, strict=True)
            if parameter.requires_grad
        ]
        self._gradient_layout = Layout.of(_numbered(like_loaded))
        self.gradient_bytes = sum(each.nbytes for each in like_loaded)
        self.largest_gradient_bytes = max((each.nbytes for each in like_loaded), default=0)
        self._gradient_part = -1
        if keeps_gradients or isinstance(store, PinnedStore):
            self._gradient_part = store.add(self._gradient_layout.byte_count)
        self._made: torch.cuda.Event | None = None
        self._is_aside = False
        self.norms: dict[nn.Parameter, Tensor] = {}

    @property
    def update_bytes(self) -> int:
        """Bytes on the device during an update."""
        if isinstance(self._store, PinnedStore):
            return self.gradient_bytes
        return self.parameter_bytes + self.gradient_bytes + self.state_bytes

    # In the training's thread --------------------------------------------------------------------

    def put_away(self) -> None:
        """Move the parameters from the model into the store."""
        self._write(self._part, self._layout, [p.detach().cpu() for p in self.parameters])
        if isinstance(self._store, PinnedStore) and self._optimizer is None:
            views = self._layout.tensors(self._store.parts[self._part])
            self._masters = [
                nn.Parameter(view)
                for view, parameter in zip(views, self.parameters, strict=True)
                if parameter.requires_grad
            ]
        if self._optimizer is None and self._masters:
            self._optimizer = self._optimizer_of(self._masters)
        self.detach()

    def _optimizer_of(self, masters: Sequence[nn.Parameter]) -> Optimizer:
        """Return an optimiser of the tensors that represent the trained parameters."""
        standing = dict(zip(self._trained, masters, strict=True))
        return optimizer_like(
            self._of_model,
            [
                [standing[p] for p in group["params"] if p in standing]
                for group in self._of_model.param_groups
            ],
        )

    def _write(self, part: int, layout: Layout, tensors: Sequence[Tensor]) -> None:
        for piece, tensor in zip(layout.pieces, tensors, strict=True):
            self._store.write(part, piece.offset, piece.row(tensor))

    def attach(self) -> None:
        """Give the loaded parameters to the model."""
        assert self._flat is not None
        if self._flat.is_cuda:
            self._flat.record_stream(torch.cuda.current_stream(self._device))
        for parameter, view in zip(self.parameters, self._layout.tensors(self._flat), strict=True):
            parameter.data = view

    def detach(self) -> None:
        """Remove the parameters from the model. The store has them."""
        for parameter in self.parameters:
            parameter.data = torch.empty(0, dtype=parameter.dtype, device=self._device)
        self._flat = None

    def drop(self) -> None:
        """Free the loaded parameters, which no pass has changed."""
        if self._flat is not None:
            self.detach()
            self._budget.give(self.parameter_bytes)

    def storage_pointer(self) -> int:
        """Return the address of the loaded parameters."""
        assert self._flat is not None
        return self._flat.untyped_storage().data_ptr()

    def saved(self, view: ParameterView) -> Tensor:
        """Return a view into the currently loaded parameters."""
        assert self._flat is not None
        tensor = torch.empty(0, dtype=view.dtype, device=self._flat.device)
        return tensor.set_(self._flat.untyped_storage(), view.offset, view.shape, view.stride)

    def keep_gradients(self) -> list[RemovableHandle]:
        """Move each gradient, once computed, into memory that does not come from malloc."""
        layout = self._gradient_layout

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

    def hand_over(self, with_norms: bool = False) -> None:
        """Take the gradients for `update`, with their norms if requested."""
        self._gradients = [parameter.grad for parameter in self._trained]
        self.norms = {
            parameter: torch.linalg.vector_norm(gradient)
            for parameter, gradient in zip(self._trained, self._gradients, strict=True)
            if with_norms and gradient is not None
        }
        if isinstance(self._store, PinnedStore):
            for parameter in self._trained:
                parameter.grad = None
            self._made = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._made.record(torch.cuda.current_stream(self._device))
            self.drop()

    def set_hyperparameters(self) -> None:
        """Copy the learning rates and all other settings from the model's optimiser."""
        if self._optimizer is not None:
            groups = zip(self._optimizer.param_groups, self._of_model.param_groups, strict=True)
            for own, group in groups:
                own.update({name: value for name, value in group.items() if name != "params"})

    # In the other threads ------------------------------------------------------------------------

    def load(self) -> None:
        """Load the parameters."""
        if self._flat is None:
            self._budget.take(self.parameter_bytes)
            self._flat = self._store.read(self._part)

    def set_aside(self) -> None:
        """Store the gradients for `update`, and free them and the parameters."""
        if isinstance(self._store, PinnedStore):
            self._gradients, self._made = self._on_host(self._store), None
        else:
            for at, gradient in enumerate(self._gradients):
                if gradient is not None:
                    piece = self._gradient_layout.pieces[at]
                    self._store.write(self._gradient_part, piece.offset, piece.row(gradient))
                    self._gradients[at] = torch.empty(0)  # so that `update` reads it
            self.drop_gradients()
        self._budget.give(self.gradient_bytes)
        self.drop()
        self._is_aside = True

    def update(self, keep: bool, clip: Clip | None = None) -> None:
        """Step the optimiser on the host and write back. Free all memory but, if asked, parameters.

        Args:
            keep: Whether the parameters stay loaded, or are loaded.
            clip: Modifies stored gradients.
        """
        if self._optimizer is not None:
            if isinstance(self._store, PinnedStore):
                self._update_on_host(self._store, clip)
            else:
                self._update_loaded(clip)
        if not (self._is_aside and isinstance(self._store, PinnedStore)):
            self._budget.give(self.gradient_bytes)
        for master in self._masters:
            master.grad = None
        self.drop_gradients()
        self._gradients, self._is_aside = [], False
        if not keep:
            self.drop()
        else:
            self.load()

    def _update_loaded(self, clip: Clip | None) -> None:
        assert self._optimizer is not None
        if self._is_aside:
            self.load()
            self.attach()
            self._budget.take(self.gradient_bytes)
            views = self._gradient_layout.tensors(self._store.read(self._gradient_part))
            for master, view, gradient in zip(self._masters, views, self._gradients, strict=True):
                master.grad = None if gradient is None else view
        if clip is not None:
            clip(self._masters)
        self._budget.take(self.state_bytes)
        self._read_states(self._store.read)
        self._optimizer.step()
        self._write(self._part, self._layout, [p.detach() for p in self.parameters])
        self._write_states()
        self._budget.give(self.state_bytes)

    def _update_on_host(self, store: PinnedStore, clip: Clip | None) -> None:
        assert self._optimizer is not None
        gradients = self._gradients if self._is_aside else self._on_host(store)
        for master, gradient in zip(self._masters, gradients, strict=True):
            master.grad = gradient
        if clip is not None:
            clip(self._masters)
        self._optimizer.step()

    def _on_host(self, store: PinnedStore) -> list[Tensor | None]:
        """Return the gradients in pinned memory of the host."""
        assert self._made is not None
        views = self._gradient_layout.tensors(store.parts[self._gradient_part])
        with torch.cuda.stream(store.updates):
            store.updates.wait_event(self._made)  # the gradients are complete
            copies = [
                gradient
                if gradient is None or gradient.is_sparse
                else view.copy_(gradient, non_blocking=True)
                for view, gradient in zip(views, self._gradients, strict=True)
            ]
        store.updates.synchronize()
        return [each.cpu() if each is not None and each.is_sparse else each for each in copies]

    def _read_states(self, read: Callable[[int], Tensor]) -> None:
        if not self._has_states or not self._state_names or self._optimizer is None:
            return
        views = self._state_layout.tensors(read(self._state_part))
        for (at, name), view in zip(self._state_names, views, strict=True):
            state = self._optimizer.state[self._masters[at]]
            if name in state:  # a parameter without gradients has none
                state[name] = view

    def _write_states(self) -> None:
        """Write the states into the store. Small ones, such as step counters, stay in memory."""
        assert self._optimizer is not None
        for (at, name), piece in zip(self._state_names, self._state_layout.pieces, strict=True):
            state = self._optimizer.state.get(self._masters[at], {})
            if isinstance(state.get(name), Tensor):
                # Loading a checkpoint casts states to the type of their parameter.
                row = piece.row(state[name].to(piece.dtype))
                self._store.write(self._state_part, piece.offset, row)
                state[name] = torch.empty(0, dtype=piece.dtype)
                self._has_states = True

    def rehearse_update(self) -> float:
        """Simulate an update with a new optimiser and zero gradients, and discard the results.

        Returns:
            The duration of the optimiser's step in seconds.
        """
        parameters = [p.detach() for p in self.parameters]
        on_disk = isinstance(self._store, FileStore)
        if on_disk:
            self._write(self._part, self._layout, parameters)
        masters = [nn.Parameter(p.detach().cpu()) for p in self._trained]
        if not masters:
            return 0.0
        optimizer = self._optimizer_of(masters)
        for master in masters:
            master.grad = torch.zeros_like(master)
        optimizer.step()  # creates the states
        begin_s = time.perf_counter()
        optimizer.step()
        step_s = time.perf_counter() - begin_s
        if on_disk:
            states = [optimizer.state[masters[at]][name] for at, name in self._state_names]
            self._write(self._state_part, self._state_layout, states)
        return step_s

    # Whole states, while nothing is trained ------------------------------------------------------

    def give_back(self) -> None:
        """Return the parameters to the model, on the host."""
        self.drop()
        views = self._layout.tensors(self._store.host_copy(self._part))
        for parameter, view in zip(self.parameters, views, strict=True):
            parameter.data = view
            parameter.grad = None

    def show_states(self, optimizer: Optimizer) -> None:
        """Copy the states into an optimiser of the model."""
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
        """Continue with the states of an optimiser of the model."""
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


def _numbered(tensors: Iterable[Tensor]) -> dict[str, Tensor]:
    return {str(number): tensor for number, tensor in enumerate(tensors)}
