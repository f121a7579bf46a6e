"""From measurements to findings: the bars, and where they come from.

The bars are those of docs/measurements.md where it has one: logging, sampling, start, import. Two
are this test's own: a run may take 2 % longer for being tracked, and a disk should keep a second's
values within a tenth of a second.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from radt import units
from radt.selftest.calls import Measured
from radt.selftest.disk import Synced
from radt.selftest.pairs import Pair, paired_ratio
from radt.selftest.results import Finding, Unit
from radt.selftest.sampling import Account, Sampled
from radt.selftest.starting import ROWS, Starts

SLOWDOWN_BAR = 1.02
SYNC_BAR_S = 0.1
IMPORT_BAR_S = 0.05
LOG_MEDIAN_BAR_S = 1e-6
LOG_P99_BAR_S = 5e-6
SKEW_BAR_S = 0.02
BETWEEN_BAR_S = 1.0
#: Share of one core, by readings per second.
CPU_BARS: Mapping[float, float] = {1.0: 0.02, 10.0: 0.10}
MEMORY_BAR_BYTES = 150e6
#: Of the readings; of the interval; of a reading at 1 Hz.
MISSED_BAR, LATE_BAR, READING_BAR_S = 0.01, 0.1, 0.1

_CORE = "of one core"


def of_disk(synced: Synced) -> list[Finding]:
    """How long a commit takes to be safe."""
    where = f" on {synced.file_system}" if synced.file_system else ""
    return [
        Finding(
            "fsync",
            "fsync of 64 KB",
            synced.median_s,
            Unit.SECONDS,
            SYNC_BAR_S,
            detail=f"worst {units.duration(synced.worst_s)}{where}",
        )
    ]


def of_import(added_s: float) -> list[Finding]:
    """What the first line of a script costs."""
    return [
        Finding(
            *("import", "import radt", added_s, Unit.SECONDS, IMPORT_BAR_S),
            detail="over bare Python",
        )
    ]


def of_calls(logged: Measured, empty: Measured) -> list[Finding]:
    """What a value costs. The longest of the calls is the machine's as much as radt's."""
    beside = f"a call of nothing {units.duration(empty.max_ns / 1e9)}"
    return [
        Finding(
            *("log_metric.median", "log_metric, median", logged.median_ns / 1e9),
            *(Unit.SECONDS, LOG_MEDIAN_BAR_S),
        ),
        Finding(
            *("log_metric.p99", "log_metric, 99 % within", logged.p99_ns / 1e9),
            *(Unit.SECONDS, LOG_P99_BAR_S),
        ),
        Finding(
            *("log_metric.worst", "log_metric, worst", logged.max_ns / 1e9, Unit.SECONDS),
            detail=beside,
        ),
    ]


def of_starts(starts: Starts) -> list[Finding]:
    """How together the rows of a workload start, and what a workload costs beside its rows."""
    return [
        _median("start_skew", f"start skew, {ROWS} rows", starts.skews_s, SKEW_BAR_S),
        _median("between", f"between workloads of {ROWS}", starts.betweens_s, BETWEEN_BAR_S),
    ]


def _median(key: str, subject: str, values_s: Sequence[float], bar_s: float) -> Finding:
    low, high = min(values_s), max(values_s)
    return Finding(
        *(key, subject, statistics.median(values_s), Unit.SECONDS, bar_s),
        low=low,
        high=high,
        detail=f"{units.duration(low)} to {units.duration(high)}, n={len(values_s)}",
    )


def of_sampling(sampled: Sampled, rate_hz: float, runs: int) -> list[Finding]:
    """What sampling costs at a rate, and whether it keeps its times."""
    at = f"sampling at {rate_hz:g} Hz"
    key = f"sampling_{rate_hz:g}hz"
    interval_s = 1 / rate_hz
    found = [
        Finding(
            *(f"{key}.cpu", f"{at}, CPU", sampled.share, Unit.RATIO, CPU_BARS[rate_hz], _CORE),
            detail=f"{units.plural(runs, 'run')}, {sampled.values_per_s:,.0f} values/s",
        ),
        Finding(
            *(f"{key}.memory", f"{at}, memory", sampled.rss_bytes, Unit.BYTES, MEMORY_BAR_BYTES)
        ),
    ]
    if not sampled.expected:
        return found
    return [
        *found,
        Finding(
            *(f"{key}.missed", f"{at}, missed", sampled.missed / sampled.expected, Unit.RATIO),
            MISSED_BAR,
            detail=f"{sampled.missed:,} of {units.plural(sampled.expected, 'reading')}",
        ),
        Finding(
            *(f"{key}.late", f"{at}, late", sampled.late_s, Unit.SECONDS, interval_s * LATE_BAR),
            detail=f"worst {units.duration(sampled.late_max_s)}",
        ),
    ]


def of_listeners(sampled: Sampled, wanted: Sequence[str]) -> list[Finding]:
    """Whether each listener works, and how long it takes to read once for all runs."""
    accounts = {account.listener: account for account in sampled.accounts}
    return [_of_listener(name, accounts.get(name), sampled.warnings) for name in wanted]


def _of_listener(name: str, account: Account | None, warnings: Sequence[str]) -> Finding:
    key, subject = f"listener.{name}", f"listener {name}"
    remedy = f"radt listeners {name} says what it needs"
    if account is None or not account.received:
        said = [text for text in warnings if name in text]
        reason = (account.reason if account is not None else "") or "; ".join(said)
        return Finding(key, subject, failure=reason or "it read nothing", remedy=remedy)
    if not account.values:
        return Finding(key, subject, failure="it reads, and has no values", remedy=remedy)
    return Finding(
        *(key, subject, account.took_s, Unit.SECONDS, READING_BAR_S),
        bar_of="a reading",
        detail=f"{account.values:,} values; worst {units.duration(account.took_max_s)}",
    )


def of_pairs(pairs: Sequence[Pair], *, gpu: bool, processes: int) -> list[Finding]:
    """How much longer the work takes with radt, and what a run has beside its work."""
    device = "GPU" if gpu else "CPU"
    key = device.lower()
    ratio = paired_ratio([pair.ratio for pair in pairs])
    count = units.plural(len(pairs), "pair")
    if ratio.low is None or ratio.high is None:
        detail = f"{count}: two or more would tell"
    else:
        detail = f"95 % CI {ratio.low:.3f} to {ratio.high:.3f}, {count}"
    if not gpu:
        detail += f" on {units.plural(processes, 'CPU')}"
    return [
        Finding(
            *(f"slowdown.{key}", f"time of a run, {device}", ratio.value, Unit.FACTOR),
            SLOWDOWN_BAR,
            low=ratio.low,
            high=ratio.high,
            detail=detail,
            is_compared=True,
        ),
        Finding(
            *(f"added.{key}", f"begin and end, {device}"),
            statistics.median(pair.added_s for pair in pairs),
            Unit.SECONDS,
            detail="once a run, however long it is",
        ),
        Finding(
            *(f"tracker.{key}", f"tracker's CPU time, {device}"),
            statistics.median(pair.with_radt.tracker_s for pair in pairs),
            Unit.SECONDS,
            detail=f"for a run of {units.duration(pairs[0].with_radt.body_s)}, delivery to MLflow "
            "included",
        ),
    ]
