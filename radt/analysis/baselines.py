"""Compare runs with the same run alone: baselines, serial time and speed-up.

A run's baseline is the run of the same experiment that had the same file, parameters, devices and
machine and ran alone. Parameters that do not change the work, such as a seed or an output path, may
differ (the setting ``ignored-params``). It ran preferably on its whole device, otherwise under MPS
or on a MIG instance. A service beside a run does not make it less alone, but one without is
preferred. A baseline may belong to an earlier start if the experiment's file no longer has it. On a
cluster it may be of other GPUs, or of another node with the same hardware; its interval then has
the spread between such nodes.

The makespan is the time to train a workload in the thesis that radt builds on (chapter 4, figure
4.13: total time with collocation and serially). It counts from the start of the first process, like
a run's duration: the barrier of ``--sync context`` follows the set-up that single runs need, too.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from radt import units
from radt.analysis.attempts import Attempt
from radt.analysis.estimates import Estimate, of_rows
from radt.analysis.measures import WorkloadMeasures, value_of
from radt.analysis.quantities import Combine, Quantity
from radt.analysis.recording import Epochs, RunRecording
from radt.params import split_params
from radt.settings import IGNORED_PARAMS, Settings
from radt.store.reader import StoreReader
from radt.store.records import RunRecord
from radt.tags import CLUSTER_HARDWARE

#: Params of a command by name, in the order of names, without those that do not change the work.
Work = tuple[tuple[str, str], ...]


class BaselineKey(NamedTuple):
    """Common properties of runs that do the same work on the same hardware."""

    file: str
    params: Work
    #: Of the machine; on a cluster how many.
    devices: str
    #: The machine, or on a cluster its hardware.
    hardware: str

    def differences(self, other: BaselineKey) -> Sequence[str]:
        """Return what another key, of a run alone, has otherwise: ``lr is 0.2, alone 0.1``."""
        pairs = [("file", self.file, other.file), ("devices", self.devices, other.devices)]
        pairs.append(("machine", self.hardware, other.hardware))
        own, others = dict(self.params), dict(other.params)
        pairs += [(name, own.get(name, ""), others.get(name, "")) for name in own | others]
        return [
            f"{name} is {a or 'missing'}, alone {b or 'missing'}" for name, a, b in pairs if a != b
        ]


def ignored_params() -> frozenset[str]:
    """Return the names of params that do not change the work, as `work_of` takes them.

    Raises:
        UsageError: The settings file cannot be read.
    """
    names = Settings.of(Path.cwd())[IGNORED_PARAMS].split(",")
    return frozenset(plain_name(name) for name in names)


@lru_cache(maxsize=20_000)
def work_of(arguments: str, ignored: frozenset[str]) -> Work:
    """Return the params of a command that decide its work.

    Args:
        arguments: As the runner records them in the param ``Params``.
        ignored: `ignored_params`.
    """
    try:
        words = shlex.split(arguments)
    except ValueError:  # an open quote
        words = arguments.split()
    # ``lr=0.1`` of a row whose template adds the dashes.
    words = [f"--{word}" if "=" in word and not word.startswith("-") else word for word in words]
    params = split_params(words)
    return tuple(sorted(item for item in params.items() if plain_name(item[0]) not in ignored))


def plain_name(name: str) -> str:
    """Return a param's name as `ignored_params` has it."""
    return name.strip().lower().replace("_", "-")


def keys_of(
    reader: StoreReader, runs: Sequence[RunRecord], params: Mapping[str, Mapping[str, str]]
) -> dict[str, BaselineKey]:
    """Return the keys of runs of one experiment, by run id.

    Raises:
        StoreError: The store cannot be read.
        UsageError: The settings file cannot be read.
    """
    hardware = reader.tagged(CLUSTER_HARDWARE, runs[0].experiment) if runs else {}
    ignored = ignored_params()
    return {
        run.run_id: BaselineKey(
            params.get(run.run_id, {}).get("File", ""),
            work_of(params.get(run.run_id, {}).get("Params", ""), ignored),
            *place_of(run, hardware),
        )
        for run in runs
    }


def place_of(run: RunRecord, hardware: Mapping[str, str]) -> tuple[str, str]:
    """Return devices and machine of a run, as keys have them.

    Jobs of a cluster get any GPUs of any node: how many GPUs counts there, and the hardware.

    Args:
        run: The run.
        hardware: Of the nodes of runs on a cluster, by run id.
    """
    if run.run_id not in hardware:
        return run.devices, run.host
    is_cpu = run.devices.lower() == "cpu"
    devices = run.devices if is_cpu else units.plural(run.devices.count("+") + 1, "GPU")
    return devices, hardware[run.run_id]


@dataclass(frozen=True, slots=True)
class Baseline:
    """A run without neighbours, and its repeats.

    Attributes:
        label: Its workload's label.
        host: The machine.
        collocation: How its device was divided (MPS, a MIG instance); empty if undivided.
        is_served: A service ran beside it.
        is_current: The report shows it; otherwise it belongs to an earlier start, with a row that
            the experiment's file no longer has.
        created_ns: When the newest repeat was recorded.
        run_ids: Ids of the repeats' runs.
        time_per_epoch: In seconds, None without epochs.
        durations_s: Time from start to end of each repeat; None if unknown.
        epochs: Number of ended epochs of each repeat.
    """

    label: str
    host: str
    collocation: str
    is_current: bool
    created_ns: int
    run_ids: tuple[str, ...]
    time_per_epoch: Estimate | None = None
    durations_s: tuple[float | None, ...] = ()
    epochs: tuple[Epochs, ...] = ()
    is_served: bool = False

    @property
    def is_plain(self) -> bool:
        """Return whether it had the whole device, and no service."""
        return not (self.collocation or self.is_served)

    @property
    def text(self) -> str:
        """Return ``alone``, ``alone under MPS``, ``alone on 7g.40gb``, ``alone with a service``."""
        parts = ["alone"]
        if self.collocation:
            word = "under" if self.collocation.upper().startswith("MPS") else "on"
            parts.append(f"{word} {self.collocation}")
        if self.is_served:
            parts.append("with a service")
        return " ".join(parts)


def ran_alone(repeats: Sequence[Attempt]) -> bool:
    """Return whether a workload may be a baseline: one run, not slowed down by a profiler."""
    return all(attempt.solo and not attempt.is_profiled for attempt in repeats)


def is_undivided(repeats: Sequence[Attempt]) -> bool:
    """Return whether its runs had whole devices, and no service."""
    return not any(attempt.collocation or attempt.services for attempt in repeats)


def keys_to_compare(
    current: Sequence[Sequence[Attempt]], keys: Mapping[str, BaselineKey]
) -> set[BaselineKey]:
    """Return the keys of the runs that need a baseline."""
    return {
        keys[run.run_id]
        for repeats in current
        if not (ran_alone(repeats) and is_undivided(repeats))
        for attempt in repeats
        for run in attempt.trained
    }


def earlier_baselines(
    reader: StoreReader,
    attempts: Iterable[Attempt],
    current: Sequence[Sequence[Attempt]],
    keys: dict[str, BaselineKey],
    compared: AbstractSet[BaselineKey],
) -> list[list[Attempt]]:
    """Return single runs of earlier starts for keys without a current run on a whole device.

    Args:
        reader: The store.
        attempts: All starts, the oldest first.
        current: The starts that the report shows.
        keys: The keys of their runs, by id. Keys of the returned runs are added.
        compared: The keys that need a baseline.

    Raises:
        StoreError: The store cannot be read.
    """
    wanted = compared - {
        keys[repeats[-1].trained[0].run_id]
        for repeats in current
        if ran_alone(repeats)
        and is_undivided(repeats)
        and any(attempt.finished for attempt in repeats)
    }
    if not wanted:
        return []
    shown = {run.run_id for repeats in current for attempt in repeats for run in attempt.runs}
    # The repeats of a series count together.
    earlier: dict[tuple[str, str, str], list[Attempt]] = {}
    for attempt in attempts:
        if attempt.solo and attempt.finished and not attempt.is_profiled:
            (run,) = attempt.trained
            if run.run_id not in shown:
                key = (attempt.label, attempt.host, attempt.series or run.workload_id)
                earlier.setdefault(key, []).append(attempt)
    candidates = [repeats for repeats in earlier.values() if is_undivided(repeats)]
    params = reader.params_of([repeats[-1].trained[0].run_id for repeats in candidates])
    found = keys_of(reader, [repeats[-1].trained[0] for repeats in candidates], params)
    newest: dict[tuple[BaselineKey, str], list[Attempt]] = {}
    for repeats in candidates:
        run = repeats[-1].trained[0]
        if found[run.run_id] in wanted:
            newest[found[run.run_id], run.host] = repeats
            keys[run.run_id] = found[run.run_id]
    return list(newest.values())


def baseline_of(
    repeats: Sequence[Attempt],
    measures: WorkloadMeasures,
    recordings: Mapping[str, RunRecording],
    *,
    is_current: bool,
) -> Baseline | None:
    """Return a workload of one run as a baseline; None if it never finished.

    `recordings` are by run id; `is_current`: the report shows the workload.
    """
    if not any(attempt.finished for attempt in repeats):
        return None
    newest = repeats[-1]
    (run,) = newest.trained
    run_ids = tuple(run.run_id for attempt in repeats for run in attempt.trained)
    return Baseline(
        newest.label,
        newest.host,
        newest.collocation,
        is_current,
        newest.created_ns,
        run_ids,
        value_of([measures.rows[run.letter]], Quantity.TIME_PER_EPOCH),
        tuple(attempt.makespan_s for attempt in repeats),
        tuple(recordings[run_id].epochs for run_id in run_ids),
        is_served=bool(newest.services),
    )


def best_baselines(
    candidates: Iterable[tuple[BaselineKey, Baseline]],
) -> dict[BaselineKey, dict[str, Baseline]]:
    """Return the baseline of each key on each machine.

    A whole device without a service precedes others, a current run an earlier one, a run with
    epochs one without; then the newest wins.
    """
    best: dict[BaselineKey, dict[str, Baseline]] = {}
    for key, baseline in candidates:
        known = best.setdefault(key, {}).get(baseline.host)
        if known is None or _rank(baseline) >= _rank(known):
            best[key][baseline.host] = baseline
    return best


def _rank(baseline: Baseline) -> tuple[bool, bool, bool, int]:
    return (
        baseline.is_plain,
        baseline.is_current,
        baseline.time_per_epoch is not None,
        baseline.created_ns,
    )


def baselines_of(
    repeats: Sequence[Attempt],
    baselines: Mapping[BaselineKey, Mapping[str, Baseline]],
    keys: Mapping[str, BaselineKey],
) -> dict[BaselineKey, Baseline]:
    """Return the baselines of a workload's runs, those of its own machine if it has them.

    A run alone on a part of its device, or with a service, is compared with the run on all of it
    without.
    """
    is_alone = ran_alone(repeats)
    if is_alone and is_undivided(repeats):
        return {}
    own = dict.fromkeys(keys[run.run_id] for attempt in repeats for run in attempt.trained)
    chosen = {
        key: baselines[key].get(repeats[-1].host) or _of_other_nodes(list(baselines[key].values()))
        for key in own
        if key in baselines
    }
    return {key: baseline for key, baseline in chosen.items() if baseline.is_plain or not is_alone}


def unmatched(
    current: Sequence[Sequence[Attempt]],
    keys: Mapping[str, BaselineKey],
    missing: AbstractSet[BaselineKey],
    most: int,
) -> tuple[dict[int, str], int]:
    """Return why workloads have no baseline, by their place, and how many more have none.

    Args:
        current: The starts that the report shows.
        keys: The keys of their runs, by id.
        missing: The keys without a baseline.
        most: The number of reasons to find, each of which compares all runs alone.
    """
    alone = {
        keys[repeats[-1].trained[0].run_id]
        for repeats in current
        if ran_alone(repeats) and any(attempt.finished for attempt in repeats)
    }
    lacking = {
        place: key
        for place, repeats in enumerate(current)
        for run in repeats[-1].trained
        if (key := keys[run.run_id]) in missing
    }
    if not alone:
        return {}, 0
    reasons = {}
    for place, key in list(lacking.items())[:most]:
        nearest = min((key.differences(other) for other in alone), key=len)
        reasons[place] = "; ".join(nearest)
    return reasons, len(lacking) - len(reasons)


def _of_other_nodes(baselines: Sequence[Baseline]) -> Baseline:
    """Return the best baseline, with the times of all nodes that have one as good."""
    best = max(baselines, key=_rank)
    alike = [baseline for baseline in baselines if _rank(baseline)[:3] == _rank(best)[:3]]
    times = [time for each in alike if (time := each.time_per_epoch) is not None]
    values = [value for time in times for value in (time.repeats or (time.mean,))]
    return replace(best, time_per_epoch=of_rows([values], Combine.MEAN)) if times else best


def makespan_values(
    repeats: Sequence[Attempt], rows: Sequence[tuple[Baseline | None, Sequence[int]]]
) -> tuple[dict[Quantity, Estimate], bool]:
    """Return makespan, serial time and speed-up of a workload, as far as known.

    Also return whether its rows trained more or fewer epochs than alone: then the serial time is
    for the same number of epochs.

    Args:
        repeats: The starts of the workload.
        rows: The baseline of each row, and its epochs in each repeat that finished.
    """
    makespan = of_rows([[attempt.makespan_s for attempt in repeats]], Combine.MEAN)
    if makespan is None:
        return {}, False
    values = {Quantity.MAKESPAN: makespan}
    alone = [_durations_alone(*row) for row in rows]
    known = [row for row in alone if row is not None]
    if not known or len(known) < len(rows):
        return values, False
    most = max(len(durations_s) for durations_s, _ in known)
    serial = of_rows(
        [[*durations_s, *[None] * (most - len(durations_s))] for durations_s, _ in known],
        Combine.SUM,
    )
    if serial is None:
        return values, False
    values[Quantity.SERIAL] = serial
    values[Quantity.SPEED_UP] = makespan.into(serial)
    return values, any(is_adjusted for _, is_adjusted in known)


def _durations_alone(
    baseline: Baseline | None, epochs: Sequence[int]
) -> tuple[list[float], bool] | None:
    """Return a row's time alone per repeat, and whether its number of epochs was adjusted.

    Rows with the same file and parameters do the same work, unless a limit of time or epochs cut
    one of them short. Each additional or missing epoch then counts as one of the baseline, without
    start-up.
    """
    if baseline is None or not epochs:
        return None
    own = fmean(epochs)
    durations_s = []
    is_adjusted = False
    for duration_s, alone in zip(baseline.durations_s, baseline.epochs, strict=True):
        if duration_s is None:
            continue
        if alone.count != own:
            if alone.period_s is None or not own:
                return None
            is_adjusted = True
            duration_s += (own - alone.count) * alone.period_s
        durations_s.append(duration_s)
    return (durations_s, is_adjusted) if durations_s and min(durations_s) > 0 else None
