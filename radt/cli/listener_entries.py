"""What there is to say of each listener and profiler; plug-ins may break any promise here."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from radt.listeners.api import Availability, Listener, Metric, Profiler, Registry, Source, probed
from radt.model import Scope


@dataclass(frozen=True, slots=True)
class Entry:
    """One name of the Listeners column.

    ``interval_s`` is None for a profiler, which does not sample. ``failure`` says why what is
    installed under this name cannot be used at all.
    """

    name: str
    summary: str = ""
    availability: Availability = field(default_factory=lambda: Availability(False))
    interval_s: float | None = None
    by_default: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    metrics: Sequence[Metric] = ()
    disturbs: bool = False
    takes_gpu_counters: bool = False
    origin: str = ""
    failure: str = ""

    @property
    def is_profiler(self) -> bool:
        return not self.failure and self.interval_s is None

    @property
    def works(self) -> bool:
        return not self.failure and self.availability.available

    def of_scope(self, scope: Scope) -> list[Metric]:
        return [metric for metric in self.metrics if metric.scope is scope]

    def document(self) -> dict[str, Any]:
        """For programs."""
        document = asdict(self)
        document |= document.pop("availability")
        document["series"] = [
            {**asdict(metric), "scope": str(metric.scope), "kind": str(metric.kind)}
            for metric in self.metrics
        ]
        del document["metrics"]
        return {"kind": "profiler" if self.is_profiler else "listener"} | document


def all_entries(registry: Registry) -> list[Entry]:
    """What works first, then what does not, then what cannot be loaded; by name."""
    entries = [_entry(name, kind) for name, kind in _kinds(registry).items()]
    entries += [Entry(name, failure=reason) for name, reason in registry.broken.items()]
    return sorted(entries, key=lambda one: (bool(one.failure), not one.works, one.name))


def entry_of(registry: Registry, name: str) -> Entry | None:
    """The entry of this name; None if there is nothing of it."""
    if (kind := registry.find(name)) is not None:
        return _entry(name, kind)
    failure = registry.broken.get(name)
    return None if failure is None else Entry(name, failure=failure)


def _kinds(registry: Registry) -> dict[str, type[Source]]:
    return {**registry.listeners, **registry.profilers}


def _entry(name: str, kind: type[Source]) -> Entry:
    try:
        return Entry(
            name,
            summary=(inspect.cleandoc(kind.__doc__ or "").splitlines() or [""])[0],
            availability=probed(kind),
            interval_s=float(kind.default_interval_s) if issubclass(kind, Listener) else None,
            by_default=issubclass(kind, Listener) and kind.by_default,
            options=dict(kind.accepts),
            metrics=tuple(kind.metrics()),
            disturbs=issubclass(kind, Profiler) and kind.disturbs,
            takes_gpu_counters=issubclass(kind, Profiler) and kind.takes_gpu_counters,
            origin=kind.__module__,
        )
    except Exception as error:  # noqa: BLE001 - third-party code that breaks its contract
        where = f"{kind.__module__}:{kind.__qualname__}"
        return Entry(name, failure=f"{where}: {type(error).__name__}: {error}")
