"""What single calls take: `python -m radt.selftest.calls CALLS` measures `run.log_metric`."""

from __future__ import annotations

import json
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import asdict, dataclass

WARM_UP_CALLS = 100
_EMPTY_CALLS = 10_000
Log = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Measured:
    """Times of calls, in nanoseconds, less what reading the clock costs.

    ``total_ns`` is the loop's time by the number of calls, with what a call leaves for later;
    ``over_1ms`` counts calls that took longer than a millisecond.
    """

    median_ns: float
    p99_ns: float
    p999_ns: float
    max_ns: float
    total_ns: float
    over_1ms: int


def measure(log: Log, calls: int) -> Measured:
    """Time that many calls, one by one."""
    clock = time.perf_counter_ns
    for step in range(WARM_UP_CALLS):
        log(step)
    times = array("q", bytes(8 * calls))
    begun = clock()
    for step in range(calls):
        before = clock()
        log(step)
        times[step] = clock() - before
    total = (clock() - begun) / calls
    empty = array("q", bytes(8 * _EMPTY_CALLS))
    for step in range(len(empty)):
        before = clock()
        empty[step] = clock() - before
    overhead = sorted(empty)[len(empty) // 2]
    ordered = sorted(times)
    return Measured(
        median_ns=ordered[calls // 2] - overhead,
        p99_ns=ordered[calls * 99 // 100] - overhead,
        p999_ns=ordered[calls * 999 // 1000] - overhead,
        max_ns=ordered[-1] - overhead,
        total_ns=total,
        over_1ms=sum(1 for taken in ordered[calls * 99 // 100 :] if taken > 1_000_000),
    )


def main(calls: int) -> None:
    """A run of its own, with its collector, and beside it a function that does nothing."""
    import radt

    empty = measure(lambda _: None, calls)
    with radt.Run("calls", experiment="selftest", listeners="none") as run:
        logged = measure(lambda step: run.log_metric("loss", 0.5, step), calls)
    sys.stdout.write(json.dumps({"log_metric": asdict(logged), "empty": asdict(empty)}) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
