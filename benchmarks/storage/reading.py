"""One very long series: a chart of all of it, of a hundredth, and of its mean."""

from __future__ import annotations

import time

from benchmarks.results import Bar, Findings, Table
from benchmarks.storage.data import RUN_ID, middle, realistic, series
from benchmarks.storage.places import Kind, Places
from benchmarks.timing import median_s
from radt.store.reader import StoreReader
from radt.store.records import Samples, SeriesBatch
from radt.store.writer import StoreWriter

CHART_POINTS = 2000
MOST_WHOLE_S = 0.5
MOST_ZOOM_S = 0.05


def measure(places: Places, points: int) -> Findings:
    """Measure the same series in both databases."""
    samples = realistic(1, points)
    table = Table(
        f"A series of {points:,} points, to {CHART_POINTS:,} of a chart, in ms",
        ("", *Kind),
        note="Checksums are verified, and the extremes of every stretch are among the points.",
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
    first_ns, last_ns = middle(samples)
    with StoreReader(address) as reader:
        start = time.perf_counter()
        reader.envelope(RUN_ID, 0, max_points=CHART_POINTS)
        cold_s = time.perf_counter() - start
        times = {
            "whole": median_s(lambda: reader.envelope(RUN_ID, 0, max_points=CHART_POINTS)),
            "whole, the first time": cold_s,
            "1 %": median_s(
                lambda: reader.envelope(
                    RUN_ID, 0, start_ns=first_ns, end_ns=last_ns, max_points=CHART_POINTS
                )
            ),
            "whole, 400 points": median_s(lambda: reader.envelope(RUN_ID, 0, max_points=400)),
            "every point": median_s(lambda: reader.samples(RUN_ID, 0), 3),
            "mean and extremes": median_s(lambda: reader.summary([RUN_ID])),
        }
    places.drop(kind, name)
    return times
