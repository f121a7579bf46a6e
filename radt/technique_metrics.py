"""Standard metrics of techniques (`radt.loaders`, `radt.training`), logged like any metric."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TechniqueMetric:
    """A metric that a technique records.

    Attributes:
        name: Name of the metric.
        unit: UCUM.
        meaning: Description of the values.
    """

    name: str
    unit: str
    meaning: str


TECHNIQUE_METRICS = (
    TechniqueMetric("loader.drift", "{batches}", "how far the consumer is behind the fastest one"),
    TechniqueMetric("loader.decoded", "{samples}", "samples decoded since the value before"),
    TechniqueMetric("loader.echoed", "{samples}", "samples used again since the value before"),
    TechniqueMetric("loader.image_size", "px", "side of the images in the batch"),
    TechniqueMetric("loader.batch_size", "{samples}", "samples in the batch"),
    TechniqueMetric("loader.slots_in_use", "{slots}", "slots of the ring that hold batches in use"),
    TechniqueMetric("validation.wait", "s", "wait for the validation before, at a submit"),
    TechniqueMetric("validation.bound", "s", "duration if training and validation never waited"),
    TechniqueMetric("validation.reached", "s", "duration until the last validation has ended"),
    TechniqueMetric("lease.wait", "s", "wait for the device since the value before"),
    TechniqueMetric("lease.handovers", "{handovers}", "handovers of the device since then"),
    TechniqueMetric(
        "offload.resident", "By", "most counted bytes on the device since the value before"
    ),
    TechniqueMetric("offload.wait", "s", "wait for segments to be loaded since the value before"),
    TechniqueMetric("averaging.time", "s", "duration of an averaging round"),
    TechniqueMetric("averaging.replicas", "{replicas}", "replicas that took part in the round"),
)
_BY_NAME = {metric.name: metric for metric in TECHNIQUE_METRICS}


def standard_unit(metric: str, unit: str) -> str:
    """Return the unit of a recorded metric; a technique's standard unit if none was recorded."""
    known = _BY_NAME.get(metric)
    return known.unit if known is not None and not unit else unit


def meaning_of(metric: str) -> str:
    """Return the meaning of a technique's metric; empty for other metrics."""
    known = _BY_NAME.get(metric)
    return "" if known is None else known.meaning
