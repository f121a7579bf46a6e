"""Spans that overlap onto rows in which they nest, as trace viewers need it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A named stretch of time; nanoseconds."""

    name: str
    start_ns: int
    end_ns: int
    category: str
    args: dict[str, object]


def in_lanes(spans: Iterable[Span]) -> Iterator[tuple[int, Span]]:
    """Each span with the number of its row: the first in which it lies apart or inside others.

    They come by start, the longer ones first, so that a parent comes before its children.
    """
    lanes: list[list[int]] = []  # ends of what is open, outermost first
    for span in sorted(spans, key=lambda span: (span.start_ns, -span.end_ns)):
        place = next((n for n, lane in enumerate(lanes) if _has_room(lane, span)), len(lanes))
        if place == len(lanes):
            lanes.append([])
        lanes[place].append(span.end_ns)
        yield place, span


def _has_room(open_ends: list[int], span: Span) -> bool:
    """Whether a span nests in what is open; what has ended before it is taken away."""
    while open_ends and open_ends[-1] <= span.start_ns:
        open_ends.pop()
    return not open_ends or span.end_ns <= open_ends[-1]
