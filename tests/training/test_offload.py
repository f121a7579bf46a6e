"""Offloaded training: the plain loop's bits, in less memory, with nothing left behind."""

from __future__ import annotations

import copy
import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, AdamW, Optimizer

from radt.errors import TrainingError, UsageError
from radt.training import Job, offload
from radt.training.job import Each
from radt.training.offloading import OffloadedStep
from radt.training.offloading.stores import Budget, Buffers
from tests.support import host_gpu
from tests.support.waiting import TIMEOUT_S

Batches = list[list[tuple[Tensor, Tensor]]]

_ADAMW = partial(AdamW, lr=1e-2)
_MOMENTUM = partial(SGD, lr=0.05, momentum=0.9, weight_decay=1e-3)
#: Where these small models have a part of their parameters in memory.
_SMALL = 400_000


class _Layer(nn.Module):
    """A residual layer with dropout."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.down(torch.relu(self.up(self.norm(x)))))


class _Language(nn.Module):
    """Root parameters, values that skip segments, tied weights, running statistics, dropout."""

    def __init__(self, tied: bool = True, dropout: float = 0.1, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, width)
        self.position = nn.Parameter(torch.randn(8, width))
        self.layers = nn.ModuleList(_Layer(width, dropout) for _ in range(6))
        self.norm = nn.BatchNorm1d(8)
        self.twice = nn.Linear(width, width)
        self.head = nn.Linear(width, 40, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.position
        first = x
        for layer in self.layers:
            x = layer(x) + 0.1 * first
        x = self.twice(torch.relu(self.twice(self.norm(x))))
        out: Tensor = self.head(x + first)
        return out


def _loss(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, -2), target.flatten())


def _tokens(steps: int, count: int) -> Batches:
    chance = torch.Generator().manual_seed(7)

    def some() -> Tensor:
        return torch.randint(40, (4, 8), generator=chance)

    return [[(some(), some()) for _ in range(count)] for _ in range(steps)]


def _plain(
    model: nn.Module,
    optimizer_class: Callable[..., Optimizer],
    batches: Batches,
    loss: Callable[[Any, Any], Tensor] = _loss,
    clip_norm: float | None = None,
) -> tuple[list[float], Optimizer]:
    """The loop that users write."""
    optimizer = optimizer_class(model.parameters())
    losses = []
    for micro_batches in batches:
        total = torch.zeros(())
        for inputs, target in micro_batches:
            part = loss(model(inputs), target) / len(micro_batches)
            part.backward()
            total = total + part.detach()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total.item())
    return losses, optimizer


def _assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    different = [name for name in one if not torch.equal(one[name], other[name])]
    assert not different


def _decaying(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Matrices decay, and learn at another rate."""
    chosen = list(parameters)
    matrices, others = (
        [p for p in chosen if (p.dim() > 1) is is_matrix] for is_matrix in (True, False)
    )
    groups = [{"params": matrices, "weight_decay": 0.1, "lr": 2e-2}, {"params": others}]
    return AdamW(groups, lr=1e-2, weight_decay=0.0)


@pytest.mark.quick_variants(4)
@pytest.mark.parametrize("store", ["file", "host"])
@pytest.mark.parametrize(
    ("recompute", "count", "optimizer_class", "tied", "clip_norm"),
    [
        (False, 1, _MOMENTUM, False, None),
        (False, 3, _ADAMW, True, None),
        (True, 1, _ADAMW, False, 0.5),
        (True, 3, _MOMENTUM, True, None),
        (True, 3, _decaying, True, 0.5),
        (False, 3, _decaying, False, None),
    ],
)  # fmt: skip
def test_bits_are_those_of_the_plain_loop(
    store: str,
    recompute: bool,
    count: int,
    optimizer_class: Callable[..., Optimizer],
    tied: bool,
    clip_norm: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if store == "host":
        pinned = host_gpu.install(monkeypatch)
    torch.manual_seed(0)
    model = _Language(tied)
    plain = copy.deepcopy(model)
    batches = _tokens(4, count)
    torch.manual_seed(1)
    expected, optimizer = _plain(plain, optimizer_class, batches, clip_norm=clip_norm)
    expected_draw = torch.rand(3)

    torch.manual_seed(1)
    memory = 390_000 if recompute else 120_000 + 230_000 * count
    if store == "host" and count > 1 and not recompute:
        memory -= 150_000  # the optimiser's states do not count
    with offload(
        model,
        optimizer_class=optimizer_class,
        loss=_loss,
        sample=batches[0][0],
        memory=memory,
        accumulate=count,
        clip_norm=clip_norm,
        recompute=recompute,
    ) as step:
        assert len(step.plan.segments) >= 2  # how many depends on measured times
        losses = [step(micro_batches).item() for micro_batches in batches]
        draw = torch.rand(3)
        state = step.job.state_dict()["optimizer"]
        assert 0 < step.peak_bytes <= step.plan.peak_bytes <= memory
        again = int(clip_norm is not None and store == "file")
        planned = [len(batches) * (loads + again) for loads in step.plan.loads]
        planned[0] += 1  # for the first step
        assert step.loads == planned
        if store == "host":  # not rounded to powers of two
            parameter_bytes = sum(parameter.nbytes for parameter in plain.parameters())
            assert parameter_bytes <= sum(pinned) < 2.5 * parameter_bytes
    assert losses == expected
    assert torch.equal(draw, expected_draw)
    _assert_same(model.state_dict(), plain.state_dict())
    wanted = optimizer.state_dict()
    assert state["param_groups"] == wanted["param_groups"]
    assert state["state"].keys() == wanted["state"].keys()
    for number, values in wanted["state"].items():
        _assert_same(state["state"][number], values)
    if store == "host":
        assert not pinned


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("store", ["file", "host"])
def test_a_call_without_gradients_is_that_of_the_whole_model(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if store == "host":
        host_gpu.install(monkeypatch)
    torch.manual_seed(0)
    model = _Language()
    plain = copy.deepcopy(model)
    batches = _tokens(2, 1)
    torch.manual_seed(1)
    expected, _ = _plain(plain, _ADAMW, batches)
    torch.manual_seed(1)
    with _started(model, batches) as step:
        losses = []
        for micro_batches in batches:
            losses.append(step(micro_batches).item())
            before = step.loads
            with torch.no_grad():
                found = model.eval()(micro_batches[0][0])
            model.train()
            assert sum(step.loads) - sum(before) >= len(step.plan.segments) - 1
            assert [parameter.numel() for parameter in model.layers.parameters()].count(0) > 0
        assert step.peak_bytes <= step.plan.memory_bytes
        with pytest.raises(UsageError, match=r"called with gradients outside of a step.*no_grad"):
            model(batches[0][0][0])
        with pytest.raises(UsageError, match="blocks, the model has one argument"):
            offload(plain, optimizer_class=_ADAMW, sample=batches[0][0], memory=1, blocks=[plain])
    assert losses == expected
    with torch.no_grad():
        assert torch.equal(found, plain.eval()(batches[-1][0][0]))


class _Precise(Optimizer):
    """Sums gradients of parameters of half precision in single precision."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.05})

    def step(self, closure: Any = None) -> None:
        del closure
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["sum"] = torch.zeros_like(parameter, dtype=torch.float32)
                state["sum"].mul_(0.9).add_(parameter.grad.float())
                parameter.data.sub_(group["lr"] * state["sum"])


def test_states_of_another_type_than_their_parameters_are_offloaded_and_counted() -> None:
    torch.manual_seed(0)
    width = 64
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(6)]).bfloat16()
    plain = copy.deepcopy(model)
    batches = [[(torch.randn(2, 4, width).bfloat16().unbind()) for _ in range(2)]] * 3
    expected, optimizer = _plain(plain, _Precise, batches, functional.mse_loss)
    with offload(
        model, optimizer_class=_Precise, loss=functional.mse_loss, sample=batches[0][0],
        memory="80KB", accumulate=2, recompute=True,
    ) as step:  # fmt: skip
        assert len(step.plan.segments) > 1
        losses = [step(micro_batches).item() for micro_batches in batches]
        step.wait()
        for block in step._blocks:
            assert block.state_bytes == 2 * block.gradient_bytes
            assert block._optimizer is not None
            states = block._optimizer.state.values()
            assert [state["sum"].numel() for state in states] == [0, 0]
        state = step.job.state_dict()
        step.job.load_state_dict(state)  # PyTorch makes the sums bfloat16
        again = step.job.state_dict()["optimizer"]["state"]
    assert losses == expected
    _assert_same(model.state_dict(), plain.state_dict())
    for number, values in optimizer.state_dict()["state"].items():
        _assert_same(state["optimizer"]["state"][number], values)
        assert torch.equal(again[number]["sum"], values["sum"].bfloat16().float())


def test_convolutions_and_frozen_parameters() -> None:
    torch.manual_seed(0)

    def block(before: int, behind: int) -> list[nn.Module]:
        conv = nn.Conv2d(before, behind, 3, padding=1)
        return [conv, nn.BatchNorm2d(behind), nn.ReLU(inplace=True), nn.Dropout2d(0.2)]

    model = nn.Sequential(*block(3, 16), *block(16, 32), nn.Flatten(), nn.Linear(32 * 64, 10))
    model[0].requires_grad_(False)
    plain = copy.deepcopy(model)
    batches = [[(torch.randn(2, 3, 8, 8), torch.randint(10, (2,))) for _ in range(2)]] * 3
    torch.manual_seed(1)
    expected, _ = _plain(plain, _ADAMW, batches)
    torch.manual_seed(1)
    with offload(
        model, optimizer_class=_ADAMW, loss=_loss, sample=batches[0][0], memory="1MB",
        accumulate=2, recompute=True,
    ) as step:  # fmt: skip
        assert [step(micro_batches).item() for micro_batches in batches] == expected
    _assert_same(model.state_dict(), plain.state_dict())


def test_sparse_gradients() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(40, 32, sparse=True), nn.Linear(32, 32), nn.Linear(32, 40))
    plain = copy.deepcopy(model)
    batches = _tokens(3, 2)
    optimizer_class = partial(SGD, lr=0.1)
    expected, _ = _plain(plain, optimizer_class, batches)
    with _started(model, batches, optimizer_class=optimizer_class, memory="60KB") as step:
        assert [step(micro_batches).item() for micro_batches in batches] == expected
    _assert_same(model.state_dict(), plain.state_dict())


def test_memory_is_used_again_when_no_tensor_uses_it() -> None:
    buffers = Buffers()
    flat = buffers.take(8192)
    where = flat.data_ptr()
    view = flat[:8]
    del flat
    other = buffers.take(8192)
    assert other.data_ptr() != where
    del view
    assert buffers.take(8192).data_ptr() == where


def test_memory_that_is_not_used_is_freed_for_what_is_counted() -> None:
    budget = Budget(100_000)
    budget.take(10_000)
    flats = [budget.buffers.take(10_000) for _ in range(4)]
    flats.clear()
    budget.take(65_000)
    assert [len(idle) for idle in budget.buffers._idle] == [10_000, 10_000]


class _Untraceable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
            if x.sum() > 1e9:
                return x
        return x


def test_listed_blocks_where_tracing_fails() -> None:
    torch.manual_seed(0)
    model = _Untraceable()
    sample = torch.randn(4, 64), torch.randn(4, 64)
    common: dict[str, Any] = {
        "optimizer_class": _ADAMW, "loss": functional.mse_loss, "sample": sample,
        "memory": "140KB", "accumulate": 1,
    }  # fmt: skip
    with pytest.raises(TrainingError, match=r"cannot trace _Untraceable.*blocks="):
        offload(model, **common)
    with pytest.raises(UsageError, match=r"no block has the parameter layers\.5"):
        offload(model, **common, blocks=list(model.layers)[:5])
    plain = copy.deepcopy(model)
    expected, _ = _plain(plain, _ADAMW, [[sample]] * 3, functional.mse_loss)
    with offload(model, **common, blocks=list(model.layers)) as step:
        assert len(step.plan.segments) > 1
        assert [step([sample]).item() for _ in range(3)] == expected
    _assert_same(model.state_dict(), plain.state_dict())


class _Steep(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> Tensor:
        return 3 * gradient


class _OwnGradients(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        steep: Tensor = _Steep.apply(x)
        return steep


def test_gradients_that_a_graph_would_lose_are_refused() -> None:
    """In the model's own code; those of modules that are blocks are as in the plain loop."""
    torch.manual_seed(0)
    sample = torch.randn(4, 64), torch.randn(4, 64)
    common: dict[str, Any] = {
        "optimizer_class": _ADAMW, "loss": functional.mse_loss, "sample": sample,
        "memory": "200KB", "accumulate": 1,
    }  # fmt: skip

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(64, 64)
            self.steep = _OwnGradients()

        def forward(self, x: Tensor) -> Tensor:
            steep: Tensor = self.steep(self.linear(x))
            return steep

    with pytest.raises(TrainingError, match=r"it calls _Steep, an autograd\.Function"):
        offload(Model(), **common)
    model = nn.Sequential(nn.Linear(64, 64), _OwnGradients(), nn.Linear(64, 64))
    plain = copy.deepcopy(model)
    expected, _ = _plain(plain, _ADAMW, [[sample]] * 3, functional.mse_loss)
    with offload(model, **common) as step:
        assert [step([sample]).item() for _ in range(3)] == expected


def _started(model: nn.Module, batches: Batches, **options: Any) -> OffloadedStep:
    settings: dict[str, Any] = {
        "optimizer_class": _ADAMW, "loss": _loss, "sample": batches[0][0], "memory": _SMALL,
        "accumulate": len(batches[0]), "recompute": True,
    }  # fmt: skip
    return offload(model, **(settings | options))


def test_states_load_into_the_plain_job_and_back() -> None:
    torch.manual_seed(0)
    model = _Language()
    plain = copy.deepcopy(model)
    batches = _tokens(4, 2)
    torch.manual_seed(1)
    expected, _ = _plain(plain, _ADAMW, batches)

    torch.manual_seed(1)
    with _started(model, batches) as step:
        losses = [step(micro_batches).item() for micro_batches in batches[:2]]
        state = step.job.state_dict()
        losses += [step(micro_batches).item() for micro_batches in batches[2:]]
        assert losses == expected  # taking the state changes nothing

        step.job.load_state_dict(state)
        assert step.job.batches == 2
        assert [step(micro_batches).item() for micro_batches in batches[2:]] == expected[2:]

    def plain_step(micro_batches: Any) -> Tensor:
        total = torch.zeros(())
        for inputs, target in micro_batches:
            part = _loss(other(inputs), target) / len(micro_batches)
            part.backward()
            total = total + part.detach()
        optimizer.step()
        optimizer.zero_grad()
        return total

    other = _Language()
    optimizer = _ADAMW(other.parameters())
    job = Job("plain", other, optimizer, _loss, step=plain_step)
    job.load_state_dict(state)
    assert [job.step(micro_batches).item() for micro_batches in batches[2:]] == expected[2:]
    _assert_same(other.state_dict(), plain.state_dict())


def test_learning_rates_are_those_of_the_jobs_optimiser() -> None:
    torch.manual_seed(0)
    model = _Language(dropout=0)
    plain = copy.deepcopy(model)
    batches = _tokens(3, 2)
    optimizer = _ADAMW(plain.parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1)
    for micro_batches in batches:
        for inputs, target in micro_batches:
            (_loss(plain(inputs), target) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    with _started(model, batches) as step:
        step.job.scheduler = torch.optim.lr_scheduler.ExponentialLR(step.job.optimizer, 0.1)
        step.job.schedule = Each.STEP
        for micro_batches in batches:
            step.job.step(micro_batches)
    _assert_same(model.state_dict(), plain.state_dict())


def test_auto_plans_and_prints() -> None:
    torch.manual_seed(0)
    with _started(_Language(), _tokens(1, 1), accumulate="auto", recompute="auto") as step:
        assert step.plan.accumulate >= 1
        text = str(step.plan)
        assert f"C = {step.plan.accumulate} micro-batches a segment" in text
        assert "of the speed with everything in memory" in text
        assert step.plan.ends[-1] == 12
        step(_tokens(1, step.plan.accumulate)[0])


# Bad input ---------------------------------------------------------------------------------------


def test_a_budget_that_is_too_small_names_the_smallest_one() -> None:
    torch.manual_seed(0)
    model = _Language()
    before = copy.deepcopy(model.state_dict())
    batches = _tokens(1, 2)
    with pytest.raises(TrainingError, match="its largest block, layers") as caught:
        _started(model, batches, memory="50KB")
    _assert_same(model.state_dict(), before)  # the model has its parameters again
    budget = str(caught.value).split('memory="')[1].split('"')[0]
    with _started(model, batches, memory=budget) as step:
        step(batches[0])
    smaller = int(budget.removesuffix("KB")) - 2
    with pytest.raises(TrainingError, match="too little"):
        _started(model, batches, memory=f"{smaller}KB")


def test_a_model_that_cannot_be_cut() -> None:
    model = nn.Linear(64, 64)
    sample = torch.randn(4, 64), torch.randn(4, 64)
    with pytest.raises(TrainingError, match=r"cannot be cut: it is one block.*smallest budget"):
        offload(model, optimizer_class=_ADAMW, loss=functional.mse_loss, sample=sample, memory=9000)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": "6 apples"}, "'6 apples' is not an amount of memory"),
        ({"accumulate": 0}, "expected \"auto\" or 1 or more"),
        ({"recompute": "often"}, "expected \"auto\", True or False"),
        ({"sample": torch.zeros(3)}, "a batch is a Tensor, expected"),
        ({"clip_norm": 0}, "clip_norm is 0"),
        ({"optimizer_class": SGD, "folder": "/nonexistent"}, "cannot be made: No such file"),
        ({"optimizer_class": torch.optim.LBFGS}, "optimizer_class cannot train"),
        ({"optimizer_class": lambda _: SGD([nn.Parameter(torch.ones(2))])}, "not the model's"),
        ({"blocks": ["head"]}, "expected modules of the model"),
    ],
)  # fmt: skip
def test_invalid_arguments(options: dict[str, Any], message: str) -> None:
    model = _Language()
    with pytest.raises((UsageError, TrainingError), match=message):
        _started(model, _tokens(1, 1), **options)
    assert model.position.numel() == 8 * 32


class _Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.linear(x), self.scale


def test_a_model_that_returns_a_parameter_is_refused() -> None:
    sample = torch.randn(4, 8), torch.randn(4, 8)
    with pytest.raises(UsageError, match="the model returns scale itself"):
        offload(_Scaled(), optimizer_class=_ADAMW, loss=_loss, sample=sample, memory="1MB")


class _Functional(nn.Module):
    """Its dropout is outside of modules: it is traced in the mode of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.other(functional.dropout(self.one(x), 0.5, self.training))
        return out


@pytest.mark.parametrize("is_training", [False, True])
def test_a_model_in_another_mode_than_planned_is_refused_and_trains_in_its_own(
    is_training: bool,
) -> None:
    torch.manual_seed(0)
    model = _Functional().train(is_training)
    plain = copy.deepcopy(model)
    sample = torch.randn(4, 64), torch.randn(4, 64)
    torch.manual_seed(1)
    expected, _ = _plain(plain, _ADAMW, [[sample]] * 2, functional.mse_loss)
    torch.manual_seed(1)
    with offload(
        model, optimizer_class=_ADAMW, loss=functional.mse_loss, sample=sample, memory="1MB"
    ) as step:
        losses = [step([sample]).item()]
        model.one.train(not is_training)
        with pytest.raises(UsageError, match=r"one is in .* mode, it was in .* mode when"):
            step([sample])
        model.one.train(is_training)
        losses += [step([sample]).item()]
    assert losses == expected
    _assert_same(model.state_dict(), plain.state_dict())


def test_too_many_and_too_large_micro_batches() -> None:
    torch.manual_seed(0)
    with _started(_Language(), _tokens(1, 2)) as step:
        with pytest.raises(UsageError, match="got 3 micro-batches, the plan is for 1 to 2"):
            step(_tokens(1, 3)[0])
        large = torch.zeros(8, 8, dtype=torch.int64)
        with pytest.raises(UsageError, match="the sample had"):
            step([(large, large)])
        step(_tokens(1, 1)[0])  # fewer are fine
    with pytest.raises(UsageError, match="is closed"):
        step(_tokens(1, 1)[0])


class _Moody(nn.Module):
    """Draws another number of random numbers each time."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.other(_moody(self.one(x)))
        return out


_calls: list[int] = []


@torch.fx.wrap
def _moody(x: Tensor) -> Tensor:
    _calls.append(1)
    return x + torch.rand(len(_calls))[0]


def test_random_numbers_that_cannot_be_repeated_are_an_error_before_any_update() -> None:
    torch.manual_seed(0)
    model = _Moody()
    before = copy.deepcopy(model.state_dict())
    sample = torch.randn(4, 64), torch.randn(4, 64)
    step = offload(
        model, optimizer_class=_ADAMW, loss=functional.mse_loss, sample=sample, memory="1MB"
    )
    with step, pytest.raises(TrainingError, match="other random numbers"):
        step([sample])
    _assert_same(model.state_dict(), before)


# Failures ----------------------------------------------------------------------------------------


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "radt-offload" in thread.name]


def _files_in(folder: Path) -> list[str]:
    """Files of this process in a folder, with or without a name."""
    links = _descriptors().values()
    return [*map(str, folder.iterdir()), *(link for link in links if str(folder) in link)]


def _descriptors() -> dict[int, str]:
    """What this process has open, by number."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing, and what others close
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found


def test_nothing_is_left_after_close_or_an_exception(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = _Language()
    batches = _tokens(2, 2)
    with _started(model, batches, folder=tmp_path) as step:
        assert _files_in(tmp_path)
        step(batches[0])
        assert _threads()
    assert not _threads()
    assert not _files_in(tmp_path)
    with pytest.raises(ZeroDivisionError), _started(model, batches, folder=tmp_path):
        raise ZeroDivisionError
    with pytest.raises(TrainingError):
        _started(model, batches, folder=tmp_path, memory=1)
    gc.collect()
    assert not _threads()
    assert not _files_in(tmp_path)
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())
    _plain(model, _ADAMW, batches)  # the model is a plain one again


class _ToPair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.linear(x), x


class _OfPair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return pair[1] + self.linear(pair[0])


def test_a_step_that_failed_leaves_no_gradients() -> None:
    """Neither of tied parameters, which stay in memory: the next step would add to them."""
    torch.manual_seed(0)
    model = nn.Sequential(_ToPair(), _OfPair())  # one segment, as pairs cannot be handed over
    model[1].linear.weight = model[0].linear.weight
    plain = copy.deepcopy(model)
    batch = [(torch.randn(4, 8), torch.randn(4, 8)) for _ in range(2)]
    failing = [False, True]

    def loss(output: Tensor, target: Tensor) -> Tensor:
        if is_failing and failing.pop(0):
            raise ZeroDivisionError
        return functional.mse_loss(output, target)

    is_failing = False
    with offload(
        model, optimizer_class=_MOMENTUM, loss=loss, sample=batch[0], memory="1MB", accumulate=2
    ) as step:
        is_failing = True
        with pytest.raises(ZeroDivisionError):
            step(batch)
        is_failing = False
        assert len(step.plan.segments) == 1
        losses = [step(batch).item()]
    assert losses == _plain(plain, _MOMENTUM, [batch], functional.mse_loss)[0]
    _assert_same(model.state_dict(), plain.state_dict())


@pytest.mark.parametrize("recompute", [False, True])
def test_activations_are_freed(recompute: bool) -> None:
    """Of the measurement, of steps, and of a step that failed: a sigmoid keeps its output."""
    seen: list[weakref.ref[Tensor]] = []

    def see(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
        seen.append(weakref.ref(output))

    def loss(output: Tensor, target: Tensor) -> Tensor:
        if failing:
            raise ZeroDivisionError
        return functional.mse_loss(output, target)

    failing: list[bool] = []
    model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.Sigmoid())])
    for layer in model:
        layer.register_forward_hook(see)
    sample = torch.randn(4, 32), torch.randn(4, 32)
    with offload(
        model, optimizer_class=_ADAMW, loss=loss, sample=sample, memory="40KB",
        accumulate=1, recompute=recompute,
    ) as step:  # fmt: skip
        step([sample])
        failing.append(True)
        with pytest.raises(ZeroDivisionError):
            step([sample])
        gc.collect()
        assert seen
        assert not [output for output in seen if output() is not None]


def test_an_error_in_the_loading_thread_ends_the_step(tmp_path: Path) -> None:
    torch.manual_seed(0)
    batches = _tokens(1, 2)
    with (
        pytest.raises(TrainingError, match=r"file in .* became shorter"),
        _started(_Language(), batches, folder=tmp_path) as step,
    ):
        (file,) = (fd for fd, link in _descriptors().items() if link.startswith(str(tmp_path)))
        os.truncate(f"/proc/self/fd/{file}", 0)
        step(batches[0])
    assert not _threads()
    assert not _files_in(tmp_path)


def test_training_goes_on_after_an_error_in_the_loss() -> None:
    torch.manual_seed(0)
    model = _Language(dropout=0)
    plain = copy.deepcopy(model)
    batches = _tokens(3, 2)
    expected, _ = _plain(plain, _ADAMW, batches)
    failing = [False]

    def loss(output: Tensor, target: Tensor) -> Tensor:
        if failing[0]:
            raise ZeroDivisionError
        return _loss(output, target)

    with _started(model, batches, loss=loss) as step:
        losses = [step(batches[0]).item()]
        buffers = [buffer.clone() for buffer in model.buffers()]
        failing[0] = True
        with pytest.raises(ZeroDivisionError):
            step(batches[1])
        failing[0] = False
        for buffer, before in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(before)  # as after a failed forward pass of the plain loop
        losses += [step(micro_batches).item() for micro_batches in batches[1:]]
    assert losses == expected
    _assert_same(model.state_dict(), plain.state_dict())


class _FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(_context: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_context: Any, *_gradients: Tensor) -> Tensor:
        raise KeyboardInterrupt


@torch.fx.wrap
def _interrupting(x: Tensor) -> Tensor:
    return _FailsBackward.apply(x) if _interrupt else x  # type: ignore[no-any-return, no-untyped-call]


_interrupt: list[bool] = []


class _Interrupted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        x = _interrupting(self.layers[0](x))
        for layer in self.layers[1:]:
            x = layer(x)
        return x


def test_a_step_that_ended_in_the_middle_needs_a_checkpoint() -> None:
    torch.manual_seed(0)
    model = _Interrupted()
    sample = torch.randn(4, 64), torch.randn(4, 64)
    _interrupt.clear()
    with offload(
        model, optimizer_class=_ADAMW, loss=functional.mse_loss, sample=sample, memory="140KB",
        accumulate=1, recompute=True,
    ) as step:  # fmt: skip
        assert len(step.plan.segments) > 1
        state = step.job.state_dict()
        expected = step([sample]).item()
        _interrupt.append(True)
        with pytest.raises(KeyboardInterrupt):
            step([sample])
        _interrupt.clear()
        with pytest.raises(TrainingError, match="ended in the middle"):
            step([sample])
        with pytest.raises(TrainingError, match="ended in the middle"):
            step.job.state_dict()  # no checkpoint has some parameters a step ahead
        step.job.load_state_dict(state)
        assert step([sample]).item() == expected
    assert not _threads()


_DISK_FULL = """
import resource, sys
import torch
from torch import nn
from radt.errors import TrainingError
from radt.training import offload
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
model = nn.Sequential(*[nn.Linear(128, 128) for _ in range(4)])
sample = torch.zeros(2, 128), torch.zeros(2, 128)
try:
    offload(model, optimizer_class=torch.optim.AdamW, loss=nn.functional.mse_loss, sample=sample,
            memory="1MB", folder=sys.argv[1])
except TrainingError as error:
    print(error)
print(sum(parameter.numel() for parameter in model.parameters()))
"""


def _run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        # Of the address space, which is limited here, malloc gives back only what it has mapped.
        env=dict(os.environ, RADT_MODE="off", MALLOC_MMAP_THRESHOLD_="1000000"),
        check=False,
    )


def test_a_full_disk_is_an_error_before_training(tmp_path: Path) -> None:
    """A limit of the size of files stands for the disk: the kernel refuses either way."""
    done = _run(_DISK_FULL, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert f"offload's file in {tmp_path} cannot get" in done.stdout
    assert "folder=" in done.stdout
    assert done.stdout.endswith(f"{4 * (128 * 128 + 128)}\n")
    assert not list(tmp_path.iterdir())


_LIMITED = """
import resource, sys
import torch
from torch import nn
from radt.training import offload
torch.set_num_threads(1)
MB = 1 << 20
sample = torch.ones(4, 1024), torch.zeros(4, 1024)
loss = nn.functional.mse_loss

def model(layers):
    return nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(layers)])  # 4 MB each

def train(net, way):
    if way == "plain":
        optimizer = torch.optim.AdamW(net.parameters())
        for _ in range(2):
            loss(net(sample[0]), sample[1]).backward()
            optimizer.step()
            optimizer.zero_grad()
    else:
        with offload(net, optimizer_class=torch.optim.AdamW, loss=loss, sample=sample,
                     memory="40MB", accumulate=1) as step:
            for _ in range(2):
                value = step([sample])
            print(len(step.plan.segments), step.peak_bytes)

train(model(2), sys.argv[1])  # what is allocated once
size = next(line for line in open("/proc/self/status") if line.startswith("VmSize"))
limit = int(size.split()[1]) * 1024 + 120 * MB
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
train(model(20), sys.argv[1])  # 80 MB, and three times as much for gradients and states
print("trained")
"""


def test_a_model_is_trained_where_the_plain_loop_has_too_little_memory() -> None:
    plain = _run(_LIMITED, "plain")
    assert plain.returncode != 0
    assert "memory" in plain.stderr
    offloaded = _run(_LIMITED, "offload")
    assert offloaded.returncode == 0, offloaded.stderr
    segments, peak_bytes = map(int, offloaded.stdout.splitlines()[-2].split())
    assert segments > 4
    assert peak_bytes <= 40_000_000
    assert offloaded.stdout.endswith("trained\n")
