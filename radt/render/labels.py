"""Short names for items that are shown together."""

from __future__ import annotations

import re
from collections.abc import Sequence

_DIGITS = re.compile(r"(\d+)")


def apart(names: Sequence[str]) -> list[str]:
    """Return each name without the words that it shares with all others at either end.

    A number keeps the word before it: ``lr 0.1 a`` and ``lr 0.01 a`` become ``lr 0.1`` and ``lr
    0.01``.
    """
    words = [name.split() for name in names]
    shared = min(map(len, words), default=0) - 1
    if len(set(names)) < 2 or shared < 1:
        return list(names)

    def alike(place: int) -> bool:
        return len({own[place] for own in words}) == 1

    first = next((place for place in range(shared) if not alike(place)), shared)
    last = next((place for place in range(shared - first) if not alike(-1 - place)), shared - first)
    if first and any(own[first][0].isdigit() for own in words):
        first -= 1
    return [" ".join(own[first : len(own) - last]) for own in words]


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a key that sorts ``w2`` before ``w10``."""
    return tuple(
        (0, int(part), "") if part.isdigit() and part.isascii() else (1, 0, part)
        for part in _DIGITS.split(text.casefold())
        if part
    )


def shortened(text: str, characters: int) -> str:
    """Leave out the middle of a long name, as similar names often differ at the end."""
    if len(text) <= characters:
        return text
    tail = (characters - 1) * 2 // 3
    return f"{text[: characters - 1 - tail]}…{text[-tail:]}"
