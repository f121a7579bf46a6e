"""``radt compare A B``: what is faster, and whether it can be told."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

import click
from rich.console import Console

from radt.cli.options import reading_options
from radt.comparison.conditions import check, exit_code, parse
from radt.comparison.document import document_text
from radt.comparison.findings import DEFAULT_QUANTITIES, compare
from radt.comparison.markdown import markdown
from radt.comparison.sides import Finder
from radt.comparison.terminal import print_comparison
from radt.errors import UsageError
from radt.report.confidence import CONFIDENCE
from radt.report.quantities import Quantity
from radt.report.windows import WindowSpec
from radt.store.locate import Places

#: Below, an interval says nothing; above, it says everything.
_MIN_CONFIDENCE, _MAX_CONFIDENCE = 0.5, 0.9999


class Format(StrEnum):
    """How the comparison is printed."""

    TABLE = "table"
    MARKDOWN = "markdown"
    JSON = "json"


@click.command("compare")
@click.argument("a")
@click.argument("b")
@click.option("--window", default="", help="What of each run counts, as in radt report.")
@click.option("--overlap", is_flag=True, help="Only while all rows of a workload ran.")
@click.option(
    "--quantity",
    "names",
    multiple=True,
    metavar="NAME",
    help="Compare this instead; may be repeated.  "
    f"[default: {', '.join(one.value for one in DEFAULT_QUANTITIES)}]",
)
@click.option(
    "--confidence",
    type=float,
    default=CONFIDENCE,
    show_default=True,
    help="Of the intervals, between 0.5 and 0.9999.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice([one.value for one in Format]),
    default=Format.TABLE.value,
    show_default=True,
)
@click.option(
    "--fail-if",
    "conditions",
    multiple=True,
    metavar="CONDITION",
    help='Exit with 4 if it is met: "time_per_epoch > +5%", "samples_per_s < -3%", '
    '"energy > 1.1x", "makespan > 90 s"; may be repeated.',
)
@click.option(
    "--strict", is_flag=True, help="--fail-if looks at means; else at the whole interval."
)
@click.option("--fail-if-unknown", is_flag=True, help="Exit with 5 if it cannot be told.")
@reading_options
def command(
    a: str,
    b: str,
    window: str,
    overlap: bool,
    names: tuple[str, ...],
    confidence: float,
    form: str,
    conditions: tuple[str, ...],
    strict: bool,
    fail_if_unknown: bool,
    places: Places,
) -> int:
    """Put B against A: experiments, workloads of them, runs, or the runs of a git commit.

    \b
    radt compare study/three study/seven      two workloads of an experiment
    radt compare study/three@gpu-01 run-id    one of several machines; a run
    radt compare study@HEAD~1 study@HEAD      an experiment at two commits
    radt compare before after                 two experiments, workload by workload

    Says what is faster, with the confidence interval over repeats, or that it cannot be told.
    Exits with 4 if a condition of --fail-if is met.
    """
    if not _MIN_CONFIDENCE <= confidence <= _MAX_CONFIDENCE:
        raise UsageError(
            f"a confidence of {confidence:g} is out of range",
            f"Choose between {_MIN_CONFIDENCE:g} and {_MAX_CONFIDENCE:g}; 0.95 is usual",
        )
    asked = [parse(text) for text in conditions]
    quantities = _quantities(names)
    quantities += [one.quantity for one in asked if one.quantity not in quantities]
    spec = WindowSpec.parse(window, overlap=overlap)
    with Finder(places, spec, Path.cwd()) as finder:
        comparison = compare(
            finder.find(a),
            finder.find(b),
            tuple(dict.fromkeys(quantities)),
            confidence=confidence,
            window=spec,
        )
    checked = check(comparison, asked, strict=strict)
    code = exit_code(checked, fail_if_unknown=fail_if_unknown)
    match Format(form):
        case Format.TABLE:
            print_comparison(comparison, checked, Console(highlight=False))
        case Format.MARKDOWN:
            click.echo(markdown(comparison, checked))
        case Format.JSON:
            click.echo(document_text(comparison, checked, code))
    return int(code)


def _quantities(names: Sequence[str]) -> list[Quantity]:
    if not names:
        return list(DEFAULT_QUANTITIES)
    found = []
    for name in names:
        try:
            found.append(Quantity(name.strip().lower().replace("-", "_")))
        except ValueError:
            near = difflib.get_close_matches(name, list(Quantity), 1)
            raise UsageError(
                f"{name!r} is no quantity",
                f"Did you mean {near[0]}?" if near else f"Quantities: {', '.join(Quantity)}",
            ) from None
    return found
