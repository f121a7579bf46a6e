"""``radt advise EXPERIMENT``: which runs could share a device, predicted from runs alone."""

from __future__ import annotations

from pathlib import Path

import click

from radt.cli.options import (
    experiment_of,
    format_option,
    print_as,
    store_options,
    unknown_experiment,
)
from radt.errors import UsageError
from radt.render.formats import ReportFormat
from radt.store.locate import Places, Readers


@click.command("advise")
@click.argument("experiment")
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
@store_options
def command(
    experiment: str,
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

    EXPERIMENT is its name or its file. "slowdown" is the expected slowdown of the slowest run,
    "range" its bounds by the model, "gain" the throughput relative to running one after the other.
    Measured workloads calibrate and check the predictions.
    The documentation's page "Advice" explains the model and its limits.
    """
    from radt.analysis.advice import advise
    from radt.render.advice import advice_document, advice_json

    name = experiment_of(experiment, places)
    with Readers(places) as readers:
        nearest = (each for each in readers.nearest_first() if each.runs(experiment=name))
        reader = next(nearest, None)
        if reader is None:
            raise unknown_experiment(name, places, "a run")
        advice = advise(
            reader,
            name,
            max_slowdown=max_slowdown,
            separate=separate,
            margin=margin / 100,
            cores=cores,
        )
    written = None
    if file is not None:
        from radt.analysis.advice_experiment import write_experiment

        written = write_experiment(advice, file)
    if not advice.is_refused:
        document = advice_document(advice, all_of_them=all_of_them)
        print_as(kind, document, lambda: advice_json(advice))
    elif written is None:
        lines = [need.line for need in advice.needs]
        shown = "; ".join(lines[:5]) + (f"; and {len(lines) - 5} more" if len(lines) > 5 else "")
        raise UsageError(
            f"Not enough measurements to advise on {name}: {shown}",
            "Run `radt advise … --write FILE.csv`, which writes the experiment to measure it"
            if any(need.key is not None for need in advice.needs)
            else "Run each of its models alone to its end, or set the missing option",
        )
    if written is not None:
        click.echo(written, err=kind != ReportFormat.TABLE)
