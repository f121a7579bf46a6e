"""The account of a listener: what was expected, what came."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radt.collector.ledger import MAX_GAPS, Account, ListenerState
from radt.store.records import LedgerRecord

S = 10**9


def _account(start_ns: int = 0) -> Account:
    account = Account("top", S)
    account.start(start_ns)
    return account


def test_readings_in_time_are_complete() -> None:
    account = _account(S // 2)
    for second in range(1, 11):
        account.reading(second * S + 1000, 5)
    account.end(10 * S + S // 2)
    assert (account.received, account.missed, account.sampling_ns) == (10, 0, 50)
    assert account.state is ListenerState.ENDED
    assert not account.stretches


def test_a_tick_without_reading_is_missed_and_its_stretch_listed() -> None:
    account = _account()
    account.reading(1 * S, 0)
    account.explanation = "it raised"
    account.reading(4 * S, 0)
    assert (account.received, account.missed) == (2, 2)
    (stretch,) = account.stretches
    assert (stretch.start_ns, stretch.end_ns, stretch.detail) == (S, 4 * S, "it raised")


def test_what_is_missing_at_the_end_is_missed() -> None:
    account = _account()
    account.reading(1 * S, 0)
    account.end(4 * S + S // 2)
    assert account.missed == 3


def test_a_reading_under_way_at_the_end_is_not_missed() -> None:
    account = _account()
    account.reading(1 * S, 0)
    account.end(2 * S + S // 10)
    assert account.missed == 0


@pytest.mark.parametrize("resumed_first", [False, True])
def test_what_was_before_a_restart_is_added(resumed_first: bool) -> None:
    account = Account("top", S)
    before = LedgerRecord("r", "top", 1.0, expected=6, received=5, missed=1, sampling_ns=7)
    # The store's thread knows the one, the thread that serves the runner the other.
    steps = [lambda: account.start(10 * S), lambda: account.resume(before, 6 * S)]
    for step in reversed(steps) if resumed_first else steps:
        step()
    account.reading(11 * S, 1)
    record = account.record("r")
    assert (record.expected, record.received, record.missed) == (11, 6, 5)
    (stretch,) = account.stretches
    assert (stretch.start_ns, stretch.end_ns) == (6 * S, 10 * S)
    assert "restarted" in stretch.detail


def test_what_was_missed_by_a_restart_counts_whoever_is_first() -> None:
    """The store's thread may know what was before, before the run is said to have started."""
    account = Account("top", S)
    account.resume(LedgerRecord("r", "top", 1.0, 6, 5, 1, 7), 6 * S)
    account.start(10 * S)
    account.reading(11 * S, 1)
    record = account.record("r")
    assert (record.expected, record.received, record.missed) == (11, 6, 5)
    (stretch,) = account.stretches
    assert (stretch.start_ns, stretch.end_ns) == (6 * S, 10 * S)


def test_what_becomes_unavailable_later_is_missed() -> None:
    account = _account()
    account.reading(1 * S, 0)
    account.state, account.reason = ListenerState.UNAVAILABLE, "the driver is gone"
    account.end(4 * S + S // 2)
    record = account.record("r")
    assert (record.expected, record.missed, record.state) == (4, 3, "unavailable")
    assert [stretch.detail for stretch in account.stretches] == ["the driver is gone"]


def test_a_listener_that_was_never_there_owes_nothing() -> None:
    account = _account()
    account.state = ListenerState.UNAVAILABLE
    account.end(100 * S)
    assert account.record("r").expected == 0


def test_stretches_are_bounded() -> None:
    account = _account()
    for number in range(1, 3 * MAX_GAPS):
        account.reading(2 * number * S, 0)
    assert len(account.stretches) == MAX_GAPS
    assert account.missed >= 2 * MAX_GAPS


@given(
    ticks=st.lists(st.integers(1, 200), unique=True).map(sorted),
    late_ns=st.integers(0, S // 2),
    length=st.integers(200, 300),
)
def test_every_tick_is_either_received_or_missed(
    ticks: Sequence[int], late_ns: int, length: int
) -> None:
    account = _account()
    for tick in ticks:
        account.reading(tick * S + late_ns, 0)
    account.end(length * S + S // 2)
    assert account.received == len(ticks)
    assert account.received + account.missed == length
