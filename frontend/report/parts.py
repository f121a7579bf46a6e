"""What stands around the report's table and bars: facts, notes, links, why there is nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dash import dcc, html
from dash.development.base_component import Component

from radt.frontend.chosen import MAX_RUNS
from radt.frontend.dashing import attributes
from radt.frontend.picks import ID_DIGITS, Pick
from radt.frontend.report import routes
from radt.frontend.report.bars import MAX_BARS, PEAKS, Bar, column_of
from radt.frontend.report.choices import Choices
from radt.frontend.report.data import Entry, Shown, content_of
from radt.frontend.report.table import PAGE_ROWS, page_count, page_of, table
from radt.frontend.view import View
from radt.report.formats.columns import INTERVAL_WORDS
from radt.report.quantities import Quantity
from radt.units import plural

_COMPARE_PATH, _WORKLOAD_PATH = "/compare", "/workload"


def facts(shown: Shown) -> str:
    """What the table is about, in a line."""
    words = [
        plural(len(shown.entries), "workload"),
        plural(shown.run_count, "run"),
        shown.window,
    ]
    if shown.open:
        words.append(f"{plural(shown.open, 'run')} not ended yet")
    if shown.left_out:
        words.append(f"{shown.left_out:,} profiled left out")
    if shown.remote:
        words.append(f"{plural(shown.remote, 'run')} on the MLflow server only")
    if shown.foreign:
        words.append(f"{plural(shown.foreign, 'run')} of MLflow left out")
    return " · ".join(words)


def table_of(shown: Shown, choices: Choices, view: View) -> Component:
    """The table, or why there is none."""
    if not shown.entries:
        return _nothing(shown, choices)
    content: list[Component] = [table(shown, choices, lambda entry: _workload(view, entry))]
    if not shown.quantities:
        content.append(
            html.P(
                "No run has finished an epoch, and none recorded throughput or load: there is "
                "nothing to compare. Mark epochs with run.epochs() in the script, or name "
                "listeners in the experiment file.",
                className="report-note",
            )
        )
    elif Quantity.TIME_PER_EPOCH not in shown.quantities:
        content.append(
            html.P(
                "No epochs are marked, so time per epoch is not known. "
                "Loop over run.epochs() in the script.",
                className="report-note",
            )
        )
    return html.Div(content)


def notes(shown: Shown, choices: Choices) -> list[Component]:
    """What ± means, and what has to be known besides the numbers."""
    if not shown.entries:
        return []
    sentences = [INTERVAL_WORDS, *content_of(shown, choices).notes]
    return [html.P(sentence) for sentence in sentences]


def _nothing(shown: Shown, choices: Choices) -> Component:
    if shown.remote and not shown.open:
        why = f"{plural(shown.remote, 'run')} on the MLflow server only"
        what = "Pick them under Select: they are loaded then, and this page fills by itself."
    elif shown.foreign and not shown.open:
        why = "MLflow's runs have no epochs: nothing to compare"
        what = "Compare shows their metrics."
    elif choices.picked:
        why, what = "Nothing picked has ended", "Pick other workloads, or show all."
    elif shown.open:
        why = "No run has ended yet"
        what = f"{plural(shown.open, 'run')} on the way; this page fills by itself."
    elif shown.left_out:
        why = "Only profiled runs have ended"
        what = "A profiler slows runs down, so they are left out; switch them on above."
    else:
        why, what = "No run has ended", "A report needs a run that came to an end."
    return html.Div([html.H2(why), html.P(what)], className="report-nothing", role="status")


def _workload(view: View, entry: Entry) -> str:
    target = replace(
        view, experiment=entry.experiment, workload=entry.summary.workload_id[:ID_DIGITS]
    )
    return f"{_WORKLOAD_PATH}?{target.to_query()}"


def pages(shown: Shown, choices: Choices) -> list[Component]:
    """What turns the pages of the table, if it has several."""
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
    """To Compare with the workloads of this page of the table, and the files."""
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
            html.A(text, href=f"{routes.path_of(kind)}?{query}", download="")
            for kind, text in routes.DOWNLOADS.items()
        ),
        *([dcc.Link("Compare →", href=f"{_COMPARE_PATH}?{target.to_query()}")] if compared else []),
    ]


def unit(quantity: Quantity, bars: Sequence[Bar]) -> str:
    """Unit of a chart, and what of it is not drawn."""
    words = [column_of(quantity, bars).unit] if bars else []
    if quantity in PEAKS and any(bar.peak is not None for bar in bars):
        words.append("bar mean, line and number peak")
    if len(bars) > MAX_BARS:
        words.append(f"the first {MAX_BARS} in the table's order")
    return " · ".join(word for word in words if word)
