"""Short names for what is shown together."""

from __future__ import annotations

from collections.abc import Sequence


def apart(names: Sequence[str]) -> list[str]:
    """Return of each name the words that it does not share with all others at either end.

    A number keeps the word before it: of ``lr 0.1 a`` and ``lr 0.01 a`` stay ``lr 0.1`` and
    ``lr 0.01``.
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
