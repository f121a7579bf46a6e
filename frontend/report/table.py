"""The table of the page Report: its head sorts, its rows lead to their workloads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from radt.frontend.catalog import STATUS_WORDS
from radt.frontend.dashing import attributes
from radt.frontend.palette import Scheme, colour
from radt.frontend.report.choices import BY_NAME, BY_WORKLOAD, Choices
from radt.frontend.report.data import Entry, Shown, sorted_groups
from radt.model import RunStatus
from radt.report.estimates import Estimate
from radt.report.formats.columns import Column, aligned, column, told
from radt.report.formats.content import reasons_of, runs_text
from radt.report.formats.matrix import Cell, Matrix
from radt.report.formats.tables import is_shared
from radt.report.quantities import ABOUT, Quantity
from radt.report.summary import GroupSummary
from radt.units import NO_VALUE

#: Workloads on one page of the table.
PAGE_ROWS = 100


@dataclass(frozen=True, slots=True)
class _Line:
    entry: Entry
    group: GroupSummary
    is_first: bool
    span: int


def page_count(shown: Shown) -> int:
    """How many pages the table has."""
    return max(1, -(-len(shown.entries) // PAGE_ROWS))


def page_of(shown: Shown, choices: Choices) -> int:
    """The page that is shown: the last one where the chosen one is not there."""
    return min(choices.page, page_count(shown) - 1)


def table(shown: Shown, choices: Choices, href: Callable[[Entry], str]) -> Component:
    """One page of the table.

    Args:
        shown: What there is.
        choices: What of it, in which order.
        href: The address of the page about a workload.
    """
    page = page_of(shown, choices)
    entries = shown.entries[page * PAGE_ROWS : (page + 1) * PAGE_ROWS]
    lines = [
        _Line(entry, group, place == 0, len(groups))
        for entry in entries
        for groups in [sorted_groups(entry, choices)]
        for place, group in enumerate(groups)
    ]
    columns = [_Values(quantity, lines) for quantity in shown.columns]
    return html.Table(
        [
            html.Caption(f"{', '.join(shown.experiments)}, {shown.window}", className="unseen"),
            html.Thead(
                html.Tr(
                    [
                        _head("workload", BY_WORKLOAD, choices),
                        _head("runs", BY_NAME, choices),
                        html.Th(
                            "n", scope="col", className="number", title="Repeats that finished"
                        ),
                        *(
                            _head(one.column.title, one.column.quantity, choices, one.column)
                            for one in columns
                        ),
                    ]
                )
            ),
            html.Tbody([_row(place, line, columns, href=href) for place, line in enumerate(lines)]),
        ],
        className="report-table",
    )


class _Values:
    """A column of the table: the texts of its cells, one below the other."""

    def __init__(self, quantity: Quantity, lines: Sequence[_Line]) -> None:
        of_page = [
            found
            for line in lines
            if (found := line.entry.summary.estimate(quantity, line.group)) is not None
        ]
        self.column: Column = column(quantity, of_page)
        self.is_shared = is_shared(quantity)
        self.estimates: list[Estimate | None] = [
            line.entry.summary.estimate(quantity, line.group) for line in lines
        ]
        numbers = [
            NO_VALUE if one is None else self.column.number(one.mean) for one in self.estimates
        ]
        self.numbers = aligned(numbers)
        self.spreads = ["" if one is None else self.column.spread(one) for one in self.estimates]
        self.spread_chars = max(map(len, self.spreads), default=0)

    def cell(self, place: int, line: _Line) -> list[Component]:
        """The cell of a line; none where that of an earlier line reaches down to it."""
        if self.is_shared and not line.is_first:
            return []
        estimate = self.estimates[place]
        span: Any = {"rowSpan": line.span} if self.is_shared and line.span > 1 else {}
        is_estimated = estimate is not None and estimate.is_estimated
        content: list[Component | str] = [f"{'~' if is_estimated else ''}{self.numbers[place]}"]
        if self.spread_chars:
            width = {"width": f"{self.spread_chars}ch"}
            content.append(html.Span(self.spreads[place], className="spread", style=width))
        if estimate is None:
            return [html.Td(content, className="number none", **span)]
        title = told(self.column.quantity, estimate, len(line.group.runs))
        return [html.Td(content, className="number", title=title, **span)]


def _head(title: str, name: str, choices: Choices, about: Column | None = None) -> Component:
    """The head of a column, a button that sorts by it."""
    state = "none"
    if choices.sort == name:
        state = "descending" if choices.is_descending else "ascending"
    unit = about.unit if about is not None else ""
    return html.Th(
        html.Button(
            [
                html.Span(title),
                *([html.Span(f" {unit}", className="unit")] if unit else []),
                html.Span(className="arrow", **attributes(aria_hidden="true")),
            ],
            type="button",
            title=ABOUT[about.quantity].explanation if about is not None else None,
            **attributes(data_report_sort=name),
        ),
        scope="col",
        className="number" if about is not None else "",
        **attributes(aria_sort=state),
    )


def _row(
    place: int,
    line: _Line,
    columns: Sequence[_Values],
    *,
    href: Callable[[Entry], str],
) -> Component:
    group, entry = line.group, line.entry
    finished = group.status is RunStatus.FINISHED
    cells: list[Component] = []
    if line.is_first:
        span: Any = {"rowSpan": line.span} if line.span > 1 else {}
        cells.append(
            html.Th(
                [
                    html.Span(
                        className="swatch",
                        style={
                            "--light": colour(entry.tint, Scheme.LIGHT),
                            "--dark": colour(entry.tint, Scheme.DARK),
                        },
                    ),
                    dcc.Link(entry.name, href=href(entry), title=f"Workload {entry.name}"),
                ],
                scope="rowgroup" if line.span > 1 else "row",
                className="label",
                **span,
            )
        )
    cells.append(
        html.Td(
            [
                html.Span(runs_text(group), title=runs_text(group), className="runs"),
                *(
                    []
                    if finished
                    else [
                        html.Span(
                            STATUS_WORDS[group.status],
                            className="status",
                            title="; ".join(reasons_of(group)) or None,
                            **attributes(data_status=group.status.value),
                        )
                    ]
                ),
            ]
        )
    )
    cells.append(html.Td(str(group.repeats) if group.repeats else NO_VALUE, className="number"))
    for one in columns:
        cells += one.cell(place, line)
    return html.Tr(cells, className="first" if line.is_first else "")


def matrix(found: Matrix) -> Component:
    """How much models slow each other down; the darker, the more."""
    return html.Section(
        [
            html.H2(found.title),
            html.P(found.explanation, className="why"),
            html.Div(
                html.Table(
                    [
                        html.Thead(
                            html.Tr(
                                [
                                    html.Td(),
                                    *(
                                        html.Th(one, scope="col", className="number")
                                        for one in found.columns
                                    ),
                                ]
                            )
                        ),
                        html.Tbody(
                            [
                                html.Tr(
                                    [
                                        html.Th(name, scope="row"),
                                        *map(_matrix_cell, cells),
                                    ]
                                )
                                for name, cells in zip(found.rows, found.cells, strict=True)
                            ]
                        ),
                    ],
                    className="report-matrix",
                ),
                className="report-scroll",
                tabIndex="0",
                role="region",
                **attributes(aria_label=found.title),
            ),
        ],
        className="report-interference",
    )


def _matrix_cell(cell: Cell | None) -> Component:
    if cell is None:
        return html.Td(NO_VALUE, className="number none")
    style: Any = {"--share": f"{cell.heat * 60:.0f}%"}
    return html.Td(cell.text, className="number heat", title=cell.about, style=style)
