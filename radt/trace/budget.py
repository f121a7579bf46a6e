"""How many points each series may have, so that viewers can open the file."""

from __future__ import annotations

from collections.abc import Sequence

#: Values in a whole file. Perfetto opens some ten times as many, at a gigabyte of memory.
MAX_POINTS = 1_000_000


def fair_limit(counts: Sequence[int], total: int = MAX_POINTS) -> int:
    """The number of points that no series exceeds if all of them together have ``total``.

    Short series stay whole; what they leave of their share, the long ones have.

    >>> fair_limit([10, 100, 100], 150), fair_limit([10, 20], 150)
    (70, 20)
    """
    left = total
    ordered = sorted(counts)
    for place, count in enumerate(ordered):
        share = left // (len(ordered) - place)
        if count > share:
            return share
        left -= count
    return max(ordered, default=0)
