"""Cards of the System page about this machine: collector, devices, listeners, access."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dash import html
from dash.development.base_component import Component

from radt import units
from radt.frontend.auth import LOGOUT_PATH, Auth, Guard
from radt.frontend.data.machine import Collector, Devices, ListenerFacts, NoCollector, Reading
from radt.frontend.pages.system_parts import (
    Cell,
    Column,
    bar,
    facts,
    quiet,
    shown,
    table,
    trouble,
)
from radt.units import duration_text

if TYPE_CHECKING:
    from radt.collocation.overview import GpuView
    from radt.collocation.processes import Occupant

_SHORT_UUID = 12
_VISITORS = {
    Auth.NONE: "everybody who can log in to this machine",
    Auth.TOKEN: "everybody with the token",
    Auth.PROXY_HEADER: "users that the proxy names",
}


def collector_card(reading: Reading[Collector | NoCollector]) -> list[Component]:
    """Return the collector's state and its cost."""

    def draw(collector: Collector | NoCollector) -> list[Component]:
        if isinstance(collector, NoCollector):
            return [quiet("Not running. The next run starts it.")]
        status = collector.status
        problems = [trouble(problem) for problem in status.problems]
        if status.guardian_pid is None:
            problems.append(
                trouble(
                    "The collector would not be restarted if it ended.", "The next run fixes this"
                )
            )
        return [
            facts(
                [
                    ("process", f"pid {status.pid} · up {units.duration(status.uptime_s)}"),
                    ("CPU", f"{units.percent(collector.cores)} of a core"),
                    ("memory", units.size(status.rss_bytes)),
                    ("records", units.plural(len(status.runs), "run")),
                    ("samples", ", ".join(status.listeners) or "nothing"),
                ]
            ),
            *problems,
        ]

    return shown(reading, draw)


def devices_card(reading: Reading[Devices]) -> list[Component]:
    """Return CPUs, memory and GPUs of this machine, and their processes."""

    def draw(devices: Devices) -> list[Component]:
        overview, host = devices.overview, devices.overview.host
        used = None
        if host.memory_bytes and host.available_bytes is not None:
            used = 1 - host.available_bytes / host.memory_bytes
        usable = len(host.usable_cpus)
        cpus = f"{len(host.cpus)}" if usable == len(host.cpus) else f"{usable} of {len(host.cpus)}"
        if host.cpu_limit is not None:
            cpus += f", limited to the time of {host.cpu_limit:g}"
        free = f"{units.size(host.available_bytes)} of {units.size(host.memory_bytes)} free"
        if host.memory_limit_bytes is not None:
            free += f", limited to {units.size(host.memory_limit_bytes)}"
        busy = f"{units.percent(devices.cpu_busy)} busy · load {devices.load:.2f}"
        lines: list[tuple[str, Cell | None]] = [
            ("machine", host.name),
            ("CPUs", f"{cpus} · {host.cpu_model}"),
            ("", bar(devices.cpu_busy, busy, "CPUs busy")),
            ("memory", bar(used, free, "Memory in use")),
            ("driver", f"NVIDIA {overview.driver}" if overview.driver else None),
        ]
        parts: list[Component] = [facts(lines)]
        for view in overview.gpus:
            parts += _gpu(view)
        if overview.gpu_failure:
            parts.append(trouble(overview.gpu_failure))
        elif not overview.gpus:
            parts.append(quiet(f"No GPU: {overview.no_gpu_reason}."))
        if overview.daemons:
            parts.append(
                table(
                    "MPS daemons",
                    [Column("MPS daemon", True), Column("of"), Column("serves", grows=True)],
                    [
                        [
                            str(daemon.pid),
                            "radt, its runner is dead: radt doctor --clean"
                            if daemon.orphaned
                            else "radt"
                            if daemon.ours
                            else daemon.user or "another container",
                            ", ".join(map(_short, daemon.devices)),
                        ]
                        for daemon in overview.daemons
                    ],
                )
            )
        return parts

    return shown(reading, draw)


def _gpu(view: GpuView) -> Iterator[Component]:
    gpu = view.gpu
    yield html.H3([f"GPU {gpu.index} ", html.Span(gpu.name, className="system-quiet")])
    if gpu.problem:
        yield trouble(gpu.problem)
        return
    memory: Cell = "the host's"
    if gpu.memory_bytes and gpu.free_bytes is not None:
        text = f"{units.size(gpu.free_bytes)} of {units.size(gpu.memory_bytes)} free"
        memory = bar(1 - gpu.free_bytes / gpu.memory_bytes, text, f"Memory of GPU {gpu.index}")
    busy = view.utilization
    lines: list[tuple[str, Cell | None]] = [
        ("busy", None if busy is None else bar(busy, units.percent(busy), f"GPU {gpu.index} busy")),
        ("memory", memory),
        ("mode", None if view.compute_mode is None else str(view.compute_mode)),
    ]
    if gpu.mig is not None:
        state = "on" if gpu.mig.enabled else "off"
        if gpu.mig.pending != gpu.mig.enabled:
            state += f", {'on' if gpu.mig.pending else 'off'} after the GPU's next reset"
        lines.append(("MIG", state))
    yield facts(lines)
    if gpu.mig is not None and gpu.mig.instances:
        yield table(
            f"MIG instances of GPU {gpu.index}",
            [
                Column("MIG instance"),
                Column("slices"),
                Column("id", True),
                Column("device", grows=True),
            ],
            [
                [
                    item.profile or "unknown",
                    str(item.placement or units.NO_VALUE),
                    str(item.instance_id),
                    ", ".join(_short(compute.uuid) for compute in item.computes),
                ]
                for item in gpu.mig.instances
            ],
        )
    if view.unknown:
        yield quiet(f"Its processes cannot be listed: {view.unknown}.")
    elif view.occupants:
        yield table(
            f"Processes on GPU {gpu.index}",
            [
                Column("pid", True),
                Column("user"),
                Column("process", grows=True),
                Column("memory", True),
                Column("on"),
                Column("remark"),
            ],
            [_occupant(item) for item in view.occupants],
        )
    else:
        yield quiet("No processes.")


def _occupant(occupant: Occupant) -> Sequence[Cell]:
    remarks = ["MPS"] if occupant.mps else []
    if occupant.who.run_id:
        remarks.append(f"run {occupant.who.run_id[:8]}")
    if occupant.who.user is None:
        remarks.append(str(occupant.who))
    return [
        str(occupant.pid),
        occupant.who.user or units.NO_VALUE,
        occupant.who.command or units.NO_VALUE,
        units.size(occupant.memory_bytes),
        _short(occupant.device),
        ", ".join(remarks),
    ]


def _short(uuid: str) -> str:
    return f"{uuid[:_SHORT_UUID]}…" if len(uuid) > _SHORT_UUID else uuid


def listeners_card(reading: Reading[Sequence[ListenerFacts]]) -> list[Component]:
    """Return the listeners that work here, and why others do not."""

    def draw(listeners: Sequence[ListenerFacts]) -> list[Component]:
        working = sum(listener.works and not listener.is_profiler for listener in listeners)
        total = sum(not listener.is_profiler for listener in listeners)
        return [
            table(
                "Listeners",
                [
                    Column("name"),
                    Column("here"),
                    Column("every", True),
                    Column("series", True),
                    Column("description, or why it is not available", grows=True),
                ],
                [_listener(listener) for listener in listeners],
                f"{working} of {units.plural(total, 'listener')} available. "
                "Run `radt listeners NAME` for details.",
            )
        ]

    return shown(reading, draw)


def _listener(facts: ListenerFacts) -> Sequence[Cell]:
    here: Cell = html.Span("no", className="system-quiet")
    if facts.failure:
        here = html.Strong("broken", className="system-bad")
    elif facts.works:
        here = "default" if facts.by_default else "yes"
    text: Cell = facts.summary
    if facts.failure:
        text = facts.failure
    elif not facts.works:
        why = ". ".join(part.rstrip(".") for part in (facts.reason, facts.remedy) if part)
        text = html.Span(why, className="system-quiet")
    elif facts.is_profiler:
        text = f"{facts.summary} (profiler)"
    every = units.NO_VALUE if facts.interval_s is None else duration_text(facts.interval_s)
    return [facts.name, here, every, f"{facts.series:,}", text]


def about_card(versions: Sequence[tuple[str, str]], guard: Guard | None) -> list[Component]:
    """Return the versions, and who has access."""
    parts: list[Component] = [facts(versions, long_names=True)]
    if guard is None:
        return parts
    access = guard.access
    lines: list[tuple[str, Cell | None]] = [
        ("visitors", _VISITORS[access.mode]),
        ("listens on", access.host),
        ("you", guard.authenticator.visitor()),
    ]
    parts.append(facts(lines, long_names=True))
    if guard.authenticator.can_log_out:
        parts.append(
            html.Form(
                html.Button("Log out", type="submit", className="quiet"),
                action=LOGOUT_PATH,
                method="POST",
            )
        )
    return parts
