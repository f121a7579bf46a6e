"""Workers that collate into slots: the same batches, wherever they are made."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader, default_collate

from radt.loaders import SharedLoader
from radt.loaders.arena import Arena, page_aligned
from radt.loaders.layout import Packed
from radt.loaders.shared.collating import Collated, Offers
from tests.support.shared_loading import (
    Numbered,
    Taker,
    expected,
    make_mixed,
    name_of_its_own,
    server_of,
    shared,
)
from tests.support.waiting import alive, wait_until

pytestmark = pytest.mark.usefixtures("forked_servers")
SLOT_BYTES = page_aligned(60_000)


def samples_of(seed: int, count: int = 5) -> list[dict[str, Any]]:
    chance = np.random.default_rng(seed)
    return [
        {
            "x": torch.from_numpy(chance.normal(size=(3, 7))),
            "pair": (torch.tensor(n), chance.normal(size=11).astype(np.float32)),
            "n": n,
            "value": chance.normal(),
            "name": f"picture {n}",
            "none": torch.empty(0, 4),
        }
        for n in range(count)
    ]


def same(one: Any, other: Any) -> bool:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and (one.dtype, one.stride()) == (
            other.dtype,
            other.stride(),
        )
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (tuple, list)):
        return all(same(*pair) for pair in zip(one, other, strict=True))
    return bool(one == other)


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena(2, SLOT_BYTES)
    yield made
    made.close()


def offered(arena: Arena, collate_fn: Any = None) -> tuple[Any, Offers]:
    """A collate_fn as a worker has it, and offers of the slot 1."""
    loader = DataLoader(Numbered(4), 2, num_workers=1, collate_fn=collate_fn)
    offers = Offers.to_workers_of(loader)
    assert offers is not None
    assert offers.send(7, 1, arena)
    return loader.collate_fn, offers


def last(samples: list[Any]) -> Any:
    """A collate_fn of a script."""
    return [samples[-1]["x"], np.stack([sample["pair"][1] for sample in samples])]


@pytest.mark.parametrize("collate_fn", [default_collate, last])
def test_a_batch_in_a_slot_is_the_batch(arena: Arena, collate_fn: Any) -> None:
    collate, offers = offered(arena, collate_fn)
    for seed in range(3):
        made = collate(samples_of(seed))
        assert (made.generation, made.slot, made.batch) == (7, 1, None)
        view = arena.slot(1)
        read = Packed.in_slot(view, made.description_bytes).read()
        plain = collate_fn(samples_of(seed))
        if collate_fn is last:
            assert torch.equal(read[0], plain[0])
            assert np.array_equal(read[1], plain[1])
        else:
            assert same(read, plain)
        assert offers.send(7, 1, arena)
    assert not any(arena.slot(0))


def test_without_an_offer_or_room_it_is_a_batch_as_ever(arena: Arena) -> None:
    collate, offers = offered(arena)
    large = samples_of(1, count=400)
    made = collate(large)
    assert (made.slot, made.description_bytes) == (1, 0)
    assert same(made.batch, default_collate(large))
    assert same(collate(samples_of(2)), default_collate(samples_of(2)))
    assert offers.send(7, 1, arena)
    offers.withdraw()
    assert not isinstance(collate(samples_of(2)), Collated)


def test_what_a_slot_cannot_hold_comes_beside_it(arena: Arena) -> None:
    collate, _ = offered(arena, list)
    large = bytes(2 * arena.slot_bytes)
    assert collate([large]) == Collated(7, 1, batch=[large])


def test_only_workers_of_a_plain_data_loader_are_offered_slots() -> None:
    class Mine(DataLoader[Any]):
        pass

    assert Offers.to_workers_of(DataLoader(Numbered(4), 2)) is None
    assert Offers.to_workers_of(Mine(Numbered(4), 2, num_workers=1)) is None
    assert Offers.to_workers_of([1, 2]) is None


def test_workers_have_the_arena_and_give_the_loaders_batches() -> None:
    name = name_of_its_own()
    loaders = [shared(40, 2, name=name, arguments={"workers": 2}) for _ in range(2)]
    batches = [iter(loader) for loader in loaders]
    for _ in range(8):
        heads = [next(one)[1].tolist() for one in batches]
        assert heads[0] == heads[1]
    workers = psutil.Process(server_of(loaders[0])).children()
    assert len(workers) == 2
    for worker in workers:
        assert "memfd:radt-loader" in Path(f"/proc/{worker.pid}/maps").read_text("utf-8")
    del heads
    takers = [Taker(loader, 2, batches=rest) for loader, rest in zip(loaders, batches, strict=True)]
    for taker in takers:
        taker.start()
    for taker in takers:
        assert taker.result() == [expected(40, 2)[8:], expected(40, 2, epoch=1)]


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ({"workers": 2}, (61, 9, 61)),
        ({"workers": 2, "persistent": True}, (61, 9, 61)),
        ({"workers": 1, "context": "spawn"}, (61,)),
    ],
)
def test_the_same_batches_if_sizes_grow_and_epochs_are_left(
    options: dict[str, Any], counts: tuple[int, ...]
) -> None:
    arguments = {"samples": 61, **options}
    with SharedLoader(
        make_mixed, name=name_of_its_own(), arguments=arguments, linger_s=0.1
    ) as loader:
        for epoch, count in enumerate(counts):
            got = []
            kept = copy = torch.empty(0)
            for batch in loader:
                got.append(batch.tolist())
                assert torch.equal(kept, copy)  # the batch before
                kept, copy = batch, batch.clone()
                if len(got) == count:
                    break
            plain = [batch.tolist() for batch in make_mixed(61, epoch=epoch)]
            assert got == plain[:count]


def test_a_server_that_is_killed_leaves_no_worker_and_another_goes_on() -> None:
    with shared(400, 2, arguments={"workers": 2}, restart=True) as loader:
        batches = iter(loader)
        got = [next(batches)[1].tolist() for _ in range(9)]
        workers = psutil.Process(server_of(loader)).children()
        os.kill(server_of(loader), signal.SIGKILL)
        assert got + [batch[1].tolist() for batch in batches] == expected(400, 2)
    assert len(workers) == 2
    wait_until(lambda: not any(alive(worker.pid) for worker in workers), "their end")
