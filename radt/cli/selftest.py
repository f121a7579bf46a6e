"""``radt selftest``: the tracking overhead on this machine."""

from __future__ import annotations

import secrets

import click
from rich.console import Console
from rich.text import Text

from radt.cli.options import json_option, print_json
from radt.cli.original import documentation
from radt.selftest import LimitVerdict, OverheadMeasurement, run_selftest

EXIT_OVER = 1
_MAX_SEED = 10_000
_MARKS = {
    LimitVerdict.WITHIN: ("✔", "green"),
    LimitVerdict.OVER: ("✘", "red"),
    LimitVerdict.INCONCLUSIVE: ("?", "yellow"),
    LimitVerdict.FAILED: ("✘", "red"),
}


@click.command("selftest")
@click.option(
    "--pairs",
    type=click.IntRange(1, 1000),
    default=6,
    show_default=True,
    help="Number of pairs of runs, one with radt and one without.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 3600),
    default=2.0,
    show_default=True,
    help="How long each of these runs computes.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=None,
    help="Seed that draws which run of a pair goes first.  [default: random, shown]",
)
@json_option
def command(pairs: int, seconds: float, seed: int | None, as_json: bool) -> int:
    """Measure the tracking overhead on this machine, in about a minute.

    Measures how long the same work takes with radt and without, in pairs; the CPU time of sampling
    eight runs at 1 Hz; and how far apart eight rows of a workload start. Runs in a temporary folder
    with a collector of its own. Exits with 1 if a measurement is over its limit or fails.
    """
    seed = secrets.randbelow(_MAX_SEED) if seed is None else seed
    console = Console(highlight=False)
    status = Console(stderr=True, highlight=False)

    def report(measurement: OverheadMeasurement) -> None:
        if not as_json:
            spinner.stop()  # otherwise its line stays between those of the measurements
            console.print(_line(measurement), soft_wrap=True)
            spinner.start()

    with status.status("measuring, on an otherwise idle machine in about a minute") as spinner:
        measurements = run_selftest(pairs, seconds, seed, report)
    if as_json:
        documents = [measurement.document() for measurement in measurements]
        print_json("selftest", {"seed": seed, "measurements": documents}, version=2)
    else:
        see = documentation("Measurements")
        console.print(Text(f"seed {seed}. {see} for limits and other machines", "dim"))
    over = {LimitVerdict.OVER, LimitVerdict.FAILED}
    return EXIT_OVER if any(measurement.verdict in over for measurement in measurements) else 0


def _line(measurement: OverheadMeasurement) -> Text:
    """Return mark, label, value and limit, with the method of measurement below."""
    mark, style = _MARKS[measurement.verdict]
    head = Text.assemble((f"{mark}  ", style), measurement.label.ljust(28))
    if measurement.error:
        return Text.assemble(head, measurement.error)
    limit = f"limit {measurement.show(measurement.limit)}"
    if measurement.verdict is not LimitVerdict.WITHIN:
        limit += f": {measurement.verdict}"
    return Text.assemble(
        head,
        (measurement.show(measurement.value).rjust(9), "bold"),
        (f"  {limit}\n", style),
        (f"   {measurement.detail}", "dim"),
    )
