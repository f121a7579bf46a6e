"""``radt devices``: this machine's GPUs, CPUs and memory, and who uses them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

import click
from rich.console import Console

from radt import units
from radt.cli.options import json_option, print_json
from radt.cli.render import text_table
from radt.collocation import permissions
from radt.collocation.mps import Daemon
from radt.collocation.overview import GpuView, MachineOverview
from radt.collocation.processes import Occupant
from radt.collocation.topology import GpuInstance, MigState
from radt.devices.gpus import ComputeMode
from radt.devices.host import Host, NumaNode
from radt.render.model import Block, Cell, ColumnHead, Document, Note, Notes, Role, Row, Table, Tone
from radt.render.terminal import print_document
from radt.units import ranges_text

_SHORT_UUID = 12
_Fact = tuple[str, str, Tone]


@click.command("devices")
@json_option
def command(as_json: bool) -> None:
    """Show this machine's GPUs, MIG instances, MPS daemons, CPUs and memory, and who uses them."""
    overview = MachineOverview.read()
    if as_json:
        print_json("devices", asdict(overview))
        return
    blocks: list[Block] = [_facts("", _host(overview))]
    for view in overview.gpus:
        blocks += _gpu(view, overview)
    elsewhere = [daemon for daemon in overview.daemons if not _gpus_of(daemon, overview)]
    blocks.append(_facts("MPS", [("daemon", *_daemon(daemon)) for daemon in elsewhere]))
    document = Document(overview.host.name, [overview.host.cpu_model], blocks)
    print_document(Console(highlight=False), document)


def _facts(title: str, facts: Sequence[_Fact]) -> Table:
    rows = [(Cell(label, tone=Tone.DIM), Cell(text, tone=tone)) for label, text, tone in facts]
    return text_table(rows, title)


def _host(overview: MachineOverview) -> list[_Fact]:
    host = overview.host
    facts = [("CPUs", _cpus(host), Tone.NORMAL)]
    if len(host.numa_nodes) > 1:
        facts += [(f"NUMA {node.number}", _node(node), Tone.NORMAL) for node in host.numa_nodes]
    facts.append(("memory", _memory(host), Tone.NORMAL))
    if overview.driver is not None:
        facts.append(("driver", f"NVIDIA {overview.driver}", Tone.NORMAL))
    if overview.gpu_failure:
        facts.append(("GPUs", overview.gpu_failure, Tone.BAD))
    elif not overview.gpus:
        facts.append(("GPUs", f"none: {overview.no_gpu_reason}", Tone.NORMAL))
    return facts


def _cpus(host: Host) -> str:
    usable = len(host.usable_cpus)
    parts = [str(usable) if usable == len(host.cpus) else f"{usable} of {len(host.cpus)} usable"]
    if usable < len(host.cpus):
        parts.append(f"numbers {ranges_text(host.usable_cpus)}")
    if host.sockets and host.cores:
        parts.append(units.plural(host.sockets, "socket"))
        parts.append(units.plural(host.cores, "core"))
        threads = round(len(host.cpus) / host.cores, 1)
        parts.append(f"{threads:g} thread{'s' if threads != 1 else ''} per core")
    if host.cpu_limit is not None:
        parts.append(f"CPU time limited to {host.cpu_limit:g} CPUs")
    return " · ".join(parts)


def _node(node: NumaNode) -> str:
    free = f"{units.size(node.free_bytes)} of {units.size(node.memory_bytes)} free"
    return f"CPUs {ranges_text(node.cpus) or 'none'} · {free}"


def _memory(host: Host) -> str:
    text = f"{units.size(host.available_bytes)} of {units.size(host.memory_bytes)} free"
    if host.memory_limit_bytes is not None:
        text += f" · limited to {units.size(host.memory_limit_bytes)}"
    return text


def _gpu(view: GpuView, overview: MachineOverview) -> list[Block]:
    gpu = view.gpu
    if gpu.problem:
        facts = [
            ("problem", f"does not answer: {gpu.problem}", Tone.BAD),
            ("UUID", gpu.uuid, Tone.DIM),
        ]
        return [_facts(f"GPU {gpu.index}  {gpu.name}", [fact for fact in facts if fact[1]])]
    if gpu.memory_bytes is not None:
        memory = f"{units.size(gpu.free_bytes)} of {units.size(gpu.memory_bytes)} free"
    else:
        memory = "in its instances" if gpu.mig_enabled else "shared with the host"
    facts = [("memory", memory, Tone.NORMAL)]
    if view.utilization is not None:
        facts.append(("busy", f"{units.percent(view.utilization)} of the time", Tone.NORMAL))
    if view.gpu.compute_mode not in (None, ComputeMode.DEFAULT):
        facts.append(("mode", f"compute mode {view.gpu.compute_mode}", Tone.WARNING))
    facts += _mig(gpu.mig) if gpu.mig is not None else ()
    facts += [
        ("MPS", *_daemon(daemon))
        for daemon in overview.daemons
        if gpu.index in _gpus_of(daemon, overview)
    ]
    facts.append(("UUID", gpu.uuid, Tone.DIM))
    processes: Block = _occupants(view)
    if view.unknown:
        note = Note(f"processes cannot be listed: {view.unknown}", Tone.WARNING)
        processes = Notes([note])
    elif not view.occupants:
        processes = Notes([Note("no process", Tone.DIM)])
    return [_facts(f"GPU {gpu.index}  {gpu.name}", facts), processes]


def _mig(mig: MigState) -> Iterator[_Fact]:
    state = "on" if mig.enabled else "off"
    if mig.pending != mig.enabled:
        state += f", {'on' if mig.pending else 'off'} after the GPU's next reset"
    if not mig.enabled:
        yield "MIG", state, Tone.DIM
        return
    parts = [state]
    room = [f"{profile.remaining}× {profile.name}" for profile in mig.profiles if profile.remaining]
    if slices := _free_slices(mig):
        parts.append(slices)
    if not mig.may_create:
        parts.append(f"creating instances needs {permissions.needed()}")
    yield "MIG", " · ".join(parts), Tone.NORMAL
    if room:
        yield "room for", ", ".join(room), Tone.DIM
    for instance in sorted(mig.instances, key=_start):
        yield "", _instance(instance), Tone.NORMAL


def _start(instance: GpuInstance) -> tuple[int, int]:
    place = instance.placement
    return (place.start if place is not None else -1, instance.instance_id)


def _free_slices(mig: MigState) -> str:
    """Return the number of unused memory slices; empty if the driver does not report it."""
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
        f"memory slices {ranges_text(free)} of 0-{total - 1} free"
        if free
        else "no memory slice free"
    )


def _instance(instance: GpuInstance) -> str:
    place = str(instance.placement) if instance.placement is not None else "?"
    uuids = "".join(f"  {_short(compute.uuid)}" for compute in instance.computes if compute.uuid)
    profile = instance.profile or "unknown"
    memory = ""
    if instance.computes and (total := instance.computes[0].memory_bytes) is not None:
        memory = f"  {units.size(instance.computes[0].free_bytes)} of {units.size(total)} free"
    return f"{profile:<12} slice {place:<5}id {instance.instance_id}{memory}{uuids}"


def _daemon(daemon: Daemon) -> tuple[str, Tone]:
    whose = "started by radt" if daemon.ours else f"of {daemon.user or 'another container'}"
    text = f"daemon pid {daemon.pid}, {whose}"
    if daemon.orphaned:
        return f"{text}, runner is dead: run radt doctor --clean", Tone.BAD
    if daemon.folder and not daemon.ours:
        text += f", {daemon.folder}"
    return text, Tone.NORMAL


def _gpus_of(daemon: Daemon, overview: MachineOverview) -> list[int]:
    """Return the indices of the GPUs that a daemon serves, as far as they are known here."""
    indices = []
    for view in overview.gpus:
        mig = view.gpu.mig.instances if view.gpu.mig is not None else ()
        uuids = {compute.uuid for instance in mig for compute in instance.computes}
        if {view.gpu.uuid, *uuids, str(view.gpu.index)} & set(daemon.devices):
            indices.append(view.gpu.index)
    return indices


def _occupants(view: GpuView) -> Table:
    mig = view.gpu.mig
    divided = mig is not None and mig.enabled
    places = {
        compute.uuid: f"{instance.profile or 'instance'}, id {instance.instance_id}"
        for instance in (mig.instances if mig is not None else ())
        for compute in instance.computes
    }
    columns = [
        ColumnHead("pid", role=Role.LEAD),
        ColumnHead("user", role=Role.LEAD, is_number=False),
        ColumnHead("process", role=Role.LEAD, is_number=False),
        ColumnHead("memory"),
        *([ColumnHead("on", is_number=False)] if divided else ()),
        *([ColumnHead("", is_number=False)] if any(map(_remark, view.occupants)) else ()),
    ]
    rows = []
    for occupant in view.occupants:
        who = occupant.who
        texts = [
            str(occupant.pid),
            who.user or units.NO_VALUE,
            who.command or units.NO_VALUE,
            units.size(occupant.memory_bytes),
            *([places.get(occupant.device, _short(occupant.device))] if divided else ()),
            _remark(occupant),
        ]
        tone = Tone.DIM if who.user is None else Tone.NORMAL
        rows.append(Row([Cell(text, tone=tone) for text in texts[: len(columns)]]))
    return Table(columns, rows)


def _remark(occupant: Occupant) -> str:
    parts = ["MPS"] if occupant.mps else []
    if occupant.who.run_id:
        parts.append(f"run {occupant.who.run_id[:8]}")
    if occupant.who.user is None:
        parts.append(str(occupant.who))
    return ", ".join(parts)


def _short(uuid: str) -> str:
    return uuid[:_SHORT_UUID] + "…" if len(uuid) > _SHORT_UUID else uuid
