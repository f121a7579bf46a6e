"""The devices of a workload and their runs: GPUs, MIG instances, MPS daemons, CPU cores.

The data are the runner's: each run's devices and collocation, and the tags that it set when the
devices were ready (`radt.collocation.setup`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from radt.frontend.data.catalog import RunEntry
from radt.frontend.data.workload.run_facts import RecordedMachine
from radt.frontend.data.workload.subject import ShownWorkload
from radt.store.summaries import SeriesSummary
from radt.tags import (
    CPU_COUNT,
    CPUS,
    MIG_PLACEMENT,
    MIG_PROFILE,
    MIG_UUID,
    MPS_THREAD_PERCENTAGE,
)

#: MIG slices of GPUs that can be partitioned: seven for compute and eight for memory; four of each
#: on the A30 and the RTX PRO 6000.
_MEMORY_SLICES = 8
_SMALL_MEMORY_SLICES = 4
_SMALL = ("A30", "RTX PRO 6000")
_PROFILE = re.compile(r"(?:(?P<c>\d+)c\.)?(?P<g>\d+)g\.(?P<gb>\d+)gb", re.IGNORECASE)
_USED, _TOTAL = "gpu.memory.used", "gpu.memory.total"
_MIG_USED, _MIG_TOTAL = "gpu.mig.memory.used", "gpu.mig.memory.total"
_OF_RUN = "process.gpu.memory"


@dataclass(frozen=True, slots=True)
class Tenant:
    """A run on a device. ``percentage`` is its MPS limit on threads, None for no limit.

    ``peak_bytes`` is the peak memory of its processes there, None if not recorded.
    """

    run: RunEntry
    percentage: float | None = None
    peak_bytes: float | None = None


@dataclass(slots=True)
class Instance:
    """A MIG instance: ``size`` memory slices from ``start`` on; ``start`` None if not recorded.

    ``identity`` distinguishes instances of the same profile.
    """

    profile: str
    start: int | None
    size: int
    is_mps: bool = False
    tenants: list[Tenant] = field(default_factory=list)
    peak_bytes: float | None = None
    memory_bytes: float | None = None
    identity: str = ""


@dataclass(slots=True)
class UsedGpu:
    """A GPU. Its runs are in MIG instances, under MPS (``mps``) or side by side (``naive``)."""

    host: str
    index: int
    name: str = ""
    memory_bytes: float | None = None
    peak_bytes: float | None = None
    slices: int = _MEMORY_SLICES
    instances: list[Instance] = field(default_factory=list)
    mps: list[Tenant] = field(default_factory=list)
    naive: list[Tenant] = field(default_factory=list)

    @property
    def how(self) -> str:
        """Sharing of the GPU: ``MIG``, ``MPS``, ``no set-up``."""
        if self.instances:
            return "MIG"
        if self.mps:
            return "MPS, one daemon"
        return "shared without MPS or MIG" if len(self.naive) > 1 else "one run"

    @property
    def boxes(self) -> list[tuple[int, int, Instance | None]]:
        """Start, size and instance of each range of memory slices; None for one without."""
        boxes: list[tuple[int, int, Instance | None]] = []
        at = 0
        for instance in self.instances:
            start = at if instance.start is None else instance.start
            if start > at:
                boxes.append((at, start - at, None))
            boxes.append((start, instance.size, instance))
            at = max(at, start + instance.size)
        if at < self.slices:
            boxes.append((at, self.slices - at, None))
        return boxes


@dataclass(frozen=True, slots=True)
class Processor:
    """The cores of a machine.

    ``pinned`` are the cores by run id, None for a run whose cores are unknown. Runs that were not
    pinned share all cores and are left out.
    """

    host: str
    model: str
    cores: int | None
    pinned: Mapping[str, frozenset[int] | None]
    runs: tuple[RunEntry, ...]

    @property
    def has_pinned(self) -> bool:
        """True if any run is known to be pinned."""
        return any(self.pinned.values())

    @property
    def pinning(self) -> str:
        """Say whether runs were pinned to cores."""
        if self.has_pinned:
            return "runs are pinned to cores"
        return "pinning not recorded" if self.pinned else "runs share all cores"

    @property
    def core_count(self) -> int:
        """The number of cores, as far as it is known."""
        highest = max((max(cores) for cores in self.pinned.values() if cores), default=-1)
        return max(self.cores or 0, highest + 1)

    def cores_text(self, run: RunEntry) -> str:
        """Return the cores of a run: ``cores 0–3, 8``, ``all cores``."""
        cores = self.pinned.get(run.run_id, frozenset())
        if cores is None:
            return "pinning not recorded"
        return _numbers(cores) if cores else "all cores"

    def owners(self, core: int) -> list[RunEntry]:
        """Return the runs that were pinned to a core."""
        return [run for run in self.runs if core in (self.pinned.get(run.run_id) or ())]


@dataclass(frozen=True, slots=True)
class UsedDevices:
    """All devices of a workload."""

    cards: tuple[UsedGpu, ...]
    processors: tuple[Processor, ...]

    @property
    def several_hosts(self) -> bool:
        return len({processor.host for processor in self.processors}) > 1

    @property
    def shown_processors(self) -> list[Processor]:
        """Those that runs use without a GPU or with pinned cores."""
        with_card = {card.host for card in self.cards}
        return [cpu for cpu in self.processors if cpu.has_pinned or cpu.host not in with_card]


def devices_of(
    subject: ShownWorkload,
    tags: Mapping[str, Mapping[str, str]],
    machines: Mapping[str, RecordedMachine],
    summaries: Iterable[SeriesSummary],
) -> UsedDevices:
    """Assign the runs to devices.

    Args:
        subject: The workload.
        tags: Tags by run id.
        machines: Machines by name.
        summaries: Summaries of its series, for peak memory.
    """
    memory = _Memory(summaries, subject.runs)
    cards: dict[tuple[str, int], UsedGpu] = {}
    by_host: dict[str, list[RunEntry]] = {}
    for run in subject.whole:
        if not run.record.devices:
            continue  # the run's machine is unknown
        by_host.setdefault(run.record.host, []).append(run)
        for index in indices(run.record.devices):
            card = cards.get((run.record.host, index))
            if card is None:
                machine = machines.get(run.record.host, RecordedMachine())
                card = cards[run.record.host, index] = _card(
                    run.record.host, index, machine, memory
                )
            _seat(card, run, tags.get(run.run_id, {}), memory)
    for card in cards.values():
        card.instances.sort(key=lambda instance: (instance.start is None, instance.start or 0))
        _fit(card)
    processors = tuple(
        _processor(host, runs, machines.get(host, RecordedMachine()), tags)
        for host, runs in by_host.items()
    )
    ordered = sorted(cards.values(), key=lambda card: (card.host, card.index))
    return UsedDevices(tuple(ordered), processors)


def indices(devices: str) -> tuple[int, ...]:
    """Return the GPUs of a run's devices: (1, 2) for ``1+2``, none for ``cpu``."""
    parts = [part.strip() for part in devices.split("+")]
    return tuple(int(part) for part in parts if part.isdigit() and len(part) < 5)


def _processor(
    host: str,
    runs: Sequence[RunEntry],
    machine: RecordedMachine,
    tags: Mapping[str, Mapping[str, str]],
) -> Processor:
    counts = [tags.get(run.run_id, {}).get(CPU_COUNT, "") for run in runs]
    known = [int(count) for count in counts if count.isdecimal()]
    pinned = {run.run_id: pinned_cores(tags.get(run.run_id, {})) for run in runs}
    return Processor(
        host,
        machine.cpu_model,
        machine.logical_cores or max(known, default=None),
        {run_id: cores for run_id, cores in pinned.items() if cores != frozenset()},
        tuple(runs),
    )


def pinned_cores(tags: Mapping[str, str]) -> frozenset[int] | None:
    """Return the cores that a run was pinned to: none if it was not, None if unknown.

    Before radt had a separate tag for the number of CPUs, runs that were not pinned stored it in
    `CPUS`, so a single number is ambiguous.
    """
    numbers = tags.get(CPUS, "")
    if CPU_COUNT not in tags and numbers.isdecimal():
        return None
    return cores(numbers)


def cores(text: str) -> frozenset[int]:
    """Return the CPU numbers of a list such as ``0-3,8``."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if first.isdigit() and (last.isdigit() or not dash):
            numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)


def _numbers(cores: frozenset[int]) -> str:
    parts: list[list[int]] = []
    for core in sorted(cores):
        if parts and core == parts[-1][-1] + 1:
            parts[-1].append(core)
        else:
            parts.append([core])
    texts = [f"{part[0]}–{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts]
    return f"{'core' if len(cores) == 1 else 'cores'} {', '.join(texts)}"


class _Memory:
    """Peak memory per device and run, from recorded samples."""

    def __init__(self, summaries: Iterable[SeriesSummary], runs: Mapping[str, RunEntry]) -> None:
        self._peaks: dict[tuple[str, str, str], float] = {}
        self._of_runs: dict[tuple[str, str], float] = {}
        self._of_instance: dict[tuple[str, str, str], float] = {}
        for summary in summaries:
            series, value = summary.series, summary.maximum
            run = runs.get(series.run_id)
            if value is None or run is None or not math.isfinite(value):
                continue
            if series.node:
                continue  # only the first node's devices are drawn
            card = series.entity.partition("/")[0]
            if series.metric == _OF_RUN:
                key = (series.run_id, card)
                self._of_runs[key] = max(self._of_runs.get(key, 0.0), value)
            elif series.metric in (_USED, _TOTAL):
                place = (run.record.host, series.metric, card)
                self._peaks[place] = max(self._peaks.get(place, 0.0), value)
            elif series.metric in (_MIG_USED, _MIG_TOTAL):
                mine = (series.run_id, series.metric, card)
                self._of_instance[mine] = max(self._of_instance.get(mine, 0.0), value)

    def used(self, host: str, index: int) -> float | None:
        return self._peaks.get((host, _USED, f"gpu{index}"))

    def total(self, host: str, index: int) -> float | None:
        return self._peaks.get((host, _TOTAL, f"gpu{index}"))

    def of_run(self, run_id: str, index: int) -> float | None:
        return self._of_runs.get((run_id, f"gpu{index}"))

    def of_instance(self, run_id: str, index: int, *, total: bool) -> float | None:
        return self._of_instance.get((run_id, _MIG_TOTAL if total else _MIG_USED, f"gpu{index}"))


def _card(host: str, index: int, machine: RecordedMachine, memory: _Memory) -> UsedGpu:
    name = machine.gpus.get(index, "")
    known = machine.gpu_memory_bytes.get(index)
    small = any(word in name for word in _SMALL)
    return UsedGpu(
        host,
        index,
        name,
        memory.total(host, index) or known,
        memory.used(host, index),
        _SMALL_MEMORY_SLICES if small else _MEMORY_SLICES,
    )


def _seat(card: UsedGpu, run: RunEntry, tags: Mapping[str, str], memory: _Memory) -> None:
    text = run.record.collocation.strip()
    mig, _, rest = text.partition("+") if _PROFILE.match(text) else ("", "", text)
    is_mps = "mps" in rest.lower()
    cap = tags.get(MPS_THREAD_PERCENTAGE, "") or rest.partition(":")[2]
    try:
        percentage = float(cap.rstrip("% ")) if cap else None
    except ValueError:
        percentage = None
    tenant = Tenant(run, percentage, memory.of_run(run.run_id, card.index))
    if not mig:
        (card.mps if is_mps else card.naive).append(tenant)
        return
    instance = _instance(card, run, mig, tags)
    instance.is_mps |= is_mps
    instance.tenants.append(tenant)
    used = memory.of_instance(run.run_id, card.index, total=False)
    instance.peak_bytes = max(filter(None, (instance.peak_bytes, used)), default=None)
    instance.memory_bytes = instance.memory_bytes or memory.of_instance(
        run.run_id, card.index, total=True
    )


def _instance(card: UsedGpu, run: RunEntry, asked: str, tags: Mapping[str, str]) -> Instance:
    profile = tags.get(MIG_PROFILE, "") or asked.partition("#")[0]
    start, size = _placement(tags.get(MIG_PLACEMENT, ""))
    identity = tags.get(MIG_UUID, "") or (asked if "#" in asked else run.run_id)
    for instance in card.instances:
        same_place = start is not None and instance.start == start and instance.profile == profile
        if same_place or instance.identity == identity:
            return instance
    match = _PROFILE.match(profile)
    slices = int(match["g"]) if match else 1
    if size is None:
        # Seven compute slices correspond to eight memory slices, three to four.
        size = {7: 8, 3: 4}.get(slices, slices) if card.slices == _MEMORY_SLICES else slices
    made = Instance(profile, start, min(max(size, 1), card.slices), identity=identity)
    card.instances.append(made)
    return made


def _placement(text: str) -> tuple[int | None, int | None]:
    """Parse start and size from ``4:4``."""
    start, colon, size = text.partition(":")
    if not colon or not start.isdigit() or not size.isdigit():
        return None, None
    return int(start), int(size)


def _fit(card: UsedGpu) -> None:
    """Widen a GPU to the slices that its instances occupy."""
    ends = [
        instance.start + instance.size for instance in card.instances if instance.start is not None
    ]
    together = sum(instance.size for instance in card.instances)
    card.slices = max([card.slices, *ends, together if not ends else 0])
