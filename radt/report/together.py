"""What runs do together: how long all of them take, and how long one after the other.

The makespan is the time to train a workload of the thesis that radt builds on (chapter 4, figure
4.13: total time with collocation and serially). It counts from the start of the first process, as
a run's duration does: the barrier of ``--sync context`` lies behind the set-up that single runs are
not spared either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from radt.report.attempts import Attempt
from radt.report.baselines import Baseline
from radt.report.estimates import Estimate, of_rows
from radt.report.quantities import Combine, Quantity


@dataclass(frozen=True, slots=True)
class RowWork:
    """A row of a workload.

    ``baseline`` is None where it has none; ``epochs`` are those that ended in each repeat that
    finished.
    """

    baseline: Baseline | None
    epochs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Together:
    """What the runs of a workload do as one.

    ``is_adjusted`` says that rows trained more or fewer epochs than alone, and ``SERIAL`` is what
    as many epochs take alone.
    """

    values: dict[Quantity, Estimate]
    is_adjusted: bool = False


def together(repeats: Sequence[Attempt], rows: Sequence[RowWork]) -> Together:
    """Makespan, serial and speed-up.

    Args:
        repeats: The starts of a workload.
        rows: Its rows; those of a baseline have none.
    """
    values: dict[Quantity, Estimate] = {}
    makespan = of_rows([[attempt.makespan_s for attempt in repeats]], Combine.MEAN)
    if makespan is None:
        return Together(values)
    values[Quantity.MAKESPAN] = makespan
    found = [_alone(row) for row in rows]
    alone = [one for one in found if one is not None]
    if not alone or len(alone) < len(rows):
        return Together(values)
    most = max(len(durations_s) for durations_s, _ in alone)
    serial = of_rows(
        [[*durations_s, *[None] * (most - len(durations_s))] for durations_s, _ in alone],
        Combine.SUM,
    )
    if serial is None:
        return Together(values)
    values[Quantity.SERIAL] = serial
    values[Quantity.SPEED_UP] = makespan.into(serial)
    return Together(values, any(is_adjusted for _, is_adjusted in alone))


def _alone(row: RowWork) -> tuple[list[float], bool] | None:
    """What a row takes alone, a value a repeat; whether for another number of epochs.

    Rows of the same file and parameters do the same work, unless a limit of time or epochs cut one
    of them short. Then each epoch more or fewer counts as one of the baseline: its start-up stays.
    """
    baseline = row.baseline
    if baseline is None or not row.epochs:
        return None
    own = fmean(row.epochs)
    found = []
    is_adjusted = False
    for duration_s, epochs in zip(baseline.durations_s, baseline.epochs, strict=True):
        if duration_s is None:
            continue
        if epochs.count != own:
            if epochs.period_s is None or not own:
                return None
            is_adjusted = True
            found.append(duration_s + (own - epochs.count) * epochs.period_s)
        else:
            found.append(duration_s)
    return (found, is_adjusted) if found and min(found) > 0 else None
