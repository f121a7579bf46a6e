"""Decode everything in a store, and compare what comes out with what its headers say."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from sqlalchemy import Row, text

from radt.errors import CodecError
from radt.model import SOFTWARE
from radt.store import chunks
from radt.store.check import Finding, Trouble
from radt.store.reader import StoreReader
from radt.store.records import Int64Array, Samples

_CHUNKS_AT_A_TIME = 256
#: Sums of the same numbers in another order differ in the last digits.
_TOLERANCE = 1e-9
#: Of so many times of a series one is remembered.
_ONE_OF = 16

_REMEDY = "Restore the run from its archive (`radt import`) or the store from a backup"
_HEADER = (
    *("point_count", "finite_count", "first_ns", "last_ns", "first_value", "last_value"),
    *("value_min", "value_max", "value_sum"),
)
#: What a chunk that was thinned has kept of its extremes and ends.
_KEPT = ("first_ns", "last_ns", "first_value", "last_value", "value_min", "value_max")
_NEXT = text(
    f"SELECT {chunks.DATA_COLUMNS}, run_id, series_no, kept_count, "  # noqa: S608 - our own names
    f"{', '.join(f'{name} AS said_{name}' for name in _HEADER)}, "
    "(SELECT listener FROM series WHERE series.run_id = chunk.run_id "
    "AND series.series_no = chunk.series_no) AS listener FROM chunk "
    "WHERE (run_id, series_no, chunk_no) > (:run_id, :series_no, :chunk_no) "
    "ORDER BY run_id, series_no, chunk_no LIMIT :some"
)


class _Times:
    """Times of one series so far: a listener reads nothing twice at one instant.

    Of chunks before the last one, one time of some is kept, the same whenever it comes again.
    """

    def __init__(self) -> None:
        self._start(None)

    def _start(self, series: tuple[str, int] | None) -> None:
        self._series = series
        self._last_chunk: Int64Array = np.empty(0, dtype=np.int64)
        self._some: list[Int64Array] = []
        self._latest_ns = -(2**63)

    def seen(self, series: tuple[str, int], samples: Samples) -> int:
        """How many points of the next chunk are there already, about."""
        if series != self._series:
            self._start(series)
        times_ns = np.unique(samples.times_ns)
        twice = len(samples) - len(times_ns)
        some = times_ns[(times_ns ^ (times_ns >> 13)) % _ONE_OF == 0]
        if times_ns[0] <= self._latest_ns:
            near = len(np.intersect1d(times_ns, self._last_chunk, assume_unique=True))
            far = len(np.intersect1d(some, np.concatenate(self._some))) * _ONE_OF
            twice += near or min(far, len(times_ns))
        self._some.append(some)
        self._last_chunk = times_ns
        self._latest_ns = max(self._latest_ns, int(times_ns[-1]))
        return twice


def check_deep(
    reader: StoreReader, progress: Callable[[int], object] = lambda _points: None
) -> Iterator[Finding]:
    """Chunks that cannot be decoded, or whose header is wrong, and points that are there twice.

    Args:
        progress: Told now and then how many points were read.

    Raises:
        StoreError: The store cannot be read.
    """
    key: dict[str, Any] = {"run_id": "", "series_no": -1, "chunk_no": -1}
    before = _Times()
    done = 0
    while True:
        with reader.snapshot() as connection:
            rows = connection.execute(_NEXT, key | {"some": _CHUNKS_AT_A_TIME}).all()
        for row in rows:
            yield from _check_chunk(row, before)
            done += int(row.point_count)
        if not rows:
            return
        progress(done)
        last = rows[-1]
        key = {"run_id": last.run_id, "series_no": last.series_no, "chunk_no": last.chunk_no}


def _check_chunk(row: Row[Any], before: _Times) -> Iterator[Finding]:
    subject = f"run {row.run_id}, series {row.series_no}, chunk {row.chunk_no}"
    if row.time_data is None:
        return  # `check` says so
    try:
        samples = chunks.ChunkData._make(row[: len(chunks.ChunkData._fields)]).samples()
    except CodecError as error:
        yield Finding(Trouble.DAMAGED, subject, error.message, _REMEDY, row.run_id)
        return
    found = chunks.header_of(samples)
    for name in _HEADER if row.kept_count is None else _KEPT:
        said = getattr(row, f"said_{name}")
        really: Any = found[name]
        if not _same(said, really):
            yield Finding(
                Trouble.HEADER,
                subject,
                f"its {name} is {said}, of its points it is {really}",
                _REMEDY,
                row.run_id,
            )
    if row.listener in (SOFTWARE, None):
        return  # a script may log the same again
    if twice := before.seen((row.run_id, row.series_no), samples):
        yield Finding(
            Trouble.DOUBLED, subject, f"about {twice:,} points are there twice", _REMEDY, row.run_id
        )


def _same(said: Any, found: Any) -> bool:
    if said is None or found is None or isinstance(found, int):
        return bool(said == found)
    return math.isclose(said, found, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
