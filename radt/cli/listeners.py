"""``radt listeners``: the listeners and profilers of this machine, and their metrics."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from os.path import commonprefix
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from radt.errors import UsageError, described
from radt.experiment.columns import did_you_mean
from radt.listeners import registry
from radt.listeners.api import Availability, Listener, Metric, Profiler, Registry, Source, probed
from radt.model import Scope, SeriesKind
from radt.render.model import printable
from radt.units import duration_text


@click.command("listeners")
@click.argument("name", required=False)
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Also list the metrics of listeners that do not work here.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(name: str | None, verbose: bool, as_json: bool) -> None:
    """List the listeners and profilers of this machine, or describe one by NAME.

    The Listeners column of an experiment file takes these names, joined by +, with options and an
    interval: top:cores@500ms+smi. The word default stands for the listeners of a run that names
    none.
    """
    loaded = registry.load()
    entries = all_entries(loaded) if name is None else [_find(loaded, name)]
    if as_json:
        document = [entry.document() for entry in entries]
        click.echo(json.dumps(document if name is None else document[0], indent=2))
        return
    console = Console(highlight=False)
    lines = (
        overview_lines(entries, console.width, verbose=verbose)
        if name is None
        else source_lines(entries[0], console.width)
    )
    for line in lines:
        line.rstrip()
        console.print(line, soft_wrap=True)


def _find(loaded: Registry, name: str) -> Entry:
    wanted = name.lower()
    entry = entry_of(loaded, registry.ALIASES.get(wanted, wanted))
    if entry is None:
        names = (*loaded.names, *loaded.broken, *registry.ALIASES)
        remedy = did_you_mean(name, names) or "Run `radt listeners` to list them"
        raise UsageError(f"Unknown listener or profiler {printable(name)!r}", remedy)
    return entry


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
    """Return what works, then what does not, then what cannot be loaded; by name."""
    entries = [_entry(name, kind) for name, kind in _kinds(registry).items()]
    entries += [Entry(name, failure=reason) for name, reason in registry.broken.items()]
    return sorted(entries, key=lambda entry: (bool(entry.failure), not entry.works, entry.name))


def entry_of(registry: Registry, name: str) -> Entry | None:
    """Return the entry of this name; None if there is none."""
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
        return Entry(name, failure=f"{where}: {described(error)}")


_INDENT = 2
_GAP = 2
_LABEL = 9
_MIN_COLUMN = 24
_RATIO = "1"
_SCOPES = (Scope.PROCESS, Scope.GPU, Scope.MIG, Scope.HOST, Scope.RUN)
_COUNTED, _ESTIMATED = "+", "≈"
_BETWEEN = " · "


def overview_lines(entries: Sequence[Entry], width: int, *, verbose: bool) -> Iterator[Text]:
    """Yield all names, with the series of those that work, or with ``verbose`` of all."""
    listeners = [entry for entry in entries if not entry.failure and not entry.is_profiler]
    profilers = [entry for entry in entries if entry.is_profiler]
    broken = [entry for entry in entries if entry.failure]
    working = [entry for entry in listeners if entry.works]
    absent = [entry for entry in listeners if not entry.works]
    columns = _Columns(entries, width, verbose=verbose)
    yield Text.assemble(("listeners", "bold"), f" · {len(working)} of {len(listeners)} work here")
    for entry in working:
        yield Text()
        yield from columns.block(entry)
    if absent:
        yield Text()
        yield Text("not here", "bold")
        yield Text()
        for entry in absent:
            yield from columns.block(entry)
    if profilers:
        yield Text()
        yield Text.assemble(("profilers", "bold"), " · each goes with one run")
        yield Text()
        for entry in profilers:
            yield from columns.block(entry)
    if broken:
        yield Text()
        yield Text("cannot be loaded", "bold")
        yield Text()
        for entry in broken:
            lead = Text.assemble(("✘ ", "red"), (printable(entry.name), "bold"), " " * _GAP)
            yield from _block(lead, [Text(printable(entry.failure), "dim")], width)
    yield Text()
    yield from _legend(entries, width)


class _Columns:
    """The blocks of the overview, in columns: mark, name, interval, what there is to say."""

    def __init__(self, entries: Iterable[Entry], width: int, *, verbose: bool) -> None:
        shown = [entry for entry in entries if not entry.failure]
        self._name = max((len(printable(entry.name)) for entry in shown), default=0)
        self._interval = max((len(_interval(entry)) for entry in shown), default=0)
        self._width = width
        self._verbose = verbose

    def block(self, entry: Entry) -> Iterator[Text]:
        mark = ("✔ ", "green") if entry.works else ("– ", "dim")
        name = printable(entry.name).ljust(self._name + _GAP)
        interval = _interval(entry).rjust(self._interval) + " " * _GAP
        head = Text.assemble(mark, (name, "bold" if entry.works else ""), (interval, "dim"))
        parts = list(_parts(entry, with_series=self._verbose or entry.works))
        yield from _block(head, parts, self._width)


def _parts(entry: Entry, *, with_series: bool) -> Iterator[_Part]:
    summary = Text(_summary(entry))
    for remark in _remarks(entry):
        summary.append(" · " if summary else "").append(remark, "cyan" if entry.works else "dim")
    if summary:
        yield summary
    answer = entry.availability
    if not entry.works:
        parts = (printable(part).rstrip(".") for part in (answer.reason, answer.remedy) if part)
        yield Text(". ".join(parts), "dim")
    if with_series:
        for scope in _SCOPES:
            if metrics := entry.of_scope(scope):
                family = _family(metrics)
                yield _List(str(scope), family, [_short(metric, len(family)) for metric in metrics])
    if entry.options and (with_series or entry.works):
        yield _List("options", "", [Text(printable(word)) for word in entry.options])


def _family(metrics: Sequence[Metric]) -> str:
    """Return the common prefix of these names, up to a dot; empty for a single name."""
    names = [metric.name.split(".")[:-1] for metric in metrics]
    common = commonprefix(names)  # noqa: RUF071 - of lists, part by part
    return "".join(f"{part}." for part in common) if len(metrics) > 1 else ""


def _remarks(entry: Entry) -> Iterator[str]:
    if entry.by_default:
        yield "default"
    if entry.disturbs:
        yield "slows the run down"


def _short(metric: Metric, skip: int) -> Text:
    unit = (
        "" if metric.unit == _RATIO or metric.unit.startswith("{") else f" {printable(metric.unit)}"
    )
    return Text.assemble(
        (f"{_ESTIMATED} " if metric.estimated else "", "yellow"),
        printable(metric.name[skip:]),
        (unit + (_COUNTED if metric.kind is SeriesKind.COUNTER else ""), "dim"),
    )


def _legend(entries: Iterable[Entry], width: int) -> Iterator[Text]:
    metrics = [metric for entry in entries for metric in entry.metrics]
    parts = ["default: what a run gets that names none", "no unit: a ratio or a number"]
    if any(metric.kind is SeriesKind.COUNTER for metric in metrics):
        parts.append(f"{_COUNTED} counts up")
    if any(metric.estimated for metric in metrics):
        parts.append(f"{_ESTIMATED} apportioned, not measured")
    parts.append("radt listeners NAME says more")
    yield from _wrapped(Text(" · ".join(parts), "dim"), width)


def source_lines(entry: Entry, width: int) -> Iterator[Text]:
    """Yield everything about one entry."""
    name = printable(entry.name)
    if entry.failure:
        yield Text.assemble((name, "bold"), " · ", ("cannot be loaded", "red"))
        yield from _block(Text(" " * _INDENT), [Text(printable(entry.failure))], width)
        return
    head = Text.assemble((name, "bold"), " · ", _summary(entry))
    yield from _wrapped(head, width)
    yield Text()
    facts = list(_facts(entry))
    for label, text in facts:
        yield from _block(Text(f"  {label}".ljust(_INDENT + _LABEL + _GAP), "dim"), [text], width)
    if entry.options:
        yield Text()
        yield Text("options", "bold")
        room = max(len(printable(word)) for word in entry.options)
        for word, meaning in entry.options.items():
            lead = Text(" " * _INDENT + printable(word).ljust(room + _GAP))
            yield from _block(lead, [Text(printable(meaning), "dim")], width)
    if entry.metrics:
        yield Text()
        yield from _series(entry, width)


def _facts(entry: Entry) -> Iterator[tuple[str, Text]]:
    answer = entry.availability
    yield "here", Text("works", "green") if entry.works else Text(printable(answer.reason))
    if not entry.works and answer.remedy:
        yield "", Text(printable(answer.remedy), "dim")
    if entry.interval_s is not None:
        yield (
            "interval",
            Text(f"{_interval(entry)} unless the run says: {entry.name}@{_other(entry)}"),
        )
        yield "default", Text(_default(entry))
    if entry.is_profiler:
        yield (
            "effect",
            Text(
                "slows the run down; comparisons leave it out unless asked"
                if entry.disturbs
                else "hardly any on the run"
            ),
        )
    if entry.takes_gpu_counters:
        yield "counters", Text("takes the GPU's; dcgm pauses meanwhile")
    yield "from", Text(printable(entry.origin))


def _default(entry: Entry) -> str:
    if not entry.by_default:
        return "no: a run has to name it"
    return "yes: a run that names none gets it" + ("" if entry.works else " where it works")


def _series(entry: Entry, width: int) -> Iterator[Text]:
    """Yield the series by scope, and each method by which values are obtained."""
    ordered = [metric for scope in _SCOPES for metric in entry.of_scope(scope)]
    methods = list(dict.fromkeys(metric.method for metric in ordered if metric.method))
    names = max(len(printable(metric.name)) for metric in entry.metrics)
    units = max(len(_unit(metric)) for metric in entry.metrics)
    notes = len(str(len(methods))) if methods else 0
    for scope in _SCOPES:
        metrics = entry.of_scope(scope)
        if not metrics:
            continue
        yield Text.assemble((f"series of {_WHOSE[scope]}", "bold"))
        for metric in metrics:
            note = str(methods.index(metric.method) + 1) if metric.method else ""
            lead = Text.assemble(
                " " * _INDENT,
                printable(metric.name).ljust(names + _GAP),
                _unit(metric).ljust(units + _GAP),
                (note.rjust(notes) + " " * _GAP if notes else "", "cyan"),
            )
            yield from _block(lead, [Text(_described(metric), "dim")], width)
        yield Text()
    if methods:
        yield Text("how the values come about", "bold")
        for number, method in enumerate(methods, 1):
            lead = Text(f"{' ' * _INDENT}{number:>{notes}}{' ' * _GAP}", "cyan")
            yield from _block(lead, [Text(printable(method))], width)


_WHOSE = {
    Scope.PROCESS: "the run's process tree",
    Scope.MIG: "a MIG instance",
    Scope.GPU: "a whole GPU",
    Scope.HOST: "the whole machine",
    Scope.RUN: "the run, from inside",
}


def _unit(metric: Metric) -> str:
    return printable(metric.unit) + (_COUNTED if metric.kind is SeriesKind.COUNTER else "")


def _described(metric: Metric) -> str:
    parts = [printable(metric.description)] if metric.description else []
    if metric.kind is SeriesKind.COUNTER:
        parts.append("counts up")
    if metric.estimated:
        parts.append("apportioned, not measured")
    return "; ".join(parts)


def _interval(entry: Entry) -> str:
    return "" if entry.interval_s is None else duration_text(entry.interval_s)


def _block(lead: Text, parts: Sequence[_Part], width: int) -> Iterator[Text]:
    """Yield texts, wrapped, to the right of ``lead``."""
    indent = lead.cell_len
    first = True
    for part in parts or (Text(),):
        room = max(width - indent, _MIN_COLUMN)
        for line in part.lines(room) if isinstance(part, _List) else _wrapped(part, room):
            yield Text.assemble(lead if first else " " * indent, line)
            first = False


@dataclass(frozen=True, slots=True)
class _List:
    """Names with a label; ``family`` is what all of them begin with."""

    label: str
    family: str
    items: Sequence[Text]

    def lines(self, room: int) -> Iterator[Text]:
        """As many as fit on each line, none broken."""
        family = f"{printable(self.family)}*  " if self.family else ""
        line, is_empty = Text.assemble((self.label.ljust(_LABEL) + family, "dim")), True
        for item in self.items:
            if not is_empty and line.cell_len + len(_BETWEEN) + item.cell_len > room:
                yield line
                line, is_empty = Text(" " * _LABEL), True
            line.append("" if is_empty else _BETWEEN, "dim")
            line.append_text(item)
            is_empty = False
        yield line


_Part = Text | _List


def _wrapped(text: Text, width: int) -> Iterator[Text]:
    for part in text.wrap(Console(width=width), width):
        part.rstrip()
        yield part


def _other(entry: Entry) -> str:
    """Return another interval as an example."""
    return "500ms" if (entry.interval_s or 0) <= 1 else "30s"


def _summary(entry: Entry) -> str:
    """Return the first line of a docstring, without its markup."""
    return printable(entry.summary).rstrip(".").replace("``", "")
