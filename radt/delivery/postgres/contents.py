"""Verify copies: summarise a run from headers alone, and find the parts that its copy lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from radt.store.tables import of_runs

_POINTS, _MARKERS = "points", "markers"
#: For each kind of rows, a number that tells its parts apart (0 without any), their count, and
#: further numbers of them. Points are summed up from the chunks, because it verifies that these
#: have arrived.
_STATEMENTS = {
    _POINTS: of_runs(
        "SELECT run_id, series_no, SUM(point_count), SUM(finite_count), MIN(first_ns), "
        "MAX(last_ns), MIN(value_min), MAX(value_max) FROM chunk "
        "WHERE run_id IN :ids GROUP BY run_id, series_no"
    ),
    # Modulo, because sums of times would overflow.
    _MARKERS: of_runs(
        "SELECT run_id, 0, COUNT(*), COUNT(end_ns), SUM(COALESCE(end_ns, 0) % 1000003) "
        "FROM marker WHERE run_id IN :ids GROUP BY run_id"
    ),
    **{
        table: of_runs(
            f"SELECT run_id, 0, COUNT(*) FROM {table} "  # noqa: S608 - our own names
            "WHERE run_id IN :ids GROUP BY run_id"
        )
        for table in ("run", "param", "tag", "series", "ledger", "gap")
    },
}

#: Summary of a run from headers alone: the numbers of each part, the first of which is its count.
RunDigest = Mapping[tuple[str, int], Sequence[Any]]


def contents(connection: Connection, run_ids: Sequence[str]) -> dict[str, RunDigest]:
    """Return summaries of runs from a store of either kind."""
    content_of: dict[str, dict[tuple[str, int], Sequence[Any]]] = {key: {} for key in run_ids}
    for kind, statement in _STATEMENTS.items():
        for run_id, part, *numbers in connection.execute(statement, {"ids": list(run_ids)}):
            content_of[run_id][kind, part] = numbers
    return {**content_of}


@dataclass(frozen=True, slots=True)
class CopyDifference:
    """Parts of a copy that have to be sent again, besides those that it lacks at its end.

    ``series`` are the numbers of series with equally many but different points. Additional data in
    the copy is not a difference: this side may have lost or thinned it, and the copy keeps it.
    """

    series: tuple[int, ...]
    markers: bool


def compare(original: RunDigest, copy: RunDigest) -> CopyDifference | None:
    """Return how a copy differs from a run; None if it has all of it."""
    counts = {part: copy[part][0] if part in copy else 0 for part in original}
    wrong = {
        part: ours[0]
        for part, ours in original.items()
        if counts[part] <= ours[0] and copy.get(part) != ours
    }
    if not wrong:
        return None
    return CopyDifference(
        tuple(
            number
            for (kind, number), count in wrong.items()
            if kind == _POINTS and counts[kind, number] == count
        ),
        any(kind == _MARKERS for kind, _ in wrong),
    )
