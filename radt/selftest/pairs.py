"""Runs in pairs, one with radt and one without: what the ratio of their times says."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum

from radt.errors import LaunchError
from radt.report.confidence import mean_interval
from radt.selftest.shelter import Shelter
from radt.selftest.work import STEP_S
from radt.store.reader import StoreReader

#: The tracker has come to rest when it takes less than this share of a core for so long.
_REST_SHARE = 0.05
_REST_S = 0.25
#: Patience with a machine on which it never does.
REST_AT_MOST_S = 20.0
#: Runs take their own time, start and end of radt, and a machine that is busy.
_PATIENCE_S = 120.0


class Side(StrEnum):
    """Which run of a pair."""

    WITHOUT = "without"
    WITH = "with"


@dataclass(frozen=True, slots=True)
class Timed:
    """One run.

    Attributes:
        body_s: Mean time of its processes for the work.
        whole_s: The process from start to end, imports and radt's own begin and end included.
        waited: Share of the body in which the work waited for a CPU that others had.
        tracker_s: CPU time of the tracker from the run's start until it rested.
    """

    body_s: float
    whole_s: float
    waited: float
    tracker_s: float


@dataclass(frozen=True, slots=True)
class Pair:
    """The same work, once with radt and once without, one directly after the other."""

    first: Side
    without: Timed
    with_radt: Timed

    @property
    def ratio(self) -> float:
        return self.with_radt.body_s / self.without.body_s

    @property
    def added_s(self) -> float:
        """What radt's import, begin and end add to a run, once."""
        return (self.with_radt.whole_s - self.with_radt.body_s) - (
            self.without.whole_s - self.without.body_s
        )


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of times and its 95 % confidence interval, which a single pair has none of."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """What is run: steps of so many rounds, on the CPUs or the GPU, with these listeners."""

    steps: int
    rounds: int
    listeners: str
    processes: int = 1
    gpu: bool = False


def orders(pairs: int, seed: int) -> list[Side]:
    """Which side of each pair goes first: each of two neighbours another, which one by chance.

    What drifts (temperature, neighbours) then favours neither side.

    >>> [str(side) for side in orders(4, seed=7)]
    ['without', 'with', 'with', 'without']
    """
    chance = random.Random(seed)  # noqa: S311 - not about secrets
    found: list[Side] = []
    while len(found) < pairs:
        two = [Side.WITHOUT, Side.WITH]
        chance.shuffle(two)
        found += two
    return found[:pairs]


def paired_ratio(ratios: Sequence[float]) -> Ratio:
    """The geometric mean of ratios of pairs; its interval by Student's t on their logarithms.

    Raises:
        ValueError: There are none, or one is not positive.
    """
    logs = [math.log(ratio) for ratio in ratios]
    value = math.exp(statistics.fmean(logs))
    interval = mean_interval(logs)
    if interval is None:
        return Ratio(value)
    return Ratio(value, math.exp(interval.low), math.exp(interval.high))


def load_of(
    shelter: Shelter, seconds: float, listeners: str, processes: int, *, gpu: bool = False
) -> Load | None:
    """The load that takes about so long here; None where it cannot run.

    Raises:
        LaunchError: It cannot be tried.
    """
    device = ["--gpu"] if gpu else []
    answer = shelter.ask("radt.selftest.work", "--calibrate", str(STEP_S), *device)
    rounds = int(answer["rounds"])
    steps = max(2, round(seconds / STEP_S))
    return Load(steps, rounds, listeners, processes, gpu) if rounds else None


def run_pairs(
    shelter: Shelter, load: Load, pairs: int, seed: int, say: Callable[[str], None]
) -> list[Pair]:
    """One pair after the other, behind one run to warm up, which starts what runs share.

    Raises:
        LaunchError: A run failed, or was not recorded.
    """
    run_once(shelter, replace(load, steps=max(2, load.steps // 10)), Side.WITH)
    found = []
    for number, first in enumerate(orders(pairs, seed), 1):
        say(f"pair {number} of {pairs}")
        second = Side.WITH if first is Side.WITHOUT else Side.WITHOUT
        timed = {side: run_once(shelter, load, side) for side in (first, second)}
        found.append(Pair(first, timed[Side.WITHOUT], timed[Side.WITH]))
    return found


def run_once(shelter: Shelter, load: Load, side: Side) -> Timed:
    """A run; returns when the tracker rests, so that the next one does not pay for this.

    Raises:
        LaunchError: It failed, or was not recorded.
    """
    arguments = [str(load.steps), str(load.rounds), str(load.processes)]
    arguments += ["--gpu"] if load.gpu else []
    arguments += ["--listeners", load.listeners] if side is Side.WITH else []
    before = shelter.tracker_use()
    begun_s = time.perf_counter()
    done = shelter.ask(
        "radt.selftest.work", *arguments, timeout_s=_PATIENCE_S + 20 * load.steps * STEP_S
    )
    whole_s = time.perf_counter() - begun_s
    if side is Side.WITH and not done["recorded"]:
        raise LaunchError("a run was not recorded", "radt doctor shows what does not work")
    rest(shelter)
    return Timed(
        body_s=statistics.fmean(done["times_s"]),
        whole_s=whole_s,
        waited=float(done["waited"]),
        tracker_s=shelter.tracker_use().cpu_s - before.cpu_s,
    )


def rest(shelter: Shelter) -> None:
    """Wait until the tracker has nothing to do: all delivered, and hardly any CPU time used."""
    deadline_s = time.monotonic() + REST_AT_MOST_S
    while time.monotonic() < deadline_s:
        before_s = shelter.tracker_use().cpu_s
        time.sleep(_REST_S)
        used_s = shelter.tracker_use().cpu_s - before_s
        if used_s <= _REST_SHARE * _REST_S and not _waiting(shelter):
            return


def _waiting(shelter: Shelter) -> bool:
    """Whether anything is on its way to MLflow."""
    if not shelter.home.store_path.exists():
        return False
    with StoreReader(shelter.home.store_path) as reader:
        return bool(reader.runs_to_deliver(shelter.home.default_tracking_uri))


def raw(pairs: Sequence[Pair]) -> list[dict[str, object]]:
    """For JSON."""
    return [asdict(pair) | {"ratio": pair.ratio} for pair in pairs]
