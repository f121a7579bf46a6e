"""Who slows whom down, as a table: a row a model, a column what it ran beside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from radt.report.estimates import Estimate
from radt.report.formats.columns import told, with_unit
from radt.report.formats.content import Content
from radt.report.interference import Encounter, interference
from radt.report.quantities import ABOUT, Quantity

#: A slowdown that has all of the colour: twice as long.
_HOTTEST = 2.0
_NAIVE = "naive"


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a matrix; ``heat`` is how much of its colour it has, 0 to 1."""

    text: str
    estimate: Estimate
    about: str
    heat: float


@dataclass(frozen=True, slots=True)
class Matrix:
    """How much models slow each other down."""

    experiment: str
    title: str
    explanation: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[Cell | None, ...], ...]


def matrices(content: Content) -> list[Matrix]:
    """One for each experiment in which models ran beside others and alone."""
    return list(_matrices(content))


def _matrices(content: Content) -> Iterator[Matrix]:
    for report in content.reports:
        shown = [item.summary for item in content.items if item.experiment == report.experiment]
        found = interference(shown)
        encounters = [*found.encounters, *found.mixed]
        if not encounters:
            continue
        with_way = len({one.collocation for one in encounters}) > 1
        with_host = len({one.host for one in encounters}) > 1
        rows = dict.fromkeys(_row(one, with_host=with_host) for one in encounters)
        by_degree = sorted(encounters, key=lambda one: (one.degree, one.is_mixed))
        columns = dict.fromkeys(_column(one, with_way=with_way) for one in by_degree)
        met: dict[tuple[str, str], list[Encounter]] = {}
        for one in encounters:
            place = (_row(one, with_host=with_host), _column(one, with_way=with_way))
            met.setdefault(place, []).append(one)
        of = f" of {report.experiment}" if len(content.reports) > 1 else ""
        yield Matrix(
            report.experiment,
            f"Interference{of}",
            "Time per epoch of the model in the row beside what the column names, "
            "over that of the same run alone",
            tuple(rows),
            tuple(columns),
            tuple(tuple(_cell(met.get((row, one))) for one in columns) for row in rows),
        )


def _row(one: Encounter, *, with_host: bool) -> str:
    return f"{one.model} {one.host}" if with_host else one.model


def _column(one: Encounter, *, with_way: bool) -> str:
    return f"{one.beside}, {one.collocation or _NAIVE}" if with_way else one.beside


def _cell(met: Sequence[Encounter] | None) -> Cell | None:
    if not met:
        return None
    about = [f"{one.workload}: {told(Quantity.SLOWDOWN, one.slowdown)}" for one in met]
    worst = max((one.slowdown for one in met), key=lambda estimate: estimate.mean)
    text = with_unit(Quantity.SLOWDOWN, worst)
    if len(met) > 1:  # the same neighbours in several workloads
        least, most = (
            ABOUT[Quantity.SLOWDOWN].text(one(each.slowdown.mean for each in met))
            for one in (min, max)
        )
        text = least if least == most else f"{least} to {most}"
    heat = min(max((worst.mean - 1) / (_HOTTEST - 1), 0.0), 1.0)
    return Cell(text, worst, "; ".join(about), heat)
