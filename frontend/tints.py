"""Which colour a run has, on all pages: it follows from its experiment, not from what is selected.

Up to eight runs of an experiment have the eight colours, in their order. Where there are more, a
workload has a hue and its runs are shades of it. A whole workload has the colour of its first run,
so that lines of runs and of other workloads beside it never have the same.
"""

from __future__ import annotations

from radt.frontend.catalog import Catalog, RunEntry, read_catalog
from radt.frontend.palette import HUE_COUNT, SHADE_COUNT
from radt.frontend.source import Source


class Tints:
    """Places of colours, for `radt.frontend.palette.colour`."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def run(self, run: RunEntry) -> int:
        """The place of a run's colour.

        Raises:
            StoreError: The store cannot be read.
        """
        catalog = read_catalog(self._source, run.record.experiment)
        return tint(catalog, run.run_id, run)

    def workload(self, run: RunEntry) -> int:
        """The place of the colour of a run's workload.

        Raises:
            StoreError: The store cannot be read.
        """
        catalog = read_catalog(self._source, run.record.experiment)
        if run.workload_ordinal >= len(catalog.workloads):
            return self.run(run)
        first = catalog.workloads[run.workload_ordinal].runs[0]
        return tint(catalog, first.run_id, first)


def tint(catalog: Catalog, run_id: str, run: RunEntry | None = None) -> int:
    """The place of a run's colour within its experiment; ``run`` if it is no longer there."""
    entry = catalog.runs.get(run_id, run)
    if entry is None:
        return 0
    if len(catalog.runs) <= HUE_COUNT:
        return entry.ordinal
    place = 0
    if entry.workload_ordinal < len(catalog.workloads):
        place = entry.ordinal - catalog.workloads[entry.workload_ordinal].runs[0].ordinal
    hue, again = entry.workload_ordinal % HUE_COUNT, entry.workload_ordinal // HUE_COUNT
    return hue + HUE_COUNT * ((place + again) % SHADE_COUNT)


def beside(place: int, number: int) -> int:
    """Another shade of a colour: for the second and third device of one workload."""
    return (place + HUE_COUNT * number) % (HUE_COUNT * SHADE_COUNT)
