"""Verify copies: summarise a run from headers alone, and find the parts that its copy lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, bindparam, text

#: Computed from the chunks, because it verifies that they have arrived.
_POINTS = text(
    "SELECT run_id, series_no, SUM(point_count), SUM(finite_count), MIN(first_ns), MAX(last_ns), "
    "MIN(value_min), MAX(value_max) FROM chunk WHERE run_id IN :ids GROUP BY run_id, series_no"
).bindparams(bindparam("ids", expanding=True))
#: Modulo, because sums of times would overflow.
_MARKERS = text(
    "SELECT run_id, COUNT(*), COUNT(end_ns), SUM(COALESCE(end_ns, 0) % 1000003) "
    "FROM marker WHERE run_id IN :ids GROUP BY run_id"
).bindparams(bindparam("ids", expanding=True))
_TABLES = ("run", "param", "tag", "series", "ledger", "gap")
_ROWS = text(
    " UNION ALL ".join(
        f"SELECT {number}, run_id, COUNT(*) FROM {table} "  # noqa: S608 - our own names
        "WHERE run_id IN :ids GROUP BY run_id"
        for number, table in enumerate(_TABLES)
    )
).bindparams(bindparam("ids", expanding=True))

Numbers = tuple[Any, ...]


@dataclass(slots=True)
class Content:
    """Summary of a run from headers alone.

    ``points`` has, for each series number, the number of points and of finite ones, the first and
    last time, minimum and maximum; ``markers`` their number, the number with an end, and a checksum
    of the ends; ``rows`` the numbers of rows in the small tables.
    """

    points: dict[int, Numbers] = field(default_factory=dict)
    markers: Numbers = (0, 0, 0)
    rows: list[int] = field(default_factory=lambda: [0] * len(_TABLES))


def contents(connection: Connection, run_ids: Sequence[str]) -> dict[str, Content]:
    """Return summaries of runs from a store of either kind."""
    content_of = {run_id: Content() for run_id in run_ids}
    ids = {"ids": list(run_ids)}
    for run_id, series_no, count, finite, *rest in connection.execute(_POINTS, ids):
        content_of[run_id].points[int(series_no)] = (int(count), int(finite), *rest)
    for run_id, *numbers in connection.execute(_MARKERS, ids):
        content_of[run_id].markers = tuple(int(number) for number in numbers)
    for table, run_id, count in connection.execute(_ROWS, ids):
        content_of[run_id].rows[int(table)] = int(count)
    return content_of


@dataclass(frozen=True, slots=True)
class Difference:
    """Parts of a copy that have to be sent again, besides those that it lacks at its end.

    ``series`` are the numbers of series with equally many but different points. Additional data in
    the copy is not a difference: this side may have lost or thinned it, and the copy keeps it.
    """

    series: tuple[int, ...]
    markers: bool


def compare(original: Content, copy: Content) -> Difference | None:
    """Return how a copy differs from a run; None if it has all of it."""
    counts = {number: copy.points.get(number, (0,))[0] for number in original.points}
    lacks_points = any(counts[number] < ours[0] for number, ours in original.points.items())
    different = tuple(
        number
        for number, ours in original.points.items()
        if counts[number] == ours[0] and copy.points.get(number) != ours
    )
    lacks_rows = any(theirs < ours for ours, theirs in zip(original.rows, copy.rows, strict=True))
    markers = copy.markers[0] <= original.markers[0] and copy.markers != original.markers
    if not (lacks_points or different or lacks_rows or markers):
        return None
    return Difference(different, markers)
