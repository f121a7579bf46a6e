"""``radt ls``: list runs, the newest first."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import click
from rich.console import Console

from radt import units
from radt.analysis.metric_columns import STATISTICS
from radt.analysis.selection import counts_text, read_tags, select
from radt.cli.options import (
    experiment_of,
    json_option,
    print_json,
    store_options,
    unknown_experiment,
)
from radt.errors import UsageError, cut
from radt.experiment.columns import did_you_mean
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.catalog import RunEntry
from radt.frontend.data.connections import NothingRecordedError
from radt.frontend.data.metric_columns import metric_names
from radt.frontend.data.run_columns import FIELDS, PARAM, TAG
from radt.frontend.data.run_table import NO_GROUPS, RunTable, read_table, text_of
from radt.frontend.data.spec import ColumnChoice
from radt.frontend.view import View
from radt.model import SHORT_ID_CHARS, SOFTWARE, RunStatus
from radt.render.json_text import attributes
from radt.render.model import Cell, ColumnHead, Document, Note, Notes, Role, Row, Table, Tone
from radt.render.terminal import print_document
from radt.store.backend import StoreAddress
from radt.store.locate import Places, Readers
from radt.store.reader import StoreReader
from radt.store.summaries import SeriesSummary

_LIMIT = 25
#: Columns of the table; ``--json`` has all.
_MAX_PARAMS, _MAX_METRICS = 4, 4
#: Columns of the dashboard that are always in the table.
_ALWAYS_SHOWN = frozenset({"status", "duration", "age", "name"})
#: Columns that describe the command as a whole; its parts are separate parameters.
_NOT_SHOWN = frozenset({"File", "Params", "Environment"})
#: radt's own metrics: those that the script logs come first.
_OWN_METRICS = frozenset({"samples_per_s", "data_wait"})
#: A term that excludes runs looks like an option: ``-status:failed``.
_EXCLUDING_TERM = re.compile(r"-[^-].*[:=<>].*")
_FIELD_TERM = re.compile(r"[:=<>]")
#: Exit code if there is no experiment with the given name.
EXIT_UNKNOWN = 1
_TONES = {
    RunStatus.RUNNING: Tone.STRONG,
    RunStatus.FINISHED: Tone.NORMAL,
    RunStatus.SCHEDULED: Tone.DIM,
    RunStatus.SKIPPED: Tone.DIM,
}


class LsCommand(click.Command):
    """Parses excluding terms as arguments, although they begin with a dash."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        terms = [text for text in args[:end] if _EXCLUDING_TERM.fullmatch(text)]
        rest = [text for text in args[:end] if text not in terms]
        return super().parse_args(ctx, [*rest, "--", *args[end + 1 :], *terms])


@click.command("ls", cls=LsCommand)
@click.argument("what", nargs=-1, metavar="[EXPERIMENT] [TERM]...")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=1),
    default=_LIMIT,
    show_default=True,
    help="Number of runs to list.",
)
@click.option("--all", "everything", is_flag=True, help="List all runs.")
@click.option(
    "--sort",
    metavar="KEY",
    help="Sort by a column of the dashboard, with a minus in descending order: duration, "
    "-accuracy.max, param.lr.",
)
@json_option
@store_options
def command(
    what: tuple[str, ...],
    limit: int,
    everything: bool,
    sort: str | None,
    as_json: bool,
    places: Places,
) -> None:
    """List runs, the newest first: id, name, state, parameters that differ, last metrics.

    \b
    radt ls                           the newest runs
    radt ls study                     of an experiment (name or file)
    radt ls study 'lr<0.1' -status:failed 'age<2d' resnet
    radt ls study --sort -accuracy.max    the most accurate first

    Every TERM must match, as in the search of the dashboard: a word anywhere, key:value in a field,
    parameter or tag (= the whole value, != another, < <= > >= numbers); a minus excludes matches.
    Fields: status, device, workload, experiment, name, command, host, collocation, listener,
    run, reason, duration, age, starred, archived. Archived runs are left out without archived:yes.

    Every command takes the id of a run, or 4 or more of its first characters. Exits with 1 if the
    first word is neither an experiment nor in any run.
    """
    listing = _listing(what, sort, None if everything else limit, places)
    if as_json:
        print_json("ls", {"runs": [_as_json(run) for run in listing.runs]})
    else:
        print_document(Console(highlight=False), _document(listing, places))
    if listing.unknown is not None:
        click.get_current_context().exit(EXIT_UNKNOWN)


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run with its parameters and the last values of what it logged; ``short`` is its id."""

    entry: RunEntry
    short: str
    params: Mapping[str, str]
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RunListing:
    """The runs to show, of ``matching`` that match among ``total``.

    ``sorted_by`` is the heading of a further column that they are sorted by, with its cells.
    ``counts`` says how many runs of the experiment count, ``unknown`` why nothing was found by the
    name of an experiment.
    """

    runs: Sequence[ListedRun]
    matching: int
    total: int
    sorted_by: tuple[str, Sequence[str]] | None = None
    counts: str = ""
    unknown: UsageError | None = None


def _listing(
    what: Sequence[str], sort: str | None, limit: int | None, places: Places
) -> RunListing:
    """Read the runs from the nearest store that has the experiment, or any.

    Raises:
        UsageError: The search or the column to sort by cannot be understood, or there is no such
            experiment.
        StoreError: A store cannot be read.
    """
    address, experiment, terms = _experiment(what, places)
    source = CachedStore(address)
    try:
        key = (sort or "").removeprefix("-")
        view = View(
            experiment=experiment or "",
            search=" ".join(terms),
            columns=(ColumnChoice(key),) if key else (),
            options={
                "runs.group": NO_GROUPS,
                "runs.sort": ("-" if sort != key else "") + quote(key, safe=""),
            },
        )
        try:
            table = read_table(source, view)
        except NothingRecordedError:
            return RunListing((), 0, 0, unknown=_unknown_name(experiment, terms, places, source))
        if table.found.problems:
            problem = table.found.problems[0]
            raise UsageError(
                f"Search term {problem.typed!r}: {problem.cause}", "Run `radt ls --help`"
            )
        is_named = key.startswith((PARAM, TAG))  # any parameter or tag can be a column
        if key and not any(not is_named or column.has_values for column in table.columns):
            raise _unknown_column(key, table)
        order = table.order.tolist()
        if not key:
            order.sort(key=lambda place: _newest_first(table.all_runs.runs[place]))
        shown = [table.all_runs.runs[place] for place in order[:limit]]
        ids = [entry.run_id for entry in shown]
        params, metrics = source.reader.params_of(ids), _last_logged(source.reader.summary(ids))
        cells = [text_of(column, place) for column in table.columns for place in order[:limit]]
        unknown = None if order else _unknown_name(experiment, terms, places, source)
        counts = _counts(source.reader, experiment) if experiment and not terms else ""
    finally:
        source.close()
    every_id = table.all_runs.columns.run_ids
    length = SHORT_ID_CHARS
    while len({run_id[:length] for run_id in every_id}) < len(every_id):
        length += 1
    runs = [
        ListedRun(
            entry,
            entry.run_id[:length],
            params.get(entry.run_id, {}),
            metrics.get(entry.run_id, {}),
        )
        for entry in shown
    ]
    return RunListing(
        runs,
        len(order),
        len(every_id),
        None if key in {"", *_ALWAYS_SHOWN} else (table.columns[0].label, cells),
        counts,
        unknown,
    )


def _unknown_name(
    experiment: str | None, terms: Sequence[str], places: Places, source: CachedStore
) -> UsageError | None:
    """Return the error that the first word, which no run contains, is not an experiment either."""
    if experiment or not terms or _FIELD_TERM.search(terms[0]):
        return None
    with suppress(NothingRecordedError):
        if len(read_table(source, View(search=terms[0])).order):
            return None
    return unknown_experiment(terms[0], places, "runs")


def _counts(reader: StoreReader, experiment: str) -> str:
    """Return the number of runs that count, in the words of reports; "" if all do."""
    runs = reader.runs(experiment=experiment)
    selection = select(runs, read_tags(reader, experiment))
    return counts_text([selection]) if selection.reasons else ""


def _unknown_column(key: str, table: RunTable) -> UsageError:
    """Return the error for a column that does not exist, suggesting similar ones."""
    columns = table.all_runs.columns
    names = [f"{PARAM}{name}" for params in columns.params.values() for name in params]
    names += [f"{TAG}{name}" for tags in columns.tags.values() for name in tags]
    for metric in metric_names(columns.source):
        names += [f"{metric.metric}.{statistic}" for statistic in STATISTICS]
    hint = did_you_mean(key, {*FIELDS, *names})
    return UsageError(
        f"There is no column {key!r} to sort by",
        hint or f"Choose from {', '.join(FIELDS)}, param.NAME, tag.NAME or METRIC.max",
    )


def _last_logged(summaries: Iterable[SeriesSummary]) -> dict[str, dict[str, float]]:
    """Return the last value of each metric that scripts logged, by run and metric."""
    values: dict[str, dict[str, float]] = {}
    for summary in summaries:
        series = summary.series
        if series.listener == SOFTWARE:
            name = f"{series.metric} {series.entity}".rstrip()
            values.setdefault(series.run_id, {})[name] = summary.last
    return values


def _newest_first(run: RunEntry) -> tuple[int, int, int]:
    """Return a sort key: runs within a run follow it, in the order in which they began."""
    whole = run.parent or run
    return -whole.record.created_ns, -whole.ordinal, run.record.created_ns


def _experiment(
    what: Sequence[str], places: Places
) -> tuple[StoreAddress, str | None, Sequence[str]]:
    """Return the store to read, the experiment that the first word names if any, and the terms."""
    name = experiment_of(what[0], places) if what else ""
    with Readers(places) as readers:
        nearest: StoreAddress | None = None
        for reader in readers.nearest_first():
            nearest = nearest or reader.address
            if name and any(experiment.name == name for experiment in reader.experiments()):
                return reader.address, name, what[1:]
        if name and name != what[0]:  # the user gave a file
            raise unknown_experiment(name, places, "runs")
    assert nearest is not None
    return nearest, None, what


def _document(listing: RunListing, places: Places) -> Document:
    runs = listing.runs
    if not runs:
        text = "No run matches." if listing.total else f"No runs in {places}."
        hint = (listing.unknown.remedy or "",) if listing.unknown else ()
        return Document("", (), (Notes((Note(text, details=hint),)),))
    now, now_ns = datetime.now().astimezone(), time.time_ns()
    params = _differing([run.params for run in runs])
    metrics = _most_common_first([run.metrics for run in runs])
    experiments = {run.entry.record.experiment for run in runs}
    sorted_by = [listing.sorted_by] if listing.sorted_by is not None else []
    columns = [
        ColumnHead("id", role=Role.KEY, is_number=False),
        ColumnHead("name", role=Role.LEAD, is_number=False),
        ColumnHead("state", is_number=False),
        ColumnHead("when", is_number=False),
        ColumnHead("took"),
        *(ColumnHead(heading) for heading, _ in sorted_by),
        *(ColumnHead(name, is_number=False) for name in params[:_MAX_PARAMS]),
        *(ColumnHead(name) for name in metrics[:_MAX_METRICS]),
    ]
    rows = []
    for place, run in enumerate(runs):
        record = run.entry.record
        cells = [
            Cell(run.short),
            Cell(_name(run.entry, with_experiment=len(experiments) > 1)),
            Cell(record.status.value, tone=_TONES.get(record.status, Tone.BAD)),
            Cell(_when(record.started_ns or record.created_ns, now)),
            Cell(units.duration(record.lasted_s(now_ns))),
            *(Cell(cells[place]) for _, cells in sorted_by),
            *(Cell(cut(run.params.get(name, ""), _WIDEST_PARAM)) for name in params[:_MAX_PARAMS]),
            *(
                Cell(units.significant(run.metrics[name]) if name in run.metrics else "")
                for name in metrics[:_MAX_METRICS]
            ),
        ]
        rows.append(Row(cells))
    return Document("", (), (Table(columns, rows), Notes(tuple(_notes(listing, params, metrics)))))


def _name(entry: RunEntry, *, with_experiment: bool) -> str:
    """Return the non-redundant parts of a run's name: experiment, workload, letter and name."""
    record = entry.record
    if with_experiment and (record.workload or not record.name.startswith(record.experiment)):
        place = f"{record.experiment}/{entry.short}" if record.workload else f"{record.experiment}:"
    else:
        place = entry.short if record.workload else ""
    child = "↳" if entry.parent is not None else ""
    name = entry.second_name if record.workload else record.name
    return " ".join(filter(None, (child, place, name)))


def _notes(listing: RunListing, params: Sequence[str], metrics: Sequence[str]) -> Iterable[Note]:
    if len(listing.runs) < listing.matching:
        text = f"{len(listing.runs):,} of {listing.matching:,} runs. --all lists all."
        yield Note(text, Tone.DIM)
    if listing.counts:
        yield Note(f"{listing.counts}.", Tone.DIM)
    hidden = [
        units.plural(count, noun)
        for count, noun in (
            (len(params) - _MAX_PARAMS, "parameter"),
            (len(metrics) - _MAX_METRICS, "metric"),
        )
        if count > 0
    ]
    if hidden:
        yield Note(f"{' and '.join(hidden)} more with --json.", Tone.DIM)


def _differing(params: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the parameters in which the runs differ."""
    names = [name for name in _most_common_first(params) if name not in _NOT_SHOWN]
    return [name for name in names if len({param.get(name) for param in params}) > 1]


def _most_common_first(values: Sequence[Mapping[str, object]]) -> list[str]:
    """Return all names: those that most runs have first, otherwise in the given order.

    >>> _most_common_first([{"data_wait": 1, "C": 1}, {"data_wait": 2, "lr": 1}, {"lr": 2}])
    ['lr', 'C', 'data_wait']
    """
    counts = Counter(name for one in values for name in one)
    return sorted(counts, key=lambda name: (name in _OWN_METRICS, -counts[name]))


_WIDEST_PARAM = 24


def _when(at_ns: int, now: datetime) -> str:
    at = datetime.fromtimestamp(at_ns / 1e9).astimezone()
    if at.date() == now.date():
        return f"{at:%H:%M:%S}"
    return f"{at:%m-%d %H:%M}" if at.year == now.year else f"{at:%Y-%m-%d}"


def _as_json(run: ListedRun) -> dict[str, Any]:
    """Return a run for ``--json``."""
    record = run.entry.record
    return {
        "id": run.short,
        **attributes(record, "run_id", "mlflow_run_id", "experiment", "workload", "letter", "name"),
        "parent": None if run.entry.parent is None else run.entry.parent.run_id,
        "status": record.status.value,
        "reason": record.end_reason,
        "created": _iso(record.created_ns),
        "started": _iso(record.started_ns),
        "ended": _iso(record.ended_ns),
        "duration_s": record.lasted_s(time.time_ns()),
        **attributes(record, "devices", "collocation", "host"),
        "params": dict(run.params),
        "metrics": dict(run.metrics),
    }


def _iso(at_ns: int | None) -> str | None:
    return None if at_ns is None else datetime.fromtimestamp(at_ns / 1e9, UTC).isoformat()
