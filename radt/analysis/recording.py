"""Assess how runs were recorded: completeness, events, environment, memory shortages, overhead.

One collector records all runs of a machine, so its CPU time covers the whole machine. Every run of
a workload has that time; the largest value counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from radt import units
from radt.analysis.estimates import Estimate, of_rows
from radt.analysis.quantities import Combine
from radt.analysis.selection import Attempt, attempts_of
from radt.model import MarkerKind, RunStatus
from radt.parts import RunPart, from_tag
from radt.store.reader import StoreReader
from radt.store.records import LedgerRecord, RunRecord
from radt.store.tables import of_runs
from radt.tags import (
    CLUSTER_PARTS,
    DRIVER,
    GIT_COMMIT,
    GPUS,
    PRUNED,
    PYTHON,
    TRACKER_CPU_S,
    TRACKER_JOURNAL_BYTES,
)

#: Below this share of the expected samples, means and peaks may be wrong.
COMPLETE = 0.99
#: Suffixes of `radt.collector`'s events about listeners and about itself.
_ERRORS = ("restarted", "dropped", "unavailable", "unreadable")
#: Suffix of the event that a device was lost. The driver's last error of it is a separate event.
_LOST, _XID = " lost", "XID "

_TAGS = (
    *(GIT_COMMIT, GPUS, PYTHON, DRIVER, PRUNED, TRACKER_CPU_S, TRACKER_JOURNAL_BYTES),
    CLUSTER_PARTS,
)

_EPOCHS = of_runs(
    "SELECT run_id, COUNT(*), MIN(end_ns), MAX(end_ns) FROM marker WHERE run_id IN :ids "
    "AND kind = :kind AND process = '' AND end_ns IS NOT NULL GROUP BY run_id",
    kind=MarkerKind.EPOCH.value,
)
_EVENTS = of_runs(
    "SELECT run_id, name, start_ns, detail FROM marker WHERE run_id IN :ids AND kind = :kind "
    "ORDER BY run_id, start_ns, marker_no",
    kind=MarkerKind.EVENT.value,
)
_TAGS_OF = of_runs(
    "SELECT run_id, key, value FROM tag WHERE run_id IN :ids AND key IN :keys", "keys"
)

#: Metrics of used and total memory; a MIG instance's before its GPU's.
_MEMORY = (
    ("gpu.mig.memory.used", "gpu.mig.memory.total"),
    ("gpu.memory.used", "gpu.memory.total"),
)
_MEMORY_METRICS = tuple(metric for pair in _MEMORY for metric in pair)


@dataclass(frozen=True, slots=True)
class Epochs:
    """Number of ended epochs, and the mean time between two ends; None for fewer than two."""

    count: int = 0
    period_s: float | None = None


@dataclass(frozen=True, slots=True)
class MemoryShortage:
    """The device memory that ran out.

    Attributes:
        device: Its name, ``gpu0`` or a MIG instance.
        used_bytes: The highest sample of all processes, without the failed allocation.
        total_bytes: The device's memory; None if not recorded.
    """

    device: str
    used_bytes: float
    total_bytes: float | None = None

    @property
    def text(self) -> str:
        """Return ``38.9 GB of 39.6 GB in use on gpu0``."""
        of = "" if self.total_bytes is None else f" of {units.size(self.total_bytes)}"
        return f"{units.size(self.used_bytes)}{of} in use on {self.device}"


@dataclass(frozen=True, slots=True)
class RunRecording:
    """How one run was recorded.

    Attributes:
        epochs: The epochs that ended.
        ledgers: Samples expected and received, by listener.
        events: Errors of listeners and of the collector, in order ("listener smi restarted").
        lost: When and why devices of the run were lost, in words, by device.
        environment: Tags that compared runs should share: commit, GPUs, driver and Python.
        is_thinned: `radt prune` thinned its samples.
        tracker_cpu_s: CPU time of the collector and its children between the run's start and end,
            for all runs that it recorded; None if unknown.
        journal_bytes: Size of the journals of the script's processes; None if unknown.
        shortage: The exhausted memory; None for other ends, and without a GPU.
        parts: For a run spread over several nodes, its parts on all nodes but the first.
    """

    epochs: Epochs = Epochs()
    ledgers: tuple[LedgerRecord, ...] = ()
    events: tuple[str, ...] = ()
    lost: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    is_thinned: bool = False
    tracker_cpu_s: float | None = None
    journal_bytes: int | None = None
    shortage: MemoryShortage | None = None
    parts: tuple[RunPart, ...] = ()

    @property
    def incomplete(self) -> list[tuple[str, float]]:
        """Return the listeners below `COMPLETE` of their expected samples, and their share."""
        shares = [
            (ledger.listener, ledger.received / ledger.expected)
            for ledger in self.ledgers
            if ledger.expected
        ]
        return [(listener, share) for listener, share in shares if share < COMPLETE]


def read_recordings(reader: StoreReader, runs: Sequence[RunRecord]) -> dict[str, RunRecording]:
    """Return how runs were recorded, by run id.

    Raises:
        CodecError: A chunk is damaged.
        StoreError: The store cannot be read.
    """
    run_ids = [run.run_id for run in runs]
    epochs = {
        str(run_id): Epochs(count, (last_ns - first_ns) / 1e9 / (count - 1) if count > 1 else None)
        for run_id, count, first_ns, last_ns in reader.rows_of(_EPOCHS, run_ids)
    }
    ledgers: dict[str, list[LedgerRecord]] = {}
    for ledger in reader.ledger(run_ids):
        ledgers.setdefault(ledger.run_id, []).append(ledger)
    events: dict[str, list[str]] = {}
    starts = {run.run_id: run.origin_ns for run in runs}
    lost: dict[str, dict[str, str]] = {}
    xids: dict[tuple[str, str], str] = {}
    for run_id, name, start_ns, detail in reader.rows_of(_EVENTS, run_ids):
        device, _, meaning = str(detail).partition(": ")
        if str(name).endswith(_ERRORS):
            events.setdefault(str(run_id), []).append(str(name))
        elif str(name).startswith(_XID):
            xids[str(run_id), device] = f"; {name}: {meaning}"
        elif str(name).endswith(_LOST):
            after = units.duration(max(0, start_ns - starts[run_id]) / 1e9)
            text = f"{after} after the start ({detail}"
            lost.setdefault(str(run_id), {})[str(name).removesuffix(_LOST)] = text
    tags: dict[str, dict[str, str]] = {run_id: {} for run_id in run_ids}
    for run_id, key, value in reader.rows_of(_TAGS_OF, run_ids, keys=list(_TAGS)):
        tags[str(run_id)][str(key)] = str(value)
    shortages = _shortages(reader, [run.run_id for run in runs if run.status is RunStatus.OOM])
    recordings = {}
    for run_id in run_ids:
        own = tags[run_id]
        journal_bytes = _number(own.get(TRACKER_JOURNAL_BYTES, ""))
        recordings[run_id] = RunRecording(
            epochs.get(run_id, Epochs()),
            tuple(ledgers.get(run_id, ())),
            tuple(events.get(run_id, ())),
            {
                device: f"{device} was lost {text}{xids.get((run_id, device), '')})"
                for device, text in lost.get(run_id, {}).items()
            },
            own,
            PRUNED in own,
            _number(own.get(TRACKER_CPU_S, "")),
            None if journal_bytes is None else int(journal_bytes),
            shortages.get(run_id),
            from_tag(own.get(CLUSTER_PARTS, "")),
        )
    return recordings


def _number(value: str) -> float | None:
    """Return the number in a tag; None for another text, as users may set tags, too."""
    try:
        number = float(value)
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


def _shortages(reader: StoreReader, run_ids: Sequence[str]) -> dict[str, MemoryShortage | None]:
    """Return the exhausted memory, by run."""
    if not run_ids:
        return {}
    peaks: dict[str, dict[tuple[str, str], float]] = {run_id: {} for run_id in run_ids}
    for summary in reader.summary(run_ids, _MEMORY_METRICS):
        series = summary.series
        if summary.maximum is not None:
            peaks[series.run_id][series.metric, series.entity] = summary.maximum
    return {run_id: _shortage(own) for run_id, own in peaks.items()}


def _shortage(peaks: Mapping[tuple[str, str], float]) -> MemoryShortage | None:
    """Return the shortage of the fullest device, from the peaks of metrics and devices."""
    for used, total in _MEMORY:
        devices = [
            MemoryShortage(entity, peak, peaks.get((total, entity)))
            for (metric, entity), peak in peaks.items()
            if metric == used
        ]
        if devices:
            return max(
                devices,
                key=lambda shortage: (
                    shortage.used_bytes / (shortage.total_bytes or shortage.used_bytes or 1)
                ),
            )
    return None


@dataclass(frozen=True, slots=True)
class ListenerOverhead:
    """The readings of one listener. A listener that several runs share counts once.

    Attributes:
        name: Name of the listener.
        readings: Number of readings.
        sampling_s: Total duration of the readings, including waits for devices.
        longest_s: Duration of the longest reading.
        recorded_s: The time during which it read.
    """

    name: str
    readings: int
    sampling_s: float
    longest_s: float
    recorded_s: float

    @classmethod
    def of(cls, *ledgers: LedgerRecord) -> Self:
        """Return the overhead from ledgers of one listener."""
        return cls(
            ledgers[0].listener,
            sum(ledger.received for ledger in ledgers),
            sum(ledger.sampling_ns for ledger in ledgers) / 1e9,
            max(ledger.sampling_max_ns for ledger in ledgers) / 1e9,
            sum(ledger.expected * ledger.interval_s for ledger in ledgers),
        )

    @property
    def mean_s(self) -> float | None:
        """Return the mean duration of a reading; None without any."""
        return self.sampling_s / self.readings if self.readings else None

    @property
    def share(self) -> float | None:
        """Return the share of the time that readings took."""
        return self.sampling_s / self.recorded_s if self.recorded_s > 0 else None


@dataclass(frozen=True, slots=True)
class TrackerOverhead:
    """The tracker's overhead in a report.

    Attributes:
        cpu_s: CPU time of the tracker while workloads ran, as far as known.
        workload_s: Duration of these workloads.
        unknown: Number of starts of workloads without it: those of an earlier radt, and those whose
            collector restarted or ended meanwhile.
        journal_bytes: Size of the scripts' journals; None if unknown for all runs.
        listeners: The listeners, largest share of the time first.
    """

    cpu_s: float = 0.0
    workload_s: float = 0.0
    unknown: int = 0
    journal_bytes: int | None = None
    listeners: tuple[ListenerOverhead, ...] = ()

    @property
    def cpu_share(self) -> float | None:
        """Return CPU seconds per second; 1 is one core. None if unknown."""
        return self.cpu_s / self.workload_s if self.workload_s > 0 else None

    @property
    def text(self) -> str:
        """Return ``1.2 % of a core · journals 3.2 MB · sampling cost top 0.4 ms``, or ""."""
        parts = []
        if self.cpu_share is not None:
            parts.append(f"{units.percent(self.cpu_share)} of a core")
        if self.journal_bytes is not None:
            parts.append(f"journals {units.size(self.journal_bytes)}")
        if self.listeners:
            means = (
                f"{listener.name} {units.duration(listener.mean_s)}" for listener in self.listeners
            )
            parts.append(f"sampling cost {', '.join(means)}")
        return " · ".join(parts)


def tracker_cpu(
    repeats: Sequence[Attempt], recordings: Mapping[str, RunRecording]
) -> Estimate | None:
    """Return CPU seconds per second of a workload; None if unknown."""
    spent = (_spent(attempt, recordings) for attempt in repeats)
    shares = [None if known is None else known[0] / known[1] for known in spent]
    return of_rows([shares], Combine.MEAN)


def overhead_of(
    starts: Iterable[Attempt], recordings: Mapping[str, RunRecording]
) -> TrackerOverhead:
    """Return the overhead of starts of workloads. `recordings` are by run id.

    Runs that start together count the same readings in their ledgers, so only the largest counts.
    """
    starts = list(starts)
    spent = [_spent(start, recordings) for start in starts]
    known = [each for each in spent if each is not None]
    largest: dict[tuple[str, str, str, float], LedgerRecord] = {}
    journals_bytes = []
    for run in (run for start in starts for run in start.runs):
        journals_bytes.append(recordings[run.run_id].journal_bytes)
        for ledger in recordings[run.run_id].ledgers:
            key = (run.workload_id, run.host, ledger.listener, ledger.interval_s)
            is_known = ledger.received and ledger.sampling_ns
            if is_known and (key not in largest or ledger.received > largest[key].received):
                largest[key] = ledger
    by_name: dict[str, list[LedgerRecord]] = {}
    for ledger in largest.values():
        by_name.setdefault(ledger.listener, []).append(ledger)
    listeners = [ListenerOverhead.of(*ledgers) for ledgers in by_name.values()]
    written_bytes = [count for count in journals_bytes if count is not None]
    return TrackerOverhead(
        sum(cpu_s for cpu_s, _ in known),
        sum(length_s for _, length_s in known),
        len(spent) - len(known),
        sum(written_bytes) if written_bytes else None,
        tuple(sorted(listeners, key=lambda listener: listener.share or 0.0, reverse=True)),
    )


def read_overhead(reader: StoreReader, run_ids: Sequence[str]) -> TrackerOverhead:
    """Return the overhead of recording runs, as in a report about them.

    Raises:
        CodecError: A chunk is damaged.
        StoreError: The store cannot be read.
    """
    runs = reader.runs(run_ids=run_ids)
    recordings = read_recordings(reader, runs)
    return overhead_of(attempts_of(runs, reader.tags_of(run_ids)), recordings)


def _spent(attempt: Attempt, recordings: Mapping[str, RunRecording]) -> tuple[float, float] | None:
    """Return CPU time, and the time in which it was spent, in seconds; None if unknown.

    For several machines, CPU times are added and the longest time counts.
    """
    by_host: dict[str, tuple[float, float]] = {}
    for run in attempt.runs:
        cpu_s, length_s = recordings[run.run_id].tracker_cpu_s, run.lasted_s()
        if cpu_s is not None and length_s:
            known = by_host.get(run.host, (0.0, 0.0))
            by_host[run.host] = max(known, (length_s, cpu_s))
    if len(by_host) < len({run.host for run in attempt.runs}):
        return None
    lengths_s, cpus_s = zip(*by_host.values(), strict=True)
    return sum(cpus_s), max(lengths_s)
