"""Meaning of MLflow's keys: unit and device of its system metrics, which follow from their names.

MLflow documents them (https://mlflow.org/docs/latest/ml/tracking/system-metrics and
``mlflow/system_metrics``). Names and values stay as in MLflow; metrics that it does not document
have no unit here. ``metric`` is the same name for all devices:
``system/gpu_utilization_percentage``.
"""

from __future__ import annotations

import re

from radt.importers.source import SourceSeries
from radt.model import Scope

#: ``listener`` of metrics that MLflow itself measures.
MLFLOW = "mlflow"
_PREFIX = "system/"
_GPU = re.compile(r"gpu_(\d+)_")
_UNITS = {"percentage": "%", "megabytes": "MB", "gigabytes": "GB", "watts": "W"}
_HOST_METRICS = frozenset(
    {
        "cpu_utilization_percentage",
        "system_memory_usage_megabytes",
        "system_memory_usage_percentage",
        "disk_usage_percentage",
        "disk_usage_megabytes",
        "disk_available_megabytes",
        "network_receive_megabytes",
        "network_transmit_megabytes",
    }
)
_GPU_METRICS = frozenset(
    {
        "memory_usage_percentage",
        "memory_usage_megabytes",
        "memory_usage_gigabytes",
        "utilization_percentage",
        "power_usage_watts",
        "power_usage_percentage",
    }
)
_OF_NETWORK = "MLflow read it; since the run began"
_OF_OTHERS = "MLflow read it"


def meaning(key: str) -> SourceSeries:
    """Return the series of an MLflow key; for anything but a system metric, the key is the metric.

    >>> meaning("system/gpu_1_power_usage_watts").entity
    'gpu1'
    """
    if not key.startswith(_PREFIX):
        return SourceSeries(key)
    node, _, name = key.removeprefix(_PREFIX).rpartition("/")
    unit = _UNITS.get(name.rpartition("_")[2], "")
    if name in _HOST_METRICS:
        method = _OF_NETWORK if name.startswith("network") else _OF_OTHERS
        return SourceSeries(f"{_PREFIX}{name}", Scope.HOST, MLFLOW, unit, node, method)
    if (gpu := _GPU.match(name)) and name[gpu.end() :] in _GPU_METRICS:
        entity = f"{node} gpu{gpu[1]}".strip()
        metric = f"{_PREFIX}gpu_{name[gpu.end() :]}"
        return SourceSeries(metric, Scope.GPU, MLFLOW, unit, entity, _OF_OTHERS)
    return SourceSeries(key)
