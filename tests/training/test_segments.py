"""Models are measured by blocks without a trace, and cut into segments no longer than asked."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from radt.errors import UsageError
from radt.training.randomness import RandomState
from radt.training.segments import Block, plan, profile


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


def test_blocks_are_the_innermost_calls_in_their_order() -> None:
    blocks = profile(Reader(), _SAMPLE)
    names = ["words", "memory", "body.0", "body.1", "body.2", "head"]
    assert [block.name for block in blocks] == names
    assert all(block.forward_s > 0 and block.backward_s > 0 for block in blocks)
    head = blocks[-1]
    assert (head.parameter_bytes, head.output_bytes) == (4 * (12 * 20 + 20), 4 * 4 * 20)


def test_a_given_block_is_measured_as_one_with_its_buffers() -> None:
    body, head = profile(Reader(), _SAMPLE, ["body", "head"], device="cpu")
    assert (body.name, head.name) == ("body", "head")
    assert body.parameter_bytes == 4 * 12 * 4 + 8


def test_a_module_that_is_called_twice_is_two_blocks() -> None:
    linear = nn.Linear(4, 4)
    assert len(profile(nn.Sequential(linear, nn.ReLU(), linear), torch.ones(2, 4))) == 3


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

    profile(model, _SAMPLE)

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
        profile(model, _SAMPLE + 1)
    assert model.body[0].running_mean.equal(statistics)
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        (["tail"], 'no module "tail"'),
        (["unused"], 'does not call block "unused"'),
        (["body", "body.0"], 'block "body.0" is within block "body"'),
    ],
)
def test_blocks_that_cannot_be_measured_are_refused(blocks: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        profile(Reader(), _SAMPLE, blocks)


_DURATIONS = st.integers(1, 20)


@given(st.lists(st.tuples(_DURATIONS, _DURATIONS), min_size=1, max_size=30), _DURATIONS)
def test_segments_are_no_longer_than_asked_and_no_more_than_needed(
    durations: list[tuple[int, int]], longest: int
) -> None:
    blocks = [Block(str(i), f, b, 0, 0) for i, (f, b) in enumerate(durations)]
    segments = plan(blocks, longest)
    assert [block for segment in segments for block in segment.blocks] == blocks
    for segment in segments:
        short = max(segment.forward_s, segment.backward_s) <= longest
        assert short or len(segment.blocks) == 1
    for segment, after in pairwise(segments):
        forward_s = segment.forward_s + after.blocks[0].forward_s
        backward_s = segment.backward_s + after.blocks[0].backward_s
        assert max(forward_s, backward_s) > longest
