"""MLflow's system metrics: what they measure, as its documentation says.

Names, units and the node's id in the name: https://mlflow.org/docs/latest/ml/tracking/system-metrics
and ``mlflow/system_metrics``. Names and values stay as MLflow has them; what it does not document
has no unit here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from radt.model import SOFTWARE, Scope

#: The ``listener`` of what MLflow itself has measured.
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


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a metric of MLflow is. ``entity`` is the device, with the machine where it is named.

    ``metric`` is one name for all devices: ``system/gpu_utilization_percentage``.
    """

    metric: str
    scope: Scope = Scope.RUN
    listener: str = SOFTWARE
    unit: str = ""
    entity: str = ""
    method: str = ""


def meaning(key: str) -> Meaning:
    """What a key stands for; of others than system metrics it is only a name.

    >>> meaning("system/gpu_1_power_usage_watts").entity
    'gpu1'
    """
    if not key.startswith(_PREFIX):
        return Meaning(key)
    node, _, name = key.removeprefix(_PREFIX).rpartition("/")
    unit = _UNITS.get(name.rpartition("_")[2], "")
    if name in _HOST_METRICS:
        method = _OF_NETWORK if name.startswith("network") else _OF_OTHERS
        return Meaning(f"{_PREFIX}{name}", Scope.HOST, MLFLOW, unit, node, method)
    if (gpu := _GPU.match(name)) and name[gpu.end() :] in _GPU_METRICS:
        entity = f"{node} gpu{gpu[1]}".strip()
        metric = f"{_PREFIX}gpu_{name[gpu.end() :]}"
        return Meaning(metric, Scope.GPU, MLFLOW, unit, entity, _OF_OTHERS)
    return Meaning(key)
