"""radt.loaders.EchoLoader with real worker processes: counts, content, resuming."""

from __future__ import annotations

import json
import mmap
import multiprocessing
import os
import time
from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch.utils.data import DataLoader, Dataset

from radt.errors import LoaderError, UsageError
from radt.loaders import EchoLoader, ProgressiveLoader
from radt.loaders.echo.fills import AUGMENTATION
from radt.loaders.plan import generator, permutation

#: With processes, an example takes longer.
few = settings(max_examples=max(5, settings().max_examples // 3))
CONTEXT = multiprocessing.get_context("fork")


class Counted(Dataset[tuple[torch.Tensor, int]]):
    """Sample i is a tensor full of i; decodings are counted, and some take longer than others."""

    def __init__(self, samples: int, length: int = 8) -> None:
        self.samples, self.length = samples, length
        self.count = CONTEXT.Value("q")

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with self.count:
            self.count.value += 1
        if index % 7 == 3:
            time.sleep(0.001)
        return torch.full((self.length,), index, dtype=torch.int64), index


def drawn(sample: tuple[torch.Tensor, int], chance: np.random.Generator) -> tuple[Any, int, int]:
    """Augment by a random number, in place as careless code does."""
    values, index = sample
    assert (values == index).all(), "a sample that is being written, or was changed"
    values += 1
    return values, index, int(chance.integers(2**62))


def slots(samples: int, buffer: int) -> int:
    return samples if samples <= buffer else 2 * buffer


def memory_of(loader: EchoLoader) -> int:
    """Return how much memory the buffer really has."""
    assert loader._buffer is not None
    return os.fstat(loader._buffer._file).st_blocks * 512


def rows(batches: Iterator[Any]) -> list[list[tuple[int, int]]]:
    """Return (index, random number) of each sample in each batch."""
    return [list(zip(b[1].tolist(), b[2].tolist(), strict=True)) for b in batches]


shapes = {
    "samples": st.integers(0, 40),
    "batch_size": st.integers(1, 12),
    "repeats": st.integers(1, 4),
    "buffer": st.integers(1, 15),
    "workers": st.integers(0, 3),
}


@few
@given(**shapes)
def test_uses_and_decodings_are_counted_exactly(
    samples: int, batch_size: int, repeats: int, buffer: int, workers: int
) -> None:
    dataset = Counted(samples)
    with EchoLoader(
        dataset,
        drawn,
        batch_size=batch_size,
        repeats=repeats,
        buffer=buffer,
        num_workers=workers,
        max_bytes=512,
    ) as loader:
        for epoch in (1, 2):
            uses = [use for batch in rows(iter(loader)) for use in batch]
            assert sorted(index for index, _ in uses) == sorted([*range(samples)] * repeats)
            assert len({number for _, number in uses}) == len(uses), "an augmentation twice"
            assert loader.decoded == dataset.count.value == samples * epoch
            assert loader.echoed == samples * (repeats - 1) * epoch
            if samples:
                used = slots(samples, buffer) if repeats > 1 else 0
                assert loader.buffer_bytes == used * 512
                assert memory_of(loader) <= loader.buffer_bytes + 2 * mmap.PAGESIZE
        loader.finetune()
        assert not loader.echoing
        state = loader.state_dict()
        fresh = [index for batch in rows(iter(loader)) for index, _ in batch]
        assert sorted(fresh) == list(range(samples))
        assert loader.decoded == dataset.count.value == samples * 3
        assert loader.echoed == samples * (repeats - 1) * 2
        if samples:
            assert loader.buffer_bytes == 0
            assert memory_of(loader) <= mmap.PAGESIZE
        loader.load_state_dict({**state, "echoing": True, "epoch_repeats": repeats})
        again = [index for batch in rows(iter(loader)) for index, _ in batch]
        assert sorted(again) == sorted([*range(samples)] * repeats)


@few
@given(seed=st.integers(0, 2**40), **shapes)
def test_batches_do_not_depend_on_the_workers(
    samples: int, batch_size: int, repeats: int, buffer: int, workers: int, seed: int
) -> None:
    arguments: dict[str, Any] = {
        "batch_size": batch_size,
        "repeats": repeats,
        "buffer": buffer,
        "seed": seed,
    }
    given_by: list[list[list[tuple[int, int]]]] = []
    for count in (0, workers):
        with EchoLoader(Counted(samples), drawn, num_workers=count, **arguments) as loader:
            given_by.append(rows(iter(loader)))
    assert given_by[0] == given_by[1]


def test_a_slot_is_never_read_while_it_is_written() -> None:
    """Large samples, more workers than cores, a buffer of few: `drawn` sees a sample in half."""
    with EchoLoader(
        Counted(60, length=20_000), drawn, batch_size=3, repeats=4, buffer=4, num_workers=4
    ) as loader:
        assert sum(len(batch) for batch in rows(iter(loader))) == 240


@few
@given(data=st.data(), finetune=st.booleans(), **shapes)
def test_a_resumed_loader_gives_the_same_rest(
    data: st.DataObject,
    finetune: bool,
    samples: int,
    batch_size: int,
    repeats: int,
    buffer: int,
    workers: int,
) -> None:
    arguments: dict[str, Any] = {"batch_size": batch_size, "repeats": repeats, "buffer": buffer}
    with EchoLoader(Counted(samples), drawn, num_workers=workers, **arguments) as whole:
        stop = data.draw(st.integers(0, len(whole)), label="batches before the state")
        state: dict[str, Any] = {}
        first: list[list[tuple[int, int]]] = []
        for at in range(2):
            batches = iter(whole)
            for number in range(len(whole) + 1):
                if at == 0 and number == stop:
                    if finetune:  # holds from the next epoch on
                        whole.finetune()
                    state = json.loads(json.dumps(whole.state_dict()))
                if batch := next(batches, None):
                    first += rows(iter([batch]))
        totals = whole.decoded, whole.echoed
    dataset = Counted(samples)
    with EchoLoader(dataset, drawn, num_workers=workers, **arguments) as rest:
        rest.load_state_dict(state)
        again = rows(iter(rest))
        while rest.state_dict()["epoch"] < 2:
            again += rows(iter(rest))
        assert again == first[stop:]
        assert (rest.decoded, rest.echoed) == totals
        assert rest.echoing == (repeats > 1 and not finetune)
        # At most the buffer was decoded again.
        assert dataset.count.value <= totals[0] - state["decoded"] + 2 * buffer


@few
@given(
    samples=st.integers(0, 40),
    batch_size=st.integers(1, 12),
    workers=st.integers(0, 2),
    drop_last=st.booleans(),
)
def test_without_repeats_batches_are_those_of_a_data_loader(
    samples: int, batch_size: int, workers: int, drop_last: bool
) -> None:
    class Augmented(Counted):
        epoch = 0

        def __getitem__(self, index: int) -> Any:
            chance = generator(5, self.epoch, AUGMENTATION, index, 0)
            return drawn(super().__getitem__(index), chance)

    plain = Augmented(samples)
    with EchoLoader(
        Counted(samples),
        drawn,
        batch_size=batch_size,
        repeats=1,
        buffer=4,
        num_workers=workers,
        seed=5,
        drop_last=drop_last,
    ) as loader:
        for plain.epoch in range(2):
            order = permutation(samples, 5, plain.epoch).tolist()
            expected = list(DataLoader(plain, batch_size, sampler=order, drop_last=drop_last))
            given_batches = list(loader)
            assert len(given_batches) == len(expected)
            for batch, other in zip(given_batches, expected, strict=True):
                assert all(map(torch.equal, batch, other))
        assert loader.buffer_bytes == 0


def test_a_model_trains_bit_equally_without_repeats() -> None:
    def trained(batches: Iterator[Any]) -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 1)
        optimiser = torch.optim.SGD(model.parameters(), 0.001)
        losses = []
        for values, index in batches:
            loss = (model(values.float() / 40)[:, 0] - index / 40).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        return losses

    order = permutation(40, 0, 0).tolist()
    with EchoLoader(Counted(40), None, batch_size=6, repeats=1, buffer=8, num_workers=2) as loader:
        assert trained(iter(loader)) == trained(iter(DataLoader(Counted(40), 6, sampler=order)))


def test_immediate_reuse_gives_samples_as_they_were_decoded() -> None:
    class Random(Counted):
        def __getitem__(self, index: int) -> Any:
            return torch.rand(3), index

    with EchoLoader(
        Random(20), None, batch_size=4, repeats=3, buffer=6, num_workers=2, seed=1
    ) as loader:
        given_uses: dict[int, list[torch.Tensor]] = {}
        for values, indices in loader:
            for value, index in zip(values, indices.tolist(), strict=True):
                given_uses.setdefault(index, []).append(value)
    for values in given_uses.values():
        assert len(values) == 3
        assert all(torch.equal(value, values[0]) for value in values)


def test_the_switch_holds_from_the_next_epoch_and_survives_a_resume() -> None:
    arguments: dict[str, Any] = {"batch_size": 5, "repeats": 3, "buffer": 10}
    with EchoLoader(Counted(20), drawn, **arguments) as loader:
        assert len(loader) == 12
        batches = iter(loader)
        next(batches)
        loader.finetune()
        assert len(loader) == 12, "the epoch under way goes on"
        state = json.loads(json.dumps(loader.state_dict()))
        assert len(list(batches)) == 11
        assert len(loader) == len(list(loader)) == 4
    with EchoLoader(Counted(20), drawn, **arguments) as loader:
        loader.load_state_dict(state)
        assert not loader.echoing
        loader.set_epoch(0)  # as for a DistributedSampler: the epoch of the state goes on
        assert len(list(loader)) == 11
        assert len(list(loader)) == 4
        assert (loader.decoded, loader.echoed) == (40, 40)
    with EchoLoader(Counted(20), drawn, **arguments) as loader:
        loader.finetune()
        assert len(loader) == 4


def test_the_papers_forty_times_three_and_eighty_saves_forty_per_cent() -> None:
    """40×3+80 in small, and 55×3+35; 200 epochs of uses either way."""
    for echoing, fresh, saved in ((4, 8, 0.40), (11, 7, 0.55)):
        dataset = Counted(30)
        with EchoLoader(dataset, drawn, batch_size=10, repeats=3, buffer=10) as loader:
            steps = 0
            for epoch in range(echoing + fresh):
                if epoch == echoing:
                    loader.finetune()
                steps += sum(1 for _ in loader)
            assert steps == (echoing * 3 + fresh) * 3
            assert loader.decoded == dataset.count.value
            assert 1 - loader.decoded / (loader.decoded + loader.echoed) == pytest.approx(saved)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_other_ways_to_start_workers(method: str) -> None:
    with EchoLoader(
        Small(12), None, batch_size=4, repeats=2, buffer=5, num_workers=1,
        multiprocessing_context=method,
    ) as loader:  # fmt: skip
        indices = sorted(index for _, batch in loader for index in batch.tolist())
    assert indices == sorted([*range(12)] * 2)


class Small(Dataset[tuple[torch.Tensor, int]]):
    """What a process that does not come by a fork can have."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([float(index)]), index


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"repeats": 0}, "Expected repeats of at least 1, got 0"),
        ({"batch_size": 0}, "Expected batch_size of at least 1, got 0"),
        ({"buffer": 0}, "Expected buffer of at least 1, got 0"),
        ({"max_bytes": 0}, "Expected max_bytes of at least 1, got 0"),
        ({"seed": -1}, "Expected seed of at least 0, got -1"),
        ({"shuffle": True}, "EchoLoader sets shuffle of its DataLoader itself"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        EchoLoader(Small(4), None, **{"batch_size": 2, "repeats": 2, "buffer": 2} | arguments)


def test_a_dataset_without_a_length_is_refused() -> None:
    class Endless(Dataset[int]):
        pass

    for made in (
        lambda: EchoLoader(Endless(), None, batch_size=2, repeats=2, buffer=2),
        lambda: ProgressiveLoader(Endless(), max, batch_size=2, size=64, min_size=32),
    ):
        with pytest.raises(UsageError, match="needs a dataset with a length, and Endless has none"):
            made()


def test_a_state_of_other_arguments_is_refused() -> None:
    with EchoLoader(Small(4), None, batch_size=2, repeats=2, buffer=2) as loader:
        state = loader.state_dict()
    with (
        EchoLoader(Small(4), None, batch_size=2, repeats=3, buffer=2) as loader,
        pytest.raises(LoaderError, match="with repeats=2, not 3"),
    ):
        loader.load_state_dict(state)
