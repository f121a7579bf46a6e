"""Readings of listeners beside known loads: verdicts on their plausibility, and Markdown."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from radt.listeners.api import Listener
from radt.model import MissingReason, SeriesKind
from radt.units import duration, significant, size

PHASES = {"idle": None, "memory copy": "copy", "matrix product": "product"}
#: How far a share may deviate from the load's own count.
TOLERANCE = 0.15
IDLE = 0.05
_SHOWN = (
    *("gpu.utilization", "gpu.sm.active", "gpu.sm.occupancy", "gpu.tensor.active"),
    *("gpu.dram.active", "gpu.fp32.active", "gpu.fp16.active", "gpu.pcie.rx", "gpu.pcie.tx"),
    *("gpu.power", "gpu.energy", "gpu.clock.sm", "gpu.clock.memory", "gpu.temperature"),
    *("gpu.memory.used", "process.gpu.memory"),
)


@dataclass
class Phase:
    """Readings during one load. Times in seconds; missing values by their reason."""

    name: str
    values: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    times: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    missing: dict[str, MissingReason] = field(default_factory=dict)
    took_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    load: Mapping[str, Any] = field(default_factory=dict)

    def mean(self, metric: str, kind: SeriesKind = SeriesKind.GAUGE) -> float | None:
        """Return the mean; of a counter, its rate."""
        values, times = self.values.get(metric, []), self.times.get(metric, [])
        if kind is SeriesKind.GAUGE:
            return statistics.fmean(values) if values else None
        return (values[-1] - values[0]) / (times[-1] - times[0]) if len(values) > 1 else None


@dataclass(frozen=True)
class Verdict:
    """A value and its expected value."""

    phase: str
    what: str
    value: float | None
    expected: str
    holds: bool | None


def peak_bytes_per_s(index: int) -> float | None:
    """Return the memory's peak bandwidth: two transfers per clock over the width of its bus."""
    import pynvml

    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        width = pynvml.nvmlDeviceGetMemoryBusWidth(handle)
        clock_hz = pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_MEM) * 1e6
    except pynvml.NVMLError:
        return None
    return float(2 * width / 8 * clock_hz)


def judge(phases: Mapping[str, Phase], index: int) -> Iterator[Verdict]:
    """Compare the readings with the loads' own counts."""
    idle, copy, product = (phases[name] for name in PHASES)
    for metric in ("gpu.utilization", "gpu.sm.active", "gpu.dram.active", "gpu.tensor.active"):
        value = idle.mean(metric)
        holds = None if value is None else value <= IDLE
        yield Verdict("idle", metric, value, f"at most {IDLE:.0%}", holds)
    peak = peak_bytes_per_s(index)
    share = copy.load["per_s"] / peak if peak else None
    yield _near("memory copy", "gpu.dram.active", copy, share, "bytes copied over the peak")
    value = copy.mean("gpu.tensor.active")
    holds = None if value is None else value <= IDLE
    yield Verdict("memory copy", "gpu.tensor.active", value, f"at most {IDLE:.0%}", holds)
    clock_hz, per_clock = product.mean("gpu.clock.sm"), product.load.get("flop_per_clock")
    share = product.load["per_s"] / (clock_hz * per_clock) if clock_hz and per_clock else None
    yield _near("matrix product", "gpu.tensor.active", product, share, "FLOP over the peak")
    value = product.mean("gpu.sm.active")
    holds = None if value is None else value >= 1 - TOLERANCE
    yield Verdict("matrix product", "gpu.sm.active", value, f"at least {1 - TOLERANCE:.0%}", holds)
    before, value = idle.mean("gpu.power"), product.mean("gpu.power")
    known = before is not None and value is not None
    yield Verdict(
        "matrix product",
        "gpu.power",
        value,
        f"above {significant(before)} W, idle" if before is not None else "above idle",
        value > before if known and value is not None and before is not None else None,
    )


def _near(phase: str, metric: str, read: Phase, share: float | None, why: str) -> Verdict:
    value = read.mean(metric)
    if share is None:
        return Verdict(phase, metric, value, f"unknown: {why}", None)
    holds = None if value is None else abs(value - share) <= TOLERANCE
    return Verdict(phase, metric, value, f"{share:.0%} ± {TOLERANCE:.0%} ({why})", holds)


def markdown(
    listeners: Sequence[type[Listener]],
    phases: Mapping[str, Phase],
    verdicts: Sequence[Verdict],
    calls: Mapping[str, Sequence[float]],
    about: Sequence[str],
) -> Iterator[str]:
    """Yield the section of the listeners."""
    names = " and ".join(f"`{kind.name}`" for kind in listeners)
    yield f"### {names} beside loads of known size"
    yield ""
    yield from about
    yield ""
    yield "| mean of | " + " | ".join(phases) + " |"
    yield "|---|" + "---:|" * len(phases)
    kinds = {metric.name: metric for kind in listeners for metric in kind.metrics()}
    for name in _SHOWN:
        if name in kinds:
            cells = " | ".join(_cell(phase, name, kinds[name]) for phase in phases.values())
            yield f"| `{name}` | {cells} |"
    loads = " | ".join(_load_cell(phase) for phase in phases.values())
    yield f"| the load's own count | {loads} |"
    yield ""
    yield "| beside | value | is | should be | |"
    yield "|---|---|---:|---|---|"
    for one in verdicts:
        mark = {True: "✔", False: "✘", None: "not known"}[one.holds]
        value = "–" if one.value is None else significant(one.value)
        yield f"| {one.phase} | `{one.what}` | {value} | {one.expected} | {mark} |"
    yield ""
    yield "| call | times | median | longest |"
    yield "|---|---:|---:|---:|"
    for name, times in sorted(calls.items()):
        median = duration(statistics.median(times))
        yield f"| {name} | {len(times)} | {median} | {duration(max(times))} |"


def _cell(phase: Phase, name: str, metric: Any) -> str:
    value = phase.mean(name, metric.kind)
    if value is None:
        reason = phase.missing.get(name)
        return "–" if reason is None else str(reason)
    counted = {"J": "W", "By": "By/s"}.get(metric.unit, f"{metric.unit}/s")
    return _quantity(value, counted if metric.kind is SeriesKind.COUNTER else metric.unit)


def _quantity(value: float, unit: str) -> str:
    match unit:
        case "1":
            return f"{value * 100:.1f} %"
        case "By" | "By/s":
            return size(value) + unit.removeprefix("By")
        case "Hz":
            return f"{significant(value / 1e6)} MHz"
        case "Cel":
            return f"{value:.0f} °C"
    return f"{significant(value)} {unit}"


def _load_cell(phase: Phase) -> str:
    if not phase.load:
        return "–"
    unit = "GB/s" if phase.name == "memory copy" else "TFLOP/s"
    return f"{significant(phase.load['per_s'] / (1e9 if unit == 'GB/s' else 1e12))} {unit}"
