"""``radt compare A B``: which is faster, with its confidence interval."""

from __future__ import annotations

from pathlib import Path

import click

from radt.analysis.estimates import CONFIDENCE
from radt.analysis.fail_if import check, exit_code, parse
from radt.analysis.findings import DEFAULT_QUANTITIES, compare
from radt.analysis.operands import OperandFinder
from radt.analysis.series_quantities import (
    joined,
    parse_quantity,
    series_quantities,
    with_units,
)
from radt.analysis.window_spec import WindowSpec
from radt.cli.options import experiment_of, format_option, print_as, store_options
from radt.errors import UsageError
from radt.render.comparison import comparison_document
from radt.render.comparison_json import comparison_json
from radt.store.locate import Places

#: Outside this range, intervals are meaningless.
_MIN_CONFIDENCE, _MAX_CONFIDENCE = 0.5, 0.9999


@click.command("compare")
@click.argument("a")
@click.argument("b")
@click.option(
    "--window",
    default="",
    metavar="WINDOW",
    help="Part of each run that counts, as in radt report.",
)
@click.option("--overlap", is_flag=True, help="Count only while all runs of a workload ran.")
@click.option(
    "--quantity",
    "names",
    multiple=True,
    metavar="NAME",
    help="Quantity to compare, also of any metric: last(accuracy), p95(latency), "
    "time_to(accuracy>=0.65); may be repeated.  "
    f"[default: {', '.join(quantity.value for quantity in DEFAULT_QUANTITIES)}]",
)
@click.option(
    "--confidence",
    type=float,
    default=CONFIDENCE,
    show_default=True,
    help="Confidence level of the intervals, between 0.5 and 0.9999.",
)
@format_option
@click.option(
    "--fail-if",
    "conditions",
    multiple=True,
    metavar="CONDITION",
    help='Exit with 4 if the condition is met: "time_per_epoch > +5%", "samples_per_s < -3%", '
    '"energy > 1.1x", "time_to(accuracy>=0.65) > 90 s"; may be repeated.',
)
@click.option("--strict", is_flag=True, help="Let --fail-if compare means, not whole intervals.")
@click.option("--fail-if-unknown", is_flag=True, help="Exit with 5 if a condition is inconclusive.")
@store_options
def command(
    a: str,
    b: str,
    window: str,
    overlap: bool,
    names: tuple[str, ...],
    confidence: float,
    kind: str,
    conditions: tuple[str, ...],
    strict: bool,
    fail_if_unknown: bool,
    places: Places,
) -> int:
    """Compare two experiments, workloads or runs: B with A.

    \b
    radt compare study/three study/seven      two workloads of an experiment
    radt compare study/three@gpu-01 run-id    one of several machines; a run
    radt compare study@HEAD~1 study@HEAD      an experiment at two commits
    radt compare before.csv after.csv         two experiments, workload by workload

    Reports how much faster B is, with the confidence interval over repeats. Exits with 4 if a
    condition of --fail-if is met.
    """
    if not _MIN_CONFIDENCE <= confidence <= _MAX_CONFIDENCE:
        raise UsageError(
            f"Expected --confidence between {_MIN_CONFIDENCE:g} and {_MAX_CONFIDENCE:g}, got "
            f"{confidence:g}",
            "0.95 is usual",
        )
    asked = [parse(text) for text in conditions]
    named = [parse_quantity(name) for name in names] or list(DEFAULT_QUANTITIES)
    quantities = tuple(dict.fromkeys([*named, *(request.quantity for request in asked)]))
    spec = WindowSpec.parse(window, overlap=overlap)
    series = series_quantities(quantities)
    with OperandFinder(places, spec, Path.cwd(), series) as finder:
        first, second = (finder.find(experiment_of(text, places)) for text in (a, b))
    known = joined(series, [first.series, second.series])
    for problem in known.problems:
        raise problem.error
    comparison = compare(
        first,
        second,
        with_units(quantities, known),
        confidence=confidence,
        window=spec,
    )
    asked = [parse(text, known.quantities) for text in conditions]
    checked = check(comparison, asked, strict=strict)
    code = exit_code(checked, fail_if_unknown=fail_if_unknown)
    document = comparison_document(comparison, checked)
    print_as(kind, document, lambda: comparison_json(comparison, checked, code))
    return int(code)
