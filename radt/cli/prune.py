"""``radt prune``: delete or compact old runs."""

from __future__ import annotations

import platform
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from radt.cli.options import data_folder, exclusive_store_options
from radt.errors import DeclinedError, RadtError, UsageError
from radt.experiment.columns import did_you_mean
from radt.render.model import (
    Block,
    Cell,
    ColumnHead,
    Document,
    Note,
    Notes,
    Role,
    Row,
    Table,
    Tone,
    printable,
)
from radt.render.terminal import print_document
from radt.store.backend import StoreAddress
from radt.store.locate import Places
from radt.store.pruning import Keep, PrunableRun, candidates, give_back, prune_run
from radt.store.reader import StoreReader
from radt.store.spools import has_unread_journals, remove_spool
from radt.store.writer import StoreWriter
from radt.units import parse_duration_s, plural, size

_NS_PER_S = 1_000_000_000
EXIT_FAILED = 1
#: Maximum number of experiments named in a message.
_NAMED = 8
_COLUMNS = (
    ColumnHead("experiment", role=Role.LEAD, is_number=False),
    *map(ColumnHead, ("runs", "points", "size")),
    ColumnHead("ended", is_number=False),
)


@dataclass
class _Plan:
    """The runs to prune, and the numbers of runs that stay, by reason."""

    due: list[PrunableRun] = field(default_factory=list)
    held_back: Counter[str] = field(default_factory=Counter)


@click.command("prune")
@click.option(
    "--older-than",
    "age",
    metavar="AGE",
    required=True,
    help="Runs that ended longer ago than this: 90d.",
)
@click.option(
    "--keep",
    type=click.Choice([choice.value for choice in Keep]),
    required=True,
    help="summaries: thin each series to a few hundred samples and delete files that MLflow has.  "
    "nothing: delete the runs.",
)
@click.option("--experiment", metavar="NAME", help="Only runs of this experiment.")
@click.option("--dry-run", is_flag=True, help="Show what would be pruned and stop.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option(
    "--force", is_flag=True, help="Also prune runs that MLflow or the shared store lacks."
)
@exclusive_store_options
def command(
    age: str,
    keep: str,
    experiment: str | None,
    dry_run: bool,
    yes: bool,
    force: bool,
    places: Places,
) -> int:
    """Delete or compact old runs in the data folder, or in the Postgres store of --store-uri.

    Shows what it will do and asks first. After an interruption, run the same command again. Copies
    in the other store, in MLflow and in the archive stay; radt import restores a run from its
    archive.
    """
    console = Console(highlight=False)
    store = places.stores[0]
    kept = Keep(keep)
    before_ns = time.time_ns() - round(parse_duration_s(age) * _NS_PER_S)
    with StoreReader(store) as reader:
        if experiment is not None:
            _check_experiment(reader, experiment)
        plan = _plan(candidates(reader, before_ns, kept, experiment), store, force=force)
        _show(plan, store, kept, console)
        if dry_run or not plan.due:
            return 0
        _ask(plan, kept, yes=yes)
        with StoreWriter(store) as writer:
            failures = _prune(plan.due, reader, writer, store, kept, console)
    if store.path is not None:
        _give_back(store.path, console)
    return EXIT_FAILED if failures else 0


def _check_experiment(reader: StoreReader, experiment: str) -> None:
    names = [known.name for known in reader.experiments()]
    if experiment not in names:
        raise UsageError(
            f"{reader.address} has no experiment {experiment!r}",
            did_you_mean(experiment, names)
            or f"It has {', '.join(names[:_NAMED]) or 'no experiments'}",
        )


def _plan(runs: Sequence[PrunableRun], store: StoreAddress, *, force: bool) -> _Plan:
    plan, home = _Plan(), data_folder(store)
    for run in runs:
        reason = run.held_back
        # Unread journals are not in the store, so --force does not apply to them.
        if home is not None and has_unread_journals(home, run.run_id):
            plan.held_back["their last values are not in the store yet; run radt sync"] += 1
        elif reason and not force:
            plan.held_back[f"{reason}; --force prunes them anyway"] += 1
        else:
            plan.due.append(run)
    return plan


def _show(plan: _Plan, store: StoreAddress, keep: Keep, console: Console) -> None:
    fate = "thinned to summaries" if keep is Keep.SUMMARIES else "deleted"
    points = plural(sum(run.point_count for run in plan.due), "point")
    amount = f"{points}, {size(sum(run.size_bytes for run in plan.due))}"
    by_experiment: dict[str, list[PrunableRun]] = {}
    for run in plan.due:
        by_experiment.setdefault(run.experiment, []).append(run)
    rows = []
    for name, runs in sorted(by_experiment.items()):
        days = sorted({_day(runs[0].ended_ns), _day(runs[-1].ended_ns)})
        texts = (
            name,
            f"{len(runs):,}",
            f"{sum(run.point_count for run in runs):,}",
            size(sum(run.size_bytes for run in runs)),
            " – ".join(days),
        )
        rows.append(Row([Cell(text) for text in texts]))
    notes = [
        Note(f"{plural(count, 'run')} {'stays' if count == 1 else 'stay'}: {reason}", Tone.DIM)
        for reason, count in plan.held_back.items()
    ]
    facts = [f"{plural(len(plan.due), 'run')} to be {fate}, {amount}"]
    blocks: list[Block] = [Table(_COLUMNS, rows), Notes(notes)]
    print_document(console, Document(str(store), facts, blocks))


def _day(time_ns: int) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(time_ns / _NS_PER_S))


def _ask(plan: _Plan, keep: Keep, *, yes: bool) -> None:
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "Expected a terminal to ask for confirmation", "Add --yes to prune without asking"
        )
    action = "Thin" if keep is Keep.SUMMARIES else "Delete"
    if not click.confirm(f"{action} {plural(len(plan.due), 'run')}?", default=False):
        raise DeclinedError("nothing was pruned")


def _prune(
    due: Sequence[PrunableRun],
    reader: StoreReader,
    writer: StoreWriter,
    store: StoreAddress,
    keep: Keep,
    console: Console,
) -> int:
    """Prune run by run; return the number of failures."""
    done = points = kept = failures = 0
    with Console(stderr=True).status("", spinner="line") as status:
        for number, run in enumerate(due, 1):
            status.update(f"{number:,} of {len(due):,}")
            try:
                remove = partial(_remove_files, run, store, keep)
                pruned = prune_run(reader, writer, run.run_id, keep, remove)
            except RadtError as error:
                failures += 1
                line = Text.assemble(("✘", "red"), f"  run {run.run_id}: {printable(str(error))}")
                console.print(line, soft_wrap=True)
                continue
            if pruned is None:
                line = Text(f"  run {run.run_id} changed in the meantime and stays", "dim")
                console.print(line, soft_wrap=True)
                continue
            done += 1
            points += pruned.point_count
            kept += pruned.kept_count
    text = f"{plural(done, 'run')} pruned, {kept:,} of {plural(points, 'point')} kept"
    console.print(Text(text), soft_wrap=True)
    return failures


def _remove_files(run: PrunableRun, store: StoreAddress, keep: Keep) -> None:
    """Delete a run's folder, unless it holds the only copy of something to keep."""
    home, is_here = data_folder(store), run.host in ("", platform.node())
    if home is not None and is_here and (keep is Keep.NOTHING or run.files_elsewhere):
        remove_spool(home, run.run_id)


def _give_back(store: Path, console: Console) -> None:
    try:
        space = give_back(store)
    except RadtError as error:
        console.print(Text.assemble(("!", "yellow"), f"  {printable(str(error))}"), soft_wrap=True)
        return
    if space.given_back_bytes:
        text = f"  {size(space.given_back_bytes)} freed"
        console.print(Text(text, "dim"), soft_wrap=True)
    if space.reason:
        text = f"  {size(space.left_bytes)} are free inside the file: {space.reason}"
        console.print(Text(printable(text), "dim"), soft_wrap=True)
