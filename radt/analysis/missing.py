"""Explain why a run has no value of a quantity, or a series none of a statistic."""

from __future__ import annotations

from collections.abc import Collection

from radt.analysis.energy import CARBON_METRICS, GPU_ENERGY, RUN_ENERGY
from radt.analysis.quantities import THROUGHPUT_METRICS, Quantity, Statistic
from radt.analysis.series_quantities import AnyQuantity, SeriesQuantity
from radt.devices.visible import UNKNOWN
from radt.model import STATUS_WORDS, RunStatus, SeriesKind
from radt.store.records import RunRecord

#: Inputs of derived quantities.
_SOURCES = {
    Quantity.CPU_OF_ALL: Quantity.CPU.info.metrics,
    Quantity.MEMORY_OF_ALL: Quantity.MEMORY.info.metrics,
    Quantity.ENERGY: (GPU_ENERGY,),
    Quantity.ENERGY_PER_EPOCH: (GPU_ENERGY,),
    Quantity.ENERGY_PER_SAMPLE: (GPU_ENERGY, *THROUGHPUT_METRICS),
    Quantity.ENERGY_OF_RUNS: (RUN_ENERGY,),
    Quantity.CARBON: CARBON_METRICS,
    Quantity.CARBON_PER_EPOCH: CARBON_METRICS,
}
_OF_EPOCHS = (Quantity.TIME_PER_EPOCH, Quantity.SLOWDOWN)
_LOGGED = (*THROUGHPUT_METRICS, "data_wait")


def why_missing(
    quantity: AnyQuantity,
    run: RunRecord,
    metrics: Collection[str],
    *,
    is_alone: bool,
    has_epochs: bool,
) -> str:
    """Return why a run has no value of a quantity.

    Args:
        quantity: The quantity.
        run: The run.
        metrics: The metrics that the run has series of.
        is_alone: The run had the hardware to itself.
        has_epochs: The run ended an epoch.
    """
    if not run.status.ended:
        return "the run has not ended yet"
    if run.status is not RunStatus.FINISHED:
        return f"the run did not finish ({STATUS_WORDS[run.status]})"
    if isinstance(quantity, SeriesQuantity):
        has_none = f"the run has no value of {quantity.metric}"
        is_condition = quantity.statistic is Statistic.TIME_TO
        return f"{quantity.condition} was never met, or {has_none}" if is_condition else has_none
    if quantity in _OF_EPOCHS and not has_epochs:
        return "no epochs: mark them with run.epochs()"
    if quantity in (Quantity.SLOWDOWN, Quantity.SERIAL, Quantity.SPEED_UP):
        return "it ran alone" if is_alone else "no run alone did the same"
    if quantity is Quantity.MAKESPAN:
        return "a run of the workload did not finish, or not all ran at the same time"
    if quantity is Quantity.TRACKER_CPU:
        return "the collector did not note its CPU time"
    return _of_metrics(quantity.info.metrics or _SOURCES.get(quantity, ()), run, metrics)


def why_no_number(kind: SeriesKind, *, is_growth: bool) -> str:
    """Return why a series has no last value, extreme or mean.

    Args:
        kind: The kind of the series.
        is_growth: The number is a counter's growth or its rate.
    """
    if kind is not SeriesKind.COUNTER:
        return "no value is finite"
    if is_growth:
        return "the growth of a counter needs two readings"
    return "a counter has a mean rate and a total only"


_FEW = "too few readings within the report's window"
#: A shorter run may have ended before a listener's second reading.
_SHORT_S = 5.0


def _of_metrics(wanted: Collection[str], run: RunRecord, metrics: Collection[str]) -> str:
    missing = [metric for metric in wanted if metric not in metrics]
    if not missing or len(missing) < len(wanted):
        return _FEW
    if missing[0] in _LOGGED:
        return f"the script did not log {missing[0]}"
    if run.devices == "cpu" and "gpu." in missing[0]:
        return "the run used no GPU"
    if run.devices == UNKNOWN and "gpu." in missing[0]:
        return "which GPUs the run used is unknown"
    listeners = run.listeners.replace("+", ", ") or "none"
    if (taken_s := run.lasted_s()) is not None and taken_s < _SHORT_S:
        return f"too short for a value of {missing[0]} (listeners: {listeners})"
    return f"no listener recorded {missing[0]} (listeners: {listeners})"
