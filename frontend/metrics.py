"""Which metrics the selected runs have, and which are worth a chart before anybody chose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from radt.frontend.charts.quantity import Quantity, drawn_unit
from radt.frontend.source import Source
from radt.model import SOFTWARE, SeriesKind
from radt.store.records import SeriesRecord

AUTOMATIC_CHARTS = 4
#: Hardware metrics in the order in which they say most about a training run.
_TELLING = (
    "gpu.sm.active",
    "gpu.utilization",
    "process.cpu.utilization",
    "process.gpu.memory",
    "process.memory.rss",
    "gpu.memory.used",
    "gpu.power",
    "system.cpu.utilization",
    "system.memory.used",
)
_SOFTWARE_CHARTS = 2


def series_of(source: Source, run_ids: Sequence[str]) -> Mapping[str, tuple[SeriesRecord, ...]]:
    """All series of the runs by metric."""
    key = ("series", tuple(run_ids))
    records = source.remember(key, lambda reader: reader.series(run_ids))
    by_metric: dict[str, list[SeriesRecord]] = {}
    for record in records:
        by_metric.setdefault(record.metric, []).append(record)
    return {metric: tuple(found) for metric, found in by_metric.items()}


def quantity_of(series: Sequence[SeriesRecord]) -> Quantity:
    """What the series of one metric measure."""
    first = series[0]
    drawn = {drawn_unit(one.unit, one.kind) for one in series}
    mixed = len({one.kind for one in series}) > 1
    several = len({one.listener for one in series}) > 1
    methods = (
        f"{one.method} ({one.listener})" if several else one.method for one in series if one.method
    )
    return Quantity(
        first.metric,
        # One listener's counter may be another's rate.
        min(drawn) if mixed else first.unit,
        first.scope,
        SeriesKind.GAUGE if mixed else first.kind,
        first.listener,
        methods=tuple(dict.fromkeys(methods)),
        estimated=any(one.estimated for one in series),
        scopes=tuple(dict.fromkeys(one.scope for one in series)),
    )


def quantities(source: Source, run_ids: Sequence[str]) -> tuple[Quantity, ...]:
    """The metrics of the runs: what scripts logged first, then by listener and name."""
    found = (quantity_of(series) for series in series_of(source, run_ids).values())
    return tuple(sorted(found, key=lambda q: (q.listener != SOFTWARE, q.listener, q.metric)))


def automatic_metrics(available: Iterable[Quantity]) -> tuple[str, ...]:
    """At most `AUTOMATIC_CHARTS`: up to two logged ones (a loss first), then telling hardware."""
    logged: list[str] = []
    hardware: list[str] = []
    for quantity in available:
        (logged if quantity.listener == SOFTWARE else hardware).append(quantity.metric)
    logged.sort(key=lambda name: ("loss" not in name.lower(), name))
    telling = [name for name in _TELLING if name in hardware]
    telling += [name for name in hardware if name not in telling]
    chosen = logged[:_SOFTWARE_CHARTS]
    chosen += telling[: AUTOMATIC_CHARTS - len(chosen)]
    chosen += logged[_SOFTWARE_CHARTS:][: AUTOMATIC_CHARTS - len(chosen)]
    return tuple(chosen)
