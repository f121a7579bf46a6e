"""The devices section of the Workload page: GPUs, MIG instances, CPU cores, and their runs."""

from __future__ import annotations

from collections.abc import Iterable

from dash import html
from dash.development.base_component import Component

from radt import units
from radt.frontend.data.workload.devices import Instance, Processor, Tenant, UsedDevices, UsedGpu
from radt.frontend.pages.page import attributes
from radt.frontend.pages.workload_parts import name_of, swatch

#: Above this number of cores, a list of numbers is shown instead of boxes.
_MAX_BOXES = 256


def devices_section(devices: UsedDevices) -> list[Component]:
    """Return all GPUs, then the processors that runs use without a GPU or with pinned cores."""
    several = len({cpu.host for cpu in devices.processors}) > 1
    drawn = [_card(card, with_host=several) for card in devices.cards]
    drawn += [
        _processor(processor, with_host=several)
        for processor in devices.processors
        if processor.has_pinned or not any(card.host == processor.host for card in devices.cards)
    ]
    if not drawn:
        return [html.P("The devices of these runs were not recorded.", className="workload-dim")]
    return [html.Div(drawn, className="workload-devices")]


def _card(card: UsedGpu, *, with_host: bool) -> Component:
    where = f" of {card.host}" if with_host else ""
    head = html.Div(
        [
            html.H3(f"GPU {card.index}{where}"),
            html.Span(card.name, className="workload-dim"),
            html.Span(className="push"),
            html.Span(card.how, className="workload-dim"),
        ],
        className="workload-card-head",
    )
    body: list[Component] = []
    if card.instances:
        body.append(_instances(card))
    if card.mps:
        body.append(_daemon(card.mps, "MPS daemon"))
    if card.naive:
        body.append(
            html.Div(
                [_tenant(naive_tenant) for naive_tenant in card.naive], className="workload-seats"
            )
        )
    body.append(_memory(card))
    return html.Article([head, *body], className="workload-card")


def _instances(card: UsedGpu) -> Component:
    """Return MIG instances at their placement, with widths by memory slices."""
    boxes: list[tuple[int, Component]] = []
    at = 0
    for instance in card.instances:
        start = instance.start if instance.start is not None else at
        boxes.append((start, _instance(instance, start)))
        at = start + instance.size
    for start, size in card.free_slices:
        boxes.append(
            (
                start,
                html.Div(
                    "not used",
                    className="workload-instance workload-free",
                    style={"gridColumn": f"{start + 1} / span {size}"},
                ),
            )
        )
    boxes.sort(key=lambda box: box[0])
    return html.Div(
        [box for _, box in boxes],
        className="workload-slices",
        style={"gridTemplateColumns": f"repeat({card.slices}, minmax(0, 1fr))"},
    )


def _instance(instance: Instance, start: int) -> Component:
    seats = [_tenant(tenant) for tenant in instance.tenants]
    inner: list[Component] = [_daemon(instance.tenants, "MPS")] if instance.is_mps else seats
    used = (
        [_bar(instance.peak_bytes, instance.memory_bytes, "peak of its memory")]
        if instance.peak_bytes is not None and instance.memory_bytes
        else []
    )
    return html.Div(
        [html.Div(instance.profile, className="workload-profile"), *inner, *used],
        className="workload-instance",
        style={"gridColumn": f"{start + 1} / span {instance.size}"},
        title=f"{instance.profile}, {units.plural(instance.size, 'slice')} of memory"
        + ("" if instance.start is None else f" from slice {instance.start} on"),
    )


def _daemon(tenants: Iterable[Tenant], title: str) -> Component:
    return html.Div(
        [
            html.Div(title, className="workload-profile"),
            html.Div([_tenant(tenant) for tenant in tenants], className="workload-seats"),
        ],
        className="workload-daemon",
    )


def _tenant(tenant: Tenant) -> Component:
    words = []
    if tenant.percentage is not None:
        words.append(f"{tenant.percentage:g} % of threads")
    if tenant.peak_bytes:
        words.append(units.size(tenant.peak_bytes))
    run = tenant.run
    return html.Div(
        [
            swatch(run.ordinal),
            html.Strong(name_of(run)),
            html.Span(run.name, className="workload-name"),
            html.Span(" · ".join(words), className="workload-dim"),
        ],
        className="workload-seat",
        title=run.title,
    )


def _memory(card: UsedGpu) -> Component:
    """Return the peak of used memory out of the GPU's total, divided by runs where known."""
    if card.peak_bytes is None or not card.memory_bytes:
        return html.P("Memory use was not recorded", className="workload-dim workload-memory")
    return html.Div(
        [
            html.Span("memory, peak", className="workload-dim"),
            _bar(card.peak_bytes, card.memory_bytes, "most memory in use"),
            html.Span(f"{units.size(card.peak_bytes)} of {units.size(card.memory_bytes)}"),
        ],
        className="workload-memory",
    )


def _bar(used: float | None, total: float | None, what: str) -> Component:
    share = min(1.0, (used or 0.0) / total) if total else 0.0
    return html.Div(
        html.Div(style={"width": f"{100 * share:.1f}%"}),
        className="workload-bar",
        role="img",
        **attributes(aria_label=f"{what}: {units.size(used)} of {units.size(total)}"),
    )


def _processor(processor: Processor, *, with_host: bool) -> Component:
    where = f" of {processor.host}" if with_host else ""
    count = [] if processor.cores is None else [units.plural(processor.cores, "core")]
    head = html.Div(
        [
            html.H3(f"CPU{where}"),
            html.Span(" · ".join([*count, processor.model]).strip(" ·"), className="workload-dim"),
            html.Span(className="push"),
            html.Span(
                _pinning(processor),
                className="workload-dim",
            ),
        ],
        className="workload-card-head",
    )
    body: list[Component] = []
    highest = max((max(cores) for cores in processor.pinned.values() if cores), default=-1)
    total = max(processor.cores or 0, highest + 1)
    if processor.has_pinned and 0 < total <= _MAX_BOXES:
        body.append(
            html.Div([_core(processor, core) for core in range(total)], className="workload-cores")
        )
    body.append(
        html.Div(
            [
                html.Div(
                    [
                        swatch(run.ordinal),
                        html.Strong(name_of(run)),
                        html.Span(run.name, className="workload-name"),
                        html.Span(
                            _cores_text(processor, run.run_id),
                            className="workload-dim",
                        ),
                    ],
                    className="workload-seat",
                )
                for run in processor.runs
            ],
            className="workload-seats",
        )
    )
    return html.Article([head, *body], className="workload-card")


def _pinning(processor: Processor) -> str:
    """Return the text about cores for the card's head."""
    if processor.has_pinned:
        return "runs are pinned to cores"
    return "pinning not recorded" if processor.pinned else "runs share all cores"


def _cores_text(processor: Processor, run_id: str) -> str:
    cores = processor.pinned.get(run_id, frozenset())
    if cores is None:
        return "pinning not recorded"
    return _numbers(cores) if cores else "all cores"


def _core(processor: Processor, core: int) -> Component:
    owners = processor.owners(core)
    names = ", ".join(name_of(run) for run in owners)
    inner = [swatch(run.ordinal) for run in owners[:3]]
    return html.Span(
        inner or None,
        className="workload-core",
        title=f"core {core}: {names or 'no run is pinned to it'}",
    )


def _numbers(cores: frozenset[int]) -> str:
    """Return core numbers as text: ``cores 0–3, 8``."""
    parts: list[list[int]] = []
    for core in sorted(cores):
        if parts and core == parts[-1][-1] + 1:
            parts[-1].append(core)
        else:
            parts.append([core])
    texts = [f"{part[0]}–{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts]
    return f"{'core' if len(cores) == 1 else 'cores'} {', '.join(texts)}"
