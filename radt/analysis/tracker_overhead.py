"""The tracker's overhead while workloads ran: CPU, journals, the time that readings took.

One collector records all runs of a machine, and its CPU time is of the whole machine. All runs of a
workload know it; the one that took longest counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from radt import units
from radt.analysis.attempts import Attempt
from radt.analysis.estimates import Estimate, of_rows
from radt.analysis.quantities import Combine
from radt.analysis.recording import RunRecording
from radt.store.records import LedgerRecord, RunRecord


@dataclass(frozen=True, slots=True)
class ListenerOverhead:
    """The readings of one listener; one that several runs share counts once.

    Attributes:
        listener: Its name.
        readings: How many.
        sampling_s: How long they took in all, waiting for devices included.
        longest_s: The longest of them.
        recorded_s: The time over which it read.
    """

    listener: str
    readings: int
    sampling_s: float
    longest_s: float
    recorded_s: float

    @property
    def mean_s(self) -> float:
        """The mean duration of a reading."""
        return self.sampling_s / self.readings

    @property
    def share(self) -> float | None:
        """The part of the time that readings took."""
        return self.sampling_s / self.recorded_s if self.recorded_s > 0 else None


@dataclass(frozen=True, slots=True)
class TrackerOverhead:
    """The tracker's overhead in a report.

    Attributes:
        cpu_s: CPU time of the tracker while workloads ran, as far as it is known.
        workload_s: The time that these took.
        unknown: How many starts of workloads lack it: those of an earlier radt, and those whose
            collector was restarted or ended meanwhile.
        journal_bytes: What scripts wrote into journals; None where no run knows it.
        listeners: Those with the largest share of the time first.
    """

    cpu_s: float = 0.0
    workload_s: float = 0.0
    unknown: int = 0
    journal_bytes: int | None = None
    listeners: tuple[ListenerOverhead, ...] = ()

    @property
    def cpu_share(self) -> float | None:
        """CPU time per time; 1 is one core. None where it is not known."""
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
            means = (f"{one.listener} {units.duration(one.mean_s)}" for one in self.listeners)
            parts.append(f"a reading {', '.join(means)}")
        return " · ".join(parts)


def tracker_cpu(
    repeats: Sequence[Attempt], recordings: Mapping[str, RunRecording]
) -> Estimate | None:
    """Return CPU time per time of a workload; None where it is not known."""
    spent = (_spent(attempt, recordings) for attempt in repeats)
    shares = [None if known is None else known[0] / known[1] for known in spent]
    return of_rows([shares], Combine.MEAN)


def overhead_of(
    repeats: Sequence[Attempt], recordings: Mapping[str, RunRecording]
) -> TrackerOverhead:
    """Return the overhead of all starts of a workload.

    Args:
        repeats: Its starts.
        recordings: How their runs were recorded, by id.
    """
    spent = [_spent(attempt, recordings) for attempt in repeats]
    known = [one for one in spent if one is not None]
    return TrackerOverhead(
        sum(cpu_s for cpu_s, _ in known),
        sum(length_s for _, length_s in known),
        len(spent) - len(known),
        _sum_known(recordings[run.run_id].journal_bytes for one in repeats for run in one.runs),
        _by_listener(one for attempt in repeats for one in _listeners(attempt, recordings)),
    )


def total_overhead(overheads: Sequence[TrackerOverhead]) -> TrackerOverhead:
    """Return the overhead of all workloads of a report."""
    return TrackerOverhead(
        sum(one.cpu_s for one in overheads),
        sum(one.workload_s for one in overheads),
        sum(one.unknown for one in overheads),
        _sum_known(one.journal_bytes for one in overheads),
        _by_listener(listener for one in overheads for listener in one.listeners),
    )


def _sum_known(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _spent(attempt: Attempt, recordings: Mapping[str, RunRecording]) -> tuple[float, float] | None:
    """Return CPU time and the time in which it was spent, in seconds; None where not known.

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
    """Return one overhead a listener, the largest share first."""
    by_name: dict[str, list[ListenerOverhead]] = {}
    for one in overheads:
        by_name.setdefault(one.listener, []).append(one)
    summed = (
        ListenerOverhead(
            listener,
            sum(one.readings for one in same),
            sum(one.sampling_s for one in same),
            max(one.longest_s for one in same),
            sum(one.recorded_s for one in same),
        )
        for listener, same in by_name.items()
    )
    return tuple(sorted(summed, key=lambda one: one.share or 0.0, reverse=True))
