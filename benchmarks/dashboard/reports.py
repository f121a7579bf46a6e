"""The report of many workloads of one run each: CPU time of the server, at first and later.

The page reads a report again at each change of the store; ended workloads come from its cache.
"""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.dashboard.stores import EXPERIMENT, Size
from benchmarks.results import Bar, Findings, Table
from radt.analysis.report import ReportCache, read_report
from radt.store.reader import StoreReader

MOST_AGAIN_S = 2.0


def measure(folder: Path, size: Size) -> Findings:
    """Time a report without and with the cache of workloads that have ended."""
    times_s = []
    with StoreReader(folder / "searched" / "radt.db") as reader:
        cache = ReportCache()
        for _ in range(2):
            began_s = time.process_time()
            read_report(reader, EXPERIMENT, cache=cache)
            times_s.append(time.process_time() - began_s)
    first_s, again_s = times_s
    table = Table(
        f"Report of {size.runs:,} workloads of one run, seconds of the server's CPU",
        ("", "s"),
        [("of a new server", f"{first_s:.1f}"), ("after a change of the store", f"{again_s:.1f}")],
    )
    promise = f"{size.runs:,} runs: report with its cache in {MOST_AGAIN_S:g} s of CPU"
    bar = Bar(promise, f"{again_s:.1f} s", again_s <= MOST_AGAIN_S)
    return Findings([table], [bar])
