"""The standard metrics of loaders (`radt.loaders`), which are logged as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoaderMetric:
    """A metric ``loader.NAME`` of a run.

    Attributes:
        name: Its name.
        unit: UCUM.
        meaning: What its values are.
    """

    name: str
    unit: str
    meaning: str


LOADER_METRICS = (
    LoaderMetric("loader.drift", "{batches}", "how far the consumer is behind the fastest one"),
    LoaderMetric("loader.decoded", "{samples}", "samples decoded since the value before"),
    LoaderMetric("loader.echoed", "{samples}", "samples used again since the value before"),
    LoaderMetric("loader.image_size", "px", "side of the images in the batch"),
    LoaderMetric("loader.batch_size", "{samples}", "samples in the batch"),
    LoaderMetric("loader.slots_in_use", "{slots}", "slots of the ring that hold batches in use"),
)
_BY_NAME = {metric.name: metric for metric in LOADER_METRICS}


def standard_unit(metric: str, unit: str) -> str:
    """Return the unit of a recorded metric; that of a loader's if it was recorded without one."""
    known = _BY_NAME.get(metric)
    return known.unit if known is not None and not unit else unit


def meaning_of(metric: str) -> str:
    """Return what a loader's metric is; empty for other metrics."""
    known = _BY_NAME.get(metric)
    return "" if known is None else known.meaning
