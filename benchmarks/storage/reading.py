"""One very long series: a chart of all of it, of a hundredth, and of its mean."""

from __future__ import annotations

import time
from itertools import count

from benchmarks.results import Bar, Findings, Table
from benchmarks.storage.data import RUN_ID, middle, realistic, series
from benchmarks.storage.places import Kind, Places
from benchmarks.timing import median_s
from radt.frontend.data.series_cache import Ask, Tracks
from radt.store.reader import StoreReader
from radt.store.records import Samples, SeriesBatch
from radt.store.writer import StoreWriter

MOST_WHOLE_S = 0.5
MOST_ZOOM_S = 0.05


def measure(places: Places, points: int) -> Findings:
    """Measure the same series in both databases."""
    samples = realistic(1, points)
    table = Table(
        f"A series of {points:,} points, to the cells of a chart, in ms",
        ("", *Kind),
        note="Checksums are verified; each cell has the mean and the extremes of its points.",
    )
    found = Findings([table])
    columns = [_measure(places, kind, samples) for kind in Kind]
    for name in columns[0]:
        table.rows.append((name, *(f"{column[name] * 1e3:,.0f}" for column in columns)))
    for kind, column in zip(Kind, columns, strict=True):
        for name, promise, most_s in (
            ("whole", f"{points / 1e6:g} M points charted in 0.5 s, {kind}", MOST_WHOLE_S),
            ("1 %", f"a zoom of 1 % in 50 ms, {kind}", MOST_ZOOM_S),
        ):
            measured_s = column[name]
            found.bars.append(Bar(promise, f"{measured_s * 1e3:.0f} ms", measured_s <= most_s))
    return found


def _measure(places: Places, kind: Kind, samples: Samples) -> dict[str, float]:
    name = "long"
    address = places.new(kind, name)
    with StoreWriter(address) as writer:
        writer.add_series([series(0)])
        writer.append(RUN_ID, [SeriesBatch(0, samples)])
        writer.seal(RUN_ID)
    places.settle(kind, name)
    base_ns = int(samples.times_ns[0])
    start_ns, end_ns = middle(samples)
    shown = (start_ns - base_ns) / 1e9, (end_ns - base_ns) / 1e9
    turns = count()
    with StoreReader(address) as reader:

        def chart(tracks: Tracks, part: tuple[float, float] | None = None) -> None:
            tracks.cells(lambda: reader, Ask(series(0), base_ns, part), 0)

        def zoom(tracks: Tracks) -> None:
            """Zoom to another stretch each time: one that was seen is kept."""
            before_s = next(turns) * (shown[1] - shown[0])
            chart(tracks, (shown[0] - before_s, shown[1] - before_s))

        start = time.perf_counter()
        chart(Tracks())
        cold_s = time.perf_counter() - start
        known = Tracks()
        times = {
            "whole": median_s(lambda: chart(Tracks())),
            "whole, the first time": cold_s,
            "1 %": median_s(lambda: zoom(known)),
            "every point": median_s(lambda: reader.samples(RUN_ID, 0), 3),
            "mean and extremes": median_s(lambda: reader.summary([RUN_ID])),
        }
    places.drop(kind, name)
    return times
