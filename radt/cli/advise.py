"""``radt advise EXPERIMENT``: what could share a device, predicted from runs that ran alone."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import click

from radt.cli.options import reading_options
from radt.errors import UsageError
from radt.store.locate import Places, Readers

if TYPE_CHECKING:
    from radt.advice.advise import Advice
    from radt.advice.choice import Wish
    from radt.advice.planned import Planned


class Format(StrEnum):
    """How advice is written."""

    TABLE = "table"
    MARKDOWN = "markdown"
    JSON = "json"


#: As `radt.advice.words.Goal`, which is not loaded for the help.
_GOALS = ("throughput", "latency", "energy")


@click.command("advise")
@click.argument("experiment")
@click.option(
    "--goal",
    type=click.Choice(_GOALS),
    default=_GOALS[0],
    show_default=True,
    help="Most work in the same time, each run nearly as fast as alone, or least energy.",
)
@click.option(
    "--max-slowdown",
    type=click.FloatRange(min=1.0),
    metavar="FACTOR",
    help="How much slower a run may become: 1.5.",
)
@click.option(
    "--separate",
    is_flag=True,
    help="Runs must not see or disturb each other: MIG instances only.",
)
@click.option(
    "--margin",
    type=click.FloatRange(min=0.0, max=90.0),
    default=5.0,
    show_default=True,
    metavar="PERCENT",
    help="How much of each memory is to stay free.",
)
@click.option(
    "--cores",
    type=click.IntRange(min=1),
    metavar="N",
    help="CPUs of the machine, if it is another than this one.",
)
@click.option(
    "--write",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE.csv",
    help="Write the experiment that would find out what is missing, else verify the advice.",
)
@click.option("--all", "all_of_them", is_flag=True, help="Show every candidate.")
@click.option(
    "--format",
    "kind",
    type=click.Choice([one.value for one in Format]),
    default=Format.TABLE.value,
    show_default=True,
    help="For people, for a page, for programs.",
)
@reading_options
def command(
    experiment: str,
    goal: str,
    max_slowdown: float | None,
    separate: bool,
    margin: float,
    cores: int | None,
    file: Path | None,
    all_of_them: bool,
    kind: str,
    places: Places,
) -> None:
    """Predict what could share a device, from the runs of an EXPERIMENT that ran alone.

    EXPERIMENT is its name, or its CSV file, whose workloads are then predicted, too. "slowdown" is
    what is expected of the run that suffers most, "range" what it can be by the model, "gain" the
    work in the same time over that of the runs one after the other. Predictions are compared with
    the workloads that were measured. docs/advice.md has the model and its limits.
    """
    from radt.advice.choice import Wish
    from radt.advice.planned import Planned, read_planned
    from radt.advice.words import Goal

    wish = Wish(Goal(goal), max_slowdown, separate)
    path = Path(experiment)
    planned = Planned()
    if path.suffix.lower() == ".csv" and path.exists():
        planned = read_planned(path)
        experiment = planned.experiment
    with Readers(places) as readers:
        advice = _nearest(readers, experiment, wish, planned, margin / 100, cores)
    if advice is None:
        raise UsageError(
            f"no run of an experiment {experiment!r} in {places}",
            f"Run its models alone first, each in a workload of its own: radt {experiment}.csv"
            if not planned.path
            else f"Run it first: radt {planned.path}",
        )
    written = None
    if file is not None:
        from radt.advice.write import write_experiment

        written = write_experiment(advice, file)
    if advice.is_refused and written is None:
        raise _refusal(advice)
    if not advice.is_refused:
        _show(advice, Format(kind), all_of_them=all_of_them)
    if written is not None:
        click.echo(written.text, err=Format(kind) is not Format.TABLE)


def _nearest(
    readers: Readers,
    experiment: str,
    wish: Wish,
    planned: Planned,
    margin: float,
    cores: int | None,
) -> Advice | None:
    """On what the nearest store has of the experiment; None where none has anything."""
    from radt.advice.advise import advise

    for reader in readers.nearest_first():
        if reader.runs(experiment=experiment):
            return advise(reader, experiment, wish, planned=planned, margin=margin, cores=cores)
    return None


def _refusal(advice: Advice) -> UsageError:
    from radt.advice.lines import needs

    some = needs(advice)
    shown = "; ".join(some[:5]) + (f"; and {len(some) - 5} more" if len(some) > 5 else "")
    if any(need.key is not None for need in advice.needs):
        remedy = "--write FILE.csv writes the experiment that would find out"
    elif any(need.to_run for need in advice.needs):
        remedy = "Let each of its models run alone to its end, then ask again"
    else:
        remedy = "Give what is missing"
    return UsageError(
        f"too little is measured to advise on {advice.study.experiment}: {shown}", remedy
    )


def _show(advice: Advice, kind: Format, *, all_of_them: bool) -> None:
    from radt.advice import formats

    match kind:
        case Format.TABLE:
            from rich.console import Console

            console = Console(highlight=False)
            formats.print_advice(console, advice, all_of_them=all_of_them)
        case Format.MARKDOWN:
            click.echo(formats.markdown(advice, all_of_them=all_of_them), nl=False)
        case Format.JSON:
            click.echo(formats.as_json(advice), nl=False)
