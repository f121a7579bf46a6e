"""``radt devices``: this machine's GPUs, CPUs and memory, and who uses them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import click
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from radt import units
from radt.collocation.busy import ComputeMode
from radt.collocation.overview import Daemon, GpuView, Host, NumaNode, Occupant, Overview
from radt.collocation.topology import GpuInstance, MigState
from radt.experiment.devices import cpu_list
from radt.render.model import printable

_LABEL_COLUMNS = 10
_SHORT_UUID = 12
_MIN_COLUMN = 24


@click.command("devices")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    """Show this machine's GPUs, MIG instances, MPS daemons, CPUs and memory, and who uses them."""
    overview = Overview.read()
    if as_json:
        click.echo(json.dumps(asdict(overview), indent=2, default=str))
        return
    console = Console(highlight=False)
    render_devices(overview, console)


def render_devices(overview: Overview, console: Console) -> None:
    """Print the whole machine."""
    console.print()
    _print_host(overview, console)
    for view in overview.gpus:
        _print_gpu(view, overview, console)
    if not overview.gpus:
        console.print()
        console.print(_no_gpu(overview))
    elsewhere = [daemon for daemon in overview.daemons if not _gpus_of(daemon, overview)]
    if elsewhere:
        _print_section(
            console, Text("MPS", style="bold"), [("daemon", _daemon(d)) for d in elsewhere]
        )
    console.print()


def _no_gpu(overview: Overview) -> Text:
    if overview.gpu_failure:
        return Text.assemble(("GPUs: ", "bold red"), printable(overview.gpu_failure))
    return Text.assemble(("no GPU", "bold"), (f": {printable(overview.no_gpu_reason)}", "dim"))


def _print_host(overview: Overview, console: Console) -> None:
    host = overview.host
    head = Text.assemble((printable(host.name), "bold"), (f"  {printable(host.cpu_model)}", "dim"))
    lines = [("CPUs", _cpus(host))]
    if len(host.numa_nodes) > 1:
        lines += [(f"NUMA {node.number}", _node(node)) for node in host.numa_nodes]
    lines.append(("memory", _memory(host)))
    if overview.driver is not None:
        lines.append(("driver", Text(f"NVIDIA {printable(overview.driver)}")))
    _print_section(console, head, lines, gap=False)


def _cpus(host: Host) -> Text:
    usable = len(host.usable_cpus)
    parts = [str(usable) if usable == len(host.cpus) else f"{usable} of {len(host.cpus)} usable"]
    if usable < len(host.cpus):
        parts.append(f"numbers {cpu_list(host.usable_cpus)}")
    if host.sockets and host.cores:
        parts.append(units.plural(host.sockets, "socket"))
        parts.append(units.plural(host.cores, "core"))
        threads = round(len(host.cpus) / host.cores, 1)
        parts.append(f"{threads:g} thread{'s' if threads != 1 else ''} a core")
    if host.cpu_limit is not None:
        parts.append(f"CPU time limited to {host.cpu_limit:g}")
    return Text(" · ".join(parts))


def _node(node: NumaNode) -> Text:
    free = f"{units.size(node.free_bytes)} of {units.size(node.memory_bytes)} free"
    return Text(f"CPUs {cpu_list(node.cpus) or 'none'} · {free}")


def _memory(host: Host) -> Text:
    text = f"{units.size(host.available_bytes)} of {units.size(host.memory_bytes)} free"
    if host.memory_limit_bytes is not None:
        text += f" · limited to {units.size(host.memory_limit_bytes)}"
    return Text(text)


def _print_gpu(view: GpuView, overview: Overview, console: Console) -> None:
    gpu = view.gpu
    head = Text.assemble((f"GPU {gpu.index}", "bold"), f"  {printable(gpu.name)}")
    lines: list[tuple[str, Text]] = []
    memory = (
        f"{units.size(gpu.free_bytes)} of {units.size(gpu.memory_bytes)} free"
        if gpu.memory_bytes is not None
        else "the host's"
    )
    lines.append(("memory", Text(memory)))
    if view.utilization is not None:
        lines.append(("busy", Text(f"{units.percent(view.utilization)} of the time")))
    if view.compute_mode not in (None, ComputeMode.DEFAULT):
        lines.append(("mode", Text(f"compute mode {view.compute_mode}", style="yellow")))
    lines += _mig_lines(gpu.mig) if gpu.mig is not None else ()
    for daemon in overview.daemons:
        if gpu.index in _gpus_of(daemon, overview):
            lines.append(("MPS", _daemon(daemon)))
    lines.append(("UUID", Text(gpu.uuid, style="dim")))
    _print_section(console, head, lines)
    if view.unknown:
        unknown = f"processes cannot be listed: {view.unknown}"
        console.print(Padding(Text(printable(unknown), style="yellow"), (0, 0, 0, 2), expand=False))
    elif view.occupants:
        console.print(Padding(_occupants(view), (0, 0, 0, 2), expand=False))
    else:
        console.print(Padding(Text("no process", style="dim"), (0, 0, 0, 2), expand=False))


def _mig_lines(mig: MigState) -> Iterator[tuple[str, Text]]:
    state = "on" if mig.enabled else "off"
    if mig.pending != mig.enabled:
        state += f", {'on' if mig.pending else 'off'} after the GPU's next reset"
    if not mig.enabled:
        yield "MIG", Text(state, style="dim")
        return
    parts = [state]
    room = [f"{profile.remaining}× {profile.name}" for profile in mig.profiles if profile.remaining]
    if slices := _free_slices(mig):
        parts.append(slices)
    if not mig.may_create:
        parts.append("creating instances needs an administrator")
    yield "MIG", Text(" · ".join(parts))
    if room:
        yield "room for", Text(", ".join(room), style="dim")
    for instance in sorted(mig.instances, key=_start):
        yield "", _instance(instance)


def _start(instance: GpuInstance) -> tuple[int, int]:
    place = instance.placement
    return (place.start if place is not None else -1, instance.instance_id)


def _free_slices(mig: MigState) -> str:
    """Memory slices that no instance has; empty where the driver does not say."""
    places = [place for profile in mig.profiles for place in profile.placements]
    if not places or any(instance.placement is None for instance in mig.instances):
        return ""
    total = max(place.end for place in places)
    used = {
        slice_number
        for instance in mig.instances
        if instance.placement is not None
        for slice_number in range(instance.placement.start, instance.placement.end)
    }
    free = [number for number in range(total) if number not in used]
    return (
        f"memory slices {cpu_list(free)} of 0-{total - 1} free" if free else "no memory slice free"
    )


def _instance(instance: GpuInstance) -> Text:
    place = str(instance.placement) if instance.placement is not None else "?"
    text = Text.assemble(f"{instance.profile or 'unknown':<12} slice {place:<5}")
    text.append(f"id {instance.instance_id}", style="dim")
    for compute in instance.computes:
        text.append(f"  {_short(compute.uuid)}" if compute.uuid else "", style="dim")
    return text


def _daemon(daemon: Daemon) -> Text:
    whose = "started by radt" if daemon.ours else f"of {daemon.user or 'another container'}"
    text = Text(f"daemon pid {daemon.pid}, {whose}")
    if daemon.orphaned:
        text.append(", runner is dead: run radt doctor --clean", style="red")
    if daemon.folder and not daemon.ours:
        text.append(f", {printable(daemon.folder)}", style="dim")
    return text


def _gpus_of(daemon: Daemon, overview: Overview) -> list[int]:
    """Indices of the GPUs that a daemon serves, as far as they are known here."""
    found = []
    for view in overview.gpus:
        mig = view.gpu.mig.instances if view.gpu.mig is not None else ()
        uuids = {compute.uuid for instance in mig for compute in instance.computes}
        if {view.gpu.uuid, *uuids, str(view.gpu.index)} & set(daemon.devices):
            found.append(view.gpu.index)
    return found


def _occupants(view: GpuView) -> Table:
    mig = view.gpu.mig
    divided = mig is not None and mig.enabled
    places = {
        compute.uuid: f"{instance.profile or 'instance'}, id {instance.instance_id}"
        for instance in (mig.instances if mig is not None else ())
        for compute in instance.computes
    }
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("pid", justify="right", no_wrap=True)
    table.add_column("user", overflow="ellipsis", max_width=12, no_wrap=True)
    table.add_column("process", overflow="ellipsis", max_width=20, no_wrap=True)
    table.add_column("memory", justify="right", no_wrap=True)
    if divided:
        table.add_column("on", no_wrap=True)
    if any(map(_remark, view.occupants)):
        table.add_column("", overflow="fold", style="dim")
    for occupant in view.occupants:
        row = [
            str(occupant.pid),
            printable(occupant.who.user or units.NO_VALUE),
            printable(occupant.who.command or units.NO_VALUE),
            units.size(occupant.memory_bytes),
        ]
        if divided:
            row.append(places.get(occupant.device, _short(occupant.device)))
        if remark := _remark(occupant):
            row.append(remark)
        table.add_row(*row, style="dim" if occupant.who.user is None else None)
    return table


def _remark(occupant: Occupant) -> str:
    parts = ["MPS"] if occupant.mps else []
    if occupant.who.run_id:
        parts.append(f"run {printable(occupant.who.run_id[:8])}")
    if occupant.who.user is None:
        parts.append(str(occupant.who))
    return ", ".join(parts)


def _short(uuid: str) -> str:
    return uuid[:_SHORT_UUID] + "…" if len(uuid) > _SHORT_UUID else uuid


def _print_section(
    console: Console, head: Text, lines: Sequence[tuple[str, Text]], *, gap: bool = True
) -> None:
    if gap:
        console.print()
    console.print(head, soft_wrap=True)
    room = max(console.width - _LABEL_COLUMNS - 2, _MIN_COLUMN)
    for label, text in lines:
        for number, part in enumerate(text.wrap(console, room)):
            part.rstrip()
            name = label if number == 0 else ""
            console.print(
                Text.assemble((f"  {name}".ljust(_LABEL_COLUMNS + 2), "dim"), part), soft_wrap=True
            )
