"""What the tracker itself cost while workloads ran: CPU, journals, the time that readings took.

One collector records all runs of a machine. Its CPU time is of the whole machine, so of the runs of
a workload, which all know it, the one that took longest counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from radt import units
from radt.report.attempts import Attempt
from radt.report.estimates import Estimate, of_rows
from radt.report.quantities import Combine
from radt.report.recording import Ledgers, RunRecording
from radt.store.records import LedgerRecord, RunRecord

Recordings = Mapping[str, RunRecording]


@dataclass(frozen=True, slots=True)
class ListenerCost:
    """What the readings of one listener cost; one that several runs share counts once.

    Attributes:
        listener: Its name.
        readings: How many.
        sampling_s: How long they took in all; waiting for a device is in it.
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
        """How long a reading took."""
        return self.sampling_s / self.readings

    @property
    def share(self) -> float | None:
        """The part of the time that readings took."""
        return self.sampling_s / self.recorded_s if self.recorded_s > 0 else None


@dataclass(frozen=True, slots=True)
class TrackerCost:
    """Of a report.

    Attributes:
        cpu_s: CPU time of the tracker while starts of workloads ran, of those that know it.
        workload_s: The time that these took.
        unknown: How many starts do not know it: of an earlier radt, with a collector that was
            restarted meanwhile, or ended without it.
        journal_bytes: What scripts wrote into journals; None where no run knows it.
        listeners: The dearest first.
    """

    cpu_s: float = 0.0
    workload_s: float = 0.0
    unknown: int = 0
    journal_bytes: int | None = None
    listeners: tuple[ListenerCost, ...] = ()

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


def tracker_cpu(repeats: Sequence[Attempt], recordings: Recordings) -> Estimate | None:
    """CPU time per time of a workload; None where it is not known."""
    shares = [
        None if known is None else known[0] / known[1]
        for known in (_spent(attempt, recordings) for attempt in repeats)
    ]
    return of_rows([shares], Combine.MEAN)


def cost_of(repeats: Sequence[Attempt], recordings: Recordings, ledgers: Ledgers) -> TrackerCost:
    """Of all starts of a workload.

    Args:
        repeats: These.
        recordings: Of their runs.
        ledgers: Of their runs.
    """
    spent = [_spent(attempt, recordings) for attempt in repeats]
    known = [one for one in spent if one is not None]
    journals = [recordings[run.run_id].journal_bytes for one in repeats for run in one.runs]
    written = [one for one in journals if one is not None]
    return TrackerCost(
        sum(cpu_s for cpu_s, _ in known),
        sum(length_s for _, length_s in known),
        len(spent) - len(known),
        sum(written) if written else None,
        _summed(one for attempt in repeats for one in _listeners(attempt, ledgers)),
    )


def total(costs: Sequence[TrackerCost]) -> TrackerCost:
    """Of all workloads of a report."""
    written = [one.journal_bytes for one in costs if one.journal_bytes is not None]
    return TrackerCost(
        sum(one.cpu_s for one in costs),
        sum(one.workload_s for one in costs),
        sum(one.unknown for one in costs),
        sum(written) if written else None,
        _summed(listener for one in costs for listener in one.listeners),
    )


def _spent(attempt: Attempt, recordings: Recordings) -> tuple[float, float] | None:
    """CPU time and the time in which it was spent, both in seconds; of several machines the sum of
    the first and the longest of the second.
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


def _listeners(attempt: Attempt, ledgers: Ledgers) -> Iterator[ListenerCost]:
    """Runs that start together have the same readings in their ledgers: the most of them count."""
    most: dict[tuple[str, str, float], LedgerRecord] = {}
    for run in attempt.runs:
        for ledger in ledgers.get(run.run_id, ()):
            key = (run.host, ledger.listener, ledger.interval_s)
            is_known = ledger.received and ledger.sampling_ns
            if is_known and (key not in most or ledger.received > most[key].received):
                most[key] = ledger
    for ledger in most.values():
        yield ListenerCost(
            ledger.listener,
            ledger.received,
            ledger.sampling_ns / 1e9,
            ledger.sampling_max_ns / 1e9,
            ledger.expected * ledger.interval_s,
        )


def _summed(costs: Iterable[ListenerCost]) -> tuple[ListenerCost, ...]:
    """One for each listener, the dearest first."""
    found: dict[str, list[ListenerCost]] = {}
    for cost in costs:
        found.setdefault(cost.listener, []).append(cost)
    summed = (
        ListenerCost(
            listener,
            sum(one.readings for one in same),
            sum(one.sampling_s for one in same),
            max(one.longest_s for one in same),
            sum(one.recorded_s for one in same),
        )
        for listener, same in found.items()
    )
    return tuple(sorted(summed, key=lambda one: one.share or 0.0, reverse=True))
