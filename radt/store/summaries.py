"""Summaries of series: aggregates of all points of a series.

`SeriesSummary` is what readers return. `summary_of` summarises new points and `joined` adds them to
the previous summary, so that a growing series is never read again. The rows (``series_summary``)
are written with the points. Thinning a run changes only `Summary.stored_count`.

Summaries are complete if the run's ``summary_revision`` equals its revision: both are raised
together. Stores of earlier versions have no summaries; `complete` computes them run by run, each in
its own transaction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
from sqlalchemy import Connection, Engine, bindparam, text

from radt.errors import CodecError
from radt.model import NO_STEP, SeriesKind
from radt.store import chunks, counters, tables
from radt.store.backend import Backend
from radt.store.chunks import header_of, time_sorted
from radt.store.codec import EncodedSamples, decode
from radt.store.points import chunks_between
from radt.store.records import Samples, SeriesRecord
from radt.store.tables import SERIES, RecordTable, Value, of_runs

#: Times of the first and last finite value, followed by these values.
_Ends: TypeAlias = tuple[int | None, int | None, float | None, float | None]
NumberT = TypeVar("NumberT", int, float)


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary of points of one series, in the order of their times.

    Attributes:
        count: Points.
        stored_count: Points that the store still has: fewer if the run was thinned.
        finite_count: Points with a finite value.
        first_ns: Earliest time.
        last_ns: Latest time.
        first: Value at the earliest time as stored: a number, infinite, or NaN.
        last: Value at the latest time as stored. That of a diverged loss is not finite.
        minimum: Smallest finite value; like the following ones, None if no value is finite.
        maximum: Largest finite value.
        total: Sum of the finite values; infinite if it exceeds the range of a float.
        first_finite_ns: Time of the earliest finite value.
        last_finite_ns: Time of the latest finite value.
        first_finite: Earliest finite value.
        last_finite: Latest finite value.
        growth: Increase of a counter over wraps and resets (`radt.store.counters`); None with fewer
            than two readings, for other series, and if a chunk is damaged.
        lowest_step: Smallest step; None if no point has a step.
        highest_step: Largest step.
    """

    count: int
    stored_count: int
    finite_count: int
    first_ns: int
    last_ns: int
    first: float
    last: float
    minimum: float | None
    maximum: float | None
    total: float | None
    first_finite_ns: int | None
    last_finite_ns: int | None
    first_finite: float | None
    last_finite: float | None
    growth: float | None
    lowest_step: int | None
    highest_step: int | None

    @property
    def mean(self) -> float | None:
        """Return the mean of the finite values; None if there are none or their sum overflows."""
        if self.total is None or not math.isfinite(self.total):
            return None
        return self.total / self.finite_count

    @property
    def is_thinned(self) -> bool:
        """Return whether the store no longer has all points."""
        return self.stored_count < self.count

    @property
    def seconds(self) -> float:
        """Return the seconds from the first to the last finite value, the time of `growth`."""
        if self.first_finite_ns is None or self.last_finite_ns is None:
            return 0.0
        return (self.last_finite_ns - self.first_finite_ns) / 1e9


#: Fields that are also columns of a chunk's header, with their names there.
_HEADER = {
    "count": "point_count",
    "finite_count": "finite_count",
    "first_ns": "first_ns",
    "last_ns": "last_ns",
    "first": "first_value",
    "last": "last_value",
    "minimum": "value_min",
    "maximum": "value_max",
    "total": "value_sum",
}


def _or_nan(value: Any) -> float:
    return math.nan if value is None else float(value)


#: NULL stands for NaN in a first or last value.
SUMMARIES = RecordTable(
    "series_summary",
    Summary,
    (),
    {"first": _or_nan, "last": _or_nan},
    extra_keys=("run_id", "series_no"),
)

_OF_RUN = text(
    f"SELECT series_no, {', '.join(SUMMARIES.fields)} FROM series_summary "  # noqa: S608 - our own names
    "WHERE run_id = :run_id AND series_no BETWEEN :lowest AND :highest"
)
_DELETE = text("DELETE FROM series_summary WHERE run_id = :run_id")
_COMPLETE = text("UPDATE run SET summary_revision = revision WHERE run_id = :run_id")

_CHUNKS_AT_A_TIME = 256
_AFTER_ALL = 2**31 - 1
_NEEDS_POINTS = "(series_no IN :counters OR finite_count < point_count OR step_data IS NOT NULL)"
#: Chunks in the order of writing, with their points if their headers do not suffice.
_CHUNKS = text(
    f"SELECT series_no, {', '.join(chunks.HEADER)}, chunk_no, codec, "  # noqa: S608 - our own names
    f"{chunks.STORED_COUNT} AS stored, checksum, "
    f"CASE WHEN {_NEEDS_POINTS} THEN COALESCE(time_data, (SELECT other.time_data FROM chunk other "
    "WHERE other.run_id = chunk.run_id AND other.series_no = chunk.time_series_no "
    "AND other.chunk_no = chunk.time_chunk_no)) END AS time_data, "
    f"CASE WHEN {_NEEDS_POINTS} THEN value_data END AS value_data, step_data "
    "FROM chunk WHERE run_id = :run_id AND (series_no, chunk_no) > (:series_no, :chunk_no) "
    "AND series_no <= :highest ORDER BY series_no, chunk_no LIMIT :some"
).bindparams(bindparam("counters", expanding=True))

_SERIES_COLUMNS = ", ".join(f"s.{name}" for name in SERIES.fields)
_NUMBERS = ", ".join(f"t.{name}" for name in SUMMARIES.fields)
_READ = of_runs(
    f"SELECT {_NUMBERS}, {_SERIES_COLUMNS} FROM series_summary t "  # noqa: S608 - our own names
    "JOIN series s ON s.run_id = t.run_id AND s.series_no = t.series_no "
    "WHERE t.run_id IN :ids ORDER BY t.run_id, t.series_no"
)
_READ_METRICS = of_runs(
    f"SELECT {_NUMBERS}, {_SERIES_COLUMNS} FROM series s "  # noqa: S608 - our own names
    "JOIN series_summary t ON t.run_id = s.run_id AND t.series_no = s.series_no "
    "WHERE s.run_id IN :ids AND s.metric IN :metrics ORDER BY s.run_id, s.series_no",
    "metrics",
)
#: Each run that has points, with the time of its newest point.
NEWEST = of_runs(
    "SELECT run_id, MAX(last_ns) FROM series_summary WHERE run_id IN :ids GROUP BY run_id"
)


@dataclass(frozen=True, slots=True)
class SeriesSummary(Summary):
    """Summary of all points of a series, together with the series."""

    series: SeriesRecord


def summarised(series: SeriesRecord, samples: Samples) -> SeriesSummary:
    """Return the summary of a series from all of its points, of which there is at least one."""
    summary = summary_of(header_of(samples), samples, series)
    return SeriesSummary(*(getattr(summary, name) for name in SUMMARIES.fields), series)  # type: ignore[call-arg]


def to_header(summary: Summary) -> dict[str, Value]:
    """Return a summary as the header of its points (`radt.store.chunks.header_of`)."""
    row = SUMMARIES.row(summary)
    return {header: row[name] for name, header in _HEADER.items()}


def summary_of(header: Mapping[str, Any], samples: Samples | None, series: SeriesRecord) -> Summary:
    """Return the summary of points of a series.

    Args:
        header: Header of the points (`radt.store.chunks.header_of`).
        samples: The points in the order of writing; the remaining ones if they were thinned. None
            if all values are finite, the series is not a counter and no point has a step.
        series: The series.
    """
    count, finite_count = header["point_count"], header["finite_count"]
    first_ns, last_ns = header["first_ns"], header["last_ns"]
    first, last = _or_nan(header["first_value"]), _or_nan(header["last_value"])
    ends: _Ends = (first_ns, last_ns, first, last)
    growth = lowest = highest = None
    is_counter = series.kind is SeriesKind.COUNTER
    if samples is not None and (finite_count < count or (is_counter and count > 1)):
        ordered = time_sorted(samples)
        ends = _finite_ends(ordered)
        if is_counter:
            growth = counters.total_of(ordered, series)
    if samples is not None and samples.steps is not None:
        steps = samples.steps[samples.steps != NO_STEP]
        if len(steps):
            lowest, highest = int(steps.min()), int(steps.max())
    return Summary(
        count,
        count if samples is None else len(samples),
        finite_count,
        first_ns,
        last_ns,
        first,
        last,
        header["value_min"],
        header["value_max"],
        header["value_sum"],
        *ends,
        growth,
        lowest,
        highest,
    )


def _finite_ends(samples: Samples) -> _Ends:
    """Return times and values of the first and last finite points; the input is in time order."""
    finite = np.isfinite(samples.values)
    if not finite.any():
        return None, None, None, None
    first, last = int(np.argmax(finite)), len(finite) - 1 - int(np.argmax(finite[::-1]))
    times, values = samples.times_ns, samples.values
    return int(times[first]), int(times[last]), float(values[first]), float(values[last])


def joined(earlier: Summary, later: Summary, series: SeriesRecord) -> Summary:
    """Return the summary of points that were written one after the other.

    The growth of a counter whose readings go back in time is unknown (`lacks_growth`).
    """
    # Among points of the same time, the order of writing decides which is first and last.
    first = earlier if earlier.first_ns <= later.first_ns else later
    last = later if later.last_ns >= earlier.last_ns else earlier
    if earlier.first_finite_ns is None or later.first_finite_ns is None:
        first_finite = last_finite = later if earlier.first_finite_ns is None else earlier
    else:
        first_finite = earlier if earlier.first_finite_ns <= later.first_finite_ns else later
        is_later = (later.last_finite_ns or 0) >= (earlier.last_finite_ns or 0)
        last_finite = later if is_later else earlier
    return Summary(
        earlier.count + later.count,
        earlier.stored_count + later.stored_count,
        earlier.finite_count + later.finite_count,
        first.first_ns,
        last.last_ns,
        first.first,
        last.last,
        _of(min, earlier.minimum, later.minimum),
        _of(max, earlier.maximum, later.maximum),
        _of(_sum, earlier.total, later.total),
        first_finite.first_finite_ns,
        last_finite.last_finite_ns,
        first_finite.first_finite,
        last_finite.last_finite,
        _growth(earlier, later, series),
        _of(min, earlier.lowest_step, later.lowest_step),
        _of(max, earlier.highest_step, later.highest_step),
    )


def _growth(earlier: Summary, later: Summary, series: SeriesRecord) -> float | None:
    if series.kind is not SeriesKind.COUNTER:
        return None
    if earlier.last_finite is None or later.first_finite is None:
        return later.growth if earlier.last_finite is None else earlier.growth
    assert earlier.last_finite_ns is not None
    assert later.first_finite_ns is not None
    if (
        later.first_finite_ns < earlier.last_finite_ns
        or lacks_growth(earlier, series)
        or lacks_growth(later, series)
    ):
        return None
    between = counters.increase(earlier.last_finite, later.first_finite, series.wraps_at)
    return (earlier.growth or 0.0) + between + (later.growth or 0.0)


def lacks_growth(summary: Summary, series: SeriesRecord) -> bool:
    """Return whether a counter's growth can only be computed from its points."""
    return series.kind is SeriesKind.COUNTER and summary.finite_count > 1 and summary.growth is None


def _of(
    choose: Callable[[NumberT, NumberT], NumberT], earlier: NumberT | None, later: NumberT | None
) -> NumberT | None:
    if earlier is None or later is None:
        return later if earlier is None else earlier
    return choose(earlier, later)


def _sum(earlier: float, later: float) -> float:
    """Return the sum, infinite on overflow as in `radt.store.chunks`; never NaN."""
    total = earlier + later
    return total if math.isfinite(total) else math.inf


# -- writing --------------------------------------------------------------------------------------


def add(
    connection: Connection,
    run_id: str,
    new: Mapping[int, Summary],
    series: Mapping[int, SeriesRecord],
) -> None:
    """Add points that were just stored to the summaries of their series.

    Args:
        connection: A transaction that excludes other writers of the run's points.
        run_id: The run.
        new: The summary of the new points by series number.
        series: The run's series by number.
    """
    if not new:
        return
    span: dict[str, Value] = {"run_id": run_id, "lowest": min(new), "highest": max(new)}
    known = {row[0]: SUMMARIES.read(row[1:]) for row in connection.execute(_OF_RUN, span).all()}
    changed, unordered = {}, []
    for number, summary in new.items():
        record, earlier = series[number], known.get(number)
        both = summary if earlier is None else joined(earlier, summary, record)
        if lacks_growth(both, record):
            unordered.append(record)
        else:
            changed[number] = both
    put(connection, run_id, changed)
    again(connection, run_id, unordered)


def put(connection: Connection, run_id: str, summaries: Mapping[int, Summary]) -> None:
    """Insert or replace summaries of a run's series by number."""
    if summaries:
        rows = [
            {"run_id": run_id, "series_no": number, **SUMMARIES.row(summary)}
            for number, summary in summaries.items()
        ]
        tables.execute_rows(connection, SUMMARIES.upsert, rows)


def again(connection: Connection, run_id: str, series: Sequence[SeriesRecord]) -> None:
    """Compute the summaries of series from their chunks again, and store them."""
    put(connection, run_id, of_chunks(connection, run_id, series))


def delete(connection: Connection, run_id: str) -> None:
    """Delete all summaries of a run."""
    connection.execute(_DELETE, {"run_id": run_id})


def of_chunks(
    connection: Connection, run_id: str, series: Sequence[SeriesRecord]
) -> dict[int, Summary]:
    """Compute the summaries of series from their chunks; return them by number.

    The header of a thinned chunk describes all of its original points, and the points that are left
    include all falls of a counter. Of a damaged chunk, only the header is used; a counter's growth
    is then unknown.
    """
    wanted = {record.series_no: record for record in series}
    if not wanted:
        return {}
    row: dict[str, Any] = {
        "run_id": run_id,
        "counters": [n for n, record in wanted.items() if record.kind is SeriesKind.COUNTER],
        "series_no": min(wanted) - 1,
        "chunk_no": _AFTER_ALL,
        "highest": max(wanted),
        "some": _CHUNKS_AT_A_TIME,
    }
    summaries: dict[int, Summary] = {}
    while page := connection.execute(_CHUNKS, row).all():
        for stored in page:
            record = wanted.get(stored.series_no)
            if record is None:
                continue
            later = _of_chunk(stored, record)
            earlier = summaries.get(record.series_no)
            summaries[record.series_no] = (
                later if earlier is None else joined(earlier, later, record)
            )
        row |= {"series_no": page[-1].series_no, "chunk_no": page[-1].chunk_no}
    for number, summary in summaries.items():
        if lacks_growth(summary, wanted[number]):
            summaries[number] = replace(summary, growth=_read_growth(connection, wanted[number]))
    return summaries


def _of_chunk(stored: Any, series: SeriesRecord) -> Summary:
    header = dict(zip(chunks.HEADER, stored[1:], strict=False))
    data = EncodedSamples._make(stored[2 + len(chunks.HEADER) :])
    samples = None
    if data.values is not None and data.times is not None:
        with suppress(CodecError):  # `radt db check --deep` reports it
            samples = decode([data])
    return replace(summary_of(header, samples, series), stored_count=data.point_count)


def _read_growth(connection: Connection, series: SeriesRecord) -> float | None:
    stored = chunks_between(connection, series.run_id, series.series_no, None, None)
    if any(chunk.times is None for chunk in stored.chunks):
        return None
    try:
        return counters.total_of(chunks.time_sorted(stored.decode()), series)
    except CodecError:
        return None


def complete(backend: Backend, engine: Engine) -> None:
    """Compute the missing summaries of all runs, one run per transaction. May be interrupted."""
    while True:
        with engine.begin() as connection:
            run_id = connection.execute(tables.INCOMPLETE).scalar()
            if run_id is None:
                return
            backend.lock_run(connection, run_id)
            delete(connection, run_id)
            again(connection, run_id, tables.declared_series(connection, run_id))
            connection.execute(_COMPLETE, {"run_id": run_id})


# -- reading --------------------------------------------------------------------------------------


def read(
    connection: Connection, run_ids: Sequence[str], metrics: Sequence[str] | None = None
) -> list[SeriesSummary]:
    """Return the summaries of a few hundred runs, by run and number of the series.

    `metrics` selects metrics; None for all.
    """
    statement, row = _READ, {"ids": list(run_ids)}
    if metrics is not None:
        statement, row = _READ_METRICS, row | {"metrics": list(metrics)}
    width = len(SUMMARIES.fields)
    return [
        SeriesSummary(*SUMMARIES.values(each[:width]), SERIES.read(each[width:]))  # type: ignore[call-arg]
        for each in connection.execute(statement, row).all()
    ]
