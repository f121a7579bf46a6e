"""``radt ls``: list runs, the newest first."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Console

from radt import units
from radt.cli.options import experiment_of, reading_options, unknown_experiment
from radt.errors import UsageError
from radt.frontend.data.catalog import RunEntry, read_catalog, read_experiments
from radt.frontend.data.source import Source
from radt.frontend.search.find import duration_s, find
from radt.model import SHORT_ID_CHARS, RunStatus
from radt.render.model import Cell, Column, Document, Note, Notes, Role, Row, Table, Tone
from radt.render.terminal import print_document
from radt.store.backend import StoreAddress
from radt.store.locate import Places, Readers

_LIMIT = 25
#: Columns of the table; ``--json`` has all.
_MAX_PARAMS, _MAX_METRICS = 4, 4
#: They describe the command as a whole; its parts are parameters of their own.
_NOT_SHOWN = frozenset({"File", "Params", "Environment"})
#: Metrics that are radt's own: what the script logs comes first.
_OWN_METRICS = frozenset({"samples_per_s", "data_wait"})
#: A term that excludes runs looks like an option: ``-status:failed``.
_EXCLUDING_TERM = re.compile(r"-[^-].*[:=<>].*")
_TONES = {
    RunStatus.RUNNING: Tone.STRONG,
    RunStatus.FINISHED: Tone.NORMAL,
    RunStatus.SCHEDULED: Tone.DIM,
    RunStatus.SKIPPED: Tone.DIM,
}


class LsCommand(click.Command):
    """Takes excluding terms for what they are, although they begin with a dash."""

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
@click.option("--json", "as_json", is_flag=True, help="Print JSON: all params, metrics, both ids.")
@reading_options
def command(
    what: tuple[str, ...], limit: int, everything: bool, as_json: bool, places: Places
) -> None:
    """List runs, the newest first: id, name, state, parameters that differ, last metrics.

    \b
    radt ls                           the newest runs
    radt ls study                     of an experiment (name or file)
    radt ls study 'lr<0.1' -status:failed 'age<2d' resnet

    Every TERM must match, as in the search of the dashboard: a word anywhere, key:value in a field,
    parameter or tag (= the whole value, != another, < <= > >= numbers); a minus excludes matches.
    Fields: status, device, workload, experiment, name, command, host, collocation, listener,
    run, reason, duration, age, starred, archived. Archived runs are left out without archived:yes.

    Every command takes the id of a run, or 4 or more of its first characters.
    """
    listing = _listing(what, None if everything else limit, places)
    if as_json:
        click.echo(json.dumps([_as_json(run) for run in listing.runs], indent=2))
    else:
        print_document(Console(highlight=False), _document(listing, places))


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run with its parameters and the last values of what it logged; ``short`` is its id."""

    entry: RunEntry
    short: str
    params: Mapping[str, str]
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Listing:
    """The runs to show, of ``matching`` that match among ``total``."""

    runs: Sequence[ListedRun]
    matching: int
    total: int


def _listing(what: Sequence[str], limit: int | None, places: Places) -> Listing:
    """Read the runs from the nearest store that has the experiment, or any.

    Raises:
        UsageError: The search cannot be understood, or there is no such experiment.
        StoreError: A store cannot be read.
    """
    address, experiment, terms = _experiment(what, places)
    source = Source(address)
    try:
        results = find(source, " ".join(terms))
        if results.problems:
            problem = results.problems[0]
            raise UsageError(
                f"Search term {problem.typed!r}: {problem.cause}", "Run `radt ls --help`"
            )
        entries: list[RunEntry] = []
        for match in results.experiments:
            if experiment in (None, match.summary.name):
                catalog = read_catalog(source, match.summary.name)
                workloads = catalog.workloads if match.workloads is None else match.workloads
                entries += [run for workload in workloads for run in workload.runs]
        entries.sort(key=_newest_first)
        shown = entries[:limit]
        ids = [entry.run_id for entry in shown]
        params, metrics = source.reader.params_of(ids), source.reader.last_logged(ids)
        summaries = read_experiments(source)
        every_id = [
            run_id for match in summaries for run_id in read_catalog(source, match.name).runs
        ]
    finally:
        source.close()
    shorts = _short_ids(ids, every_id)
    runs = [
        ListedRun(
            entry,
            shorts[entry.run_id],
            params.get(entry.run_id, {}),
            metrics.get(entry.run_id, {}),
        )
        for entry in shown
    ]
    return Listing(runs, len(entries), len(every_id))


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
        if name and name != what[0]:  # a file
            raise unknown_experiment(name, places, "runs")
    assert nearest is not None
    return nearest, None, what


def _short_ids(ids: Iterable[str], every_id: Iterable[str]) -> dict[str, str]:
    """Return for each id the beginning that no other run has, of the usual length if it does."""
    every_id = list(every_id)
    counts = Counter(run_id[:SHORT_ID_CHARS] for run_id in every_id)
    shorts = {}
    for run_id in ids:
        length = SHORT_ID_CHARS
        if counts[run_id[:length]] > 1:
            like = [
                other_id
                for other_id in every_id
                if other_id.startswith(run_id[:length]) and other_id != run_id
            ]
            while length < len(run_id) and any(
                other_id.startswith(run_id[:length]) for other_id in like
            ):
                length += 1
        shorts[run_id] = run_id[:length]
    return shorts


def _document(listing: Listing, places: Places) -> Document:
    runs = listing.runs
    if not runs:
        text = "No run matches." if listing.total else f"No runs in {places}."
        return Document("", (), (Notes((Note(text),)),))
    now = datetime.now().astimezone()
    params = _differing([run.params for run in runs])
    metrics = _most_common_first([run.metrics for run in runs])
    experiments = {run.entry.record.experiment for run in runs}
    columns = [
        Column("id", role=Role.KEY, is_number=False),
        Column("name", role=Role.LEAD, is_number=False),
        Column("state", is_number=False),
        Column("when", is_number=False),
        Column("took"),
        *(Column(name, is_number=False) for name in params[:_MAX_PARAMS]),
        *(Column(name) for name in metrics[:_MAX_METRICS]),
    ]
    rows = []
    for run in runs:
        record = run.entry.record
        cells = [
            Cell(run.short),
            Cell(_name(run.entry, with_experiment=len(experiments) > 1)),
            Cell(record.status.value, tone=_TONES.get(record.status, Tone.BAD)),
            Cell(_when(record.started_ns or record.created_ns, now)),
            Cell(units.duration(duration_s(run.entry))),
            *(Cell(_cut(run.params.get(name, ""))) for name in params[:_MAX_PARAMS]),
            *(
                Cell(units.significant(run.metrics[name]) if name in run.metrics else "")
                for name in metrics[:_MAX_METRICS]
            ),
        ]
        rows.append(Row(cells))
    return Document("", (), (Table(columns, rows), Notes(tuple(_notes(listing, params, metrics)))))


def _name(entry: RunEntry, *, with_experiment: bool) -> str:
    """Return experiment, workload, letter and name of a run as far as they say anything."""
    record = entry.record
    if with_experiment and (record.workload or not record.name.startswith(record.experiment)):
        place = f"{record.experiment}/{entry.short}" if record.workload else f"{record.experiment}:"
    else:
        place = entry.short if record.workload else ""
    child = "↳" if entry.parent is not None else ""
    name = entry.second_name if record.workload else record.name
    return " ".join(filter(None, (child, place, name)))


def _notes(listing: Listing, params: Sequence[str], metrics: Sequence[str]) -> Iterable[Note]:
    if len(listing.runs) < listing.matching:
        text = f"{len(listing.runs):,} of {listing.matching:,} runs. --all lists all."
        yield Note(text, Tone.DIM)
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
    """Return the parameters that not all of the runs have alike."""
    names = [name for name in _most_common_first(params) if name not in _NOT_SHOWN]
    return [name for name in names if len({param.get(name) for param in params}) > 1]


def _most_common_first(values: Sequence[Mapping[str, object]]) -> list[str]:
    """Return all names, those that most runs have first, else in the order they are given.

    >>> _most_common_first([{"data_wait": 1, "C": 1}, {"data_wait": 2, "lr": 1}, {"lr": 2}])
    ['lr', 'C', 'data_wait']
    """
    counts = Counter(name for one in values for name in one)
    return sorted(counts, key=lambda name: (name in _OWN_METRICS, -counts[name]))


_WIDEST_PARAM = 24


def _cut(text: str) -> str:
    return text if len(text) <= _WIDEST_PARAM else f"{text[: _WIDEST_PARAM - 1]}…"


def _when(at_ns: int, now: datetime) -> str:
    at = datetime.fromtimestamp(at_ns / 1e9).astimezone()
    if at.date() == now.date():
        return f"{at:%H:%M:%S}"
    return f"{at:%m-%d %H:%M}" if at.year == now.year else f"{at:%Y-%m-%d}"


def _as_json(run: ListedRun) -> dict[str, Any]:
    """Return a run for ``--json``; values that are no finite numbers are null."""
    record = run.entry.record
    took_s = duration_s(run.entry)
    return {
        "id": run.short,
        "run_id": record.run_id,
        "mlflow_run_id": record.mlflow_run_id,
        "experiment": record.experiment,
        "workload": record.workload,
        "letter": record.letter,
        "parent": None if run.entry.parent is None else run.entry.parent.run_id,
        "name": record.name,
        "status": record.status.value,
        "reason": record.end_reason,
        "created": _iso(record.created_ns),
        "started": _iso(record.started_ns),
        "ended": _iso(record.ended_ns),
        "duration_s": None if took_s is None else round(took_s, 3),
        "devices": record.devices,
        "collocation": record.collocation,
        "host": record.host,
        "params": dict(run.params),
        "metrics": {
            name: value if math.isfinite(value) else None for name, value in run.metrics.items()
        },
    }


def _iso(at_ns: int | None) -> str | None:
    return None if at_ns is None else datetime.fromtimestamp(at_ns / 1e9, UTC).isoformat()
