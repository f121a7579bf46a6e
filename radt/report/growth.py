"""How much counters grew within stretches of time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from radt.report.stretches import Stretch, Stretches, covered_ns
from radt.store.counters import Increases
from radt.store.records import Int64Array


def there_of(stretches: Sequence[Stretch], found: Increases) -> npt.NDArray[np.bool_]:
    """Which increases lie wholly within one of the stretches."""
    there = np.zeros(len(found.amounts), dtype=bool)
    for first_ns, last_ns in stretches:
        there |= (found.start_ns >= first_ns) & (found.end_ns <= last_ns)
    return there


def grown(
    found: Increases, within: Stretches | None, there: npt.NDArray[np.bool_] | None = None
) -> float | None:
    """The sum of the increases.

    Args:
        found: These.
        within: Count only these stretches; of an increase that reaches beyond one, its part by
            time. None for no limit; then there is always a sum.
        there: Which increases count at all.

    Returns:
        None where no increase meets a stretch.
    """
    if there is None:
        there = np.ones(len(found.amounts), dtype=bool)
    if within is None:
        return float(found.amounts[there].sum())
    return _part(found, covered_ns(within, found.start_ns, found.end_ns), there)


def rate_per_s(found: Increases, within: Stretches | None) -> float | None:
    """The mean rate over what of the stretches the increases cover; None without any."""
    if within is None:
        covered = found.end_ns - found.start_ns
        amount = grown(found, None)
    else:
        covered = covered_ns(within, found.start_ns, found.end_ns)
        amount = _part(found, covered)
    total_ns = float(covered.sum())
    return amount / (total_ns / 1e9) if amount is not None and total_ns > 0 else None


def _part(
    found: Increases, covered: Int64Array, there: npt.NDArray[np.bool_] | None = None
) -> float | None:
    """What of the increases belongs to the time of them that is covered; None without any."""
    lengths = (found.end_ns - found.start_ns).astype(np.float64)
    met = (covered > 0) & (lengths > 0)
    if there is not None:
        met &= there
    if not met.any():
        return None
    return float((found.amounts[met] * covered[met] / lengths[met]).sum())
