"""``radt advise EXPERIMENT``: which runs could share a device, predicted from runs alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from radt.cli.options import (
    DocumentFormat,
    experiment_of,
    format_option,
    print_as,
    reading_options,
    unknown_experiment,
)
from radt.errors import UsageError
from radt.store.locate import Places, Readers

if TYPE_CHECKING:
    from radt.analysis.advice import Advice
    from radt.analysis.advice_candidates import PlannedRows
    from radt.analysis.advice_choice import Preferences


#: As `radt.analysis.advice_model.Goal`, which is not loaded for the help.
_GOALS = ("throughput", "latency", "energy")


@click.command("advise")
@click.argument("experiment")
@click.option(
    "--goal",
    type=click.Choice(_GOALS),
    default=_GOALS[0],
    show_default=True,
    help="Most work per time, each run nearly as fast as alone, or least energy.",
)
@click.option(
    "--max-slowdown",
    type=click.FloatRange(min=1.0),
    metavar="FACTOR",
    help="Largest slowdown of a run, for example 1.5.",
)
@click.option(
    "--separate",
    is_flag=True,
    help="Isolate runs from each other: MIG instances only.",
)
@click.option(
    "--margin",
    type=click.FloatRange(min=0.0, max=90.0),
    default=5.0,
    show_default=True,
    metavar="PERCENT",
    help="Share of each memory to keep free.",
)
@click.option(
    "--cores",
    type=click.IntRange(min=1),
    metavar="N",
    help="CPUs of the machine, if it is not this one.",
)
@click.option(
    "--write",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE.csv",
    help="Write an experiment that measures what is missing, or else verifies the advice.",
)
@click.option("--all", "all_of_them", is_flag=True, help="Show every candidate.")
@format_option
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
    """Predict which runs could share a device, from those of an EXPERIMENT that ran alone.

    EXPERIMENT is its name or its file; workloads in the file are then predicted, too. "slowdown" is
    the expected slowdown of the slowest run, "range" its bounds by the model, "gain" the throughput
    relative to running one after the other. Measured workloads check the predictions.
    The documentation's page "Advice" explains the model and its limits.
    """
    from radt.analysis.advice_candidates import PlannedRows, read_planned
    from radt.analysis.advice_choice import Preferences
    from radt.analysis.advice_model import Goal

    preferences = Preferences(Goal(goal), max_slowdown, separate)
    path = Path(experiment)
    is_file = path.suffix.lower() == ".csv" and path.is_file()
    planned = read_planned(path) if is_file else None
    name = experiment_of(experiment, places)
    with Readers(places) as readers:
        advice = _nearest(readers, name, preferences, planned or PlannedRows(), margin / 100, cores)
    if advice is None:
        raise unknown_experiment(name, places, "a run")
    written = None
    if file is not None:
        from radt.analysis.advice_experiment import write_experiment

        written = write_experiment(advice, file)
    if advice.is_refused and written is None:
        raise _refusal(advice)
    if not advice.is_refused:
        from radt.render.advice import advice_document, advice_json

        document = advice_document(advice, all_of_them=all_of_them)
        print_as(kind, document, lambda: advice_json(advice))
    if written is not None:
        click.echo(written.text, err=kind != DocumentFormat.TABLE)


def _nearest(
    readers: Readers,
    experiment: str,
    preferences: Preferences,
    planned: PlannedRows,
    margin: float,
    cores: int | None,
) -> Advice | None:
    """On what the nearest store has of the experiment; None where none has anything."""
    from radt.analysis.advice import advise

    for reader in readers.nearest_first():
        if reader.runs(experiment=experiment):
            return advise(
                reader, experiment, preferences, planned=planned, margin=margin, cores=cores
            )
    return None


def _refusal(advice: Advice) -> UsageError:
    lines = [need.line for need in advice.needs]
    shown = "; ".join(lines[:5]) + (f"; and {len(lines) - 5} more" if len(lines) > 5 else "")
    if any(need.key is not None for need in advice.needs):
        remedy = "Run `radt advise … --write FILE.csv`, which writes the experiment to measure it"
    elif any(need.to_run for need in advice.needs):
        remedy = "Run each of its models alone to its end"
    else:
        remedy = "Set the missing option"
    return UsageError(
        f"Not enough measurements to advise on {advice.measurements.experiment}: {shown}", remedy
    )
