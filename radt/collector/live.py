"""The newest values of a run, for live tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from radt.collector.protocol import LiveView


@dataclass(frozen=True, slots=True)
class LogUpdate:
    """What a script has logged since the last look; None where nothing is new."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    points: int = 0
    epoch: int | None = None
    epochs_total: int | None = None


@dataclass(slots=True)
class LiveState:
    """Collects what a `LiveView` shows. Not thread-safe."""

    #: By metric and entity: which listener read it, and its value.
    _hardware: dict[str, dict[str, tuple[str, float]]] = field(default_factory=dict)
    _metrics: dict[str, float] = field(default_factory=dict)
    _epoch: int | None = None
    _epochs_total: int | None = None
    _samples: int = 0

    def hardware(self, listener: str, metric: str, entity: str, value: float) -> None:
        """A listener has read a value."""
        self._hardware.setdefault(metric, {})[entity] = listener, value
        self._samples += 1

    def missing(self, listener: str, metric: str, entity: str) -> None:
        """There is no value now: what it was is no news any longer."""
        values = self._hardware.get(metric)
        if values is not None and values.get(entity, ("",))[0] == listener:
            del values[entity]

    def silent(self, listener: str) -> None:
        """A listener reads no more."""
        for values in self._hardware.values():
            for entity in [one for one, (who, _) in values.items() if who == listener]:
                del values[entity]

    def software(self, update: LogUpdate) -> None:
        """The script has logged something."""
        self._metrics.update(update.metrics)
        self._samples += update.points
        if update.epoch is not None:
            self._epoch = update.epoch
        if update.epochs_total is not None:
            self._epochs_total = update.epochs_total

    def view(self) -> LiveView:
        return LiveView(
            cpu_cores=self._sum("process.cpu.utilization"),
            rss_bytes=self._sum("process.memory.rss"),
            gpu_utilization=self._mean("gpu.utilization"),
            gpu_memory_bytes=self._sum("process.gpu.memory"),
            metrics=dict(self._metrics),
            epoch=self._epoch,
            epochs_total=self._epochs_total,
            samples=self._samples,
        )

    def _sum(self, metric: str) -> float | None:
        values = self._values(metric)
        return sum(values) if values else None

    def _mean(self, metric: str) -> float | None:
        values = self._values(metric)
        return sum(values) / len(values) if values else None

    def _values(self, metric: str) -> list[float]:
        return [value for _, value in self._hardware.get(metric, {}).values()]
