"""Runs and workloads that are hidden in all charts: kept in the view's options.

An option's text is short, so that a long list takes several: ``compare.hidden``,
``compare.hidden2`` and so on, each of keys as those of lines begin, ``r…`` for runs, ``w…`` for
workloads.
"""

from __future__ import annotations

from radt.frontend.charts.lines import feeds
from radt.frontend.chosen import Chosen
from radt.frontend.metrics import series_of
from radt.frontend.picks import ID_DIGITS
from radt.frontend.source import Source
from radt.frontend.view import View

_OPTION = "compare.hidden"


def hidden_keys(source: Source, chosen: Chosen, view: View, metric: str) -> tuple[str, ...]:
    """The keys of a metric's lines that are hidden because of their run or workload.

    Raises:
        StoreError: The store cannot be read.
    """
    hidden = {
        key
        for name, text in view.options.items()
        if name.startswith(_OPTION)
        for key in text.split(",")
    }
    if not hidden:
        return ()
    found: list[str] = []
    for feed in feeds(chosen.runs, series_of(source, tuple(chosen.runs)).get(metric, ())):
        run = feed.parts[0][0]
        workload = f"w{run.record.workload_id[:ID_DIGITS]}"
        if workload in hidden:
            # What was measured of the runs, and the workload's own line.
            found += [feed.key, workload, f"{workload}@{feed.listener}"]
        elif f"r{run.run_id[:ID_DIGITS]}" in hidden and feed.key.startswith("r"):
            found.append(feed.key)
    return tuple(dict.fromkeys(found))
