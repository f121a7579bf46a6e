"""The planner counts bytes as torch's all-reduce and pipelines send them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radt.errors import UsageError
from radt.training.traffic import Traffic


def test_both_cases_of_the_experiment() -> None:
    small = Traffic(1_052_672, 524_288, 16)
    assert small.copies_win
    assert [small.pipeline_bytes, small.copies_bytes] == [16_777_216, 1_052_672]
    large = Traffic(37_773_312, 786_432, 8)
    assert not large.copies_win
    assert round(large.break_even) == 24


@given(*(st.integers(1, 10**9) for _ in range(2)), st.integers(1, 1000), st.integers(2, 50))
def test_who_sends_less_wins(
    parameters: int, activations: int, batches: int, machines: int
) -> None:
    traffic = Traffic(parameters, activations, batches, machines)
    if abs(traffic.pipeline_bytes - traffic.copies_bytes) > 1:  # bytes are rounded
        assert traffic.copies_win == (traffic.pipeline_bytes > traffic.copies_bytes)


@pytest.mark.parametrize("values", [(0, 1, 1, 2), (1, 0, 1, 2), (1, 1, 0, 2), (1, 1, 1, 1)])
def test_nothing_to_send_is_refused(values: tuple[int, int, int, int]) -> None:
    with pytest.raises(UsageError, match="sends nothing"):
        Traffic(*values)
