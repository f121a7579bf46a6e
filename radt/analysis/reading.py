"""Read series, markers and samples of many runs with few statements.

An experiment may have ten thousand runs. With a statement for each of their series, a report would
take a minute, or an hour with a database on another machine. So a few hundred runs share one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from sqlalchemy import Connection

from radt.analysis.stretches import Stretch, Within
from radt.model import MarkerKind
from radt.store import chunks
from radt.store.codec import EncodedSamples, decode
from radt.store.points import fetch
from radt.store.reader import StoreReader
from radt.store.records import MarkerRecord, Samples, SeriesRecord
from radt.store.tables import MARKERS, Value, of_runs

#: Databases limit the parameters of one statement (SQLite before 3.32: 999).
_RUNS_PER_STATEMENT = 400
_CHUNKS_PER_STATEMENT = 400

ItemT = TypeVar("ItemT")

#: A run and a series' number in it.
Key = tuple[str, int]


_EPOCHS = of_runs(
    f"{MARKERS.select} WHERE run_id IN :ids AND kind = :kind AND process = '' "
    "AND end_ns IS NOT NULL ORDER BY run_id, start_ns, marker_no",
    kind=MarkerKind.EPOCH.value,
)
_MARKED = of_runs(
    "SELECT run_id, start_ns, end_ns FROM marker WHERE run_id IN :ids AND kind IN :kinds "
    "AND name = :name AND process = '' AND end_ns IS NOT NULL ORDER BY run_id, start_ns, marker_no",
    "kinds",
)
_MARKED_NAMES = of_runs(
    "SELECT run_id, kind, name FROM marker WHERE run_id IN :ids AND kind IN :kinds "
    "AND process = '' AND end_ns IS NOT NULL GROUP BY run_id, kind, name "
    "ORDER BY run_id, MIN(start_ns), name",
    "kinds",
)
_HEADERS = of_runs(
    "SELECT c.run_id, c.series_no, c.chunk_no, c.finite_count, "
    "CASE WHEN ABS(c.value_sum) >= 1e300 THEN :infinity ELSE c.value_sum END, "
    "c.value_max, c.first_ns, c.last_ns "
    "FROM series s JOIN chunk c ON c.run_id = s.run_id AND c.series_no = s.series_no "
    "WHERE s.run_id IN :ids AND s.metric IN :metrics "
    "ORDER BY c.run_id, c.series_no, c.chunk_no",
    "metrics",
    infinity=math.inf,
)


@dataclass(frozen=True, slots=True)
class GaugeStats:
    """Mean and highest finite value of a series within stretches of time."""

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
    """Return the series of these metrics by run; every run has an entry.

    Raises:
        StoreError: The store cannot be read.
    """
    return _by_run(run_ids, ((record.run_id, record) for record in reader.series(run_ids, metrics)))


def epochs_of(reader: StoreReader, run_ids: Sequence[str]) -> dict[str, list[MarkerRecord]]:
    """Return the ended epochs of each run's first process, by run.

    Raises:
        StoreError: The store cannot be read.
    """
    markers = map(MARKERS.read, reader.rows_of(_EPOCHS, run_ids))
    return _by_run(run_ids, ((marker.run_id, marker) for marker in markers))


def marked_of(
    reader: StoreReader, run_ids: Sequence[str], name: str, kinds: Sequence[MarkerKind]
) -> dict[str, list[Stretch]]:
    """Return the ended phases or spans with a name of each run's first process, by run.

    Raises:
        StoreError: The store cannot be read.
    """
    values = [kind.value for kind in kinds]
    rows = reader.rows_of(_MARKED, run_ids, name=name, kinds=values)
    return _by_run(run_ids, ((run_id, (start_ns, end_ns)) for run_id, start_ns, end_ns in rows))


def marked_names_of(
    reader: StoreReader, run_ids: Sequence[str], kinds: Sequence[MarkerKind]
) -> dict[str, list[str]]:
    """Return the names of each run's phases or spans, ordered by their first start, by run.

    Raises:
        StoreError: The store cannot be read.
    """
    values = [kind.value for kind in kinds]
    rows = reader.rows_of(_MARKED_NAMES, run_ids, kinds=values)
    names = _by_run(run_ids, ((run_id, name) for run_id, _, name in rows))
    return {run_id: list(dict.fromkeys(own)) for run_id, own in names.items()}


def _by_run(run_ids: Sequence[str], pairs: Iterable[tuple[str, ItemT]]) -> dict[str, list[ItemT]]:
    """Group items by run id; every run has an entry."""
    by_run: dict[str, list[ItemT]] = {run_id: [] for run_id in run_ids}
    for run_id, item in pairs:
        by_run[run_id].append(item)
    return by_run


def gauge_stats(
    reader: StoreReader, wanted: Mapping[Key, Within], metrics: Sequence[str]
) -> dict[Key, GaugeStats]:
    """Return mean and highest value of gauges, mostly from chunk headers.

    Series without finite values are left out. The mean of a thinned series is exact at the edges of
    the stretches (`radt.store.pruning`); elsewhere a chunk's remaining points represent all of it.

    Args:
        reader: The store.
        wanted: The series, with their stretches.
        metrics: All metrics of these series.

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
        samples = decode([chunk])
        finite = np.isfinite(samples.values)
        inside = finite & within.mask(samples.times_ns)
        if not inside.any():
            continue
        values = samples.values[inside]
        # The remaining points of a thinned chunk represent all of it.
        weight = header.finite_count * float(inside.sum()) / float(finite.sum())
        add(header.key, weight, float(values.mean()) * weight, float(values.max()))
    return {
        key: GaugeStats(mean, peaks[key])
        for key, weight in weights.items()
        if weight and key in peaks and math.isfinite(mean := totals[key] / weight)
    }


def points_of(
    reader: StoreReader, wanted: Sequence[Key], metrics: Sequence[str]
) -> dict[Key, Samples]:
    """Return all points of series in time order; series without points are left out.

    Args:
        reader: The store.
        wanted: The series.
        metrics: All metrics of these series.

    Raises:
        CodecError: A chunk is damaged.
        StoreError: The store cannot be read.
    """
    parts: dict[Key, list[Samples]] = {}
    for header, chunk in _stored(reader, dict.fromkeys(wanted), metrics, lambda _: True):
        if chunk is not None:
            parts.setdefault(header.key, []).append(decode([chunk]))
    return {key: chunks.time_sorted(chunks.joined(samples)) for key, samples in parts.items()}


def _stored(
    reader: StoreReader,
    wanted: Collection[Key],
    metrics: Sequence[str],
    is_cut: Callable[[_Header], bool],
) -> Iterator[tuple[_Header, EncodedSamples | None]]:
    """Yield the headers of series, with the data of chunks that are cut.

    Header and data come from one snapshot of the store.
    """
    run_ids = list(dict.fromkeys(run_id for run_id, _ in wanted))
    for ids in _groups(run_ids, _RUNS_PER_STATEMENT):
        with reader.snapshot() as connection:
            rows = connection.execute(_HEADERS, {"ids": ids, "metrics": list(metrics)}).all()
            headers = [_header(row) for row in rows if (row[0], row[1]) in wanted]
            cut = [header for header in headers if is_cut(header)]
            data = {
                header: chunk
                for group in _groups(cut, _CHUNKS_PER_STATEMENT)
                for header, chunk in _fetched(connection, group)
            }
        for header in headers:
            yield header, data.get(header)


def _header(row: Any) -> _Header:
    run_id, series_no, chunk_no, finite, total, largest, first_ns, last_ns = row
    key = (run_id, series_no)
    return _Header(key, chunk_no, finite or 0, float(total or 0.0), largest, first_ns, last_ns)


def _fetched(
    connection: Connection, headers: Sequence[_Header]
) -> list[tuple[_Header, EncodedSamples]]:
    # SQLite and Postgres both look up many keys fast this way. The keys are integers, so they can
    # be inlined.
    values = ", ".join(
        f"({place}, :run{place}, {int(header.key[1])}, {int(header.chunk_no)})"
        for place, header in enumerate(headers)
    )
    statement = (
        f"WITH wanted(place, of_run, of_series, of_chunk) AS (VALUES {values}) "  # noqa: S608
        f"SELECT place, {chunks.DATA_COLUMNS} FROM wanted JOIN chunk "
        "ON chunk.run_id = of_run AND chunk.series_no = of_series AND chunk.chunk_no = of_chunk "
        "ORDER BY place"
    )
    parameters: dict[str, Value] = {
        f"run{place}": header.key[0] for place, header in enumerate(headers)
    }
    rows = fetch(connection, statement, parameters, (int, *chunks.DATA_KINDS))
    return [(headers[int(row[0] or 0)], EncodedSamples._make(row[1:])) for row in rows]


def _groups(items: Sequence[ItemT], size: int) -> Iterator[list[ItemT]]:
    for start in range(0, len(items), size):
        yield list(items[start : start + size])
