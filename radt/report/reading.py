"""Windows of many series at once.

An experiment may have ten thousand runs: with a statement for each of their series, a report would
take a minute, of a database on another machine an hour. Here some hundred runs share a statement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from sqlalchemy import Connection, bindparam, text

from radt.model import MarkerKind
from radt.report.stretches import Stretch, Within
from radt.store import chunks
from radt.store.decoding import decoded
from radt.store.fetching import fetch
from radt.store.reader import StoreReader
from radt.store.records import MarkerRecord, Samples, SeriesRecord
from radt.store.tables import MARKERS, SERIES, Value

#: Databases limit the parameters of one statement (SQLite before 3.32: 999).
RUNS_PER_STATEMENT = 400
_CHUNKS_PER_STATEMENT = 400

ItemT = TypeVar("ItemT")

#: A run and a series' number in it.
Key = tuple[str, int]

_SERIES = text(
    f"{SERIES.select} WHERE run_id IN :ids AND metric IN :metrics ORDER BY run_id, series_no"
).bindparams(bindparam("ids", expanding=True), bindparam("metrics", expanding=True))
_EPOCHS = text(
    f"{MARKERS.select} WHERE run_id IN :ids AND kind = :kind AND process = '' "
    "AND end_ns IS NOT NULL ORDER BY run_id, start_ns, marker_no"
).bindparams(bindparam("ids", expanding=True), kind=MarkerKind.EPOCH.value)
_MARKED = text(
    "SELECT run_id, start_ns, end_ns FROM marker WHERE run_id IN :ids AND kind IN :kinds "
    "AND name = :name AND process = '' AND end_ns IS NOT NULL ORDER BY run_id, start_ns, marker_no"
).bindparams(bindparam("ids", expanding=True), bindparam("kinds", expanding=True))
_MARKED_NAMES = text(
    "SELECT run_id, kind, name FROM marker WHERE run_id IN :ids AND kind IN :kinds "
    "AND process = '' AND end_ns IS NOT NULL GROUP BY run_id, kind, name "
    "ORDER BY run_id, MIN(start_ns), name"
).bindparams(bindparam("ids", expanding=True), bindparam("kinds", expanding=True))
_HEADERS = text(
    "SELECT c.run_id, c.series_no, c.chunk_no, c.finite_count, "
    "CASE WHEN ABS(c.value_sum) >= 1e300 THEN :infinity ELSE c.value_sum END, "
    "c.value_max, c.first_ns, c.last_ns "
    "FROM series s JOIN chunk c ON c.run_id = s.run_id AND c.series_no = s.series_no "
    "WHERE s.run_id IN :ids AND s.metric IN :metrics "
    "ORDER BY c.run_id, c.series_no, c.chunk_no"
).bindparams(
    bindparam("ids", expanding=True), bindparam("metrics", expanding=True), infinity=math.inf
)


@dataclass(frozen=True, slots=True)
class Seen:
    """The finite values of a series within stretches of time: mean and highest."""

    mean: float
    peak: float


class _Header(NamedTuple):
    key: Key
    chunk_no: int
    finite_count: int
    total: float
    largest: float | None
    first_ns: int
    last_ns: int


def series_of(
    reader: StoreReader, run_ids: Sequence[str], metrics: Sequence[str]
) -> dict[str, list[SeriesRecord]]:
    """The series of these metrics, by run; runs without any have none.

    Raises:
        StoreError: The store cannot be read.
    """
    found: dict[str, list[SeriesRecord]] = {run_id: [] for run_id in run_ids}
    for ids in _groups(run_ids, RUNS_PER_STATEMENT):
        with reader.snapshot() as connection:
            rows = connection.execute(_SERIES, {"ids": ids, "metrics": list(metrics)}).all()
        for record in map(SERIES.read, rows):
            found[record.run_id].append(record)
    return found


def epochs_of(reader: StoreReader, run_ids: Sequence[str]) -> dict[str, list[MarkerRecord]]:
    """The epochs that ended, of the runs' first processes, by run.

    Raises:
        StoreError: The store cannot be read.
    """
    found: dict[str, list[MarkerRecord]] = {run_id: [] for run_id in run_ids}
    for ids in _groups(run_ids, RUNS_PER_STATEMENT):
        with reader.snapshot() as connection:
            rows = connection.execute(_EPOCHS, {"ids": ids}).all()
        for marker in map(MARKERS.read, rows):
            found[marker.run_id].append(marker)
    return found


def marked_of(
    reader: StoreReader, run_ids: Sequence[str], name: str, kinds: Sequence[MarkerKind]
) -> dict[str, list[Stretch]]:
    """The phases or spans of a name that ended, of the runs' first processes, by run.

    Raises:
        StoreError: The store cannot be read.
    """
    found: dict[str, list[Stretch]] = {run_id: [] for run_id in run_ids}
    for ids in _groups(run_ids, RUNS_PER_STATEMENT):
        given = {"ids": ids, "name": name, "kinds": [kind.value for kind in kinds]}
        with reader.snapshot() as connection:
            rows = connection.execute(_MARKED, given).all()
        for run_id, start_ns, end_ns in rows:
            found[run_id].append((start_ns, end_ns))
    return found


def marked_names_of(
    reader: StoreReader, run_ids: Sequence[str], kinds: Sequence[MarkerKind]
) -> dict[str, list[str]]:
    """What phases or spans there are in runs, each name once, the first to begin first.

    Raises:
        StoreError: The store cannot be read.
    """
    found: dict[str, list[str]] = {run_id: [] for run_id in run_ids}
    for ids in _groups(run_ids, RUNS_PER_STATEMENT):
        given = {"ids": ids, "kinds": [kind.value for kind in kinds]}
        with reader.snapshot() as connection:
            rows = connection.execute(_MARKED_NAMES, given).all()
        for run_id, _, name in rows:
            if name not in found[run_id]:
                found[run_id].append(name)
    return found


def seen_within(
    reader: StoreReader, wanted: Mapping[Key, Within], metrics: Sequence[str]
) -> dict[Key, Seen]:
    """Mean and highest value of gauges, mostly from headers; series without values are left out.

    The mean is that of `radt.store.points.mean_between`, of thinned series too.

    Args:
        reader: The store.
        wanted: Which series, and when.
        metrics: All that they measure.

    Raises:
        CodecError: A chunk is damaged.
        StoreError: The store cannot be read.
    """
    weights: dict[Key, float] = {}
    totals: dict[Key, float] = {}
    peaks: dict[Key, float] = {}

    def add(key: Key, weight: float, total: float, peak: float | None) -> None:
        weights[key] = weights.get(key, 0.0) + weight
        totals[key] = totals.get(key, 0.0) + total
        if peak is not None:
            peaks[key] = max(peaks.get(key, -math.inf), peak)

    def is_cut(header: _Header) -> bool:
        within = wanted[header.key]
        met = header.finite_count and within.meets(header.first_ns, header.last_ns)
        return bool(met) and not within.holds(header.first_ns, header.last_ns)

    for header, chunk in _stored(reader, wanted, metrics, is_cut):
        within = wanted[header.key]
        if chunk is None:
            if header.finite_count and within.holds(header.first_ns, header.last_ns):
                add(header.key, header.finite_count, header.total, header.largest)
            continue
        samples = chunk.samples()
        finite = np.isfinite(samples.values)
        inside = finite & within.mask(samples.times_ns)
        if not inside.any():
            continue
        values = samples.values[inside]
        # Of a thinned chunk, what is left stands for all of it.
        weight = header.finite_count * float(inside.sum()) / float(finite.sum())
        add(header.key, weight, float(values.mean()) * weight, float(values.max()))
    return {
        key: Seen(mean, peaks[key])
        for key, weight in weights.items()
        if weight and key in peaks and math.isfinite(mean := totals[key] / weight)
    }


def points_of(
    reader: StoreReader, wanted: Sequence[Key], metrics: Sequence[str]
) -> dict[Key, Samples]:
    """All points of series, in time order; series without points are left out.

    Args:
        reader: The store.
        wanted: Which series.
        metrics: All that they measure.

    Raises:
        CodecError: A chunk is damaged.
        StoreError: The store cannot be read.
    """
    parts: dict[Key, list[Samples]] = {}
    for header, chunk in _stored(reader, dict.fromkeys(wanted), metrics, lambda _: True):
        if chunk is not None:
            parts.setdefault(header.key, []).append(decoded([chunk]))
    return {key: chunks.time_sorted(chunks.joined(found)) for key, found in parts.items()}


def _stored(
    reader: StoreReader,
    wanted: Collection[Key],
    metrics: Sequence[str],
    is_cut: Callable[[_Header], bool],
) -> Iterator[tuple[_Header, chunks.ChunkData | None]]:
    """Headers of series, with the data of those that are cut; of one state of the store each."""
    run_ids = list(dict.fromkeys(run_id for run_id, _ in wanted))
    for ids in _groups(run_ids, RUNS_PER_STATEMENT):
        with reader.snapshot() as connection:
            rows = connection.execute(_HEADERS, {"ids": ids, "metrics": list(metrics)}).all()
            headers = [_header(row) for row in rows if (row[0], row[1]) in wanted]
            cut = [header for header in headers if is_cut(header)]
            data = {
                header: chunk
                for some in _groups(cut, _CHUNKS_PER_STATEMENT)
                for header, chunk in _fetched(connection, some)
            }
        for header in headers:
            yield header, data.get(header)


def _header(row: Any) -> _Header:
    run_id, series_no, chunk_no, finite, total, largest, first_ns, last_ns = row
    key = (run_id, series_no)
    return _Header(key, chunk_no, finite or 0, float(total or 0.0), largest, first_ns, last_ns)


def _fetched(
    connection: Connection, headers: Sequence[_Header]
) -> list[tuple[_Header, chunks.ChunkData]]:
    # The databases' common way to look up many keys at once. Whole numbers stand in the text.
    values = ", ".join(
        f"({place}, :run{place}, {int(header.key[1])}, {int(header.chunk_no)})"
        for place, header in enumerate(headers)
    )
    statement = text(
        f"WITH wanted(place, of_run, of_series, of_chunk) AS (VALUES {values}) "  # noqa: S608
        f"SELECT place, {chunks.DATA_COLUMNS} FROM wanted JOIN chunk "
        "ON chunk.run_id = of_run AND chunk.series_no = of_series AND chunk.chunk_no = of_chunk "
        "ORDER BY place"
    )
    parameters: dict[str, Value] = {
        f"run{place}": header.key[0] for place, header in enumerate(headers)
    }
    rows = fetch(connection, statement, parameters, (int, *chunks.DATA_KINDS))
    return [(headers[int(row[0] or 0)], chunks.ChunkData._make(row[1:])) for row in rows]


def _groups(items: Sequence[ItemT], size: int) -> Iterator[list[ItemT]]:
    for start in range(0, len(items), size):
        yield list(items[start : start + size])
