"""The Runs page with many runs: the server's time per request."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.dashboard.stores import EXPERIMENT, Size
from benchmarks.results import Bar, Findings, Table
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.spec import Pick
from radt.frontend.pages.runs import answer
from radt.frontend.view import View

MOST_CLICK_S, MOST_REQUEST_S = 0.2, 0.05
_REPEAT = 7

#: Possible searches, orders and groups; the first reads the metrics and parameters of all runs.
_VIEWS = {
    "all runs": View(),
    "status:finished": View(search="status:finished"),
    "a word": View(search="train"),
    "three terms": View(search="train -status:failed duration>10s"),
    "three terms on metrics": View(search="accuracy.max > 0.9 lr < 1e-3 state = finished"),
    "sorted by duration": View(options={"runs.sort": "-duration"}),
    "sorted by two columns": View(options={"runs.sort": "param.model,-accuracy.max"}),
    "grouped by a parameter": View(options={"runs.group": "param.model"}),
    "in a flat list": View(options={"runs.group": "none", "runs.sort": "-accuracy.max"}),
    "picked: everything": View(picks=(Pick(EXPERIMENT),)),
}


def measure(folder: Path, size: Size) -> Findings:
    """Time requests on the server, first and repeated."""
    found = Findings()
    table, clicks_s, again_s = _requests(folder / "many" / "radt.db", size)
    found.tables.append(table)
    for promise, times_s, most_s in (
        ("searched, sorted or grouped", clicks_s, MOST_CLICK_S),
        ("rows asked for again", again_s, MOST_REQUEST_S),
    ):
        found.bars.append(
            Bar(
                f"{size.runs:,} runs, {promise}: {most_s * 1e3:.0f} ms",
                f"{max(times_s) * 1e3:.0f} ms",
                max(times_s) <= most_s,
            )
        )
    return found


def _requests(path: Path, size: Size) -> tuple[Table, list[float], list[float]]:
    """Return the times of requests, from the view to JSON.

    Also those of the first request of each view after the first, and of repeated ones, in seconds.
    """
    table = Table(f"Rows of {size.runs:,} runs, ms on the server", ("", "first", "again", "KB"))
    source = CachedStore(path)
    source.revision()
    clicks_s, repeated_s = [], []
    for name, view in _VIEWS.items():
        first_s, text = _timed(source, view)
        again_s = statistics.median(_timed(source, view)[0] for _ in range(_REPEAT))
        clicks_s.append(first_s)
        repeated_s.append(again_s)
        row = (name, f"{first_s * 1e3:.0f}", f"{again_s * 1e3:.0f}", f"{len(text) / 1e3:.0f}")
        table.rows.append(row)
    source.close()
    return table, clicks_s[1:], repeated_s


def _timed(source: CachedStore, view: View) -> tuple[float, str]:
    ask: dict[str, Any] = {"view": view.to_json(), "start": 0, "count": 120}
    began = time.perf_counter()
    text = json.dumps(answer(source, ask))
    return time.perf_counter() - began, text
