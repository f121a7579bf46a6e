"""Tables of the slowdown of models (rows) by their neighbours (columns)."""

from __future__ import annotations

from collections.abc import Sequence

from radt.analysis.quantities import Quantity
from radt.analysis.summaries import Encounter, encounters_of
from radt.render.model import Cell, ColumnHead, Role, Row, Table, Tone
from radt.render.numbers import describe, with_unit
from radt.render.report_content import Content, SharingMode
from radt.units import NO_VALUE

#: Slowdown with the full background colour: twice the time.
_HOTTEST = 2.0


def matrices(content: Content) -> dict[str, Table]:
    """Return a table for each experiment whose models ran both alone and with others.

    Cells have their estimate and its heat from 0 to 1, the worst of several workloads.
    """
    tables = {}
    for report in content.reports:
        shown = [item.summary for item in content.items if item.experiment == report.experiment]
        if encounters := [each for workload in shown for each in encounters_of(workload)]:
            of = f" of {report.experiment}" if len(content.reports) > 1 else ""
            tables[report.experiment] = _table(encounters, f"Interference{of}")
    return tables


def _table(encounters: Sequence[Encounter], title: str) -> Table:
    with_way = len({encounter.collocation for encounter in encounters}) > 1
    with_host = len({encounter.host for encounter in encounters}) > 1
    by_degree = sorted(encounters, key=lambda encounter: (encounter.degree, encounter.is_mixed))
    plain = [encounter for encounter in by_degree if not encounter.is_mixed]
    met: dict[str, dict[str, list[Encounter]]] = {}
    for encounter in (*plain, *(encounter for encounter in encounters if encounter.is_mixed)):
        model = f"{encounter.model} {encounter.host}" if with_host else encounter.model
        column = _column(encounter, with_way=with_way)
        met.setdefault(model, {}).setdefault(column, []).append(encounter)
    columns = dict.fromkeys(_column(encounter, with_way=with_way) for encounter in by_degree)
    return Table(
        [ColumnHead("", role=Role.KEY, is_number=False), *map(ColumnHead, columns)],
        [
            Row([Cell(model), *(_cell(found.get(column)) for column in columns)])
            for model, found in met.items()
        ],
        title,
        "Time per epoch of the model in the row while the runs of the column shared its device, "
        "relative to the same run alone.",
    )


def _column(encounter: Encounter, *, with_way: bool) -> str:
    way = f", {encounter.collocation or SharingMode.NAIVE}" if with_way else ""
    return encounter.neighbours_text + way


def _cell(met: Sequence[Encounter] | None) -> Cell:
    if not met:
        return Cell(NO_VALUE, tone=Tone.DIM)
    about = [
        f"{encounter.workload}: {describe(Quantity.SLOWDOWN, encounter.slowdown)}"
        for encounter in met
    ]
    worst = max((encounter.slowdown for encounter in met), key=lambda estimate: estimate.mean)
    text = with_unit(Quantity.SLOWDOWN, worst)
    if len(met) > 1:  # the same neighbours in several workloads
        least, most = (
            Quantity.SLOWDOWN.info.text(extreme(each.slowdown.mean for each in met))
            for extreme in (min, max)
        )
        text = least if least == most else f"{least} to {most}"
    heat = min(max((worst.mean - 1) / (_HOTTEST - 1), 0.0), 1.0)
    return Cell(text, explanation="; ".join(about), heat=heat, estimate=worst)
