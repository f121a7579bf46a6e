"""Every sample of runs, as `radt.load` gives them, in bounded memory however long a series is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from radt.errors import UsageError
from radt.frontend.chosen import Chosen
from radt.frontend.export.tables import label
from radt.frontend.metrics import series_of
from radt.frontend.source import Source
from radt.store.reader import StoreReader
from radt.store.records import RunRecord, Samples, SummaryRecord

if TYPE_CHECKING:
    import pyarrow as pa

#: Points read at once: 1.5 MB of samples, some 14 MB as text.
SLICE_POINTS = 64 * 1024
#: Larger files are for `radt export`, which needs no browser to wait.
MAX_ROWS = 200_000_000
_GROWTH = 4.0

_WHOSE = ("run_id", "experiment", "workload", "letter", "name")


@cache
def full_schema() -> pa.Schema:
    """The columns of `radt.load` for several runs, and what the runs are called."""
    import pyarrow as pa  # not above: it takes half a second, and most never export

    from radt.store.tidy import SCHEMA, pandas_notes

    fields = (*(pa.field(name, SCHEMA.field("metric").type) for name in _WHOSE), *SCHEMA)
    return pa.schema(fields, metadata=pandas_notes(fields))


@dataclass(frozen=True, slots=True)
class Full:
    """What there is of some metrics: ``rows`` in all, and the series with any."""

    summaries: tuple[SummaryRecord, ...]
    rows: int


def measure(source: Source, chosen: Chosen, metrics: Sequence[str]) -> Full:
    """How much there is of the metrics of the runs.

    Raises:
        UsageError: There is nothing, or more than `MAX_ROWS`.
        StoreError: The store cannot be read.
    """
    run_ids = tuple(chosen.runs)
    known = series_of(source, run_ids)
    wanted = {(one.run_id, one.series_no) for metric in metrics for one in known.get(metric, ())}
    summaries = source.remember(("summary", run_ids), lambda reader: reader.summary(run_ids))
    having = [one for one in summaries if (one.series.run_id, one.series.series_no) in wanted]
    # In the order of `radt.load`: by run as given, then as recorded.
    places = {run_id: place for place, run_id in enumerate(run_ids)}
    having.sort(key=lambda one: (places[one.series.run_id], one.series.series_no))
    rows = sum(one.count for one in having)
    if not rows:
        raise UsageError(
            "the picked runs have no samples of this", "Pick other runs, or another chart"
        )
    if rows > MAX_ROWS:
        raise UsageError(
            f"{rows:,} samples are too many for a download",
            "Pick fewer runs, or use `radt export` on the machine of the store",
        )
    return Full(tuple(having), rows)


def full_tables(reader: StoreReader, chosen: Chosen, full: Full) -> Iterator[pa.Table]:
    """The samples, one series after the other.

    Raises:
        StoreError: The store cannot be read any more.
    """
    import pyarrow as pa

    from radt.store.tidy import tidy_table

    for summary in full.summaries:
        series = summary.series
        run = chosen.runs[series.run_id].record

        def read(
            start_ns: int, end_ns: int, number: int = series.series_no, of: RunRecord = run
        ) -> Samples:
            return reader.samples(of.run_id, number, start_ns=start_ns, end_ns=end_ns)

        for samples in slices(read, summary.first_ns, summary.last_ns, summary.count):
            table = tidy_table(run, [series], [samples])
            whose = [label(str(getattr(run, name)), len(table)) for name in _WHOSE]
            yield pa.table([*whose, *table.columns], schema=full_schema())


def slices(
    read: Callable[[int, int], Samples], first_ns: int, last_ns: int, count: int
) -> Iterator[Samples]:
    """The points from ``first_ns`` to ``last_ns`` in order of time, some `SLICE_POINTS` at once.

    ``read`` gives the points from one time to another, both included. Where points are denser or
    rarer than on average, the stretches read become shorter or longer.
    """
    span_ns = last_ns - first_ns + 1
    pieces = max(1, -(-count // SLICE_POINTS))
    length_ns = max(1, -(-span_ns // pieces))
    start_ns = first_ns
    while start_ns <= last_ns:
        end_ns = min(last_ns, start_ns + length_ns - 1)
        samples = read(start_ns, end_ns)
        if len(samples):
            yield samples
        start_ns = end_ns + 1
        growth = min(_GROWTH, SLICE_POINTS / max(1, len(samples)))
        length_ns = max(1, round(length_ns * growth))
