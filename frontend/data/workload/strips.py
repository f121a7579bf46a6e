"""The resources on the page, and the runs whose share is known.

A strip is one resource of one device over time: the runs' shares stacked if they are measured or
estimated for each run, and the whole device's own value as a line above them. A value that exists
only for the whole device is not divided among the runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from radt.analysis.windows import overlap_share
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.catalog import RunEntry
from radt.frontend.data.metrics import quantity_of, series_of
from radt.frontend.data.spec import AxisRange
from radt.frontend.data.workload.life import lives, markers_of, newest_ns, whole_window
from radt.frontend.data.workload.model import DeviceSeries, Life, Share, StackedResource, Strip
from radt.frontend.data.workload.stacks import Summaries, summaries_of
from radt.frontend.data.workload.subject import ShownWorkload
from radt.model import Scope
from radt.store.records import SeriesRecord

_Part = tuple[RunEntry, SeriesRecord]
#: Maximum number of strips; the rest is counted, not drawn. A machine with 16 GPUs exceeds it.
MAX_STRIPS = 32


_OF_MLFLOW = "measured by MLflow for the whole device"
RESOURCES = (
    StackedResource(
        "cpu", "CPU", ("process.cpu.utilization",), ("system.cpu.utilization",), of_cores=True
    ),
    StackedResource(
        "memory",
        "Memory",
        ("process.memory.rss", "process.memory.pss"),
        ("system.memory.used",),
        peak=True,
    ),
    StackedResource(
        "sm",
        "SMs active",
        (),
        ("gpu.mig.sm.active", "gpu.sm.active"),
        whole="measured for the whole device: kernels of several runs share SMs",
    ),
    StackedResource(
        "gpu",
        "GPU busy",
        (),
        ("gpu.utilization",),
        whole="time in which any kernel ran; it cannot be divided among runs",
    ),
    StackedResource(
        "gpu-memory",
        "GPU memory",
        ("process.gpu.memory",),
        ("gpu.mig.memory.used", "gpu.memory.used"),
        peak=True,
    ),
    StackedResource("gpu-power", "GPU power", ("process.gpu.energy",), ("gpu.power",)),
    StackedResource("cpu-power", "CPU power", (), ("cpu.energy",)),
    StackedResource("disk-read", "Disk read", ("process.disk.read",), ("system.disk.read",)),
    StackedResource(
        "disk-write", "Disk write", ("process.disk.written",), ("system.disk.written",)
    ),
    StackedResource("io-read", "Read calls", ("process.io.read",), ()),
    StackedResource("io-write", "Write calls", ("process.io.written",), ()),
    StackedResource("net-in", "Network in", (), ("system.network.rx",)),
    StackedResource("net-out", "Network out", (), ("system.network.tx",)),
    # Measured by MLflow, in MLflow's units, for runs that were not started by radt.
    StackedResource(
        "mlflow-cpu", "CPU", (), ("system/cpu_utilization_percentage",), whole=_OF_MLFLOW
    ),
    StackedResource(
        "mlflow-memory",
        "Memory",
        (),
        ("system/system_memory_usage_megabytes",),
        peak=True,
        whole=_OF_MLFLOW,
    ),
    StackedResource(
        "mlflow-gpu", "GPU busy", (), ("system/gpu_utilization_percentage",), whole=_OF_MLFLOW
    ),
    StackedResource(
        "mlflow-gpu-memory",
        "GPU memory",
        (),
        ("system/gpu_memory_usage_megabytes",),
        peak=True,
        whole=_OF_MLFLOW,
    ),
    StackedResource(
        "mlflow-gpu-power", "GPU power", (), ("system/gpu_power_usage_watts",), whole=_OF_MLFLOW
    ),
)


def strips_of(
    subject: ShownWorkload, by_metric: Mapping[str, Sequence[SeriesRecord]]
) -> tuple[Strip, ...]:
    """Return the strips of a workload, in the order of the resources, then of the devices."""
    strips: list[Strip] = []
    for resource in RESOURCES:
        parts = _parts(resource, by_metric)
        totals = _totals(resource, subject, by_metric)
        places = sorted({*parts_places(subject, parts), *totals}, key=_natural)
        for host, device in places:
            shares = _shares(subject, parts, host, device)
            of_device = totals.get((host, device), ())
            records = [record for share in shares for record in share.series]
            if not records:
                records = [record for series in of_device for _, record in series.parts]
            sharing = {share.run.run_id for share in shares}
            without = tuple(
                run
                for run in subject.whole
                if shares
                and run.run_id not in sharing
                and run.record.host == host
                and run.record.started_ns is not None
                and (not device or run.run_id in _on_device(of_device))
            )
            strips.append(
                Strip(
                    resource, host, device, quantity_of(records), shares, tuple(of_device), without
                )
            )
    return tuple(strips)


def _parts(
    resource: StackedResource, by_metric: Mapping[str, Sequence[SeriesRecord]]
) -> tuple[SeriesRecord, ...]:
    """Return series of runs: the metric that most runs have, from one listener per run.

    Regular readings are preferred to irregular ones.
    """
    best: tuple[SeriesRecord, ...] = ()
    rank = (0, 0)
    for metric in resource.parts:
        records = [
            record
            for record in by_metric.get(metric, ())
            if record.scope is Scope.PROCESS
            and (not record.entity_there or _is_gpu(record.entity_there))
        ]
        own = _one_listener(records)
        regular = sum(record.interval_s is not None for record in own)
        if (len({record.run_id for record in own}), regular) > rank:
            best, rank = own, (len({record.run_id for record in own}), regular)
    return best


def _one_listener(records: Iterable[SeriesRecord]) -> tuple[SeriesRecord, ...]:
    """Keep one listener per run, so that values are not counted twice."""
    chosen: dict[str, str] = {}
    return tuple(
        record
        for record in records
        if chosen.setdefault(record.run_id, record.listener) == record.listener
    )


def parts_places(subject: ShownWorkload, parts: Iterable[SeriesRecord]) -> set[tuple[str, str]]:
    """Return the machines and devices of series of runs."""
    return {_place(subject, part) for part in parts}


def _place(subject: ShownWorkload, record: SeriesRecord) -> tuple[str, str]:
    host = record.node or subject.runs[record.run_id].record.host
    return host, _card(record.entity_there)


def _totals(
    resource: StackedResource,
    subject: ShownWorkload,
    by_metric: Mapping[str, Sequence[SeriesRecord]],
) -> dict[tuple[str, str], list[DeviceSeries]]:
    """Return series of whole devices by machine and device, from their first existing metric.

    They come from one listener. A machine's disks, links and so on are replaced by their sum if it
    exists.
    """
    order = {run_id: place for place, run_id in enumerate(subject.runs)}
    totals: dict[tuple[str, str], list[DeviceSeries]] = {}
    for metric in resource.totals:
        of_metric: dict[tuple[str, str], dict[tuple[str, str], list[_Part]]] = {}
        for record in by_metric.get(metric, ()):
            run = subject.runs[record.run_id]
            host, device = _place(subject, record)
            if record.scope is Scope.HOST:
                device = ""
            if run.record.is_from_mlflow:
                # The letter separates machines that may differ. On this page, the runs already do
                # that.
                device = device.removesuffix(f" {run.record.letter}")
            place = of_metric.setdefault((host, device), {})
            place.setdefault((record.listener, record.entity_there), []).append((run, record))
        for place_key, by_entity in of_metric.items():
            first = next(iter(by_entity))[0]
            own = [
                DeviceSeries(entity, listener, tuple(parts))
                for (listener, entity), parts in by_entity.items()
                if listener == first
            ]
            own.sort(key=lambda entry: order[entry.parts[0][0].run_id])
            sums = [entry for entry in own if not entry.entity]
            totals.setdefault(place_key, sums or own)
    return totals


def _shares(
    subject: ShownWorkload, parts: Sequence[SeriesRecord], host: str, device: str
) -> tuple[Share, ...]:
    by_run: dict[str, list[SeriesRecord]] = {}
    for part in parts:
        if _place(subject, part) == (host, device):
            by_run.setdefault(part.run_id, []).append(part)
    return tuple(
        Share(run, tuple(by_run[run_id]))
        for run_id, run in subject.runs.items()
        if run_id in by_run
    )


def _on_device(totals: Iterable[DeviceSeries]) -> set[str]:
    return {run.run_id for total in totals for run, _ in total.parts}


def _is_gpu(entity: str) -> bool:
    return entity.startswith("gpu")


def _card(entity: str) -> str:
    """Return ``gpu0`` of ``gpu0/gi1/ci0``."""
    return entity.partition("/")[0]


def _natural(place: tuple[str, str]) -> tuple[str, int, str]:
    host, device = place
    digits = device.removeprefix("gpu")
    return host, int(digits) if digits.isdigit() else -1, device


@dataclass(frozen=True)
class WorkloadData:
    """Data of a workload that several parts of the page need.

    ``overlap`` is the share of its time in which all of its runs ran, None for fewer than two.
    """

    subject: ShownWorkload
    summaries: Summaries
    lives: tuple[Life, ...]
    strips: tuple[Strip, ...]
    overlap: float | None

    @property
    def several_hosts(self) -> bool:
        return len({strip.host for strip in self.strips} | {*self.subject.workload.hosts}) > 1

    @property
    def whole(self) -> AxisRange:
        return whole_window(self.lives)


def read_all(source: CachedStore, subject: ShownWorkload) -> WorkloadData:
    """Read the data that several parts need, once.

    Raises:
        StoreError: The store cannot be read.
    """
    key = ("workload", subject.workload_id, subject.run_ids)
    return source.remember(key, lambda _: _read_all(source, subject))


def _read_all(source: CachedStore, subject: ShownWorkload) -> WorkloadData:
    run_ids = subject.run_ids
    summaries = summaries_of(source, run_ids)
    markers = markers_of(source, run_ids)
    now_ns = newest_ns(markers, summaries.values())
    # A declared series without readings has no curve.
    known = {
        metric: tuple(
            record for record in records if (record.run_id, record.series_no) in summaries
        )
        for metric, records in series_of(source, run_ids).items()
    }
    strips = strips_of(subject, {metric: records for metric, records in known.items() if records})
    overlap = overlap_share([run.record for run in subject.workload.trained], now_ns)
    return WorkloadData(subject, summaries, lives(subject, markers, now_ns), strips, overlap)
