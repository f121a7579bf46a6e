"""How much counters grew within stretches of time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from radt.store.counters import Increases

#: From and to in ns, in order and apart from each other.
Stretches = Sequence[tuple[int, int]]


def merged(stretches: Sequence[tuple[int, int]]) -> Stretches:
    """The same time, in order and without overlaps.

    >>> merged([(5, 9), (0, 2), (1, 3)])
    [(0, 3), (5, 9)]
    """
    found: list[tuple[int, int]] = []
    for start_ns, end_ns in sorted(stretches):
        if found and start_ns <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end_ns))
        else:
            found.append((start_ns, end_ns))
    return found


def there_of(stretches: Sequence[tuple[int, int]], found: Increases) -> npt.NDArray[np.bool_]:
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
    lengths = (found.end_ns - found.start_ns).astype(np.float64)
    shares = np.zeros(len(found.amounts))
    for start_ns, end_ns in within:
        overlap = np.minimum(found.end_ns, end_ns) - np.maximum(found.start_ns, start_ns)
        shares += np.clip(overlap, 0, None)
    met = there & (shares > 0) & (lengths > 0)
    if not met.any():
        return None
    return float((found.amounts[met] * shares[met] / lengths[met]).sum())


def rate_per_s(found: Increases, within: Stretches | None) -> float | None:
    """The mean rate over what of the stretches the increases cover; None without any."""
    amount = grown(found, within)
    if within is None:
        covered_ns = float((found.end_ns - found.start_ns).sum())
    else:
        covered_ns = float(
            sum(
                np.clip(
                    np.minimum(found.end_ns, end_ns) - np.maximum(found.start_ns, start_ns), 0, None
                ).sum()
                for start_ns, end_ns in within
            )
        )
    return amount / (covered_ns / 1e9) if amount is not None and covered_ns > 0 else None
