"""Metrics of the selected runs, the charts shown by default, and the hidden lines.

Hidden runs and workloads are in the view's option ``compare.hidden``, as the first parts of line
keys: ``r…`` for runs, ``w…`` for workloads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.lines import series_groups
from radt.frontend.data.model import MetricInfo, drawn_unit
from radt.frontend.data.spec import ID_DIGITS
from radt.frontend.selection import SelectedRuns
from radt.frontend.view import View
from radt.model import SOFTWARE, Scope, SeriesKind
from radt.store.records import SeriesRecord
from radt.technique_metrics import meaning_of, standard_unit
from radt.usage import KERNEL

AUTOMATIC_CHARTS = 4
#: Hardware metrics, the most informative for a training run first. Metrics in the same group are
#: similar: the first one that is recorded represents the others. ``system/…`` are MLflow's.
_TELLING = (
    (
        *("gpu.sm.active", "gpu.mig.sm.active", "gpu.utilization"),
        "system/gpu_utilization_percentage",
    ),
    ("process.cpu.utilization", "system.cpu.utilization", "system/cpu_utilization_percentage"),
    ("process.gpu.memory", "torch.memory.allocated", "gpu.mig.memory.used", "gpu.memory.used"),
    (
        *("process.memory.rss", "process.memory.pss", "system.memory.used"),
        "system/system_memory_usage_megabytes",
    ),
    ("gpu.power",),
)
#: Logged by radt for the script, and shown after the script's own metrics (`radt.run.steps`).
OWN_STEPS = ("step.time", "samples_per_s", "data_wait")
_SOFTWARE_CHARTS = 2


def series_of(
    source: CachedStore, run_ids: Sequence[str]
) -> Mapping[str, tuple[SeriesRecord, ...]]:
    """Return all series of the runs by metric."""
    key = ("series", tuple(run_ids))
    records = source.remember(key, lambda reader: reader.series(run_ids))
    by_metric: dict[str, list[SeriesRecord]] = {}
    for record in records:
        if record.listener == KERNEL:  # totals are single values, not curves
            continue
        by_metric.setdefault(record.metric, []).append(record)
    return {metric: tuple(of_metric) for metric, of_metric in by_metric.items()}


def quantity_of(series: Sequence[SeriesRecord]) -> MetricInfo:
    """Return the quantity that the series of a metric measure."""
    first = series[0]
    drawn = {drawn_unit(record.unit, record.kind) for record in series}
    mixed = len({record.kind for record in series}) > 1
    several = len({record.listener for record in series}) > 1
    methods = (
        f"{record.method} ({record.listener})" if several else record.method
        for record in series
        if record.method
    )
    standard = meaning_of(first.metric)
    return MetricInfo(
        first.metric,
        # The same metric may be a counter of one listener and a rate of another.
        min(drawn) if mixed else standard_unit(first.metric, first.unit),
        first.scope,
        SeriesKind.GAUGE if mixed else first.kind,
        first.listener,
        methods=tuple(dict.fromkeys([*methods, *filter(None, [standard])])),
        estimated=any(record.estimated for record in series),
        scopes=tuple(dict.fromkeys(record.scope for record in series)),
    )


def quantities(source: CachedStore, run_ids: Sequence[str]) -> tuple[MetricInfo, ...]:
    """Return the metrics of the runs: logged by scripts first, then by listener and name."""
    of_metrics = (quantity_of(series) for series in series_of(source, run_ids).values())
    return tuple(sorted(of_metrics, key=lambda q: (q.listener != SOFTWARE, q.listener, q.metric)))


#: Titles of the sections of charts, in order. Script metrics with a prefix (``train/loss``) have
#: separate sections after the first.
_SECTIONS = {
    Scope.RUN: "logged by the script",
    Scope.PROCESS: "process",
    Scope.GPU: "GPU",
    Scope.MIG: "MIG instance",
    Scope.HOST: "host",
}


def sections(available: Iterable[MetricInfo]) -> Mapping[str, Sequence[str]]:
    """Return all metrics by name in sections, for the overview of small charts."""
    placed: dict[tuple[int, str], list[str]] = {}
    ranks = list(_SECTIONS)
    for quantity in sorted(available, key=lambda q: q.metric):
        prefix, slash, _ = quantity.metric.partition("/")
        own = quantity.scope is Scope.RUN and bool(slash)
        title = f"{prefix}/" if own else _SECTIONS[quantity.scope]
        placed.setdefault((ranks.index(quantity.scope), title if own else ""), []).append(
            quantity.metric
        )
    return {
        title or _SECTIONS[ranks[rank]]: metrics
        for (rank, title), metrics in sorted(placed.items())
    }


def automatic_metrics(available: Iterable[MetricInfo]) -> tuple[str, ...]:
    """Return at most `AUTOMATIC_CHARTS` metrics: up to two logged (a loss first), then hardware.

    Further logged metrics fill the rest. Test metrics come last, among losses and among others;
    step durations after the script's own.
    """
    logged: list[str] = []
    hardware: list[str] = []
    for quantity in available:
        from_inside = quantity.listener == SOFTWARE or quantity.metric in OWN_STEPS
        (logged if from_inside else hardware).append(quantity.metric)
    logged.sort(key=_software_rank)
    telling = [first for same in _TELLING if (first := _first_of(same, hardware))]
    telling += [name for same in _TELLING for name in same if name in hardware]
    telling = list(dict.fromkeys((*telling, *hardware)))
    chosen = logged[:_SOFTWARE_CHARTS]
    chosen += telling[: AUTOMATIC_CHARTS - len(chosen)]
    chosen += logged[_SOFTWARE_CHARTS:][: AUTOMATIC_CHARTS - len(chosen)]
    return tuple(chosen)


def _software_rank(name: str) -> tuple[int, bool, bool, str]:
    by_radt = OWN_STEPS.index(name) + 1 if name in OWN_STEPS else 0
    return by_radt, "loss" not in name.lower(), name.startswith("test"), name


def _first_of(names: Sequence[str], available: Collection[str]) -> str | None:
    return next((name for name in names if name in available), None)


_OPTION = "compare.hidden"


def hidden_keys(
    source: CachedStore, selection: SelectedRuns, view: View, metric: str
) -> tuple[str, ...]:
    """Return the keys of a metric's lines that are hidden because of their run or workload.

    Raises:
        StoreError: The store cannot be read.
    """
    hidden = view.options.get(_OPTION, "").split(",")
    if hidden == [""]:
        return ()
    keys: list[str] = []
    for group in series_groups(
        selection.runs, series_of(source, tuple(selection.runs)).get(metric, ())
    ):
        run = group.run
        workload = f"w{run.record.workload_id[:ID_DIGITS]}"
        if workload in hidden:
            # The runs' own lines, and the workload's line.
            keys += [group.key, workload, f"{workload}@{group.listener}"]
        elif f"r{run.run_id[:ID_DIGITS]}" in hidden and group.key.startswith("r"):
            keys.append(group.key)
    return tuple(dict.fromkeys(keys))
