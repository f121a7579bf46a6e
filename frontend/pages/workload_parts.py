"""The top of the Workload page: facts of the workload and labels of its timeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

from dash import html
from dash.development.base_component import Component

from radt import units
from radt.analysis.baselines import Slowdown
from radt.analysis.footnotes import compared_elsewhere
from radt.analysis.quantities import Quantity
from radt.analysis.recording import TrackerOverhead
from radt.frontend.charts.stacks import DrawnStrip
from radt.frontend.charts.timeline import LANE_PX, life_px, row_px
from radt.frontend.data.catalog import RunEntry
from radt.frontend.data.workload.lanes import Lane, lanes_of
from radt.frontend.data.workload.life import overlap
from radt.frontend.data.workload.model import Life, Strip
from radt.frontend.data.workload.run_facts import Ledger
from radt.frontend.data.workload.subject import Subject
from radt.frontend.pages.page import attributes, run_link
from radt.frontend.theme import Scheme, colour
from radt.model import STATUS_WORDS, RunStatus
from radt.parts import agreement, from_tag
from radt.tags import CLUSTER_PARTS

_NAIVE = "-"
_LIKE_SOLO = 0.005


def swatch(ordinal: int | None) -> Component:
    """Return a dot in the colour of a run; None for a device."""
    style = (
        {"--light": "var(--radt-text)", "--dark": "var(--radt-text)"}
        if ordinal is None
        else {"--light": colour(ordinal, Scheme.LIGHT), "--dark": colour(ordinal, Scheme.DARK)}
    )
    kind = "workload-swatch workload-swatch-line" if ordinal is None else "workload-swatch"
    return html.Span(className=kind, style=style)


def name_of(run: RunEntry) -> str:
    """Return the run's letter, or its name if it has none."""
    if run.parent is not None and run.mark:
        return run.mark
    return run.record.letter or run.record.name or run.run_id[:8]


def facts_bar(
    subject: Subject,
    lives: Sequence[Life],
    ledger: Ledger,
    slowed: Mapping[str, Slowdown],
    overhead: TrackerOverhead,
) -> list[Component]:
    """Return the key figures of the workload, in one line."""
    record = subject.workload.record
    status = subject.workload.status
    facts = [_fact("Status", _status_text(subject), status=status)]
    facts.append(_fact("Began", _when(subject), title=_took(subject, lives)))
    facts.append(_fact("Lasted", _took(subject, lives)))
    imported = subject.is_from_mlflow
    if not imported:  # MLflow has no devices, barriers or ledgers
        facts.append(_fact("Devices", devices_text(subject.whole)))
    if subject.workload.hosts:
        facts.append(_fact("Machine", ", ".join(subject.workload.hosts)))
    if len(subject.whole) > 1:
        skew_s = None if record.start_skew_ns is None else record.start_skew_ns / 1e9
        if not imported:
            facts.append(
                _fact(
                    "Start skew",
                    units.duration(skew_s),
                    title="Time between the first and the last process start at the barrier",
                )
            )
        facts.append(
            _fact(
                "Overlap",
                units.percent(overlap(lives)),
                title="Share of the time from the first start to the last end in which all runs "
                "ran",
            )
        )
    ratios = [slowdown.ratio for slowdown in slowed.values()]
    if ratios:
        mean = sum(ratios) / len(ratios)
        facts.append(_fact("vs solo", f"{units.factor(mean)} time an epoch"))
    if not imported:
        why = ledger.why or ledger.text
        facts.append(_fact("Completeness", ledger.text, bad=not ledger.is_complete, title=why))
    if overhead.cpu_share is not None:
        title = Quantity.TRACKER_CPU.info.explanation
        facts.append(
            _fact("Tracker", f"{units.percent(overhead.cpu_share)} of a core", title=title)
        )
    return facts


def notes(
    subject: Subject, tags: Mapping[str, Mapping[str, str]], slowed: Mapping[str, Slowdown]
) -> list[Component]:
    """Return notes on limits to the reliability of the numbers."""
    lines = []
    profiled = [run for run in subject.workload.runs if run.profiled]
    if profiled:
        names = ", ".join(f"{name_of(run)} under {run.profiled}" for run in profiled)
        lines.append(f"Profiled ({names}): the profiler slowed down all runs of this workload.")
    pruned = [run for run in subject.workload.runs if run.pruned]
    if pruned:
        names = ", ".join(name_of(run) for run in pruned)
        lines.append(f"Samples of {names} were thinned later: {pruned[0].pruned}.")
    of_nodes = [tags.get(run.run_id, {}).get(CLUSTER_PARTS, "") for run in subject.workload.runs]
    if parts := [part for tag in of_nodes for part in from_tag(tag)]:
        lines.append(f"Ran {agreement(parts)}.")
    elsewhere: dict[str, list[str]] = {}
    for run_id, slowdown in slowed.items():
        run = subject.runs[run_id]
        if slowdown.alone.host != run.record.host:
            elsewhere.setdefault(slowdown.alone.host, []).append(name_of(run))
    lines += [compared_elsewhere(host, names) for host, names in elsewhere.items()]
    if subject.left_out:
        lines.append(f"{units.plural(subject.left_out, 'more run')} of this workload not shown.")
    return [html.P(line, className="workload-note") for line in lines]


def row_labels(lives: Sequence[Life]) -> list[Component]:
    """Return the labels left of each row: the run's letter, name and devices; names of lanes."""
    height = {"height": f"{row_px(len(lives))}px"}
    return [
        html.Div(
            [_row_label(life.run, height), *map(_lane_label, lanes)],
            style={"height": f"{life_px(len(lives), lanes)}px"},
        )
        for life, lanes in zip(lives, lanes_of(lives), strict=True)
    ]


def _row_label(run: RunEntry, height: dict[str, str]) -> Component:
    name, kind = run.name, "workload-row"
    second = _seat(run)
    if run.parent is not None:
        name, kind = "", "workload-row workload-child"
        second = f"in {name_of(run.parent)}"
    return html.Div(
        [
            swatch(run.ordinal),
            html.Span(
                [
                    html.Strong(run_link(run.run_id, name_of(run))),
                    html.Span(name, className="workload-name"),
                    html.Span(second, className="workload-dim workload-second"),
                ],
                className="workload-two",
                title=f"{run.title} · {second}",
            ),
        ],
        className=kind,
        style=height,
    )


def _lane_label(lane: Lane) -> Component:
    return html.Div(
        [html.Span(lane.name, title=lane.name), swatch(lane.hue)],
        className="workload-lane workload-dim",
        style={"height": f"{LANE_PX}px"},
    )


def row_outcomes(lives: Sequence[Life], slowed: Mapping[str, Slowdown]) -> list[Component]:
    """Return the labels right of each row: the run's end and speed."""
    row = row_px(len(lives))
    height = {"height": f"{row}px"}
    outcomes: list[Component] = []
    for life, lanes in zip(lives, lanes_of(lives), strict=True):
        status = life.run.record.status
        marks = [
            word for word in (_profiled(life.run), "thinned" if life.run.pruned else "") if word
        ]
        second = life.reason or speed_text(life, slowed.get(life.run.run_id))
        outcomes.append(
            html.Div(
                html.Span(
                    [
                        html.Strong(name_of(life.run), className="workload-narrow"),
                        html.Span(
                            life.end_text,
                            className="workload-status",
                            **attributes(data_status=status.value),
                        ),
                        *(html.Span(mark, className="workload-mark") for mark in marks),
                        html.Span(second, className="workload-dim workload-second"),
                    ],
                    className="workload-two",
                    title=" · ".join(part for part in (life.end_text, second) if part),
                ),
                className="workload-row",
                style=height
                | {"marginBottom": f"{life_px(len(lives), lanes) - row_px(len(lives))}px"},
                **attributes(data_run=life.run.run_id),
            )
        )
    return outcomes


def speed_text(life: Life, slowed: Slowdown | None) -> str:
    """Return the slowdown as text: ``1.42× slower than solo (4.2 s an epoch)``."""
    if slowed is not None:
        solo = f"solo ({units.duration(slowed.alone_s)} an epoch)"
        if abs(slowed.ratio - 1) < _LIKE_SOLO:
            return f"as fast as {solo}"
        if slowed.ratio >= 1:
            return f"{units.factor(slowed.ratio)} slower than {solo}"
        return f"{units.factor(1 / slowed.ratio)} faster than {solo}"
    if life.never_started:
        return "never started"
    if life.epoch_s is not None:
        return f"{units.duration(life.epoch_s)} an epoch"
    return units.duration(life.end_s - (life.start_s or 0.0))


def strip_label(strip: Strip, *, several_hosts: bool) -> list[Component]:
    """Return the label left of a strip."""
    where = strip.host if several_hosts else ""
    return [
        html.H3([strip.title], title=strip.quantity.explanation or strip.quantity.metric),
        *([html.Span(where, className="workload-dim")] if where else []),
        html.Span(
            "mean" if not strip.resource.peak else "peak",
            className="workload-dim workload-what",
        ),
    ]


def strip_legend(drawn: DrawnStrip) -> list[Component]:
    """Return the legend right of a strip: each line with its value, then notes."""
    lines = [
        html.Li(
            [
                swatch(reading.ordinal),
                html.Span(reading.name, className="workload-who", title=reading.name),
                html.Span(
                    reading.text,
                    className="workload-number",
                    title="estimated" if reading.is_estimated else None,
                ),
            ]
        )
        for reading in drawn.readings
    ]
    parts: list[Component] = [html.Ul(lines)] if lines else []
    return [*parts, *(html.P(note, className="workload-dim") for note in drawn.notes)]


def devices_text(runs: Sequence[RunEntry]) -> str:
    """Return the devices of runs: ``GPU 0 · 3× MPS``, ``CPU``, ``GPU 0 · 3g.20gb, 2× 1g.5gb``."""
    by_device: dict[str, Counter[str]] = {}
    for run in runs:
        device = device_name(run.record.devices)
        by_device.setdefault(device, Counter())[run.record.collocation] += 1
    texts = []
    for device, ways in by_device.items():
        words = [
            f"{count}× {way}" if count > 1 else way for way, count in ways.items() if way != _NAIVE
        ]
        texts.append(f"{device} · {', '.join(words)}" if words else device)
    return "; ".join(texts) or units.NO_VALUE


def device_name(devices: str) -> str:
    """Return the name of devices: ``GPU 0``, ``GPUs 1+2``, ``CPU``."""
    if devices.isdigit():
        return f"GPU {devices}"
    if devices.lower() == "cpu":
        return "CPU"
    return f"GPUs {devices}" if devices.replace("+", "").isdigit() else devices


def _seat(run: RunEntry) -> str:
    way = "" if run.record.collocation == _NAIVE else run.record.collocation
    return " · ".join(part for part in (device_name(run.record.devices), way) if part)


def _profiled(run: RunEntry) -> str:
    return f"profiled: {run.profiled}" if run.profiled else ""


def _fact(
    name: str, text: str, *, status: RunStatus | None = None, bad: bool = False, title: str = ""
) -> Component:
    marks = attributes(
        **({"data_status": status.value} if status is not None else {}),
        **({"data_bad": "yes"} if bad else {}),
    )
    return html.Div(
        [html.Dt(name), html.Dd(text, **marks)],
        title=title or None,
        **attributes(data_fact=name.lower().replace(" ", "-")),
    )


def _status_text(subject: Subject) -> str:
    states = Counter(run.record.status for run in subject.whole)
    if len(states) == 1:
        (status, count), *_ = states.items()
        word = STATUS_WORDS[status]
        return word if count == 1 else f"{count} {word}"
    if not states:
        return STATUS_WORDS[subject.workload.record.status]
    return ", ".join(f"{states[s]} {word}" for s, word in STATUS_WORDS.items() if states[s])


def _when(subject: Subject) -> str:
    began = datetime.fromtimestamp(subject.origin_ns / 1e9).astimezone()
    return began.strftime("%Y-%m-%d %H:%M:%S")


def _took(subject: Subject, lives: Sequence[Life]) -> str:
    started = [life for life in lives if life.start_s is not None]
    if not started:
        return units.NO_VALUE
    first_s = min(life.start_s for life in started if life.start_s is not None)
    text = units.duration(max(life.end_s for life in started) - first_s)
    return f"{text} so far" if subject.is_live else text
