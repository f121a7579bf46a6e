"""The head of the page Report: what is reported, what of it, and where to take it."""

from __future__ import annotations

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from radt.frontend.catalog import read_experiments
from radt.frontend.dashing import attributes
from radt.frontend.report.choices import Choices
from radt.frontend.source import Source
from radt.report.windows import DEFAULT_WINDOW

#: Suggestions; anything that `radt report --window` takes may be typed.
_WINDOWS = ("epoch:2", "epoch:2-", "steady", "all", "train")
#: Until what is typed counts.
_TYPING_MS = 600


def experiments(source: Source) -> list[str]:
    """The names to choose from."""
    return [one.name for one in read_experiments(source)]


def controls(source: Source, experiment: str, choices: Choices) -> Component:
    """The row of controls."""
    return html.Div(
        [
            dmc.Select(
                id="report-experiment",
                data=experiments(source),
                value=experiment,
                searchable=True,
                allowDeselect=False,
                limit=200,
                w=240,
                size="xs",
                nothingFoundMessage="No such experiment",
                **attributes(aria_label="Experiment"),
            ),
            html.P(id="report-facts", className="report-facts", role="status"),
            html.Div(
                [
                    dmc.Autocomplete(
                        id="report-window",
                        data=list(_WINDOWS),
                        value=choices.window_text,
                        placeholder=f"window: {DEFAULT_WINDOW.text}",
                        debounce=_TYPING_MS,
                        clearable=True,
                        w=248,
                        size="xs",
                        **attributes(aria_label="What of each run counts"),
                    ),
                    dmc.Switch(
                        id="report-overlap",
                        label="only overlap",
                        checked=choices.window.overlap,
                        size="xs",
                    ),
                    dmc.Switch(
                        id="report-picked",
                        label="only what is picked",
                        checked=choices.picked,
                        size="xs",
                    ),
                    dmc.Switch(
                        id="report-profiled",
                        label="with profiled runs",
                        checked=choices.profiled,
                        size="xs",
                    ),
                    dmc.Popover(
                        [
                            # Its wrapper says whether it is open: it is the button.
                            dmc.PopoverTarget(
                                html.Span("Columns"),
                                boxWrapperProps={
                                    "component": "button",
                                    "type": "button",
                                    "className": "quiet",
                                },
                            ),
                            dmc.PopoverDropdown(
                                dmc.CheckboxGroup(
                                    dmc.Stack(id="report-column-list", gap=8),
                                    id="report-columns",
                                    label="Columns of the table",
                                    size="xs",
                                ),
                                className="report-columns",
                            ),
                        ],
                        position="bottom-end",
                        trapFocus=True,
                        returnFocus=True,
                    ),
                    html.Span(id="report-links", className="report-links"),
                ],
                className="report-controls",
            ),
        ],
        className="report-head",
    )
