"""The reference of what listeners read and profilers record."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence

from docs.generator import markdown
from radt.listeners import registry
from radt.listeners.api import Listener, Metric, Source
from radt.model import SeriesKind
from radt.technique_metrics import TECHNIQUE_METRICS

#: Where entry points of the project itself lead; plug-ins that happen to be installed stay out.
_OWN = "radt.listeners."


def metrics_reference() -> str:
    """Every listener and profiler with its options and series."""
    found = registry.load()
    sources = [*found.listeners.values(), *found.profilers.values()]
    return "\n\n".join(
        part for kind in sources if kind.__module__.startswith(_OWN) for part in _section(kind)
    )


def technique_metrics_reference() -> str:
    """The standard metrics of techniques."""
    return markdown.table(
        ("series", "unit", "meaning"),
        [
            (markdown.code(metric.name), markdown.code(metric.unit), markdown.plain(metric.meaning))
            for metric in TECHNIQUE_METRICS
        ],
    )


def _section(kind: type[Source]) -> Iterator[str]:
    yield markdown.heading(2, kind.name, kind.name)
    yield markdown.inline(inspect.cleandoc(kind.__doc__ or ""))
    if issubclass(kind, Listener):
        usual = "belongs to `default`" if kind.by_default else "does not belong to `default`"
        yield f"Listener; samples every {kind.default_interval_s:g} s by default; {usual}."
    else:
        yield "Profiler."
    yield markdown.table(
        ("option", "what it does"),
        [
            (markdown.code(f"{kind.name}:{word}"), markdown.plain(text))
            for word, text in kind.accepts.items()
        ],
    )
    yield _series(kind.metrics())


def _series(metrics: Sequence[Metric]) -> str:
    rows = []
    for metric in metrics:
        notes = [metric.description, f"how: {metric.method}" if metric.method else ""]
        if metric.estimated:
            notes.append("estimated")
        rows.append(
            (
                markdown.code(metric.name),
                markdown.code(metric.unit),
                metric.scope.value,
                "counter" if metric.kind is SeriesKind.COUNTER else "gauge",
                "; ".join(markdown.plain(note) for note in notes if note),
            )
        )
    return markdown.table(("series", "unit", "scope", "kind", "what"), rows)
