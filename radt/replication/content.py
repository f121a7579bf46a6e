"""What both sides say of a run, so that they can be compared: the same statements for both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

_POINTS = text(
    "SELECT series_no, SUM(point_count), SUM(finite_count), MIN(first_ns), MAX(last_ns), "
    "MIN(value_min), MAX(value_max) FROM chunk WHERE run_id = :run_id GROUP BY series_no"
)
#: A remainder: sums of times would overflow.
_MARKERS = text(
    "SELECT COUNT(*), COUNT(end_ns), COALESCE(SUM(COALESCE(end_ns, 0) % 1000003), 0) "
    "FROM marker WHERE run_id = :run_id"
)
_COUNTS = ", ".join(
    f"(SELECT COUNT(*) FROM {table} WHERE run_id = :run_id)"  # noqa: S608 - our own names
    for table in ("run", "param", "tag", "series", "ledger", "gap")
)
_ROWS = text(f"SELECT {_COUNTS}")

Numbers = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Content:
    """A run in numbers, from headers alone.

    ``points`` has for each series number the count of points, of finite ones, the first and last
    time, minimum and maximum; ``markers`` their number, that of those with an end, and a checksum
    of the ends; ``rows`` numbers of rows of the small tables.
    """

    points: dict[int, Numbers]
    markers: Numbers
    rows: Numbers

    @classmethod
    def of(cls, connection: Connection, run_id: str) -> Content:
        """Read it from a store of either kind."""
        key = {"run_id": run_id}
        points = {
            int(row[0]): (int(row[1]), int(row[2]), *row[3:])
            for row in connection.execute(_POINTS, key)
        }
        markers = tuple(int(value) for value in connection.execute(_MARKERS, key).one())
        rows = tuple(int(value) for value in connection.execute(_ROWS, key).one())
        return cls(points, markers, rows)


@dataclass(frozen=True, slots=True)
class Difference:
    """What a copy lacks, or has otherwise, compared with the original.

    ``series`` are series numbers whose points are as many and yet not the same. What the copy has
    more of is no difference: this side may have lost or thinned it, and there it stays.
    """

    missing_points: bool = False
    series: tuple[int, ...] = ()
    markers: bool = False
    rows: bool = False

    @property
    def none(self) -> bool:
        return not (self.missing_points or self.series or self.markers or self.rows)


def compare(original: Content, copy: Content) -> Difference:
    """What is still to be done before a copy holds all of a run."""
    nothing = (0,)
    missing = any(
        copy.points.get(number, nothing)[0] < numbers[0]
        for number, numbers in original.points.items()
    )
    different = tuple(
        number
        for number, numbers in original.points.items()
        if (there := copy.points.get(number, nothing))[0] == numbers[0] and there != numbers
    )
    fewer = any(there < here for here, there in zip(original.rows, copy.rows, strict=True))
    markers = copy.markers[0] <= original.markers[0] and copy.markers != original.markers
    return Difference(missing, different, markers, fewer)
