"""The elements of the Workload page, section by section."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component
from plotly.utils import PlotlyJSONEncoder

from radt.frontend.charts import timeseries
from radt.frontend.charts.stacks import STRIP_PX
from radt.frontend.charts.timeline import AXIS_PX, blank, timeline_px
from radt.frontend.data.run_facts import slowdowns_of
from radt.frontend.data.run_files import list_artifacts
from radt.frontend.data.source import Source
from radt.frontend.data.workload.devices import devices_of
from radt.frontend.data.workload.model import Strip
from radt.frontend.data.workload.run_facts import (
    Machine,
    facts_of,
    ledger_of,
    machine_of,
    overhead_of,
    tags_of,
)
from radt.frontend.data.workload.strips import MAX_STRIPS, Reading, read_all
from radt.frontend.data.workload.subject import Subject, offered
from radt.frontend.pages.page import attributes, subject_list
from radt.frontend.pages.workload_devices import devices_section
from radt.frontend.pages.workload_parts import (
    facts_bar,
    notes,
    row_labels,
    row_outcomes,
    strip_label,
)
from radt.frontend.pages.workload_tables import (
    facts_section,
    files_section,
    ledger_section,
    log_panel,
)
from radt.frontend.view import View

#: The route that finds other workloads for a typed text.
OFFERED_PATH = "workload/offered"


def shown_of(subject: Subject) -> dict[str, Any]:
    """Return the browser's state: the shown workload and its live runs."""
    return {
        "id": subject.workload_id,
        "auto": subject.automatic,
        "live": [run.run_id for run in subject.workload.runs if not run.record.status.ended],
        "runs": len(subject.workload.runs),
    }


def body(source: Source, subject: Subject, view: View) -> list[Component]:
    reading = read_all(source, subject)
    sections = sections_of(source, reading)
    slots = arranged([None] * MAX_STRIPS, [strip.key for strip in reading.strips])
    by_key = {strip.key: strip for strip in reading.strips}
    left_out = max(0, len(reading.strips) - MAX_STRIPS)
    return [
        _head(subject),
        html.Dl(sections["facts"], id="workload-facts", className="workload-facts"),
        html.Div(sections["notes"], id="workload-notes"),
        html.Section(
            [
                time_head("workload"),
                html.Div(
                    [
                        html.Div(className="workload-cursor", hidden=True, id="workload-cursor"),
                        html.Div(
                            [
                                html.Div(
                                    [
                                        html.Div(
                                            "since barrier"
                                            if subject.workload.record.barrier_ns
                                            else "since start",
                                            className="workload-axis workload-dim",
                                            style={"height": f"{AXIS_PX}px"},
                                        ),
                                        html.Div(sections["rows"], id="workload-rows"),
                                    ]
                                ),
                                html.Div(
                                    time_graph("workload-timeline", timeline_px(reading.lives)),
                                    role="group",
                                    **attributes(aria_label="Run timeline"),
                                ),
                                html.Div(
                                    sections["outcomes"],
                                    id="workload-outcomes",
                                    style={"paddingTop": f"{AXIS_PX}px"},
                                ),
                            ],
                            className="workload-line",
                        ),
                        *(
                            html.Div(
                                strip_row(by_key[key], reading) if key else [],
                                id={"type": "workload-slot", "index": index},
                                className="workload-slot",
                                style=place(key, by_key),
                            )
                            for index, key in enumerate(slots)
                        ),
                    ],
                    id="workload-time",
                    className="workload-time",
                ),
                *(
                    [html.P(f"{left_out} more strips not shown", className="workload-dim")]
                    if left_out
                    else []
                ),
                dcc.Store(id="workload-slots", data=slots),
                dcc.Store(id="workload-stamp"),
                dcc.Store(id="workload-digests", data=digests(sections)),
                dcc.Store(id="workload-window"),
                dcc.Store(id="workload-done"),
            ],
            className="workload-panel",
            **attributes(aria_label="Over time"),
        ),
        _panel("Devices", "devices", sections),
        _panel("Listeners", "ledger", sections),
        html.Section(
            [html.H2("Log"), log_panel(subject, view)],
            className="workload-panel",
        ),
        _panel("Files", "files", sections),
        _panel("Parameters and tags", "params", sections),
    ]


def _head(subject: Subject) -> Component:
    earlier, later = subject.neighbour(-1), subject.neighbour(1)
    return html.Div(
        [
            html.H1(subject.title),
            html.Span(subject.catalog.experiment, className="workload-dim"),
            html.Span("newest", className="workload-mark", hidden=not subject.automatic),
            html.Span(className="push"),
            _step("‹", "Previous workload", earlier.record.workload_id if earlier else ""),
            _step("›", "Next workload", later.record.workload_id if later else ""),
            subject_list(
                *("workload-pick", offered(subject, ""), subject.workload_id),
                label="Another workload",
                nothing="No matching workload in this experiment",
                search=OFFERED_PATH,
            ),
        ],
        className="workload-head",
    )


def _step(sign: str, title: str, workload_id: str) -> Component:
    return html.Button(
        sign,
        id={"type": "workload-step", "to": workload_id or title},
        className="quiet workload-step",
        title=title,
        disabled=not workload_id,
        **attributes(aria_label=title, data_to=workload_id),
    )


def time_head(page: str, *hints: Component) -> Component:
    """Return the heading of a time axis, with the buttons that zoom it."""

    def button(sign: str, action: str, title: str) -> Component:
        return html.Button(
            sign,
            id={"type": f"{page}-zoom", "action": action},
            className="quiet",
            title=title,
            **attributes(aria_label=title),
        )

    return html.Div(
        [
            html.H2("Over time"),
            *hints,
            html.Span(className="push"),
            html.Span("", id=f"{page}-zoom-text", className="workload-dim"),
            button("‹", "earlier", "Earlier"),
            button("›", "later", "Later"),
            button("+", "in", "Zoom in"),
            button("−", "out", "Zoom out"),
            html.Button("all", id={"type": f"{page}-zoom", "action": "all"}, className="quiet"),
        ],
        className="workload-panel-head",
        role="group",
        **attributes(aria_label="Visible time range"),
    )


def _panel(title: str, name: str, sections: Mapping[str, list[Component]]) -> Component:
    return html.Section(
        [html.H2(title), html.Div(sections[name], id=f"workload-{name}")],
        className="workload-panel",
    )


def time_graph(identity: Any, height_px: int) -> Component:
    """Return a graph whose data arrive later. Its zoom is that of the page."""
    config = timeseries.config("radt workload") | {"doubleClick": False}
    config["modeBarButtons"] = [["toImage"]]
    return dcc.Graph(
        id=identity,
        figure=blank(height_px),
        config=config,
        style={"height": f"{height_px}px"},
        responsive=True,
    )


def strip_row(strip: Strip, reading: Reading) -> list[Component]:
    label = strip_label(strip, several_hosts=reading.several_hosts)
    return [
        html.Div(
            [
                html.Div(label, className="workload-strip-label"),
                html.Div(
                    time_graph({"type": "workload-strip", "key": strip.key}, STRIP_PX),
                    className="workload-strip-body",
                    role="group",
                    **attributes(aria_label=f"{strip.title} over time"),
                ),
                html.Div(
                    id={"type": "workload-legend", "key": strip.key}, className="workload-legend"
                ),
                dcc.Store(id={"type": "workload-strip-stamp", "key": strip.key}),
            ],
            className="workload-line workload-strip",
            **attributes(data_strip=strip.resource.key, data_device=strip.device),
        )
    ]


def sections_of(source: Source, reading: Reading) -> dict[str, list[Component]]:
    subject, lives = reading.subject, reading.lives
    slowed = slowdowns_of(source, subject.catalog, subject.workload_id)
    ledger = ledger_of(source, subject)
    tags = tags_of(source, subject)
    machines: dict[str, Machine] = {}
    for run in subject.workload.runs:
        if run.record.host not in machines:
            machines[run.record.host] = machine_of(source, run.record, tags.get(run.run_id, {}))
    devices = devices_of(subject, tags, machines, reading.summaries.values())
    listings = {
        run.run_id: list_artifacts(run.record, source.address) for run in subject.workload.runs
    }
    sampled = {run_id for run_id, _ in reading.summaries}
    return {
        "facts": facts_bar(subject, lives, ledger, slowed, overhead_of(source, subject)),
        "notes": notes(subject, tags, slowed),
        "rows": row_labels(lives),
        "outcomes": row_outcomes(lives, slowed),
        "devices": devices_section(devices),
        "ledger": ledger_section(ledger, subject),
        "files": files_section(subject, listings, has_samples=sampled),
        "params": facts_section(facts_of(source, subject), subject),
    }


def digests(sections: Mapping[str, list[Component]]) -> dict[str, str]:
    """Return digests of the page's parts. Only parts with a new digest are sent."""
    return {
        name: hashlib.blake2b(
            json.dumps(content, cls=PlotlyJSONEncoder).encode(), digest_size=8
        ).hexdigest()
        for name, content in sections.items()
    }


def arranged(before: Sequence[str | None], keys: Sequence[str]) -> list[str | None]:
    """Put the strips into slots, in order unless that would move an existing one.

    The browser redraws every element that a callback writes. So strips stay in their elements while
    others are added, and `place` puts them in the order of the resources.
    """
    slots = [key if key in keys else None for key in before]
    new = [key for key in keys if key not in slots]
    free = iter([index for index, key in enumerate(slots) if key is None])
    for key, index in zip(new, free, strict=False):
        slots[index] = key
    return slots


def place(key: str | None, by_key: Mapping[str, Strip]) -> dict[str, int]:
    """Return the style of a strip's slot: after the timeline, in the order of the resources."""
    return {"order": list(by_key).index(key) + 1 if key is not None and key in by_key else 0}
