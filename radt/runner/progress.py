"""The progress of an experiment, seen from another process: file, lock, store and collector.

Nothing here disturbs the runner: the file is read, the lock is only looked at, the store is read,
and a collector that does not run is not started.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Self

from radt.clock import Clock
from radt.collector.client import CollectorClient
from radt.collector.protocol import LiveView
from radt.devices.machine import Machine
from radt.errors import CollectorError, ExperimentError, RunNotFoundError, StoreError
from radt.experiment.lock import ExperimentLock, Holder
from radt.experiment.plan import ExperimentPlan, RunPlan, WorkloadPlan, actions, first_repeat
from radt.experiment.source import open_source
from radt.home import Home
from radt.listeners import registry
from radt.model import SOFTWARE, MarkerKind, RunStatus
from radt.runner.live import ProgressView, RunView, WorkloadView, remaining_s
from radt.runner.recording import problem_of
from radt.store.reader import StoreReader
from radt.store.records import RunRecord
from radt.tags import START

#: A workload's experiment and label.
Key = tuple[str, str]


class WorkloadState(StrEnum):
    """Where a workload stands."""

    DONE = "done"
    RUNNING = "running"
    INTERRUPTED = "interrupted"  # its runner died; the next start runs it again
    NEXT = "next"
    WAITING = "waiting"
    LEFT_OUT = "left out"  # --only names others


class RemainingWork:
    """What the present start, or the next, has still to do.

    Args:
        plan: The file as it is now.
        holder: Who runs it; None if nobody does.
        repeat: How often each workload is wanted.
        records: What the store has of the last run of each row.
    """

    def __init__(
        self,
        plan: ExperimentPlan,
        holder: Holder | None,
        repeat: int,
        records: Mapping[Key, Sequence[RunRecord | None]],
    ) -> None:
        self._holder = holder
        self._repeat = repeat
        self._records = records
        self.since_s = None if holder is None else datetime.fromisoformat(holder.since).timestamp()
        due = [
            (number, index, key_of(workload))
            for index, workload in enumerate(plan.workloads)
            for number in self._numbers(workload)
        ]
        #: In the runner's order: repeat after repeat, within one in the file's.
        self.left: Sequence[Key] = [key for _, _, key in sorted(due)]
        at_work = holder is not None
        running = {key_of(workload) for workload in plan.workloads if at_work and _runs(workload)}
        self._next = next((key for key in self.left if key not in running), None)

    def state(self, workload: WorkloadPlan) -> WorkloadState:
        """Where a workload stands."""
        key = key_of(workload)
        if _runs(workload) and self._holder is not None:
            return WorkloadState.RUNNING
        if any(run.status is RunStatus.RUNNING for run in workload.trained):
            return WorkloadState.INTERRUPTED
        if key in self.left:
            return WorkloadState.NEXT if key == self._next else WorkloadState.WAITING
        return WorkloadState.LEFT_OUT if self._left_out(workload) else WorkloadState.DONE

    def _numbers(self, workload: WorkloadPlan) -> range:
        """The repeats that are still to come, the present one included."""
        rerun = self._holder is not None and self._holder.rerun
        planned = actions(workload, rerun=rerun, repeat=self._repeat)
        if self._left_out(workload) or not any(action.runs for action in planned.values()):
            return range(0)
        if self._given_up(workload):
            return range(0)
        return range(min(first_repeat(workload), self._repeat), self._repeat + 1)

    def _left_out(self, workload: WorkloadPlan) -> bool:
        only = self._holder.only if self._holder is not None else ()
        return bool(only) and workload.label not in only

    def _given_up(self, workload: WorkloadPlan) -> bool:
        """Whether this start has run it and it did not finish: it will not be tried again."""
        if self.since_s is None or _runs(workload):
            return False
        return any(
            run.status is not None
            and run.status.ended
            and run.status is not RunStatus.FINISHED
            and record is not None
            and record.created_ns / 1e9 >= self.since_s
            for run, record in zip(workload.runs, self._records[key_of(workload)], strict=True)
        )


def key_of(workload: WorkloadPlan) -> Key:
    """What tells a workload from the others of its file."""
    return workload.experiment, workload.label


def _runs(workload: WorkloadPlan) -> bool:
    return any(run.status is RunStatus.RUNNING for run in workload.runs)


#: How long to wait for a collector that does not answer; the store has what it had.
_PATIENCE_S = 2.0
_CPU_METRIC = "process.cpu.utilization"
_MEMORY_METRIC = "process.memory.rss"


@dataclass(frozen=True, slots=True)
class WorkloadProgress:
    """One workload of the file.

    ``repeats_done`` of ``repeats`` have finished; ``runs`` are its rows as a live table shows
    them, by what their last or present run is at.
    """

    plan: WorkloadPlan
    state: WorkloadState
    runs: Sequence[RunView]
    records: Sequence[RunRecord | None]
    repeats_done: int
    repeats: int

    @property
    def status(self) -> RunStatus | None:
        """The worst of its rows; None before any was run."""
        known = [run.status for run in self.plan.runs if run.status is not None]
        return RunStatus.worst(known) if known else None

    @property
    def taken_s(self) -> float | None:
        """How long the slowest of its rows took, or has been running; services end with them."""
        return max(
            (run.elapsed_s for run in self.runs if run.elapsed_s is not None and not run.role),
            default=None,
        )

    def view(self, position: int, total: int) -> WorkloadView:
        """As the live table shows it."""
        started = [run.started_monotonic_s for run in self.runs if run.started_monotonic_s]
        running = self.state is WorkloadState.RUNNING
        return WorkloadView(
            position=position,
            total=total,
            label=self.plan.label,
            runs=self.runs,
            state="" if started else "preparing",
            started_monotonic_s=min(started, default=None) if running else None,
            repeat=min(self.repeats_done + 1, self.repeats),
            repeats=self.repeats,
        )


@dataclass(frozen=True, slots=True)
class ExperimentProgress:
    """An experiment at one instant.

    ``holder`` is its runner, ``progress`` how far that is with its start (None if there is none).
    ``problems`` say what could not be found out. ``start_options`` are those of the present start,
    else of the last one.
    """

    name: str
    holder: Holder | None
    workloads: Sequence[WorkloadProgress]
    progress: ProgressView | None
    problems: Sequence[str] = ()
    start_options: str = ""

    @property
    def running(self) -> WorkloadProgress | None:
        """The workload that is running."""
        at_work = (
            workload for workload in self.workloads if workload.state is WorkloadState.RUNNING
        )
        return next(at_work, None)


class ProgressReader:
    """Looks at one experiment as often as wanted. Use as a context manager.

    Args:
        path: The experiment file.
        home: Its data folder, unless its runner says which.
    """

    def __init__(self, path: Path, home: Home) -> None:
        self._path = path
        self._home = home
        self._home_in_use = home
        self._lock = ExperimentLock(path)
        self._machine = Machine.detect()
        self._registry = registry.load()
        self._reader: StoreReader | None = None
        self._opened = home.store_path
        self._client: CollectorClient | None = None
        self._ended: dict[str, RunRecord] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.close()
        if self._client is not None:
            self._client.close()

    def holder(self) -> Holder | None:
        """Who runs the experiment."""
        return self._lock.holder()

    def look(self) -> ExperimentProgress:
        """How things are now.

        Raises:
            ExperimentError: The file cannot be read.
        """
        holder = self.holder()
        problems: list[str] = []
        self._open_store(holder, problems)
        source = open_source(self._path)
        try:
            plan = source.plan(self._machine, self._registry)
        except ExperimentError as error:  # it is for another machine, or being edited
            problems.append(f"{error.message.partition(',')[0]}: radt validate shows them")
            plan = ExperimentPlan(self._path.absolute(), ())
        asked = plan.repeats_asked if holder is None else holder.repeat
        repeat = max(source.repeat, asked)
        records = {
            key_of(workload): [self._record(run) for run in workload.runs]
            for workload in plan.workloads
        }
        start = RemainingWork(plan, holder, repeat, records)
        live = self._live(
            [
                record.run_id
                for known in records.values()
                for record in known
                if record is not None and record.status is RunStatus.RUNNING
            ],
            problems,
        )
        looks = [
            WorkloadProgress(
                plan=workload,
                state=start.state(workload),
                runs=[
                    self._run_view(run, record, live, ongoing=holder is not None)
                    for run, record in zip(workload.runs, records[key_of(workload)], strict=True)
                ],
                records=records[key_of(workload)],
                repeats_done=first_repeat(workload) - 1,
                repeats=repeat,
            )
            for workload in plan.workloads
        ]
        return ExperimentProgress(
            name=plan.name if plan.workloads else self._path.stem,
            holder=holder,
            workloads=looks,
            progress=self._progress(plan, start, looks),
            problems=problems,
            start_options=self._start_options(records) if holder is None else holder.options,
        )

    def _start_options(self, records: Mapping[Key, Sequence[RunRecord | None]]) -> str:
        """The options of the start that ran the newest of the runs."""
        runs = [run for record in records.values() for run in record if run is not None]
        if not runs or self._reader is None:
            return ""
        newest = max(runs, key=lambda run: run.created_ns)
        try:
            return self._reader.tags(newest.run_id).get(START, "")
        except StoreError:
            return ""

    def _open_store(self, holder: Holder | None, problems: list[str]) -> None:
        home = Home(Path(holder.home)) if holder is not None and holder.home else self._home
        self._home_in_use = home
        if self._reader is not None and self._opened == home.store_path:
            return
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        if holder is None and not home.store_path.exists():
            return  # nothing was ever run
        try:
            self._reader = StoreReader(home.store_path)
            self._opened = home.store_path
        except (StoreError, OSError) as error:
            problems.append(str(error))

    def _record(self, run: RunPlan) -> RunRecord | None:
        """What the store has of a row's last run."""
        if not run.run_id or self._reader is None:
            return None
        if run.run_id not in self._ended:
            try:
                record = self._reader.find_run(run.run_id)
            except (RunNotFoundError, StoreError):
                return None  # of another data folder, or cleared away
            if not record.status.ended:
                return record
            self._ended[run.run_id] = record
        return self._ended[run.run_id]

    def _live(self, run_ids: Sequence[str], problems: list[str]) -> Mapping[str, LiveView]:
        """From the collector; it is none of ours if another user, or another machine, runs them.

        Args:
            problems: What it cannot do is added here.
        """
        if not run_ids:
            return {}
        try:
            if self._client is None:
                self._client = CollectorClient(start=False, timeout_s=0.0, patience_s=_PATIENCE_S)
            views = self._client.live(run_ids)
            problem = problem_of(self._client.status(), self._home_in_use)
            problems += [problem] if problem else []
        except CollectorError:
            views = {}
        return views | {run_id: self._stored(run_id) for run_id in run_ids if run_id not in views}

    def _stored(self, run_id: str) -> LiveView:
        """As much of a live view as the store has."""
        assert self._reader is not None
        try:
            summaries = self._reader.summary([run_id])
            markers = self._reader.markers([run_id])
        except StoreError:
            return LiveView()
        last = {
            summary.series.metric: summary.last
            for summary in summaries
            if summary.last is not None and summary.series.listener == SOFTWARE
        }
        hardware = {
            summary.series.metric: summary.last
            for summary in summaries
            if summary.last is not None and summary.series.listener != SOFTWARE
        }
        epochs = [marker.step for marker in markers if marker.kind is MarkerKind.EPOCH]
        return LiveView(
            cpu_cores=hardware.get(_CPU_METRIC),
            rss_bytes=hardware.get(_MEMORY_METRIC),
            metrics=last,
            epoch=epochs[-1] if epochs else None,
        )

    def _run_view(
        self, run: RunPlan, record: RunRecord | None, live: Mapping[str, LiveView], *, ongoing: bool
    ) -> RunView:
        status = run.status or RunStatus.SCHEDULED
        if status is RunStatus.RUNNING and not ongoing:
            status = RunStatus.KILLED
        view = RunView(run.letter, run.label, status, role=run.role)
        if record is None:
            return view
        view.detail = record.end_reason
        view.started_monotonic_s = _monotonic_s(record.started_ns)
        view.ended_monotonic_s = _monotonic_s(record.ended_ns)
        if record.run_id in live:
            view.update(live[record.run_id])
        return view

    def _progress(
        self, plan: ExperimentPlan, start: RemainingWork, looks: Sequence[WorkloadProgress]
    ) -> ProgressView | None:
        if start.since_s is None:
            return None
        running = next(
            (workload for workload in looks if workload.state is WorkloadState.RUNNING), None
        )
        left = start.left
        if running is not None:  # first, whatever the file says of its place
            left = [key_of(running.plan), *_without_first(left, key_of(running.plan))]
        done, ended_s = self._ended_workloads(plan, start.since_s)
        return ProgressView(
            done=done,
            total=done + len(left),
            elapsed_s=max(0.0, Clock.as_it_is().now_ns() / 1e9 - start.since_s),
            remaining_s=remaining_s(
                left, ended_s, running_s=(running.taken_s or 0.0) if running is not None else 0.0
            ),
        )

    def _ended_workloads(
        self, plan: ExperimentPlan, since_s: float
    ) -> tuple[int, dict[Key, list[float]]]:
        """How many this start has ended, and how long each took; earlier ones if there is none."""
        done = 0
        now_s: dict[Key, list[float]] = {}
        before_s: dict[Key, list[float]] = {}
        known = {key_of(workload) for workload in plan.workloads}
        for experiment in dict.fromkeys(workload.experiment for workload in plan.workloads):
            for record in self._reader.workloads(experiment) if self._reader is not None else ():
                key = (experiment, record.label)
                if key not in known or record.ended_ns is None:
                    continue
                of_this_start = record.created_ns / 1e9 >= since_s
                done += of_this_start
                if record.status is RunStatus.FINISHED:
                    taken_s = (record.ended_ns - record.created_ns) / 1e9
                    (now_s if of_this_start else before_s).setdefault(key, []).append(taken_s)
        return done, before_s | now_s


def _without_first(keys: Sequence[Key], key: Key) -> Iterator[Key]:
    is_known = False
    for other in keys:
        if other == key and not is_known:
            is_known = True
        else:
            yield other


def _monotonic_s(wall_ns: int | None) -> float | None:
    """An instant, on this machine's clock, wherever it was noted."""
    return None if wall_ns is None else (wall_ns - Clock.as_it_is().offset_ns) / 1e9
