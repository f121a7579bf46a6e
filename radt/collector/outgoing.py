"""What has been read for a run: on its way to the store, and its newest values for live tables.

Times are monotonic.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from radt.collector.ledger import MissedStretch
from radt.collector.protocol import LiveView
from radt.listeners.api import Metric
from radt.model import MissingReason
from radt.store.records import LedgerRecord


@dataclass(frozen=True, slots=True)
class SeriesKey:
    """What makes a series one of its own within a run."""

    listener: str
    metric: str
    entity: str = ""


@dataclass(slots=True)
class Column:
    """Points of one series that have not reached the store."""

    metric: Metric
    interval_s: float | None
    method: str = ""
    times_ns: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))


@dataclass(frozen=True, slots=True)
class Missing:
    """A series without values from ``start_ns`` to ``end_ns``."""

    key: SeriesKey
    metric: Metric
    interval_s: float | None
    start_ns: int
    end_ns: int
    reason: MissingReason
    method: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that radt noticed during the run."""

    name: str
    at_ns: int
    detail: str = ""


@dataclass(slots=True)
class OpenGap:
    """A series that has no values now. ``told_ns`` is when the store last heard of it."""

    metric: Metric
    interval_s: float | None
    start_ns: int
    last_ns: int
    reason: MissingReason
    method: str
    told_ns: int = 0

    def until(self, key: SeriesKey, end_ns: int) -> Missing:
        """The gap as far as it goes by then."""
        return Missing(
            key, self.metric, self.interval_s, self.start_ns, end_ns, self.reason, self.method
        )


@dataclass(frozen=True, slots=True)
class Taken:
    """What goes to the store in one transaction."""

    columns: Mapping[SeriesKey, Column] = field(default_factory=dict)
    missing: Sequence[Missing] = ()
    events: Sequence[Event] = ()
    ledgers: Sequence[LedgerRecord] = ()
    stretches: Mapping[str, Sequence[MissedStretch]] = field(default_factory=dict)

    @property
    def points(self) -> int:
        return sum(len(column.times_ns) for column in self.columns.values())

    @property
    def empty(self) -> bool:
        return not (self.columns or self.missing or self.events or self.ledgers or self.stretches)


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
