"""BatchScaledLR: what the optimiser gets for each batch, and what a scheduler sees."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from radt.errors import LoaderError, UsageError
from radt.loaders import BatchScaledLR


class Recorder(torch.optim.SGD):
    """Notes the learning rate of each group at each step."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.used: list[list[float]] = []

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.used.append([float(group["lr"]) for group in self.param_groups])
        super().step()


def weight() -> torch.Tensor:
    value = torch.ones(1, requires_grad=True)
    value.grad = torch.ones(1)
    return value


@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=8),
    st.integers(1, 512),
    st.sampled_from(["linear", "sqrt"]),
    st.lists(st.floats(1e-6, 10), min_size=1, max_size=3),
)
def test_a_step_has_the_rate_times_the_batch_over_the_base(
    batches: list[int], base: int, rule: str, rates: list[float]
) -> None:
    optimizer = Recorder([{"params": [weight()], "lr": rate} for rate in rates], lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    plain = torch.optim.SGD([{"params": [weight()], "lr": rate} for rate in rates], lr=1.0)
    plain_scheduler = torch.optim.lr_scheduler.ExponentialLR(plain, 0.9)
    scaled = BatchScaledLR(optimizer, base, rule)
    for samples in batches:
        expected = scheduler.get_last_lr()
        scaled.step(samples)
        ratio = samples / base if rule == "linear" else math.sqrt(samples / base)
        assert optimizer.used[-1] == [rate * ratio for rate in expected]
        assert [group["lr"] for group in optimizer.param_groups] == expected
        scheduler.step()
        plain.step()
        plain_scheduler.step()
        assert scheduler.get_last_lr() == plain_scheduler.get_last_lr()


def test_the_weights_move_by_the_scaled_rate() -> None:
    value = weight()
    BatchScaledLR(torch.optim.SGD([value], lr=0.5), 64).step(16)
    assert value.item() == 1 - 0.5 * 16 / 64


def test_rates_are_put_back_after_an_exception() -> None:
    optimizer = torch.optim.SGD([weight()], lr=0.5)
    scaled = BatchScaledLR(optimizer, 64)
    with pytest.raises(KeyError), scaled.scaled(128):
        assert optimizer.param_groups[0]["lr"] == 1.0
        raise KeyError
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_a_rate_in_a_tensor_stays_the_same_object() -> None:
    rate = torch.tensor(0.5)
    optimizer = torch.optim.SGD([weight()], lr=rate)
    held = optimizer.param_groups[0]["lr"]
    with BatchScaledLR(optimizer, 64).scaled(128):
        assert optimizer.param_groups[0]["lr"] is held
        assert held.item() == 1.0
    assert optimizer.param_groups[0]["lr"] is held
    assert held.item() == 0.5


def test_it_works_with_a_gradient_scaler() -> None:
    optimizer = Recorder([weight()], lr=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    scaler.scale(torch.ones(()))
    with BatchScaledLR(optimizer, 64).scaled(32):
        scaler.step(optimizer)
    assert optimizer.used == [[0.25]]


def test_numbers_that_do_not_fit_are_refused() -> None:
    optimizer = torch.optim.SGD([weight()], lr=0.5)
    with pytest.raises(LoaderError, match="base_batch of 1 or more, got 0"):
        BatchScaledLR(optimizer, 0)
    with pytest.raises(UsageError, match='rule is "cubic", expected "linear" or "sqrt"'):
        BatchScaledLR(optimizer, 64, "cubic")
    with pytest.raises(LoaderError, match="a batch of 1 sample or more, got 0"):
        BatchScaledLR(optimizer, 64).step(0)
    assert optimizer.param_groups[0]["lr"] == 0.5
