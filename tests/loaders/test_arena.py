"""Slots in shared memory: private to a reader, released with their last view."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from radt.errors import LoaderError
from radt.loaders import arena
from radt.loaders.arena import Arena, ArenaView, page_aligned
from radt.loaders.shared.membership import Ask, Filled, Join, Member, Members, Ring

PAGE = page_aligned(1)


def view_of(shared: Arena, *, mutable: bool = True) -> ArenaView:
    return ArenaView(os.dup(shared.descriptor), shared.slots, shared.slot_bytes, mutable=mutable)


@pytest.mark.parametrize("pagemap", ["/proc/self/pagemap", "/nowhere"])
def test_readers_see_what_is_written_and_not_each_others_writes(
    pagemap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena, "_PAGEMAP", Path(pagemap))
    shared = Arena(2, 2 * PAGE)
    readers = [view_of(shared) for _ in range(2)]
    for value in (b"a", b"b", b"c"):
        shared.slot(1)[:] = value * 2 * PAGE
        views = [reader.slot(1, lambda: None) for reader in readers]
        assert [bytes(view) for view in views] == [value * 2 * PAGE] * 2
        for place in (5, PAGE + 5)[: value[0] % 3]:
            views[0][place] = 0
        assert views[1][5] == views[1][PAGE + 5] == shared.slot(1)[5] == value[0]
        del views  # and the next batch is seen whole
    shared.close()


def test_a_slot_is_released_once_with_the_last_tensor_or_array_of_it() -> None:
    shared, released = Arena(1, PAGE), []
    memory = view_of(shared).slot(0, lambda: released.append(0))
    first = torch.frombuffer(memory, dtype=torch.float32, count=8)
    array = np.frombuffer(memory, dtype=np.int16, count=4, offset=64)
    del memory
    kept: list[object] = [
        first.view(2, 4)[1],
        first.numpy()[2:],
        torch.from_numpy(array)[1:],
        array,
    ]
    del first, array
    while kept:
        assert not released
        kept.pop()
    assert released == [0]
    shared.close()


def test_views_outlive_the_arena_and_nothing_stays_mapped_after_them() -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text(encoding="utf-8").count("memfd:radt-loader")

    shared = Arena(3, PAGE)
    shared.slot(2)[:3] = b"abc"
    memory = view_of(shared).slot(2, lambda: None)
    shared.close()
    shared.close()
    del shared
    assert bytes(memory[:3]) == b"abc"
    assert mapped() == 1
    del memory
    assert mapped() == 0


def test_pages_that_were_only_read_stay_mapped() -> None:
    def mapped_kb() -> int:
        _, found, rest = Path("/proc/self/smaps").read_text("utf-8").partition("memfd:radt-loader")
        assert found
        match = re.search(r"^Rss: +(\d+) kB$", rest, re.M)
        assert match is not None
        return int(match[1])

    shared = Arena(1, PAGE)
    reader = view_of(shared)
    shared.close()
    del shared
    assert (bytes(reader.slot(0, lambda: None)), mapped_kb()) == (bytes(PAGE), PAGE // 1024)
    reader.slot(0, lambda: None)[7] = 1
    assert mapped_kb() == 0


def test_no_reader_can_shorten_it() -> None:
    shared = Arena(1, PAGE)
    with pytest.raises(PermissionError):
        os.ftruncate(shared.descriptor, 0)
    shared.close()


def test_more_than_there_is_is_refused_with_sizes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    12 kB\n", encoding="ascii")
    monkeypatch.setattr(arena, "_MEMINFO", tmp_path / "meminfo")
    Arena(3, PAGE).close()
    with pytest.raises(LoaderError) as raised:
        Arena(4, PAGE)
    assert "needs 16.4 KB of memory for 4 batches of 4.10 KB; 12.3 KB are" in str(raised.value)


# Who holds what ---------------------------------------------------------------------------------


@given(
    slots=st.integers(1, 4),
    offers=st.integers(0, 3),
    steps=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3))),
)
def test_a_slot_is_free_when_all_who_hold_it_have_released_it(
    slots: int, offers: int, steps: list[tuple[int, int]]
) -> None:
    ring, held = Ring(slots, offers), {}  # type: ignore[var-annotated]
    offered: list[int] = []
    for number, (what, who) in enumerate(steps):
        free = ring.free()
        assert (free is None) == (len(held) == slots)
        assert free not in held and free not in offered
        while (offer := ring.offer()) is not None:
            assert offer not in held and offer not in offered
            offered.append(offer)
        assert len(offered) == offers
        if what < 3 and free is not None:
            free = offered.pop(0) if offered and what else ring.free()
            assert free is not None
            holders = set(range(who))
            ring.fill(Filled(free, number, 1), holders)
            if holders:
                held[free] = holders
        elif what == 3:
            ring.drop(who)
            held = {slot: rest for slot, h in held.items() if (rest := h - {who})}
        elif held:
            slot = sorted(held)[who % len(held)]
            ring.release(slot, who)
            held[slot] = held[slot] - {who}
            held = {slot: holders for slot, holders in held.items() if holders}
        assert ring.in_use == len(held)
        for holder in range(4):
            found = ring.held_by(holder)
            assert {f.slot for f in found} == {s for s, h in held.items() if holder in h}
            assert found == sorted(found, key=lambda filled: filled.number)


def members(*asks: Ask | None, next_epoch: int = 0) -> Members:
    by_number = {n: Member(n, str(n), ask) for n, ask in enumerate(asks)}
    return Members(by_number, next_epoch)


def test_an_epoch_begins_when_all_ask() -> None:
    assert members().plan() is None
    assert members(Ask(0), None).plan() is None
    plan = members(Ask(0), Ask(0)).plan()
    assert plan is not None
    assert (plan.epoch, plan.first) == (0, 0)


def test_the_epoch_that_all_name_else_the_next() -> None:
    plan = members(Ask(7), Ask(7), next_epoch=3).plan()
    assert plan is not None
    assert plan.epoch == 7
    plan = members(Ask(7), Ask(0), next_epoch=3).plan()
    assert plan is not None
    assert plan.epoch == 3


def test_it_begins_at_the_first_batch_that_anybody_needs() -> None:
    group = members(Ask(2, batch=5, random={"a": 1}), Ask(2, batch=9))
    plan = group.plan()
    assert plan is not None
    assert (plan.epoch, plan.first, plan.random) == (2, 5, {"a": 1})
    group.begin(plan)
    assert [m.takes(6) for m in group.in_epoch()] == [True, False]
    assert [m.takes(9) for m in group.in_epoch()] == [True, True]
    plan = members(Ask(2, batch=5), Ask(1), next_epoch=2).plan()
    assert plan is not None
    assert plan.first == 0  # the one that follows needs all of it


def test_who_was_cut_off_goes_on_first_and_others_wait() -> None:
    cut_off = Ask(2, batch=5, random={"a": 1}, cut_off=True)
    group = members(cut_off, Ask(3), Ask(0), next_epoch=3)
    plan = group.plan()
    assert plan is not None
    assert (plan.epoch, plan.first, plan.random) == (2, 5, {"a": 1})
    group.begin(plan)
    assert [m.number for m in group.in_epoch()] == [0]
    group.end(plan)
    assert group.plan() is None  # until it asks again
    group.by_number[0].ask = Ask(3)
    plan = group.plan()
    assert plan is not None
    assert (plan.epoch, plan.first) == (3, 0)
    group.begin(plan)
    assert len(group.in_epoch()) == 3
    # If others are further, it misses the epochs between.
    group = members(cut_off, Ask(6), next_epoch=6)
    plan = group.plan()
    assert plan is not None
    group.begin(plan)
    group.end(plan)
    group.by_number[0].ask = Ask(3)
    plan = group.plan()
    assert plan is not None
    assert plan.epoch == 6


def test_it_waits_for_those_who_come_back_after_a_restart() -> None:
    group = members(Ask(0))
    group.expected = 2
    assert group.plan() is None
    group.by_number[1] = Member(1, "b", Ask(0, join=Join.NOW))
    assert group.plan() is not None
