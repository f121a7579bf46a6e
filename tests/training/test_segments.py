"""Models are measured by blocks without a trace, and cut into segments no longer than asked."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from radt.loaders.randomness import RandomState
from radt.training.preemption import Block, measured, plan, stretches


class Reader(nn.Module):
    """Modules of all kinds: integers in, several outputs, buffers, in place, random, unused."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.memory = nn.LSTM(8, 12, batch_first=True)
        self.body = nn.Sequential(nn.BatchNorm1d(12), nn.ReLU(inplace=True), nn.Dropout())
        self.head = nn.Linear(12, 20)
        self.unused = nn.Linear(3, 3)

    def forward(self, words: Tensor) -> Tensor:
        read, _ = self.memory(self.words(words))
        result: Tensor = self.head(self.body(read[:, -1]))
        return result


_SAMPLE = torch.arange(20).reshape(4, 5)


def _alone() -> None:
    """Nobody else wants the device."""


def test_blocks_are_the_innermost_calls_in_their_order() -> None:
    blocks = measured(Reader(), _SAMPLE, _alone)
    names = ["words", "memory", "body.0", "body.1", "body.2", "head"]
    assert [block.name for block in blocks] == names
    assert all(block.forward_s > 0 and block.backward_s > 0 for block in blocks)


def test_a_module_that_is_called_twice_is_two_blocks() -> None:
    linear = nn.Linear(4, 4)
    blocks = measured(nn.Sequential(linear, nn.ReLU(), linear), torch.ones(2, 4), _alone)
    assert [block.name for block in blocks] == ["0", "1", "0"]
    assert all(block.forward_s > 0 and block.backward_s > 0 for block in blocks)


@pytest.mark.parametrize("training", [True, False])
def test_nothing_of_the_model_or_the_random_states_changes(training: bool) -> None:
    model = Reader().train(training)
    model.body.eval()
    model.body[0].train()
    modes = [module.training for module in model.modules()]
    model(_SAMPLE).sum().backward()
    gradients = [p.grad for p in model.parameters()]
    copies = [None if g is None else g.clone() for g in gradients]
    tensors = list(model.state_dict(keep_vars=True).values())
    values = [tensor.detach().clone() for tensor in tensors]
    before = RandomState.current().state_dict()

    measured(model, _SAMPLE, _alone)

    after = RandomState.current().state_dict()
    assert before["python"][1].equal(after["python"][1])
    assert before["numpy"][1].equal(after["numpy"][1])
    assert before["torch"].equal(after["torch"])
    assert [module.training for module in model.modules()] == modes
    now = list(model.state_dict(keep_vars=True).values())
    assert all(a is b for a, b in zip(tensors, now, strict=True))
    assert all(a.equal(b) for a, b in zip(values, now, strict=True))
    for parameter, gradient, copy in zip(model.parameters(), gradients, copies, strict=True):
        assert parameter.grad is gradient
        assert copy is None or (gradient is not None and gradient.equal(copy))
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


def test_an_exception_of_the_model_leaves_nothing_behind() -> None:
    model = Reader()
    statistics = model.body[0].running_mean.clone()
    with pytest.raises(IndexError):
        measured(model, _SAMPLE + 1, _alone)
    assert model.body[0].running_mean.equal(statistics)
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


_DURATIONS = st.integers(1, 20)


@given(st.lists(st.tuples(_DURATIONS, _DURATIONS), min_size=1, max_size=30), _DURATIONS)
def test_segments_are_no_longer_than_asked_and_no_more_than_needed(
    durations: list[tuple[int, int]], longest: int
) -> None:
    blocks = [Block(str(i), f, b) for i, (f, b) in enumerate(durations)]
    segments = plan(blocks, longest)
    assert [block for segment in segments for block in segment.blocks] == blocks
    for segment in segments:
        assert _longest_s(segment.blocks) <= longest or len(segment.blocks) == 1
    for segment, after in pairwise(segments):
        assert _longest_s((*segment.blocks, after.blocks[0])) > longest


def _longest_s(blocks: Sequence[Block]) -> float:
    return max(sum(block.forward_s for block in blocks), sum(block.backward_s for block in blocks))


class Functional(nn.Module):
    """Most of its work is outside of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(300, 300), nn.Linear(300, 1)

    def forward(self, values: Tensor) -> Tensor:
        found = self.enter(values)
        for _ in range(30):
            found = found @ found
        result: Tensor = self.leave(found)
        return result


def test_code_between_modules_belongs_to_the_stretch_before_it() -> None:
    net, sample = Functional(), torch.zeros(300, 300)
    found = stretches(net, plan(measured(net, sample, _alone), 1e-9), sample)
    places = [(each.begin, each.is_backward) for each in found]
    forward = [("the first module", False), ("leave", False)]
    assert places == [*forward, ("leave", True), ("enter", True)]
    first, leave, *_ = found
    assert first.duration_s > 5 * leave.duration_s
    assert all(parameter.grad is None for parameter in net.parameters())
