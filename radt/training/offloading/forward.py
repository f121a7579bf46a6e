"""``model(x)`` on an offloaded model: a forward pass without gradients, segment by segment."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from radt.errors import UsageError
from radt.training.offloading.executor import OffloadExecutor
from radt.training.offloading.graph import ModelGraph


class ForwardOnly:
    """Loads the parameters of each module while it is called, and the next ones in advance.

    The model's own code runs, in its current mode. While this is enabled, calls with gradients are
    refused; the steps of the offloaded training call the model's parts, not the model itself.

    Args:
        graph: The model.
        ends: The first block of each segment but the first, and the number of blocks.
        executor: Loads segments.
    """

    def __init__(self, graph: ModelGraph, ends: Sequence[int], executor: OffloadExecutor) -> None:
        self._model = graph.model
        self._executor = executor
        self._segments = {
            name: sorted({bisect_right(ends, number) - 1 for number in numbers})
            for name, numbers in graph.users.items()
        }
        self._count = len(ends) - 1
        self._calls: Counter[int] = Counter()  # active calls of modules, by segment
        self._hooks: list[RemovableHandle] = []
        self._inner: list[RemovableHandle] = []
        self.enable()

    def enable(self) -> None:
        """Make calls of the model load its parameters."""
        if not self._hooks:
            self._hooks = [
                self._model.register_forward_pre_hook(self._begin),
                self._model.register_forward_hook(self._end, always_call=True),
            ]

    def disable(self) -> None:
        """Stop loading: the model has its parameters."""
        while self._hooks:
            self._hooks.pop().remove()

    def _begin(self, _model: nn.Module, _args: Any) -> None:
        if torch.is_grad_enabled():
            raise UsageError(
                "offload: the model was called with gradients outside of a step",
                "Train with step(micro_batches); for its output alone, call it within "
                "`with torch.no_grad():`",
            )
        self._executor.check_whole()
        self._executor.use(0)  # parameters of several segments are updated with it
        for name, segments in self._segments.items():
            if name:
                module = self._model.get_submodule(name)
                self._inner += [
                    module.register_forward_pre_hook(partial(self._enter, segments)),
                    module.register_forward_hook(partial(self._leave, segments), always_call=True),
                ]
        self._enter(self._segments.get("", []))

    def _end(self, _model: nn.Module, _args: Any, _output: Any) -> None:
        while self._inner:
            self._inner.pop().remove()
        self._calls.clear()
        self._free_unused()

    def _enter(self, segments: Sequence[int], *_call: object) -> None:
        self._calls.update(segments)
        for at in segments:
            if not self._executor.is_resident(at):
                self._free_unused()
                self._executor.use(at)
                self._executor.load_ahead(at + 1)

    def _leave(self, segments: Sequence[int], *_call: object) -> None:
        self._calls.subtract(segments)

    def _free_unused(self) -> None:
        for at in range(self._count):
            if self._executor.is_resident(at) and self._calls[at] <= 0:
                self._executor.free(at)
