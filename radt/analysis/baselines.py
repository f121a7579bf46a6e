"""Compare runs with the same run alone: baselines, serial time and speed-up.

A run's baseline is the run of the same experiment that had the same file, parameters, devices and
machine and ran alone. Parameters that do not change the work, such as a seed or an output path, may
differ (the setting ``ignored-params``). A run on the whole device is preferred to one under MPS or
on a MIG instance. A run with a service still counts as alone, but one without is preferred. A
baseline may belong to an earlier start if the experiment's file no longer has it. On a cluster it
may be of other GPUs, or of another node with the same hardware; its interval then includes the
spread between such nodes.

The makespan is the time to train a workload in the thesis that radt builds on (chapter 4, figure
4.13: total time with collocation and serially). It counts from the start of the first process, like
a run's duration: the barrier of ``--sync context`` follows the set-up that single runs need, too.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from radt import units
from radt.analysis.estimates import Estimate, of_rows
from radt.analysis.quantities import Combine, Quantity
from radt.analysis.recording import Epochs, RunRecording
from radt.analysis.selection import Attempt, Selection
from radt.analysis.series_quantities import AnyQuantity
from radt.analysis.windows import read_times_per_epoch
from radt.devices.visible import UNKNOWN
from radt.model import RunStatus
from radt.params import split_params
from radt.settings import IGNORED_PARAMS, Settings
from radt.store.reader import StoreReader
from radt.store.records import RunRecord
from radt.tags import CLUSTER_HARDWARE

#: Params of a command in the order of their names, without those that do not change the work.
Work = tuple[tuple[str, str], ...]


class BaselineKey(NamedTuple):
    """Common properties of runs that do the same work on the same hardware."""

    file: str
    params: Work
    #: Devices of the machine; on a cluster their number.
    devices: str
    #: The machine, or on a cluster its hardware.
    hardware: str

    def differences(self, other: BaselineKey) -> Sequence[str]:
        """Return the differences to the key of a run alone: ``lr is 0.2, alone 0.1``."""
        pairs = [("file", self.file, other.file), ("devices", self.devices, other.devices)]
        pairs.append(("machine", self.hardware, other.hardware))
        own, others = dict(self.params), dict(other.params)
        pairs += [(name, own.get(name, ""), others.get(name, "")) for name in own | others]
        return [
            f"{name} is {a or 'missing'}, alone {b or 'missing'}" for name, a, b in pairs if a != b
        ]


def ignored_params() -> frozenset[str]:
    """Return the names of params that do not change the work, for `work_of`.

    Raises:
        UsageError: The settings file cannot be read.
    """
    names = Settings.of(Path.cwd())[IGNORED_PARAMS].split(",")
    return frozenset(plain_name(name) for name in names)


@lru_cache(maxsize=20_000)
def work_of(arguments: str, ignored: frozenset[str]) -> Work:
    """Return the params of a command that determine its work.

    Args:
        arguments: As the runner records them in the param ``Params``.
        ignored: `ignored_params`.
    """
    try:
        words = shlex.split(arguments)
    except ValueError:  # an unclosed quote
        words = arguments.split()
    # ``lr=0.1`` of a row whose template adds the dashes.
    words = [f"--{word}" if "=" in word and not word.startswith("-") else word for word in words]
    params = split_params(words)
    return tuple(sorted(item for item in params.items() if plain_name(item[0]) not in ignored))


def program_in(command: str, name: str) -> str:
    """Return the path of the program of this name in a command, ``-m MODULE``, or its name."""
    try:
        words = shlex.split(command)
    except ValueError:  # an unclosed quote, which radt never writes
        words = command.split()
    if words[1:3] == ["-m", name]:
        return f"-m {name}"
    return next((word for word in words[:2] if Path(word).name == name), name)


def plain_name(name: str) -> str:
    """Return a param's name in the form of `ignored_params`."""
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
    """Return devices and machine of a run, in the form of keys.

    Jobs on a cluster get any GPUs of any node, so there the number of GPUs counts, and the
    hardware.

    Args:
        run: The run.
        hardware: Hardware of the nodes of runs on a cluster, by run id.
    """
    if run.run_id not in hardware:
        return run.devices, run.host
    has_no_number = run.devices.lower() in ("cpu", UNKNOWN)
    devices = run.devices if has_no_number else units.plural(run.devices.count("+") + 1, "GPU")
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


class Baselines:
    """The runs alone with which the runs of an experiment are compared.

    Args:
        reader: The store.
        attempts: All starts of the experiment, the oldest first.
        current: The starts that the report shows, by workload.
        keys: The keys of their runs, by id. Keys of earlier baselines are added.
        starts: The current starts whose runs are compared; None for all.

    Raises:
        StoreError: The store cannot be read.
    """

    def __init__(
        self,
        reader: StoreReader,
        attempts: Iterable[Attempt],
        current: Sequence[Sequence[Attempt]],
        keys: dict[str, BaselineKey],
        starts: Sequence[Sequence[Attempt]] | None = None,
    ) -> None:
        self._keys = keys
        self._current = current
        #: Keys of the runs that need a baseline.
        self.compared = {
            keys[run.run_id]
            for repeats in (current if starts is None else starts)
            if not (ran_alone(repeats) and is_undivided(repeats))
            for attempt in repeats
            for run in attempt.trained
        }
        #: Single runs of earlier starts for keys without a current run on a whole device.
        self.earlier = self._read_earlier(reader, attempts)
        self._best: dict[BaselineKey, dict[str, Baseline]] = {}

    def _read_earlier(
        self, reader: StoreReader, attempts: Iterable[Attempt]
    ) -> list[list[Attempt]]:
        wanted = self.compared - {
            self._keys[repeats[-1].trained[0].run_id]
            for repeats in self._current
            if ran_alone(repeats)
            and is_undivided(repeats)
            and any(attempt.finished for attempt in repeats)
        }
        if not wanted:
            return []
        shown = {
            run.run_id for repeats in self._current for attempt in repeats for run in attempt.runs
        }
        # The repeats of a series count together.
        earlier: dict[tuple[str, str, str], list[Attempt]] = {}
        for attempt in attempts:
            if attempt.solo and attempt.finished and not attempt.is_profiled:
                (run,) = attempt.trained
                if run.run_id not in shown:
                    key = (attempt.label, attempt.host, attempt.series or run.workload_id)
                    earlier.setdefault(key, []).append(attempt)
        candidates = [repeats for repeats in earlier.values() if is_undivided(repeats)]
        runs = [repeats[-1].trained[0] for repeats in candidates]
        found = keys_of(reader, runs, reader.params_of([run.run_id for run in runs]))
        newest: dict[tuple[BaselineKey, str], list[Attempt]] = {}
        for run, repeats in zip(runs, candidates, strict=True):
            if found[run.run_id] in wanted:
                newest[found[run.run_id], run.host] = repeats
                self._keys[run.run_id] = found[run.run_id]
        return list(newest.values())

    def find(self, times_s: Mapping[str, float], recordings: Mapping[str, RunRecording]) -> None:
        """Find the baseline of each key on each machine.

        Order of preference: a whole device without a service, a current run, a run with epochs, the
        newest.

        Args:
            times_s: Seconds per epoch of runs, by id.
            recordings: How runs were recorded, by id. Runs without an entry have no known epochs.
        """
        for is_current, starts in ((True, self._current), (False, self.earlier)):
            for repeats in starts:
                if not ran_alone(repeats) or not any(attempt.finished for attempt in repeats):
                    continue
                key = self._keys[repeats[-1].trained[0].run_id]
                if key in self.compared:
                    baseline = _baseline(repeats, times_s, recordings, is_current=is_current)
                    known = self._best.setdefault(key, {}).get(baseline.host)
                    if known is None or _rank(baseline) >= _rank(known):
                        self._best[key][baseline.host] = baseline

    def of(self, repeats: Sequence[Attempt]) -> dict[BaselineKey, Baseline]:
        """Return the baselines of a workload's runs, preferably those of its own machine.

        A run alone on a part of its device, or with a service, is itself compared with the run on
        the whole device without one.
        """
        is_alone = ran_alone(repeats)
        if is_alone and is_undivided(repeats):
            return {}
        own = dict.fromkeys(self._keys[run.run_id] for each in repeats for run in each.trained)
        chosen = {
            key: nodes.get(repeats[-1].host) or _of_other_nodes(list(nodes.values()))
            for key in own
            if (nodes := self._best.get(key))
        }
        return {
            key: baseline for key, baseline in chosen.items() if baseline.is_plain or not is_alone
        }

    def unmatched(self, most: int) -> tuple[dict[int, str], int]:
        """Return why workloads have no baseline, by index, and the number of further ones.

        Args:
            most: Maximum number of reasons to find, each of which compares all runs alone.
        """
        alone = [
            self._keys[repeats[-1].trained[0].run_id]
            for repeats in self._current
            if ran_alone(repeats) and any(attempt.finished for attempt in repeats)
        ]
        missing = self.compared - self._best.keys()
        lacking = {
            place: key
            for place, repeats in enumerate(self._current)
            for run in repeats[-1].trained
            if (key := self._keys[run.run_id]) in missing
        }
        if not alone:
            return {}, 0
        reasons = {}
        for place, key in list(lacking.items())[:most]:
            nearest = min((key.differences(other) for other in alone), key=len)
            reasons[place] = "; ".join(nearest)
        return reasons, len(lacking) - len(reasons)


def _baseline(
    repeats: Sequence[Attempt],
    times_s: Mapping[str, float],
    recordings: Mapping[str, RunRecording],
    *,
    is_current: bool,
) -> Baseline:
    newest = repeats[-1]
    runs = [run for attempt in repeats for run in attempt.trained]
    times = [times_s.get(run.run_id) if run.status is RunStatus.FINISHED else None for run in runs]
    return Baseline(
        newest.label,
        newest.host,
        newest.collocation,
        is_current,
        newest.created_ns,
        tuple(run.run_id for run in runs),
        of_rows([times], Combine.MEAN),
        tuple(attempt.makespan_s for attempt in repeats),
        tuple(
            recordings[run.run_id].epochs if run.run_id in recordings else Epochs() for run in runs
        ),
        is_served=bool(newest.services),
    )


def _rank(baseline: Baseline) -> tuple[bool, bool, bool, int]:
    return (
        baseline.is_plain,
        baseline.is_current,
        baseline.time_per_epoch is not None,
        baseline.created_ns,
    )


@dataclass(frozen=True, slots=True)
class Slowdown:
    """The seconds per epoch of a run, and the same run alone."""

    time_s: float
    alone_s: float
    alone: Baseline

    @property
    def ratio(self) -> float:
        """Return the time over that of the run alone."""
        return self.time_s / self.alone_s


def mean_ratio(slowdowns: Iterable[Slowdown]) -> float | None:
    """Return the mean slowdown of runs, as a report has it for like runs; None without any."""
    mean = of_rows([[slowdown.ratio] for slowdown in slowdowns], Combine.MEAN)
    return None if mean is None else mean.mean


def read_slowdowns(
    reader: StoreReader,
    selection: Selection,
    starts: Sequence[Sequence[Attempt]],
    times_s: Mapping[str, float] | None = None,
    params: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, Slowdown]:
    """Return the slowdowns of single runs by id, as a report has them for groups of like runs.

    Runs without a baseline or an epoch are left out, and those that did not finish, unless they are
    still running.

    Args:
        reader: The store.
        selection: Which runs of the experiment count; the baselines are among them.
        starts: Some of the selection's starts, whose runs are compared.
        times_s: Seconds per epoch of all runs, by id; None to read only the required ones.
        params: Parameters of all runs, by id; None to read only the required ones.

    Raises:
        StoreError: The store cannot be read.
        UsageError: The settings file cannot be read.
    """
    if all(ran_alone(repeats) and is_undivided(repeats) for repeats in starts):
        return {}
    runs = _runs(starts)
    hardware = reader.tagged(CLUSTER_HARDWARE, runs[0].experiment)
    places = {place_of(run, hardware) for run in runs}
    alone = [
        repeats
        for repeats in selection.current
        if ran_alone(repeats) and place_of(repeats[-1].trained[0], hardware) in places
    ]
    runs = _runs((*starts, *alone))
    if params is None:
        params = reader.params_of([run.run_id for run in runs])
    keys = keys_of(reader, runs, params)
    baselines = Baselines(reader, selection.attempts, alone, keys, starts)
    if times_s is None:
        wanted = [run.run_id for run in _runs((*starts, *alone, *baselines.earlier))]
        compared = [run_id for run_id in wanted if keys.get(run_id) in baselines.compared]
        times_s = read_times_per_epoch(reader, compared)
    baselines.find(times_s, {})
    slowdowns = {}
    for repeats in starts:
        of_keys = baselines.of(repeats)
        for run in _runs([repeats]):
            baseline, time_s = of_keys.get(keys[run.run_id]), times_s.get(run.run_id)
            alone_s = None if baseline is None else baseline.time_per_epoch
            is_compared = run.status in (RunStatus.FINISHED, RunStatus.RUNNING)
            if is_compared and baseline and alone_s and alone_s.mean and time_s is not None:
                slowdowns[run.run_id] = Slowdown(time_s, alone_s.mean, baseline)
    return slowdowns


def _runs(starts: Iterable[Sequence[Attempt]]) -> list[RunRecord]:
    """Return the runs of starts without services, each once."""
    runs = (run for repeats in starts for attempt in repeats for run in attempt.trained)
    return list({run.run_id: run for run in runs}.values())


def _of_other_nodes(baselines: Sequence[Baseline]) -> Baseline:
    """Return the best baseline, with the times of all nodes that have an equally good one."""
    best = max(baselines, key=_rank)
    alike = [baseline for baseline in baselines if _rank(baseline)[:3] == _rank(best)[:3]]
    times = [time for each in alike if (time := each.time_per_epoch) is not None]
    values = [value for time in times for value in (time.repeats or (time.mean,))]
    return replace(best, time_per_epoch=of_rows([values], Combine.MEAN)) if times else best


def makespan_values(
    repeats: Sequence[Attempt], rows: Sequence[tuple[Baseline | None, Sequence[int]]]
) -> tuple[dict[AnyQuantity, Estimate], bool]:
    """Return makespan, serial time and speed-up of a workload, as far as known.

    Also return True if its rows trained more or fewer epochs than alone; the serial time is then
    for the same number of epochs.

    Args:
        repeats: The starts of the workload.
        rows: The baseline of each row, and its epochs in each repeat that finished.
    """
    makespan = of_rows([[attempt.makespan_s for attempt in repeats]], Combine.MEAN)
    if makespan is None:
        return {}, False
    values: dict[AnyQuantity, Estimate] = {Quantity.MAKESPAN: makespan}
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
    """Return a row's time alone per repeat, and True if its number of epochs was adjusted.

    Rows with the same file and parameters do the same work, unless a limit of time or epochs cut
    one of them short. Each additional or missing epoch then counts like an epoch of the baseline,
    without start-up.
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
