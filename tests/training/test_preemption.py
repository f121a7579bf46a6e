"""Steps that are interrupted at every boundary train as if they were not."""

from __future__ import annotations

import copy
import gc
import re
import time
import weakref

import pytest
import torch
from torch import nn
from torch.optim import optimizer as optimizers

from radt.errors import TrainingError, UsageError
from radt.loaders import paced
from radt.loaders.randomness import RandomState
from radt.training import preemption
from radt.training.lease import DeviceLease
from radt.training.preemption import Block, BlockSegment, Boundaries, Stretch, plan, preemptible
from tests.training.preempted import Net, Recording, batches, is_same, thief

_NONE_LONGER_MS = 1e-6  # each block is a segment of its own
#: Calls of the net: forward but the first, backward, and before the optimiser.
_CALLS = 8
_BOUNDARIES = (_CALLS - 1) + _CALLS + 1


def test_the_loss_curve_is_the_same_with_the_device_taken_at_every_boundary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(paced, "_INTERVAL_S", 1e9)  # they are counted from the last record on
    with thief() as somebody:
        plain = Recording()
        alone = plain.job("net", 0, seed=1)
        for batch in batches(3):
            alone.step(batch)

        interrupted = Recording()
        job = interrupted.job("net", 0, seed=1)
        lease = DeviceLease("cpu")
        preemptible(job.model, lease, batches(1)[0][0], max_segment_ms=_NONE_LONGER_MS)
        boundary = lease.boundary

        def taken() -> None:
            somebody.come(lease)
            boundary()

        monkeypatch.setattr(lease, "boundary", taken)
        for batch in batches(3):
            with lease:
                job.step(batch)
        assert lease._paced._sums["handovers"] == 3 * _BOUNDARIES
        lease.close()
    assert interrupted.losses == plain.losses
    assert is_same(job, alone)


def test_the_model_is_the_same_object_and_needs_its_lease() -> None:
    net, lease = Net(), DeviceLease("cpu")
    keys = list(net.state_dict())
    inputs = batches(1)[0][0]
    assert preemptible(net, lease, inputs, max_segment_ms=_NONE_LONGER_MS) is net
    assert not lease.held
    assert list(net.state_dict()) == keys
    with pytest.raises(TrainingError, match="without its lease"):
        net(inputs)
    with lease:
        net(inputs)


def test_a_model_that_is_gone_leaves_no_hook() -> None:
    before = len(optimizers._global_optimizer_pre_hooks)
    net, lease = Net(), DeviceLease("cpu")
    preemptible(net, lease, batches(1)[0][0])
    assert len(optimizers._global_optimizer_pre_hooks) == before + 1
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None
    assert len(optimizers._global_optimizer_pre_hooks) == before


def test_boundaries_are_between_segments_forward_and_backward_and_before_the_optimizer() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 1))
    blocks = [Block(str(number), 1, 1) for number in range(4)]
    reached: list[str] = []
    boundaries = Boundaries(net, plan(blocks, 2), reached.append)
    optimizer = torch.optim.SGD(net.parameters())
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    torch.optim.SGD(Net().parameters()).step()  # of another model
    groups = [{"params": Net().parameters()}, {"params": net.parameters(), "lr": 0}]
    torch.optim.SGD(groups).step()
    expected = ["2", "3", "1", "the optimizer", "the optimizer"]
    assert reached == expected
    boundaries.remove()
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    assert reached == expected


def test_only_where_no_parameter_marks_a_boundary_do_outputs_have_hooks() -> None:
    """Hooks of outputs' nodes, made in each pass, cost more than all else. Tied: 0 and 2."""
    net = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(4)))
    net[2].weight = net[0].weight
    segments = [BlockSegment((Block(str(number), 1, 1),)) for number in range(4)]
    reached: list[str] = []
    boundaries = Boundaries(net, segments, reached.append)
    assert [len(layer._forward_hooks) for layer in net] == [0, 1, 0, 1]
    net(torch.ones(2, 4)).sum().backward()
    assert reached == ["1", "2", "3", "3", "2", "1", "0"]
    boundaries.remove()
    net(torch.ones(2, 4)).sum().backward()
    assert len(reached) == 7
    freeing = Boundaries(net, segments, reached.append, frees=True)
    assert [len(layer._forward_hooks) for layer in net] == [1, 1, 1, 1]
    freeing.remove()


def test_an_exception_at_a_boundary_leaves_the_step_in_each_pass() -> None:
    class LeftError(BaseException):
        pass

    def leave(name: str) -> None:
        if name == wanted[-1]:
            raise LeftError

    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    one, two = (BlockSegment((Block(name, 1, 1),)) for name in "01")
    boundaries = Boundaries(net, [one, two], leave)
    optimizer = torch.optim.SGD(net.parameters())
    wanted = ["1", "0", "the optimizer"]
    while wanted:
        with pytest.raises(LeftError):
            net(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        wanted.pop()
    boundaries.remove()


def test_the_device_is_given_away_while_a_model_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net, lease = Net(), DeviceLease("cpu")
    inputs = batches(1)[0][0]
    before, states = copy.deepcopy(net.state_dict()), RandomState.current()
    with thief() as somebody:
        boundary, clock, away_s = lease.boundary, time.perf_counter, 0.0

        def taken() -> None:
            nonlocal away_s
            somebody.come(lease)
            boundary()
            away_s += 1000  # for so long, by the clock that measures

        def planned(blocks: list[Block], _max_segment_s: float) -> list[BlockSegment]:
            found.extend(blocks)
            return plan(blocks, _NONE_LONGER_MS)

        def note(_name: str, measured: list[Stretch], _max_segment_ms: float) -> None:
            noted.extend(measured)

        found: list[Block] = []
        noted: list[Stretch] = []
        monkeypatch.setattr(lease, "boundary", taken)
        monkeypatch.setattr(time, "perf_counter", lambda: clock() + away_s)
        monkeypatch.setattr(preemption, "plan", planned)
        monkeypatch.setattr(preemption, "_note", note)
        preemptible(net, lease, inputs)
        assert away_s / 1000 > _CALLS + 2 * 3 * _BOUNDARIES
    lease.close()
    assert len(found) == _CALLS
    assert max(max(each.forward_s, each.backward_s) for each in found) < 1000
    assert len(noted) == _BOUNDARIES
    assert max(each.duration_s for each in noted) < 1000
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.equal(states.torch, RandomState.current().torch)


def test_segments_longer_than_asked_are_noted_with_their_times(
    capsys: pytest.CaptureFixture[str],
) -> None:
    preemptible(Net(), DeviceLease("cpu"), batches(1)[0][0], max_segment_ms=1e-5)
    note = capsys.readouterr().err
    expected = r"\d+ of \d+ segments of Net are longer than max_segment_ms=1e-05: \d+\.\d ms from "
    assert re.search(expected, note)
    assert "split these modules, or use smaller batches" in note


def test_a_model_of_one_long_module_is_refused() -> None:
    lease = DeviceLease("cpu")
    with pytest.raises(TrainingError, match=r"Linear cannot be cut.* takes \d+\.\d ms"):
        preemptible(nn.Linear(4, 4), lease, torch.ones(2, 4), max_segment_ms=1e-6)
    assert not lease.held
    with lease:
        pass


def test_a_compiled_model_is_refused() -> None:
    compiled = torch.jit.script(nn.Linear(4, 4))
    with pytest.raises(TrainingError, match="is compiled"):
        preemptible(compiled, DeviceLease("cpu"), torch.ones(2, 4))


def test_segments_of_no_length_are_refused() -> None:
    with pytest.raises(UsageError, match="max_segment_ms is 0, expected more than 0"):
        preemptible(Net(), DeviceLease("cpu"), batches(1)[0][0], max_segment_ms=0)
