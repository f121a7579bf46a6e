"""``radt prune``: old runs take less room, or none."""

from __future__ import annotations

import difflib
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

from radt.cli.options import ChosenStore, given_store, home_option
from radt.errors import DeclinedError, RadtError, UsageError
from radt.render.model import printable
from radt.settings import STORE_URI
from radt.store.pruning import Candidate, Keep, candidates, give_back, prune_run
from radt.store.reader import StoreReader
from radt.store.spools import has_unread_journals, remove_spool
from radt.store.writer import StoreWriter
from radt.units import parse_duration_s, plural, size

_NS_PER_S = 1_000_000_000
EXIT_FAILED = 1
#: Longer names of experiments push what follows to the right, in their own line only.
_NAME_WIDTH = 24
#: Experiments that a message names.
_NAMED = 8


@dataclass
class _Plan:
    """What would be done: ``due`` runs, and of those that stay, how many for which reason."""

    due: list[Candidate] = field(default_factory=list)
    held_back: Counter[str] = field(default_factory=Counter)

    @property
    def point_count(self) -> int:
        return sum(one.point_count for one in self.due)

    @property
    def size_bytes(self) -> int:
        return sum(one.size_bytes for one in self.due)


@click.command("prune")
@click.option(
    "--older-than", "age", metavar="AGE", required=True, help="Runs that ended so long ago: 90d."
)
@click.option(
    "--keep",
    type=click.Choice([one.value for one in Keep]),
    required=True,
    help="summaries: all but samples, of which a few hundred a series stay, and files that MLflow "
    "has, too.  nothing: no trace.",
)
@click.option("--experiment", metavar="NAME", help="Only runs of this experiment.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
@click.option("--yes", "-y", is_flag=True, help="Ask nothing.")
@click.option("--force", is_flag=True, help="Also runs that MLflow or a shared store lacks.")
@click.option(
    "--store-uri",
    metavar=STORE_URI.kind.metavar,
    help="Postgres database to prune, instead of the data folder's store.",
)
@home_option
def command(
    age: str,
    keep: str,
    experiment: str | None,
    dry_run: bool,
    yes: bool,
    force: bool,
    store_uri: str | None,
    home: Path | None,
) -> int:
    """Thin or remove runs that ended long ago, in the data folder or the store that is named.

    Shows first what it would do, and asks. Each run is one transaction: when interrupted, the same
    command goes on. A copy in the other store, in MLflow and in the archive stays as it is; radt
    import brings a run back from its archive.
    """
    console = Console(highlight=False)
    store = given_store(home, store_uri)
    what = Keep(keep)
    before_ns = time.time_ns() - round(parse_duration_s(age) * _NS_PER_S)
    with StoreReader(store.address) as reader:
        if experiment is not None:
            _check_there(reader, experiment)
        plan = _plan(candidates(reader, before_ns, what, experiment), store, force=force)
        _show(plan, store, what, console)
        if dry_run or not plan.due:
            return 0
        _ask(plan, what, yes=yes)
        with StoreWriter(store.address) as writer:
            failures = _prune(plan.due, reader, writer, store, what, console)
    if store.home is not None:
        _give_back(store, console)
    return EXIT_FAILED if failures else 0


def _check_there(reader: StoreReader, experiment: str) -> None:
    names = [one.name for one in reader.experiments()]
    if experiment not in names:
        near = difflib.get_close_matches(experiment, names, n=1)
        raise UsageError(
            f"there is no experiment {experiment!r} in {reader.address}",
            f"Did you mean {near[0]!r}?"
            if near
            else f"It has {', '.join(names[:_NAMED]) or 'none'}",
        )


def _plan(found: Sequence[Candidate], store: ChosenStore, *, force: bool) -> _Plan:
    plan = _Plan()
    for one in found:
        reason = one.held_back
        # What lies there unread was never stored: that is no reason to force.
        if store.home is not None and has_unread_journals(store.home, one.run_id):
            plan.held_back["what they wrote last is not in the store yet (radt sync)"] += 1
        elif reason and not force:
            plan.held_back[f"{reason}; --force prunes them nonetheless"] += 1
        else:
            plan.due.append(one)
    return plan


def _show(plan: _Plan, store: ChosenStore, keep: Keep, console: Console) -> None:
    fate = "thinned to summaries" if keep is Keep.SUMMARIES else "removed"
    head = f" · {plural(len(plan.due), 'run')} to be {fate}, {_amount(plan.due)}"
    console.print(Text.assemble((str(store.address), "bold"), head), soft_wrap=True)
    by_experiment: dict[str, list[Candidate]] = {}
    for one in plan.due:
        by_experiment.setdefault(one.experiment, []).append(one)
    width = min(max((len(printable(name)) for name in by_experiment), default=0), _NAME_WIDTH)
    for name, runs in sorted(by_experiment.items()):
        days = sorted({_day(runs[0].ended_ns), _day(runs[-1].ended_ns)})
        line = f"  {printable(name):<{width}}  {plural(len(runs), 'run')}, {_amount(runs)}"
        console.print(Text.assemble(line, (f", ended {' – '.join(days)}", "dim")), soft_wrap=True)
    for reason, number in plan.held_back.items():
        stay = "stays" if number == 1 else "stay"
        line = f"  {plural(number, 'run')} {stay}: {printable(reason)}"
        console.print(Text(line, "dim"), soft_wrap=True)


def _amount(runs: Sequence[Candidate]) -> str:
    points = sum(one.point_count for one in runs)
    return f"{plural(points, 'point')}, {size(sum(one.size_bytes for one in runs))}"


def _day(time_ns: int) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(time_ns / _NS_PER_S))


def _ask(plan: _Plan, keep: Keep, *, yes: bool) -> None:
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("nobody can be asked here, nothing was pruned", "Add --yes if you mean it")
    action = "Thin" if keep is Keep.SUMMARIES else "Remove"
    if not click.confirm(f"{action} {plural(len(plan.due), 'run')}?", default=False):
        raise DeclinedError("nothing was pruned")


def _prune(
    due: Sequence[Candidate],
    reader: StoreReader,
    writer: StoreWriter,
    store: ChosenStore,
    keep: Keep,
    console: Console,
) -> int:
    """Prune run by run; returns how many could not be."""
    done = points = kept = failures = 0
    with Console(stderr=True).status("", spinner="line") as status:
        for number, one in enumerate(due, 1):
            status.update(f"{number:,} of {len(due):,}")
            try:
                remove = partial(_remove_files, one, store, keep)
                pruned = prune_run(reader, writer, one.run_id, keep, remove)
            except RadtError as error:
                failures += 1
                line = Text.assemble(("✘", "red"), f"  run {one.run_id}: {printable(str(error))}")
                console.print(line, soft_wrap=True)
                continue
            if pruned is None:
                console.print(
                    Text(f"  run {one.run_id} was changed meanwhile and stays", "dim"),
                    soft_wrap=True,
                )
                continue
            done += 1
            points += pruned.point_count
            kept += pruned.kept_count
    console.print(
        Text(f"{plural(done, 'run')} pruned, {kept:,} of {plural(points, 'point')} kept"),
        soft_wrap=True,
    )
    return failures


def _remove_files(one: Candidate, store: ChosenStore, keep: Keep) -> None:
    """Remove a run's folder, unless it has the only copy of what is to be kept."""
    here = store.home is not None and one.host in ("", platform.node())
    if here and (keep is Keep.NOTHING or one.files_elsewhere):
        assert store.home is not None
        remove_spool(store.home, one.run_id)


def _give_back(store: ChosenStore, console: Console) -> None:
    assert store.address.path is not None
    try:
        space = give_back(store.address.path)
    except RadtError as error:
        console.print(Text.assemble(("!", "yellow"), f"  {printable(str(error))}"), soft_wrap=True)
        return
    if space.given_back_bytes:
        text = f"  {size(space.given_back_bytes)} given back"
        console.print(Text(text, "dim"), soft_wrap=True)
    if space.reason:
        text = f"  {size(space.left_bytes)} are free inside the file: {space.reason}"
        console.print(Text(printable(text), "dim"), soft_wrap=True)
