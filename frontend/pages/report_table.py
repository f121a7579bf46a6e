"""The table of the Report page, and the cards around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from radt.analysis.estimates import Estimate
from radt.analysis.quantities import Quantity
from radt.analysis.series_quantities import AnyQuantity
from radt.analysis.summaries import GroupSummary
from radt.frontend.data.model import STATUS_WORDS
from radt.frontend.data.report import content_of
from radt.frontend.data.report_model import (
    BY_NAME,
    BY_WORKLOAD,
    MAX_BARS,
    Bar,
    Choices,
    Entry,
    Shown,
    column_of,
    peak_of,
    sorted_groups,
)
from radt.frontend.data.spec import ID_DIGITS, Pick
from radt.frontend.export import report_files
from radt.frontend.pages.page import attributes
from radt.frontend.selection import MAX_RUNS
from radt.frontend.theme import Scheme, colour
from radt.frontend.view import View
from radt.model import RunStatus
from radt.render.numbers import INTERVAL_NOTE, ScaledQuantity, aligned, describe, scaled
from radt.render.report_content import (
    Matrix,
    MatrixCell,
    is_shared,
    reasons_of,
    runs_text,
    with_children,
)
from radt.units import NO_VALUE, plural

#: Workloads on one page of the table.
PAGE_ROWS = 100


@dataclass(frozen=True, slots=True)
class _Line:
    entry: Entry
    group: GroupSummary
    is_first: bool
    span: int


def page_count(shown: Shown) -> int:
    """Return the number of pages of the table."""
    return max(1, -(-len(shown.entries) // PAGE_ROWS))


def page_of(shown: Shown, choices: Choices) -> int:
    """Return the shown page: the chosen one, or the last."""
    return min(choices.page, page_count(shown) - 1)


def table(shown: Shown, choices: Choices, href: Callable[[Entry], str]) -> Component:
    """Return one page of the table.

    Args:
        shown: The report.
        choices: The user's choices of rows, columns and order.
        href: Returns the address of a workload's page.
    """
    page = page_of(shown, choices)
    entries = shown.entries[page * PAGE_ROWS : (page + 1) * PAGE_ROWS]
    lines = [
        _Line(entry, group, place == 0, len(groups))
        for entry in entries
        for groups in [with_children(sorted_groups(entry, choices))]
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
                            _head(
                                column.column.title,
                                column.column.quantity.value,
                                choices,
                                column.column,
                            )
                            for column in columns
                        ),
                    ]
                )
            ),
            html.Tbody([_row(place, line, columns, href=href) for place, line in enumerate(lines)]),
        ],
        className="report-table",
    )


class _Values:
    """A column of the table: the texts of its cells."""

    def __init__(self, quantity: AnyQuantity, lines: Sequence[_Line]) -> None:
        of_page = [
            estimate_
            for line in lines
            if (estimate_ := line.entry.summary.estimate(quantity, line.group)) is not None
        ]
        self.column: ScaledQuantity = scaled(quantity, of_page)
        self.is_shared = is_shared(quantity)
        self.estimates: list[Estimate | None] = [
            line.entry.summary.estimate(quantity, line.group) for line in lines
        ]
        numbers = [
            NO_VALUE if estimate is None else self.column.number(estimate.mean)
            for estimate in self.estimates
        ]
        self.numbers = aligned(numbers)
        self.spreads = [
            "" if estimate is None else self.column.spread(estimate) for estimate in self.estimates
        ]
        self.spread_chars = max(map(len, self.spreads), default=0)

    def cell(self, place: int, line: _Line) -> list[Component]:
        """Return the cell of a line; none if an earlier line's cell spans it."""
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
        title = describe(self.column.quantity, estimate, len(line.group.runs))
        return [html.Td(content, className="number", title=title, **span)]


def _head(
    title: str, name: str, choices: Choices, about: ScaledQuantity | None = None
) -> Component:
    """Return the head of a column, a button that sorts by it."""
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
            title=about.quantity.info.explanation if about is not None else None,
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
    for column in columns:
        cells += column.cell(place, line)
    return html.Tr(cells, className="first" if line.is_first else "")


def matrix(content: Matrix) -> Component:
    """Return the matrix of how much models slow each other down; darker is slower."""
    return html.Section(
        [
            html.H2(content.title),
            html.P(content.explanation, className="why"),
            html.Div(
                html.Table(
                    [
                        html.Thead(
                            html.Tr(
                                [
                                    html.Td(),
                                    *(
                                        html.Th(column, scope="col", className="number")
                                        for column in content.columns
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
                                for name, cells in zip(content.rows, content.cells, strict=True)
                            ]
                        ),
                    ],
                    className="report-matrix",
                ),
                className="report-scroll",
                tabIndex="0",
                role="region",
                **attributes(aria_label=content.title),
            ),
        ],
        className="report-interference",
    )


def _matrix_cell(cell: MatrixCell | None) -> Component:
    if cell is None:
        return html.Td(NO_VALUE, className="number none")
    style: Any = {"--share": f"{cell.heat * 60:.0f}%"}
    return html.Td(cell.text, className="number heat", title=cell.about, style=style)


_COMPARE_PATH, _WORKLOAD_PATH = "/compare", "/workload"


def facts(shown: Shown) -> str:
    """Return the subject of the table, in one line."""
    words = [
        plural(len(shown.entries), "workload"),
        plural(shown.run_count, "run"),
        shown.window,
    ]
    if shown.open:
        words.append(f"{plural(shown.open, 'run')} not ended yet")
    if shown.left_out:
        words.append(f"{shown.left_out:,} profiled left out")
    return " · ".join(words)


def table_of(shown: Shown, choices: Choices, view: View) -> Component:
    """Return the table, or the reason why there is none."""
    if not shown.entries:
        return _nothing(shown, choices)
    content: list[Component] = [table(shown, choices, lambda entry: _workload(view, entry))]
    if not shown.quantities:
        content.append(
            html.P(
                "No run finished an epoch or recorded throughput or load, so there is nothing to "
                "compare. Mark epochs with run.epochs() in the script, or name listeners in the "
                "experiment file.",
                className="report-note",
            )
        )
    elif Quantity.TIME_PER_EPOCH not in shown.quantities:
        content.append(
            html.P(
                "Time per epoch is not known because no epochs are marked. "
                "Loop over run.epochs() in the script.",
                className="report-note",
            )
        )
    return html.Div(content)


def notes(shown: Shown, choices: Choices) -> list[Component]:
    """Return the meaning of ± and notes on the numbers."""
    if not shown.entries:
        return []
    sentences = [INTERVAL_NOTE, *content_of(shown, choices).notes]
    return [html.P(sentence) for sentence in sentences]


def _nothing(shown: Shown, choices: Choices) -> Component:
    if choices.picked:
        why, what = "No selected run has ended", "Select other workloads, or show all."
    elif shown.open:
        why = "No run has ended yet"
        what = f"{plural(shown.open, 'run')} in progress. This page updates when they end."
    elif shown.left_out:
        why = "Only profiled runs have ended"
        what = "Profilers slow runs down. Turn on 'with profiled runs' to see them."
    else:
        why, what = "No run has ended", "A report needs at least one run that has ended."
    return html.Div([html.H2(why), html.P(what)], className="report-nothing", role="status")


def _workload(view: View, entry: Entry) -> str:
    target = replace(
        view, experiment=entry.experiment, workload=entry.summary.workload_id[:ID_DIGITS]
    )
    return f"{_WORKLOAD_PATH}?{target.to_query()}"


def pages(shown: Shown, choices: Choices) -> list[Component]:
    """Return the control for the table's pages, if there are several."""
    count, page = page_count(shown), page_of(shown, choices)
    if count < 2:
        return []
    first = page * PAGE_ROWS + 1
    last = min(len(shown.entries), first + PAGE_ROWS - 1)
    return [
        _turn("‹ Previous", page - 1, disabled=page == 0),
        html.Span(f"{first:,} – {last:,} of {len(shown.entries):,} workloads"),
        _turn("Next ›", page + 1, disabled=page + 1 >= count),
    ]


def _turn(text: str, page: int, *, disabled: bool) -> Component:
    return html.Button(
        text,
        type="button",
        className="quiet",
        disabled=disabled,
        **attributes(data_report_page=str(page)),
    )


def links(shown: Shown, choices: Choices, view: View) -> list[Component]:
    """Return links to the files, and to Compare with the workloads of this page of the table."""
    query = view.to_query()
    compared: list[Pick] = []
    count = 0
    start = page_of(shown, choices) * PAGE_ROWS
    for entry in shown.entries[start : start + PAGE_ROWS]:
        count += entry.summary.run_count
        if compared and count > MAX_RUNS:
            break
        compared.append(entry.pick)
    target = replace(view, picks=tuple(compared))
    return [
        *(
            html.A(text, href=f"{report_files.path_of(kind)}?{query}", download="")
            for kind, text in report_files.DOWNLOADS.items()
        ),
        *([dcc.Link("Compare →", href=f"{_COMPARE_PATH}?{target.to_query()}")] if compared else []),
    ]


def unit(quantity: AnyQuantity, bars: Sequence[Bar]) -> str:
    """Return the unit of a chart, the meaning of its bars, and a note if some are left out."""
    words = [column_of(quantity, bars).unit] if bars else []
    if peak_of(quantity) is not None and any(bar.peak is not None for bar in bars):
        words.append("bar mean, line and number peak")
    if len(bars) > MAX_BARS:
        words.append(f"the first {MAX_BARS} in the table's order")
    return " · ".join(word for word in words if word)


def number(quantity: AnyQuantity, bars: Sequence[Bar]) -> str:
    """Return the value of the only bar, with its interval and unit: nothing is beside it."""
    column = column_of(quantity, bars)
    return f"{column.text(bars[0].estimate)} {column.unit}".rstrip()
