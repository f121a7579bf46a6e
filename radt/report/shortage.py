"""Memory that ran out: how much there was, and how much of it was in use as far as was seen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from radt import units
from radt.model import RunStatus
from radt.report.reading import Key, Seen, seen_within, series_of
from radt.report.stretches import EARLIEST_NS, LATEST_NS, Within
from radt.store.reader import StoreReader
from radt.store.records import RunRecord, SeriesRecord

#: In use and in all, of what is divided the finest first.
_PAIRS = (
    ("gpu.mig.memory.used", "gpu.mig.memory.total"),
    ("gpu.memory.used", "gpu.memory.total"),
)
_OF_RUN = "process.gpu.memory"
_METRICS = (*(metric for pair in _PAIRS for metric in pair), _OF_RUN)


@dataclass(frozen=True, slots=True)
class MemoryShortage:
    """The memory of a device that ran out.

    Attributes:
        device: Its name, ``gpu0`` or a MIG instance.
        used_bytes: The highest sample, whoever used it; what was asked for last is not in it.
        total_bytes: All there is; None where it was not recorded.
        of_run_bytes: The highest sample of the run itself, None likewise.
    """

    device: str
    used_bytes: float
    total_bytes: float | None = None
    of_run_bytes: float | None = None

    @property
    def text(self) -> str:
        """``38.9 GB of 39.6 GB in use on gpu0``."""
        of = "" if self.total_bytes is None else f" of {units.size(self.total_bytes)}"
        return f"{units.size(self.used_bytes)}{of} in use on {self.device}"


def read_shortages(reader: StoreReader, runs: Iterable[RunRecord]) -> dict[str, MemoryShortage]:
    """Of the runs that ran out of memory, by their ids; those without GPU have none.

    Raises:
        CodecError: A chunk is damaged.
        StoreError: The store cannot be read.
    """
    short = [run.run_id for run in runs if run.status is RunStatus.OOM]
    if not short:
        return {}
    series = series_of(reader, short, _METRICS)
    keys = [(one.run_id, one.series_no) for found in series.values() for one in found]
    seen = seen_within(reader, dict.fromkeys(keys, Within([(EARLIEST_NS, LATEST_NS)])), _METRICS)
    found = {run_id: _shortage(series[run_id], seen) for run_id in short}
    return {run_id: shortage for run_id, shortage in found.items() if shortage is not None}


def _shortage(series: Sequence[SeriesRecord], seen: Mapping[Key, Seen]) -> MemoryShortage | None:
    """Of the device that was fullest."""
    peaks = {
        (one.metric, one.entity): seen[key].peak
        for one in series
        if (key := (one.run_id, one.series_no)) in seen
    }
    for used, total in _PAIRS:
        found = [
            MemoryShortage(entity, peak, peaks.get((total, entity)), peaks.get((_OF_RUN, entity)))
            for (metric, entity), peak in peaks.items()
            if metric == used
        ]
        if found:
            return max(
                found, key=lambda one: one.used_bytes / (one.total_bytes or one.used_bytes or 1)
            )
    return None
