"""Random states of trainings are swapped without a trace."""

from __future__ import annotations

import random
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from radt.loaders.randomness import RandomState
from radt.training.randomness import OwnRandomness


def _draws() -> list[float]:
    return [random.random(), float(np.random.normal()), float(torch.rand(())), random.gauss()]


def test_each_training_draws_as_if_it_were_alone() -> None:
    alone = OwnRandomness(RandomState.seeded(1))
    with alone.in_use():
        expected = [_draws() for _ in range(4)]
    one, other = OwnRandomness(RandomState.seeded(1)), OwnRandomness(RandomState.seeded(2))
    drawn = []
    for _ in range(4):
        with one.in_use():
            drawn.append(_draws())
        with other.in_use():
            _draws()
        _draws()
    assert drawn == expected


def test_the_states_outside_go_on_as_without_the_training() -> None:
    RandomState.seeded(3).restore()
    expected = [_draws(), _draws()]
    RandomState.seeded(3).restore()
    first = _draws()
    with OwnRandomness(RandomState.seeded(4)).in_use():
        _draws()
    assert [first, _draws()] == expected


def test_seeding_a_job_changes_nothing_for_one_that_trains_in_another_thread() -> None:
    draws = 200_000
    random.seed(5)
    expected = [random.random() for _ in range(draws)]
    random.seed(5)
    drawn: list[float] = []
    thread = threading.Thread(target=lambda: drawn.extend(random.random() for _ in range(draws)))
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        while thread.is_alive():
            RandomState.seeded(3)
    finally:
        thread.join()
        sys.setswitchinterval(before_s)
    assert drawn == expected


def test_seeded_states_are_those_of_the_global_generators() -> None:
    seed = -7
    RandomState.seeded(seed).restore()
    ours = _draws()
    random.seed(seed), np.random.seed(seed % 2**32), torch.manual_seed(seed)
    assert ours == _draws()


def test_a_state_survives_being_stored(tmp_path: Path) -> None:
    random.gauss(), np.random.normal()  # both keep half of a pair
    state = RandomState.current()
    expected = _draws()
    torch.save(state.state_dict(), tmp_path / "state.pt")
    RandomState.from_state_dict(torch.load(tmp_path / "state.pt", weights_only=True)).restore()
    assert _draws() == expected


def test_the_second_half_of_a_pair_of_normal_numbers_stays_with_its_training() -> None:
    """NumPy draws two normal numbers at once and keeps one, which its memory does not show."""
    alone = OwnRandomness(RandomState.seeded(1))
    with alone.in_use():
        expected = [float(np.random.normal()) for _ in range(6)]
    one, other = OwnRandomness(RandomState.seeded(1)), OwnRandomness(RandomState.seeded(2))
    drawn = []
    for number in range(6):
        with one.in_use():
            drawn.append(float(np.random.normal()))
        with other.in_use():
            if number % 3 == 1:
                np.random.normal()
        if number % 2:
            np.random.normal()
    assert drawn == expected


def test_a_generator_that_the_user_set_is_swapped_too() -> None:
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(3))
    try:
        one = OwnRandomness()
        expected = np.random.random(3).tolist()
        np.random.set_bit_generator(np.random.PCG64(3))
        drawn = []
        for _ in range(3):
            with one.in_use():
                drawn.append(np.random.random())
            np.random.random()
        assert drawn == expected
    finally:
        np.random.set_bit_generator(before)


def test_a_seeded_training_that_moves_to_cuda_later_draws_from_its_seed_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A generator of the CPU stands in for that of a device."""
    device, is_initialized = torch.Generator(), False
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: is_initialized)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: [device.get_state()])
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", lambda states: device.set_state(*states))
    monkeypatch.setattr(torch.cuda, "manual_seed_all", device.manual_seed)

    one, other = (OwnRandomness(RandomState.seeded(seed)) for seed in (1, 2))
    for each in (one, other):
        with each.in_use():
            torch.rand(1)  # before CUDA is initialised
    torch.save(other.state.state_dict(), tmp_path / "state.pt")
    stored = torch.load(tmp_path / "state.pt", weights_only=True)
    is_initialized = True
    again = OwnRandomness(RandomState.from_state_dict(stored))
    drawn: list[list[float]] = [[], [], []]
    for _ in range(2):
        for each, values in zip((one, other, again), drawn, strict=True):
            with each.in_use():
                values.append(torch.rand(1, generator=device).item())
    for seed, values in zip((1, 2, 2), drawn, strict=True):
        alone = torch.Generator().manual_seed(seed)
        assert values == [torch.rand(1, generator=alone).item() for _ in range(2)]
