"""Which resources the page shows, and whose share of each is known.

A strip is one resource of one device over time: the runs' shares stacked where they are measured
or estimated for each run, and the whole device's own value as a line over them. What exists for the
whole device only stays that: it is not divided among the runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from radt.frontend.catalog import RunEntry
from radt.frontend.charts.quantity import Quantity
from radt.frontend.foreign.mlflow_run import is_of_mlflow_alone
from radt.frontend.metrics import quantity_of
from radt.frontend.workload.subject import Subject
from radt.model import Scope
from radt.store.records import SeriesRecord

_Part = tuple[RunEntry, SeriesRecord]
#: More strips than these are counted, not drawn: a machine with sixteen GPUs has that many.
MAX_STRIPS = 32


@dataclass(frozen=True, slots=True)
class Resource:
    """What is shared: its metrics of runs and of devices, the best first.

    ``peak`` says that the largest value counts, not the mean: memory that was needed once was
    needed. ``of_cores``: the device's value is a share of all cores, the runs' are cores.
    ``whole`` says why there are no shares where there are none.
    """

    key: str
    title: str
    parts: tuple[str, ...]
    totals: tuple[str, ...]
    peak: bool = False
    of_cores: bool = False
    whole: str = "measured for all runs together; what each had of it is not known"


_OF_MLFLOW = "measured by MLflow for the whole device"
RESOURCES = (
    Resource(
        "cpu", "CPU", ("process.cpu.utilization",), ("system.cpu.utilization",), of_cores=True
    ),
    Resource(
        "memory",
        "Memory",
        ("process.memory.pss", "process.memory.rss"),
        ("system.memory.used",),
        peak=True,
    ),
    Resource(
        "sm",
        "SMs active",
        (),
        ("gpu.mig.sm.active", "gpu.sm.active"),
        whole="measured for the whole device: kernels of several runs share SMs",
    ),
    Resource(
        "gpu",
        "GPU busy",
        (),
        ("gpu.utilization",),
        whole="time with any kernel running, whoever's: it cannot be divided",
    ),
    Resource(
        "gpu-memory",
        "GPU memory",
        ("process.gpu.memory",),
        ("gpu.mig.memory.used", "gpu.memory.used"),
        peak=True,
    ),
    Resource("gpu-power", "GPU power", ("process.gpu.energy",), ("gpu.power",)),
    Resource("cpu-power", "CPU power", (), ("cpu.energy",)),
    Resource("disk-read", "Disk read", ("process.disk.read",), ("system.disk.read",)),
    Resource("disk-write", "Disk write", ("process.disk.written",), ("system.disk.written",)),
    Resource("io-read", "Read calls", ("process.io.read",), ()),
    Resource("io-write", "Write calls", ("process.io.written",), ()),
    Resource("net-in", "Network in", (), ("system.network.rx",)),
    Resource("net-out", "Network out", (), ("system.network.tx",)),
    # What MLflow itself has measured, of runs that radt never saw, in MLflow's units.
    Resource("mlflow-cpu", "CPU", (), ("system/cpu_utilization_percentage",), whole=_OF_MLFLOW),
    Resource(
        "mlflow-memory",
        "Memory",
        (),
        ("system/system_memory_usage_megabytes",),
        peak=True,
        whole=_OF_MLFLOW,
    ),
    Resource(
        "mlflow-gpu", "GPU busy", (), ("system/gpu_utilization_percentage",), whole=_OF_MLFLOW
    ),
    Resource(
        "mlflow-gpu-memory",
        "GPU memory",
        (),
        ("system/gpu_memory_usage_megabytes",),
        peak=True,
        whole=_OF_MLFLOW,
    ),
    Resource(
        "mlflow-gpu-power", "GPU power", (), ("system/gpu_power_usage_watts",), whole=_OF_MLFLOW
    ),
)


@dataclass(frozen=True, slots=True)
class DeviceSeries:
    """One device's own value, as all runs on it have it: ``entity`` is empty for a machine."""

    entity: str
    listener: str
    parts: tuple[tuple[RunEntry, SeriesRecord], ...]


@dataclass(frozen=True, slots=True)
class Share:
    """One run's part of a resource on one device: its series, of which the values add up."""

    run: RunEntry
    series: tuple[SeriesRecord, ...]


@dataclass(frozen=True, slots=True)
class Strip:
    """One resource of one device. ``without`` are the runs on it of which there is no share."""

    resource: Resource
    host: str
    device: str
    quantity: Quantity
    shares: tuple[Share, ...]
    totals: tuple[DeviceSeries, ...]
    without: tuple[RunEntry, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.resource.key}|{self.host}|{self.device}"

    @property
    def title(self) -> str:
        """``GPU power``, with the device where it takes that."""
        return f"{self.resource.title} {self.device}".strip()

    @property
    def is_estimated(self) -> bool:
        return any(record.estimated for share in self.shares for record in share.series)

    @property
    def is_stacked(self) -> bool:
        return bool(self.shares)


def strips_of(
    subject: Subject, by_metric: Mapping[str, Sequence[SeriesRecord]]
) -> tuple[Strip, ...]:
    """The strips of a workload, in the order of the resources, then of the devices."""
    found: list[Strip] = []
    for resource in RESOURCES:
        parts = _parts(resource, by_metric)
        totals = _totals(resource, subject, by_metric)
        places = sorted({*parts_places(subject, parts), *totals}, key=_natural)
        for host, device in places:
            shares = _shares(subject, parts, host, device)
            of_device = totals.get((host, device), ())
            records = [record for share in shares for record in share.series]
            if not records:
                records = [record for one in of_device for _, record in one.parts]
            sharing = {share.run.run_id for share in shares}
            without = tuple(
                run
                for run in subject.workload.runs
                if shares
                and run.run_id not in sharing
                and run.record.host == host
                and run.record.started_ns is not None
                and (not device or run.run_id in _on_device(of_device))
            )
            found.append(
                Strip(
                    resource, host, device, quantity_of(records), shares, tuple(of_device), without
                )
            )
    return tuple(found)


def _parts(
    resource: Resource, by_metric: Mapping[str, Sequence[SeriesRecord]]
) -> tuple[SeriesRecord, ...]:
    """The series of runs: of the metric that most runs have, by one listener for each run.

    What is read regularly counts before what is read now and then.
    """
    best: tuple[SeriesRecord, ...] = ()
    rank = (0, 0)
    for metric in resource.parts:
        records = [
            record
            for record in by_metric.get(metric, ())
            if record.scope is Scope.PROCESS and (not record.entity or _is_gpu(record.entity))
        ]
        own = _one_listener(records)
        regular = sum(record.interval_s is not None for record in own)
        if (len({record.run_id for record in own}), regular) > rank:
            best, rank = own, (len({record.run_id for record in own}), regular)
    return best


def _one_listener(records: Iterable[SeriesRecord]) -> tuple[SeriesRecord, ...]:
    """What two listeners have read of a run must not count twice."""
    chosen: dict[str, str] = {}
    return tuple(
        record
        for record in records
        if chosen.setdefault(record.run_id, record.listener) == record.listener
    )


def parts_places(subject: Subject, parts: Iterable[SeriesRecord]) -> set[tuple[str, str]]:
    """Machines and devices that series of runs are of."""
    return {(subject.runs[part.run_id].record.host, _card(part.entity)) for part in parts}


def _totals(
    resource: Resource, subject: Subject, by_metric: Mapping[str, Sequence[SeriesRecord]]
) -> dict[tuple[str, str], list[DeviceSeries]]:
    """The device's own series by machine and device: of the first metric that it has.

    By one listener; of a machine's single disks, links and so on only their sum if it is there.
    """
    order = {run_id: place for place, run_id in enumerate(subject.runs)}
    found: dict[tuple[str, str], list[DeviceSeries]] = {}
    for metric in resource.totals:
        of_metric: dict[tuple[str, str], dict[tuple[str, str], list[_Part]]] = {}
        for record in by_metric.get(metric, ()):
            run = subject.runs[record.run_id]
            device = "" if record.scope is Scope.HOST else _card(record.entity)
            if is_of_mlflow_alone(run.record):
                # The letter keeps machines apart that may be others; here the runs do.
                device = device.removesuffix(f" {run.record.letter}")
            place = of_metric.setdefault((run.record.host, device), {})
            place.setdefault((record.listener, record.entity), []).append((run, record))
        for place_key, by_entity in of_metric.items():
            first = next(iter(by_entity))[0]
            own = [
                DeviceSeries(entity, listener, tuple(parts))
                for (listener, entity), parts in by_entity.items()
                if listener == first
            ]
            own.sort(key=lambda one: order[one.parts[0][0].run_id])
            sums = [one for one in own if not one.entity]
            found.setdefault(place_key, sums or own)
    return found


def _shares(
    subject: Subject, parts: Sequence[SeriesRecord], host: str, device: str
) -> tuple[Share, ...]:
    by_run: dict[str, list[SeriesRecord]] = {}
    for part in parts:
        if subject.runs[part.run_id].record.host == host and _card(part.entity) == device:
            by_run.setdefault(part.run_id, []).append(part)
    return tuple(
        Share(run, tuple(by_run[run_id]))
        for run_id, run in subject.runs.items()
        if run_id in by_run
    )


def _on_device(totals: Iterable[DeviceSeries]) -> set[str]:
    return {run.run_id for one in totals for run, _ in one.parts}


def _is_gpu(entity: str) -> bool:
    return entity.startswith("gpu")


def _card(entity: str) -> str:
    """``gpu0`` of ``gpu0/gi1/ci0``."""
    return entity.partition("/")[0]


def _natural(place: tuple[str, str]) -> tuple[str, int, str]:
    host, device = place
    digits = device.removeprefix("gpu")
    return host, int(digits) if digits.isdigit() else -1, device
