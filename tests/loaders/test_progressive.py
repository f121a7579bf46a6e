"""ProgressiveLoader: real loops, workers included, against the schedule that they follow."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils.data import get_worker_info

import radt
from radt.errors import LoaderError, UsageError
from radt.loaders import ProgressiveLoader
from radt.loaders.progressive.check import SizeCheck
from radt.loaders.progressive.progress import Progress
from radt.store.reader import StoreReader
from tests.support.bench import has_store
from tests.support.waiting import wait_until

few = settings(max_examples=max(5, settings().max_examples // 3))


class Scene:
    """A data set whose sample i has the value i."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> int:
        return index


def drawn(index: int, size: int) -> tuple[torch.Tensor, int]:
    """An image of the size that is asked for, and the index."""
    return torch.full((1, size, size), float(index)), index


def where(index: int, size: int) -> tuple[int, int, int]:
    """Index, size, and the worker that made it."""
    worker = get_worker_info()
    return index, size, -1 if worker is None else worker.id


def loader_of(
    samples: int, transform: Callable[[int, int], Any] = drawn, **options: Any
) -> ProgressiveLoader:
    sizes = {"batch_size": 4, "size": 8, "min_size": 4, "step": 2, "upgrade_rate": 0.5}
    return ProgressiveLoader(Scene(samples), transform, **(sizes | options))


def given_by(loader: ProgressiveLoader) -> list[tuple[int, list[int]]]:
    """Size and indices of each batch of an epoch."""
    batches = []
    for images, indices in loader:
        assert images.shape == (len(indices), 1, images.shape[2], images.shape[2])
        assert images[:, 0, 0, 0].tolist() == indices.tolist()
        batches.append((images.shape[2], indices.tolist()))
    return batches


@few
@given(st.integers(2, 60), st.sampled_from(["mixed", "exhaustive"]), st.integers(0, 3))
def test_each_sample_is_transformed_for_the_size_that_it_has(
    samples: int, strategy: str, seed: int
) -> None:
    with loader_of(samples, strategy=strategy, seed=seed) as loader:
        for epoch in range(6):
            plan = Progress(loader.schedule, samples).plan(epoch)
            assert given_by(loader) == [(one.size, one.indices.tolist()) for one in plan]


def test_sizes_of_samples_and_batches_grow() -> None:
    with loader_of(32) as loader:
        seen = []
        for _ in range(5):
            sizes = loader.sizes()
            batches = given_by(loader)
            for size, indices in batches:
                assert set(sizes[indices].tolist()) == {size}
            seen.append({size: max(len(i) for s, i in batches if s == size) for size, _ in batches})
    assert seen == [{4: 16}, {4: 16, 6: 7}, {6: 7}, {6: 7, 8: 4}, {8: 4}]


def test_workers_that_prefetch_and_live_on_have_no_stale_sizes() -> None:
    with loader_of(64, where, num_workers=2, prefetch_factor=4) as loader:
        for epoch in range(5):
            plan = Progress(loader.schedule, 64).plan(epoch)
            batches = [(sizes.tolist(), i.tolist(), w) for i, sizes, w in loader]
            assert [i for _, i, _ in batches] == [one.indices.tolist() for one in plan]
            assert [s for s, _, _ in batches] == [[one.size] * len(one.indices) for one in plan]
            assert {w for _, _, workers in batches for w in workers.tolist()} == {0, 1}


def test_a_resumed_epoch_with_workers_goes_on_after_the_last_batch_that_was_given() -> None:
    """What workers have loaded ahead was not given."""
    with loader_of(60, num_workers=2, strategy="mixed") as loader:
        loader.set_epoch(1)
        whole = given_by(loader)
        loader.set_epoch(1)
        for given_already, _ in enumerate(loader, start=1):
            if given_already == 3:
                break
        state = json.loads(json.dumps(loader.state_dict()))
    with loader_of(60) as loader:
        loader.load_state_dict(state)
        assert given_by(loader) == whole[3:]


def test_ranks_share_each_batch() -> None:
    loaders = [loader_of(61, rank=rank, world_size=3) for rank in range(3)]
    for epoch in range(4):
        plan = Progress(loaders[0].schedule, 61).plan(epoch)
        given_to = [given_by(loader) for loader in loaders]
        for number, batch in enumerate(plan):
            parts = [given_by_rank[number] for given_by_rank in given_to]
            assert [size for size, _ in parts] == [batch.size] * 3
            assert [i for _, indices in parts for i in indices] == batch.indices.tolist()
        assert {len(one) for one in given_to} == {len(plan)}


# Losses decide ----------------------------------------------------------------------------------


def by_loss(samples: int) -> ProgressiveLoader:
    return loader_of(samples, select="loss", strategy="exhaustive")


def train(loader: ProgressiveLoader) -> list[list[int]]:
    """An epoch in which a sample's loss is its index."""
    batches = []
    for _, indices in loader:
        loader.report(indices.float())
        batches.append(indices.tolist())
    return batches


def flat(batches: list[list[int]]) -> list[int]:
    return [index for batch in batches for index in batch]


def test_with_losses_the_easiest_samples_grow_first() -> None:
    with by_loss(32) as loader:
        assert sorted(flat(train(loader))) == list(range(32))
        assert loader.sizes().tolist() == [6] * 16 + [4] * 16
        assert sorted(flat(train(loader))) == list(range(16, 32))  # the smallest size only


def test_losses_and_sizes_survive_a_resume() -> None:
    with by_loss(32) as loader:
        train(loader)
        state = json.loads(json.dumps(loader.state_dict()))
        rest = [train(loader) for _ in range(4)]
    with by_loss(32) as loader:
        loader.load_state_dict(state)
        assert [train(loader) for _ in range(4)] == rest


def test_with_losses_there_is_no_way_back() -> None:
    with by_loss(8) as loader:
        train(loader)
        train(loader)
        with pytest.raises(LoaderError, match="cannot go back from epoch 1 to 0"):
            loader.set_epoch(0)


def test_losses_must_fit_the_last_batch() -> None:
    with by_loss(8) as loader:
        with pytest.raises(LoaderError, match="no batch yet"):
            loader.report([1.0])
        next(iter(loader))
        with pytest.raises(LoaderError, match="each of the 8 samples of the last batch, got 1"):
            loader.report([1.0])
    with loader_of(8) as loader:
        next(iter(loader))
        with pytest.raises(LoaderError, match="select='loss'"):
            loader.report([1.0] * 8)


# A model and its sizes --------------------------------------------------------------------------


class Net(nn.Module):
    """With batch normalisation, whose buffers change with each forward."""

    def __init__(self, pooled: bool) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.pool = nn.AdaptiveAvgPool2d(1) if pooled else nn.Identity()
        self.linear = nn.Linear(4, 3) if pooled else nn.LazyLinear(3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.linear(self.pool(self.norm(self.conv(images))).flatten(1))
        return scores


def test_a_model_that_takes_every_size_is_left_as_it_was() -> None:
    model = Net(pooled=True).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with loader_of(9) as loader:
        expected = [SizeCheck(4, 16, None), SizeCheck(6, 7, None), SizeCheck(8, 4, None)]
        assert loader.check(model) == expected
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(one.grad is None for one in model.parameters())
    assert not model.training


def test_a_model_without_global_pooling_is_refused() -> None:
    with loader_of(9) as loader, pytest.raises(LoaderError, match="trained at 6 pixels"):
        loader.check(Net(pooled=False))


class Growing(nn.Module):
    """Gets a layer for each size."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        key = str(images.shape[2])
        if key not in self.layers:
            self.layers[key] = nn.Linear(images[0].numel(), 3)
        scores: torch.Tensor = self.layers[key](images.flatten(1))
        return scores


def test_a_model_with_parameters_of_its_own_for_each_size_is_refused() -> None:
    with loader_of(9) as loader, pytest.raises(LoaderError, match="other parameters at 6 pixels"):
        loader.check(Growing())


def test_check_uses_the_loss_that_is_given() -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        images, labels = batch
        seen.append((images.shape[2], len(labels)))
        return functional.cross_entropy(model(images), labels)

    seen: list[tuple[int, int]] = []
    with loader_of(9) as loader:
        loader.check(Net(pooled=True), loss)
    assert seen == [(4, 2), (6, 2), (8, 2)]


# Failures and ends ------------------------------------------------------------------------------


def fails_at_5(index: int, size: int) -> int:
    if index == 5:
        raise ValueError("a broken image")
    return index


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_names_the_sample_and_the_size(workers: int) -> None:
    message = "sample 5 cannot be loaded at 4 pixels: ValueError: a broken image"
    with (
        loader_of(8, fails_at_5, num_workers=workers) as loader,
        pytest.raises(LoaderError, match=message),
    ):
        list(loader)


def test_close_ends_the_workers_of_a_loop_that_still_waits() -> None:
    before = psutil.Process().children()
    with loader_of(40, num_workers=2) as loader:
        batches = iter(loader)
        next(batches)
        workers = [one for one in psutil.Process().children() if one not in before]
        assert len(workers) == 2
    wait_until(lambda: not any(worker.is_running() for worker in workers), "workers have ended")
    with pytest.raises(LoaderError, match="was closed"):
        next(batches)
    with pytest.raises(LoaderError, match="is closed"):
        next(iter(loader))


def test_a_second_loop_ends_the_first() -> None:
    with loader_of(40) as loader:
        first = iter(loader)
        next(first)
        next(iter(loader))
        with pytest.raises(LoaderError, match="another loop began"):
            next(first)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "both"}, 'strategy is "both", expected "mixed" or "exhaustive"'),
        ({"select": "luck"}, 'select is "luck", expected "random" or "loss"'),
        ({"rank": 2, "world_size": 2}, "expected a rank of 0 to 1, got 2"),
        ({"world_size": 9}, "8 samples are too few for 9 ranks"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((LoaderError, UsageError), match=message):
        loader_of(8, **options)


def test_the_state_of_another_loader_is_refused_and_says_what_differs() -> None:
    with loader_of(8, seed=3) as loader:
        state = loader.state_dict()
    with (
        loader_of(9) as other,
        pytest.raises(LoaderError, match="a loader with seed=3, samples=8"),
    ):
        other.load_state_dict(state)


def test_a_state_can_be_saved_by_torch_and_loaded_safely() -> None:
    buffer = io.BytesIO()
    with by_loss(8) as loader:
        torch.save(loader.state_dict(), buffer)
        buffer.seek(0)
        loader.load_state_dict(torch.load(buffer, weights_only=True))


def test_the_loader_draws_no_random_number_of_the_script() -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1]
    with loader_of(20, num_workers=1) as loader:
        given_by(loader)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()


def test_a_run_records_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RADT_TRACKING_URI", "none")
    with radt.Run() as run, loader_of(8) as loader:
        run_id = run.id
        for _ in run.batches(loader):
            pass
    home = tmp_path / "radt-data"

    def recorded() -> dict[str, float]:
        if not has_store(home):
            return {}
        with StoreReader(home / "radt.db") as reader:
            return {one.series.metric: one.mean for one in reader.summary([run_id])}

    wanted = {"loader.image_size": 4, "loader.batch_size": 8}
    wait_until(lambda: recorded().keys() >= wanted.keys(), "values are in the store")
    found = recorded()
    assert {name: found[name] for name in wanted} == wanted
