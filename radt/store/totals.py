"""Totals of runs: the kernel's accounting, and the increase of energy counters."""

from __future__ import annotations

from collections.abc import Iterable

from radt.model import SOFTWARE, SeriesKind
from radt.store import counters
from radt.store.records import RunRecord, Samples, SeriesRecord
from radt.usage import KERNEL, TOTALS, lower_bound

#: Keys of the kernel's totals, by the metric that stores them.
KERNEL_KEYS = {total.metric: total.key for total in TOTALS}
#: Keys of the sums over devices, by energy counter.
_ENERGY_KEYS = {"gpu.energy": "gpu_energy_j", "cpu.energy": "cpu_energy_j"}


def is_of_totals(series: SeriesRecord) -> bool:
    """Return whether a run's totals include the series."""
    if series.listener == KERNEL:
        return series.metric in KERNEL_KEYS
    return (
        series.metric in _ENERGY_KEYS
        and series.kind is SeriesKind.COUNTER
        and series.listener != SOFTWARE
    )


def key_of(series: SeriesRecord) -> str:
    """Return the key of what the kernel counted, another one where it is a lower bound only."""
    key = KERNEL_KEYS[series.metric]
    return lower_bound(key) if series.estimated else key


def totals_of(run: RunRecord, points: Iterable[tuple[SeriesRecord, Samples]]) -> dict[str, float]:
    """Return the totals of a run by key, without quantities that were not counted.

    Args:
        run: The run.
        points: Its series that pass `is_of_totals`, with their points in time order.
    """
    totals: dict[str, float] = {}
    grown: dict[str, dict[str, float]] = {key: {} for key in _ENERGY_KEYS.values()}
    for record, samples in points:
        value = total_value(samples, record)
        if value is None:
            continue
        if record.listener == KERNEL:
            key = key_of(record)  # of a run on several nodes each has its own
            if record.kind is SeriesKind.COUNTER:
                totals[key] = totals.get(key, 0.0) + value
            else:
                totals[key] = max(totals.get(key, value), value)
        else:  # where two listeners read a device, the first counts
            grown[_ENERGY_KEYS[record.metric]].setdefault(record.entity, value)
    totals |= {key: sum(devices.values()) for key, devices in grown.items() if devices}
    if run.started_ns is not None and run.ended_ns is not None:
        totals["duration_s"] = (run.ended_ns - run.started_ns) / 1e9
    return totals


def total_value(samples: Samples, series: SeriesRecord) -> float | None:
    """Return a counter's increase or another series' peak; None without readings."""
    if series.kind is SeriesKind.COUNTER:
        return counters.total_of(samples, series)
    return float(samples.values.max()) if len(samples) else None
