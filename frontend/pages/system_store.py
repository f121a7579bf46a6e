"""Cards of the System page about the store: size, backlog, running workloads, machines."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dash import dcc, html
from dash.development.base_component import Component

from radt import units
from radt.collector.protocol import LiveView
from radt.frontend.data.machine import Reading
from radt.frontend.data.spec import ID_DIGITS
from radt.frontend.data.store_facts import (
    Activity,
    Backlogs,
    Machine,
    Sampling,
    StoreFacts,
    Waiting,
)
from radt.frontend.imports import ImportNews
from radt.frontend.pages.page import sentence
from radt.frontend.pages.system_parts import (
    Cell,
    Column,
    ago,
    clock,
    facts,
    quiet,
    shown,
    table,
    trouble,
)
from radt.frontend.view import View
from radt.store.records import RunRecord
from radt.units import duration_text

#: A disk with less free space counts as full.
_FULL_BYTES = 200_000_000
#: A machine whose newest sample is older than this lags behind.
_LAGS_S = 30.0


def store_card(reading: Reading[StoreFacts], points: Reading[int]) -> list[Component]:
    """Return the address and size of the store."""

    def draw(store: StoreFacts) -> list[Component]:
        schema = f"schema {store.schema_version}"
        if store.schema_version != store.newest_schema:
            schema += f" (this radt has {store.newest_schema})"
        free = store.free_bytes
        size = units.size(store.size_bytes)
        parts: list[Component] = [
            facts(
                [
                    ("where", store.where),
                    ("engine", f"{store.engine} · {schema}"),
                    ("as", store.user),
                    ("size", size if free is None else f"{size} · {units.size(free)} free"),
                    (
                        "runs",
                        f"{store.runs:,} in {units.plural(store.workloads, 'workload')}, "
                        f"{units.plural(store.experiments, 'experiment')}",
                    ),
                    ("points", "counting…" if points.value is None else f"{points.value:,}"),
                ]
            )
        ]
        if free is not None and free < _FULL_BYTES:
            parts.append(trouble("The disk is full.", "Free disk space, or recording stops"))
        return parts

    return shown(reading, draw)


def import_lines(news: ImportNews | None) -> list[Component]:
    """Return the source, progress and failure of the import from MLflow; nothing without one."""
    if news is None:
        return []
    status = news.status
    text = status.summary
    if status.error and not text:
        text = "shown as imported before" if news.complete_ns else "failed"
    elif not text:
        total = units.plural(status.total, "run")
        text = f"{status.done:,} of {total}" if status.total else "starting"
    lines = [("imports from", news.where), ("import", text)]
    if news.complete_ns is not None:
        lines.append(("complete at", clock(news.complete_ns)))
    parts: list[Component] = [facts(lines)]
    if status.error:
        parts.append(trouble(sentence(status.error), status.remedy))
    return parts


def backlog_card(reading: Reading[Backlogs]) -> list[Component]:
    """Return the data that are not uploaded yet."""

    def draw(backlogs: Backlogs) -> list[Component]:
        if not backlogs.exists:
            return [quiet(f"No runs were recorded in {backlogs.folder} on this machine.")]
        if not backlogs.waiting:
            return [quiet(f"Nothing in {backlogs.folder} is waiting to be uploaded.")]
        return [
            table(
                "Pending uploads",
                [
                    Column("to", grows=True),
                    Column("ended", True, "ended runs that are not completely uploaded"),
                    Column("running", True, "running runs that are uploaded as they go"),
                    Column("since", True),
                    Column("state", grows=True),
                ],
                [_waiting(row) for row in backlogs.waiting],
            )
        ]

    return shown(reading, draw)


def _waiting(queue: Waiting) -> Sequence[Cell]:
    since = units.NO_VALUE if queue.since_ns is None else clock(queue.since_ns)
    state: Cell = "uploading" if queue.ended or queue.running else "complete"
    if queue.problem:
        state = trouble(queue.problem)
    return [f"{queue.kind}: {queue.place}", f"{queue.ended:,}", f"{queue.running:,}", since, state]


def running_card(
    reading: Reading[Activity], live: Mapping[str, LiveView], view: View
) -> list[Component]:
    """Return the running workloads, with links."""

    def draw(activity: Activity) -> list[Component]:
        if not activity.running:
            return [quiet("No runs in progress.")]
        more = activity.running_count - len(activity.running)
        return [
            table(
                "Running now",
                [
                    Column("workload", grows=True),
                    Column("run", grows=True),
                    Column("machine"),
                    Column("devices"),
                    Column("for", True),
                    Column("epoch", True),
                    Column("CPU", True, "CPU cores that its processes use"),
                    Column("memory", True),
                    Column("GPU", True),
                    Column("GPU memory", True),
                ],
                [_running(run, live.get(run.run_id, LiveView()), view) for run in activity.running],
                f"… and {units.plural(more, 'run')} more." if more > 0 else "",
            )
        ]

    return shown(reading, draw)


def _running(run: RunRecord, live: LiveView, view: View) -> Sequence[Cell]:
    target = replace(view, experiment=run.experiment, workload=run.workload_id[:ID_DIGITS])
    name = f"{run.experiment} / {run.workload}".strip(" /") or run.workload_id[:ID_DIGITS]
    began_ns = run.started_ns or run.created_ns
    epoch = units.NO_VALUE if live.epoch is None else str(live.epoch)
    if live.epoch is not None and live.epochs_total is not None:
        epoch += f" of {live.epochs_total}"
    cpu = units.NO_VALUE if live.cpu_cores is None else units.significant(live.cpu_cores)
    return [
        dcc.Link(name, href=f"/workload?{target.to_query()}"),
        f"{run.letter} {run.name}".strip(),
        run.host,
        run.devices,
        units.stopwatch(max(0.0, (time.time_ns() - began_ns) / 1e9)),
        epoch,
        cpu,
        units.size(live.rss_bytes),
        units.percent(live.gpu_utilization),
        units.size(live.gpu_memory_bytes),
    ]


def sampling_card(reading: Reading[Activity]) -> list[Component]:
    """Return expected and received samples, their delay, and the cost of recording."""

    def draw(activity: Activity) -> list[Component]:
        if not activity.sampling:
            return [quiet("No samples yet.")]
        which = (
            f"Covers {units.plural(activity.sampled_runs, 'run')} in progress."
            if activity.live
            else f"Covers the last {units.plural(activity.sampled_runs, 'run')}; none is running."
        )
        return [
            table(
                "Sampling",
                [
                    Column("listener", grows=True),
                    Column("every", True),
                    Column("runs", True),
                    Column("expected", True, "samples that were expected"),
                    Column("missed", True, "expected samples that were not read"),
                    Column("reading", True, "mean duration of a reading"),
                    Column("longest", True, "longest duration of a reading"),
                    Column(
                        "late",
                        True,
                        "mean delay between the scheduled and the actual start of a reading",
                    ),
                    Column(
                        "latest",
                        True,
                        "longest delay between the scheduled and the actual start of a reading",
                    ),
                ],
                [_sampling(row) for row in activity.sampling],
                which,
            )
        ]

    return shown(reading, draw)


def _sampling(sampling: Sampling) -> Sequence[Cell]:
    missed = f"{sampling.missed:,}"
    if sampling.missed and sampling.expected:
        missed += f" ({units.percent(sampling.missed / sampling.expected)})"

    def mean(total_ns: int) -> str:
        return units.duration(total_ns / sampling.received / 1e9 if sampling.received else None)

    return [
        sampling.listener,
        duration_text(sampling.interval_s),
        f"{sampling.runs:,}",
        f"{sampling.expected:,}",
        missed,
        mean(sampling.sampling_ns),
        _longest(sampling.sampling_max_ns),
        mean(sampling.late_ns),
        _longest(sampling.late_max_ns),
    ]


def _longest(time_ns: int) -> str:
    """Return the longest interval; older ledgers have none."""
    return units.duration(time_ns / 1e9 if time_ns else None)


def machines_card(reading: Reading[Activity]) -> list[Component]:
    """Return the machines that write into the store, and how far behind they are."""

    def draw(activity: Activity) -> list[Component]:
        if not activity.machines:
            return [quiet("No machine has recorded runs yet.")]
        return [
            table(
                "Machines",
                [
                    Column("machine", grows=True),
                    Column("runs", True),
                    Column("running", True),
                    Column("last run", True, "when its last run started or ended"),
                    Column("newest sample", True, "of runs in progress, by that machine's clock"),
                    Column("behind", True, "age of that sample"),
                ],
                [_machine(row, activity.read_ns) for row in activity.machines],
            )
        ]

    return shown(reading, draw)


def _machine(machine: Machine, now_ns: int) -> Sequence[Cell]:
    behind: Cell = units.NO_VALUE
    if machine.newest_ns is not None:
        behind_s = max(0.0, (now_ns - machine.newest_ns) / 1e9)
        behind = units.duration(behind_s)
        if behind_s > _LAGS_S:
            behind = html.Strong(behind, className="system-bad")
    return [
        machine.host or "unknown",
        f"{machine.runs:,}",
        f"{machine.running:,}",
        ago(machine.active_ns, now_ns),
        ago(machine.newest_ns, now_ns),
        behind,
    ]
