"""``radt listeners``: the listeners and profilers of this machine, and their metrics."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from os.path import commonprefix
from typing import Any

import click
from rich.console import Console

from radt.cli.options import json_option, print_json
from radt.cli.render import text_table
from radt.errors import UsageError, described
from radt.experiment.columns import did_you_mean
from radt.listeners import registry
from radt.listeners.api import Availability, Listener, Metric, Profiler, Registry, Source, probed
from radt.model import Scope, SeriesKind
from radt.render.model import Cell, Document, Note, Notes, Tone, printable
from radt.render.terminal import print_document
from radt.units import duration_text


@click.command("listeners")
@click.argument("name", required=False)
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Also list the metrics of listeners that do not work here.",
)
@json_option
def command(name: str | None, verbose: bool, as_json: bool) -> None:
    """List the listeners and profilers of this machine, or describe one by NAME.

    The Listeners column of an experiment file takes these names, joined by +, with options and an
    interval: top:cores@500ms+smi. The word default stands for the listeners of a run that names
    none.
    """
    entries = all_entries(registry.load())
    if name is not None:
        entry = _find(entries, name)
        if as_json:
            print_json("listeners", entry.document())
        else:
            print_document(Console(highlight=False), _entry_document(entry))
    elif as_json:
        print_json("listeners", {"listeners": [entry.document() for entry in entries]})
    else:
        print_document(Console(highlight=False), _overview(entries, verbose=verbose))


def _find(entries: Sequence[ListenerEntry], name: str) -> ListenerEntry:
    wanted = registry.ALIASES.get(name.lower(), name.lower())
    for entry in entries:
        if entry.name.lower() == wanted:
            return entry
    names = (*(entry.name for entry in entries), *registry.ALIASES)
    remedy = did_you_mean(name, names) or "Run `radt listeners` to list them"
    raise UsageError(f"Unknown listener or profiler {printable(name)!r}", remedy)


@dataclass(frozen=True, slots=True)
class ListenerEntry:
    """One name of the Listeners column.

    ``interval_s`` is None for a profiler, which does not sample. ``failure`` is why
    the listener installed under this name cannot be loaded; empty if it can.
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


def all_entries(registry: Registry) -> list[ListenerEntry]:
    """Return what works, then what does not, then what cannot be loaded; by name."""
    kinds = {**registry.listeners, **registry.profilers}
    entries = [_entry(name, kind) for name, kind in kinds.items()]
    entries += [ListenerEntry(name, failure=reason) for name, reason in registry.broken.items()]
    return sorted(entries, key=lambda entry: (bool(entry.failure), not entry.works, entry.name))


def _entry(name: str, kind: type[Source]) -> ListenerEntry:
    try:
        return ListenerEntry(
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
        return ListenerEntry(name, failure=f"{where}: {described(error)}")


_RATIO = "1"
_COUNTED, _ESTIMATED = "+", "≈"
_BETWEEN = ", "
#: Titles of the series of each scope, in their order.
_TITLES = {
    Scope.PROCESS: "series of the run's process tree",
    Scope.GPU: "series of a whole GPU",
    Scope.MIG: "series of a MIG instance",
    Scope.HOST: "series of the whole machine",
    Scope.RUN: "series logged in the run's process",
}


def _overview(entries: Sequence[ListenerEntry], *, verbose: bool) -> Document:
    """Return all names, with the series of those that work, or with ``verbose`` of all."""
    listeners = [entry for entry in entries if not entry.failure and not entry.is_profiler]
    working = [entry for entry in listeners if entry.works]
    parts = {
        f"listeners: {len(working)} of {len(listeners)} available": working,
        "not available": [entry for entry in listeners if not entry.works],
        "profilers: each attaches to one run": [entry for entry in entries if entry.is_profiler],
        "cannot be loaded": [entry for entry in entries if entry.failure],
    }
    tables = [
        text_table(
            [row for entry in shown for row in _overview_rows(entry, verbose=verbose)], title
        )
        for title, shown in parts.items()
    ]
    legend = [
        "default: used by runs that name no listener",
        "no unit: a ratio or a count",
        f"{_COUNTED} counter",
        f"{_ESTIMATED} apportioned, not measured",
        "radt listeners NAME shows details",
    ]
    return Document("", (), [*tables, Notes([Note(line, Tone.DIM) for line in legend])])


def _overview_rows(entry: ListenerEntry, *, verbose: bool) -> Iterator[Sequence[Cell | str]]:
    answer = entry.availability
    remarks = ["default"] * entry.by_default + ["slows the run down"] * entry.disturbs
    said = [" · ".join(filter(None, (_summary(entry), *remarks)))]
    if not entry.works:
        said.append(". ".join(part.rstrip(".") for part in (answer.reason, answer.remedy) if part))
    if entry.works or verbose:
        for scope in _TITLES:
            if metrics := entry.of_scope(scope):
                family = _family(metrics)
                names = _BETWEEN.join(_short(metric, len(family)) for metric in metrics)
                said.append(f"{scope}: {f'{family}*: ' if family else ''}{names}")
        if entry.options:
            said.append(f"options: {_BETWEEN.join(entry.options)}")
    first, *more = filter(None, (entry.failure, *said))
    mark = "✔" if entry.works else "✘" if entry.failure else "–"
    name = Cell(entry.name, tone=Tone.STRONG if entry.works else Tone.NORMAL)
    yield mark, name, _interval(entry), first
    for text in more:
        yield "", "", "", _dim(text)


def _dim(text: str) -> Cell:
    return Cell(text, tone=Tone.DIM)


def _family(metrics: Sequence[Metric]) -> str:
    """Return the common prefix of these names, up to a dot; empty for a single name."""
    names = [metric.name.split(".")[:-1] for metric in metrics]
    common = commonprefix(names)  # noqa: RUF071 - applied to lists of parts
    return "".join(f"{part}." for part in common) if len(metrics) > 1 else ""


def _short(metric: Metric, skip: int) -> str:
    is_number = metric.unit == _RATIO or metric.unit.startswith("{")
    return (
        (f"{_ESTIMATED} " if metric.estimated else "")
        + metric.name[skip:]
        + ("" if is_number else f" {metric.unit}")
        + (_COUNTED if metric.kind is SeriesKind.COUNTER else "")
    )


def _entry_document(entry: ListenerEntry) -> Document:
    if entry.failure:
        failure = Note(entry.failure, Tone.BAD)
        return Document(f"{entry.name} · cannot be loaded", (), [Notes([failure])])
    facts = [(_dim(label), text) for label, text in _facts(entry) if text]
    options = [(word, _dim(text)) for word, text in entry.options.items()]
    ordered = [metric for scope in _TITLES for metric in entry.of_scope(scope)]
    methods = list(dict.fromkeys(metric.method for metric in ordered if metric.method))
    series = [
        text_table([_series_row(metric, methods) for metric in entry.of_scope(scope)], title)
        for scope, title in _TITLES.items()
    ]
    numbered = [(str(number), method) for number, method in enumerate(methods, 1)]
    return Document(
        f"{entry.name} · {_summary(entry)}",
        (),
        [
            text_table(facts),
            text_table(options, "options"),
            *series,
            text_table(numbered, "how the values are measured"),
        ],
    )


def _summary(entry: ListenerEntry) -> str:
    """Return the first line of a docstring, without its markup."""
    return entry.summary.rstrip(".").replace("``", "")


def _facts(entry: ListenerEntry) -> Iterator[tuple[str, str]]:
    answer = entry.availability
    yield "here", "works" if entry.works else answer.reason
    if not entry.works:
        yield "", answer.remedy
    if entry.interval_s is not None:
        other = "500ms" if entry.interval_s <= 1 else "30s"
        yield "interval", f"{_interval(entry)} by default; {entry.name}@{other} changes it"
        where = "" if entry.works else " where it works"
        has_it = f"yes: runs that name no listener use it{where}"
        yield "default", has_it if entry.by_default else "no: a run must name it"
    if entry.is_profiler:
        slows = "slows the run down; comparisons exclude the run by default"
        yield "effect", slows if entry.disturbs else "barely affects the run"
    if entry.takes_gpu_counters:
        yield "counters", "uses the GPU's; dcgm pauses meanwhile"
    yield "from", entry.origin


def _series_row(metric: Metric, methods: Sequence[str]) -> Sequence[Cell | str]:
    counts = metric.kind is SeriesKind.COUNTER
    parts = [metric.description] if metric.description else []
    parts += ["counts up"] * counts + ["apportioned, not measured"] * metric.estimated
    unit = metric.unit + _COUNTED * counts
    number = str(methods.index(metric.method) + 1) if metric.method else ""
    return metric.name, unit, number, _dim("; ".join(parts))


def _interval(entry: ListenerEntry) -> str:
    return "" if entry.interval_s is None else duration_text(entry.interval_s)
