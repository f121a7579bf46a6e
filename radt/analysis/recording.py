"""How runs were recorded: completeness, events, environment, memory shortages, tracker overhead.

One collector records all runs of a machine, so its CPU time covers the whole machine. Every run of
a workload has that time; the largest value counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from radt import units
from radt.analysis.attempts import Attempt
from radt.analysis.estimates import Estimate, of_rows
from radt.analysis.quantities import Combine
from radt.analysis.reading import GaugeStats, Key, gauge_stats, of_runs, rows_of, series_of
from radt.analysis.stretches import EARLIEST_NS, LATEST_NS, Within
from radt.model import MarkerKind, RunStatus
from radt.parts import RunPart, from_tag
from radt.store.reader import StoreReader
from radt.store.records import LedgerRecord, RunRecord, SeriesRecord
from radt.store.tables import LEDGERS
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
#: Suffixes of the events that `radt.collector` records of listeners and of itself.
_ERRORS = ("restarted", "dropped", "unavailable", "unreadable")

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
    "SELECT run_id, name FROM marker WHERE run_id IN :ids AND kind = :kind "
    "ORDER BY run_id, start_ns, marker_no",
    kind=MarkerKind.EVENT.value,
)
_LEDGERS = of_runs(f"{LEDGERS.select} WHERE run_id IN :ids ORDER BY run_id, listener")
_TAGS_OF = of_runs(
    "SELECT run_id, key, value FROM tag WHERE run_id IN :ids AND key IN :keys", "keys"
)

#: Memory used and in total; a MIG instance's before its GPU's.
_MEMORY = (
    ("gpu.mig.memory.used", "gpu.mig.memory.total"),
    ("gpu.memory.used", "gpu.memory.total"),
)
_MEMORY_OF_RUN = "process.gpu.memory"
_MEMORY_METRICS = (*(metric for pair in _MEMORY for metric in pair), _MEMORY_OF_RUN)


@dataclass(frozen=True, slots=True)
class Environment:
    """Properties that compared runs should share; empty if unknown."""

    commit: str = ""
    gpus: str = ""
    driver: str = ""
    python: str = ""


@dataclass(frozen=True, slots=True)
class Epochs:
    """Number of ended epochs, and the mean time between two ends; None for fewer than two."""

    count: int = 0
    period_s: float | None = None


@dataclass(frozen=True, slots=True)
class MemoryShortage:
    """The memory of a device that ran out.

    Attributes:
        device: Its name, ``gpu0`` or a MIG instance.
        used_bytes: The highest sample of all processes, without the failed allocation.
        total_bytes: The device's memory; None if not recorded.
        of_run_bytes: The highest sample of the run itself; None if not recorded.
    """

    device: str
    used_bytes: float
    total_bytes: float | None = None
    of_run_bytes: float | None = None

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
        environment: Commit, GPUs, driver and Python.
        is_thinned: `radt prune` thinned its samples.
        tracker_cpu_s: CPU time of the collector and its children between the run's start and end,
            for all runs that it recorded; None if unknown.
        journal_bytes: Size of the journals of the script's processes; None if unknown.
        shortage: The exhausted memory; None for other ends, and without a GPU.
        parts: Where the run was spread over several nodes: its parts on all but the first.
    """

    epochs: Epochs = Epochs()
    ledgers: tuple[LedgerRecord, ...] = ()
    events: tuple[str, ...] = ()
    environment: Environment = Environment()
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
        for run_id, count, first_ns, last_ns in rows_of(reader, _EPOCHS, run_ids)
    }
    ledgers: dict[str, list[LedgerRecord]] = {}
    for ledger in map(LEDGERS.read, rows_of(reader, _LEDGERS, run_ids)):
        ledgers.setdefault(ledger.run_id, []).append(ledger)
    events: dict[str, list[str]] = {}
    for run_id, name in rows_of(reader, _EVENTS, run_ids):
        if str(name).endswith(_ERRORS):
            events.setdefault(str(run_id), []).append(str(name))
    tags: dict[str, dict[str, str]] = {run_id: {} for run_id in run_ids}
    for run_id, key, value in rows_of(reader, _TAGS_OF, run_ids, keys=list(_TAGS)):
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
            Environment(*(own.get(tag, "") for tag in (GIT_COMMIT, GPUS, DRIVER, PYTHON))),
            PRUNED in own,
            _number(own.get(TRACKER_CPU_S, "")),
            None if journal_bytes is None else int(journal_bytes),
            shortages.get(run_id),
            from_tag(own.get(CLUSTER_PARTS, "")),
        )
    return recordings


def _number(value: str) -> float | None:
    """Return the number in a tag; users may set tags, too."""
    try:
        number = float(value)
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


def _shortages(reader: StoreReader, run_ids: Sequence[str]) -> dict[str, MemoryShortage | None]:
    """Return the exhausted memory, by run."""
    if not run_ids:
        return {}
    series = series_of(reader, run_ids, _MEMORY_METRICS)
    always = Within([(EARLIEST_NS, LATEST_NS)])
    wanted = {
        (record.run_id, record.series_no): always for same in series.values() for record in same
    }
    stats = gauge_stats(reader, wanted, _MEMORY_METRICS)
    return {run_id: _shortage(series[run_id], stats) for run_id in run_ids}


def _shortage(
    series: Sequence[SeriesRecord], stats: Mapping[Key, GaugeStats]
) -> MemoryShortage | None:
    """Return the shortage of the fullest device."""
    peaks = {
        (record.metric, record.entity): stats[key].peak
        for record in series
        if (key := (record.run_id, record.series_no)) in stats
    }
    for used, total in _MEMORY:
        devices = [
            MemoryShortage(
                entity, peak, peaks.get((total, entity)), peaks.get((_MEMORY_OF_RUN, entity))
            )
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
    """The readings of one listener; one that several runs share counts once.

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

    @property
    def mean_s(self) -> float:
        """Return the mean duration of a reading."""
        return self.sampling_s / self.readings

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
        """Return CPU time per time; 1 is one core. None if unknown."""
        return self.cpu_s / self.workload_s if self.workload_s > 0 else None

    @property
    def text(self) -> str:
        """``1.2 % of a core · journals 3.2 MB · readings top 0.4 ms, smi 2.1 ms``; may be empty."""
        parts = []
        if self.cpu_share is not None:
            parts.append(f"{units.percent(self.cpu_share)} of a core")
        if self.journal_bytes is not None:
            parts.append(f"journals {units.size(self.journal_bytes)}")
        if self.listeners:
            means = (
                f"{listener.name} {units.duration(listener.mean_s)}" for listener in self.listeners
            )
            parts.append(f"a reading {', '.join(means)}")
        return " · ".join(parts)


def tracker_cpu(
    repeats: Sequence[Attempt], recordings: Mapping[str, RunRecording]
) -> Estimate | None:
    """Return CPU time per time of a workload; None if unknown."""
    spent = (_spent(attempt, recordings) for attempt in repeats)
    shares = [None if known is None else known[0] / known[1] for known in spent]
    return of_rows([shares], Combine.MEAN)


def overhead_of(
    repeats: Sequence[Attempt], recordings: Mapping[str, RunRecording]
) -> TrackerOverhead:
    """Return the overhead of all starts of a workload; `recordings` are by run id."""
    spent = [_spent(attempt, recordings) for attempt in repeats]
    known = [start for start in spent if start is not None]
    return TrackerOverhead(
        sum(cpu_s for cpu_s, _ in known),
        sum(length_s for _, length_s in known),
        len(spent) - len(known),
        _sum_known(
            recordings[run.run_id].journal_bytes for attempt in repeats for run in attempt.runs
        ),
        _by_listener(
            listener for attempt in repeats for listener in _listeners(attempt, recordings)
        ),
    )


def total_overhead(overheads: Sequence[TrackerOverhead]) -> TrackerOverhead:
    """Return the overhead of all workloads of a report."""
    return TrackerOverhead(
        sum(overhead.cpu_s for overhead in overheads),
        sum(overhead.workload_s for overhead in overheads),
        sum(overhead.unknown for overhead in overheads),
        _sum_known(overhead.journal_bytes for overhead in overheads),
        _by_listener(listener for overhead in overheads for listener in overhead.listeners),
    )


def _sum_known(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _spent(attempt: Attempt, recordings: Mapping[str, RunRecording]) -> tuple[float, float] | None:
    """Return CPU time and the time in which it was spent, in seconds; None if unknown.

    On several machines, CPU times add up and the longest time counts.
    """
    by_host: dict[str, tuple[float, float]] = {}
    for run in attempt.runs:
        cpu_s, length_s = recordings[run.run_id].tracker_cpu_s, _length_s(run)
        if cpu_s is not None and length_s is not None:
            known = by_host.get(run.host, (0.0, 0.0))
            by_host[run.host] = max(known, (length_s, cpu_s))
    if len(by_host) < len({run.host for run in attempt.runs}):
        return None
    lengths_s, cpus_s = zip(*by_host.values(), strict=True)
    return sum(cpus_s), max(lengths_s)


def _length_s(run: RunRecord) -> float | None:
    if run.started_ns is None or run.ended_ns is None or run.ended_ns <= run.started_ns:
        return None
    return (run.ended_ns - run.started_ns) / 1e9


def _listeners(
    attempt: Attempt, recordings: Mapping[str, RunRecording]
) -> Iterator[ListenerOverhead]:
    """Yield the overhead of each listener.

    Runs that start together have the same readings in their ledgers: the largest ledger counts.
    """
    largest: dict[tuple[str, str, float], LedgerRecord] = {}
    for run in attempt.runs:
        for ledger in recordings[run.run_id].ledgers:
            key = (run.host, ledger.listener, ledger.interval_s)
            is_known = ledger.received and ledger.sampling_ns
            if is_known and (key not in largest or ledger.received > largest[key].received):
                largest[key] = ledger
    for ledger in largest.values():
        yield ListenerOverhead(
            ledger.listener,
            ledger.received,
            ledger.sampling_ns / 1e9,
            ledger.sampling_max_ns / 1e9,
            ledger.expected * ledger.interval_s,
        )


def _by_listener(overheads: Iterable[ListenerOverhead]) -> tuple[ListenerOverhead, ...]:
    """Return one overhead per listener, largest share first."""
    by_name: dict[str, list[ListenerOverhead]] = {}
    for overhead in overheads:
        by_name.setdefault(overhead.name, []).append(overhead)
    summed = (
        ListenerOverhead(
            listener,
            sum(overhead.readings for overhead in same),
            sum(overhead.sampling_s for overhead in same),
            max(overhead.longest_s for overhead in same),
            sum(overhead.recorded_s for overhead in same),
        )
        for listener, same in by_name.items()
    )
    return tuple(sorted(summed, key=lambda overhead: overhead.share or 0.0, reverse=True))
