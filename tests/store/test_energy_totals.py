"""What a run's totals of energy claim: the whole run, a lower bound, or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from radt.model import MissingReason, RunStatus, Scope, SeriesKind
from radt.store.records import (
    SERIES_OF_A_NODE,
    GapRecord,
    RunRecord,
    Samples,
    SeriesRecord,
)
from radt.store.summaries import summarised
from radt.store.totals import totals_of
from radt.usage import CPU_TIME, KERNEL, TOTALS

S = 1_000_000_000
#: Joules by second.
Readings = Mapping[float, float]
COMPLETE, BOUND = "gpu_energy_j", "gpu_energy_j_at_least"


def energy(
    lasted_s: float, *cards: tuple[str, Readings], lost: Sequence[str] = ()
) -> dict[str, float]:
    """Return the totals of energy of a run that started at 0.

    Args:
        lasted_s: Seconds to its end.
        cards: Entity and readings of each counter. A run's part on another node ends at 90 % of
            the run, as its keeper counted.
        lost: Cards that could not be read for a while.
    """
    run = RunRecord(
        *("r", "w", "e", "1", "a", "n", 0, RunStatus.FINISHED),
        started_ns=0,
        ended_ns=round(lasted_s * S),
    )
    series, gaps, readings = [], [], []
    for place, (entity, of_card) in enumerate(cards):
        number = place + SERIES_OF_A_NODE * entity.startswith("node2/")
        record = SeriesRecord(
            *("r", number, "smi", "gpu.energy", "J", Scope.GPU, SeriesKind.COUNTER, entity, 1.0)
        )
        series.append(record)
        readings.append(of_card)
        if entity in lost:
            gaps.append(GapRecord("r", "smi", number, S, 2 * S, MissingReason.LOST))
        if record.node:
            (total,) = (total for total in TOTALS if total.key == CPU_TIME)
            kernel = (KERNEL, total.metric, "s", Scope.PROCESS, SeriesKind.COUNTER, "node2")
            series.append(SeriesRecord("r", number + 1, *kernel))
            readings.append({0: 0.0, lasted_s * 0.9: 1.0})
    summaries = [
        summarised(record, Samples(np.array([*seen]) * S // 1, np.array([*seen.values()])))
        for record, seen in zip(series, readings, strict=True)
        if seen
    ]
    totals = totals_of(run, summaries, series, gaps)
    return {key: value for key, value in totals.items() if "energy" in key}


@pytest.mark.parametrize(
    ("lasted_s", "first_s", "last_s", "key"),
    [
        (100, 0, 100, COMPLETE),
        (36_000, 1.5, 36_000, COMPLETE),
        (36_000, 200, 35_900, COMPLETE),
        (36_000, 300, 35_900, BOUND),
        (6, 2, 6, COMPLETE),  # a collector starts for 1 to 2 s
        (30, 2, 29, COMPLETE),
        (30, 2, 28.5, BOUND),
        (4, 3, 4, BOUND),  # most of it was not read
        (100, 0, 50, BOUND),
    ],
)
def test_a_total_is_complete_if_what_was_not_read_hardly_counts(
    lasted_s: float, first_s: float, last_s: float, key: str
) -> None:
    readings = {first_s: 1000.0, last_s: 1500.0}
    assert energy(lasted_s, ("gpu0", readings)) == {key: 500}


WHOLE, STILL = {0: 0.0, 100: 500.0}, {0: 700.0, 100: 700.0}


@pytest.mark.parametrize(
    ("cards", "lost", "expected"),
    [
        ((("gpu0", WHOLE), ("gpu1", WHOLE)), (), {COMPLETE: 1000}),
        ((("gpu0", WHOLE), ("gpu1", STILL)), (), {BOUND: 500}),
        ((("gpu0", WHOLE), ("gpu1", {0: 7.0})), (), {BOUND: 500}),
        ((("gpu0", WHOLE), ("gpu1", {})), (), {BOUND: 500}),
        ((("gpu0", STILL), ("gpu1", STILL)), (), {}),
        ((("gpu0", WHOLE),), ("gpu0",), {BOUND: 500}),  # it stalled or was lost, and went on
        ((("gpu0", {0: 9.0, 50: 0.0, 100: 5.0}),), (), {BOUND: 5}),
        ((("gpu0", WHOLE), ("node2/gpu0", {0: 0.0, 90: 9.0})), (), {COMPLETE: 509}),
        ((("gpu0", WHOLE), ("node2/gpu0", {0: 0.0, 10: 9.0})), (), {BOUND: 509}),
        # Two listeners read a device: the better one counts.
        ((("gpu0", STILL), ("gpu0", WHOLE)), (), {COMPLETE: 500}),
    ],
)
def test_a_sum_over_devices_says_if_one_of_them_was_not_counted(
    cards: Sequence[tuple[str, Readings]], lost: Sequence[str], expected: dict[str, float]
) -> None:
    assert energy(100, *cards, lost=lost) == expected
