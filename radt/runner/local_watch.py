"""Watches an experiment on this machine: its progress from file, lock, store and collector."""

from __future__ import annotations

import math
import os
import shlex
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from pathlib import Path

from rich.text import Text

from radt import procfs
from radt.clock import Clock
from radt.collector.client import CollectorClient
from radt.collector.protocol import LiveView
from radt.devices.machine import Machine
from radt.errors import (
    CollectorError,
    ExperimentError,
    HeldError,
    RunNotFoundError,
    StoreError,
    UsageError,
)
from radt.experiment.files import call
from radt.experiment.lock import Holder
from radt.experiment.plan import (
    ExperimentPlan,
    WorkloadKey,
    WorkloadPlan,
    first_repeat,
    is_chosen,
)
from radt.experiment.source import open_source
from radt.home import Home
from radt.listeners import registry
from radt.listeners.api import Registry
from radt.model import SOFTWARE, MarkerKind, RunStatus
from radt.runner.active import INTERRUPT_GRACE_S, TERMINATE_GRACE_S, StopRequest
from radt.runner.auto import regrouped
from radt.runner.console import RunConsole
from radt.runner.detach import last_log
from radt.runner.exit_recorder import exit_code
from radt.runner.options import StartOptions, pending_workloads
from radt.runner.output import LogTail
from radt.runner.progress import (
    ExperimentProgress,
    ProgressView,
    RowProgress,
    WorkloadProgress,
    WorkloadState,
    remaining_s,
)
from radt.runner.recording import problem_of
from radt.runner.watch import LOOK_S, POLL_S, Watcher
from radt.store.reader import StoreReader
from radt.store.records import RunRecord
from radt.tags import START

#: Seconds to wait for a collector that does not answer, before falling back to the store.
_PATIENCE_S = 2.0
_CPU_METRIC = "process.cpu.utilization"
_MEMORY_METRIC = "process.memory.rss"


#: Number of earlier output lines to show, taken from the last bytes of the output.
SHOWN_LINES = 20
_TAIL_BYTES = 64_000
#: Seconds after the runner's end for the exit recorder to write the last line.
_LAST_LINE_S = 5.0
#: Seconds for runs to end, and then for their values and artifacts to be collected.
STOP_PATIENCE_S = INTERRUPT_GRACE_S + TERMINATE_GRACE_S + 45.0


class LocalWatcher(Watcher):
    """Watches an experiment whose runs are processes of a runner.

    Args:
        file: The experiment file.
        find_home: Finds its data folder, unless its runner says which.
    """

    subject = "the experiment continues"

    def __init__(self, file: Path, find_home: Callable[[], Home]) -> None:
        super().__init__(file, find_home)
        self._store_home: Home | None = None
        self._reader: StoreReader | None = None
        self._client: CollectorClient | None = None
        self._ended: dict[str, RunRecord] = {}

    def __exit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.close()
        if self._client is not None:
            self._client.close()

    @cached_property
    def _checked_against(self) -> tuple[Machine, Registry]:
        return Machine.detect(), registry.load()

    def look(self) -> ExperimentProgress:
        holder = self.lock.holder()
        problems: list[str] = []
        self._open_store(holder, problems)
        source = open_source(self.file)
        try:
            plan = source.plan(*self._checked_against)
        except ExperimentError as error:  # written for another machine, or being edited
            problems.append(f"{error.message.partition(',')[0]}: radt validate shows them")
            plan = ExperimentPlan(self.file.absolute(), ())
        repeat = max(source.repeat, plan.repeats_asked if holder is None else holder.repeat)
        records = self._records(plan)
        plan = regrouped(plan, records)
        pending = _pending(plan, holder, repeat, records)
        live = self._live(
            [run.run_id for run in records.values() if run.status is RunStatus.RUNNING], problems
        )
        running = {each.key for each in plan.workloads if holder is not None and _runs(each)}
        waiting = dict.fromkeys(key for key in pending if key not in running)
        workloads = [
            _progress_of(
                workload, _state(workload, holder, running, waiting), repeat, records, live
            )
            for workload in plan.workloads
        ]
        return ExperimentProgress(
            file=self.file,
            name=plan.name if plan.workloads else self.file.stem,
            is_running=holder is not None,
            holder=holder,
            workloads=workloads,
            progress=None if holder is None else self._view(holder, pending, workloads),
            problems=problems,
            place="not running" if holder is None else f"running since {_since(holder)}",
            hint="" if holder is not None else self._next_step(workloads, records),
        )

    def _next_step(
        self, workloads: Sequence[WorkloadProgress], records: Mapping[str, RunRecord]
    ) -> str:
        """Return the command that continues, with the options of the newest run's start."""
        statuses = {workload.status for workload in workloads}
        labels = [
            workload.label for workload in workloads if workload.state is not WorkloadState.DONE
        ]
        if not workloads:
            return call(self.file, "validate")
        if not labels:
            has_failed = statuses - {None, RunStatus.FINISHED}
            again = f"; {call(self.file)} --rerun repeats the failed rows" if has_failed else ""
            return f"all done{again}"
        options = ""
        if records and self._reader is not None:
            newest = max(records.values(), key=lambda run: run.created_ns)
            with suppress(StoreError):
                options = self._reader.tags(newest.run_id).get(START, "")
        only, others = _split_only(options)
        chosen = [label for label in labels if is_chosen(label, only)]
        if not chosen:  # the selection of the last start is done: suggest the rest
            options, chosen = others, labels
        verb = "starts" if statuses == {None} else "resumes"
        return f"{call(self.file, options=options)} {verb} with workload {chosen[0]}"

    def _open_store(self, holder: Holder | None, problems: list[str]) -> None:
        home = Home(Path(holder.home)) if holder is not None and holder.home else self.home
        if self._reader is not None and self._store_home != home:
            self._reader.close()
            self._reader = None
        self._store_home = home
        if self._reader is not None or (holder is None and not home.store_path.exists()):
            return  # it is open, or nothing was ever run
        try:
            self._reader = StoreReader(home.store_path)
        except (StoreError, OSError) as error:
            problems.append(str(error))

    def _records(self, plan: ExperimentPlan) -> dict[str, RunRecord]:
        """Return the store's records of the rows' last runs, by the file's ids.

        Those recorded in another data folder, or pruned, are missing.
        """
        records = dict(self._ended)
        for run in plan.runs:
            if run.run_id and run.run_id not in records and self._reader is not None:
                with suppress(RunNotFoundError, StoreError):
                    records[run.run_id] = self._reader.find_run(run.run_id)
        self._ended = {run_id: run for run_id, run in records.items() if run.status.ended}
        named = {run.run_id for run in plan.runs}
        return {run_id: run for run_id, run in records.items() if run_id in named}

    def _live(self, run_ids: Sequence[str], problems: list[str]) -> Mapping[str, LiveView]:
        """Return the values of running runs from the collector, else from the store.

        Args:
            run_ids: The running ones.
            problems: Failures to ask the collector are added to this list.
        """
        if not run_ids:
            return {}
        try:
            if self._client is None:
                self._client = CollectorClient(start=False, timeout_s=0.0, patience_s=_PATIENCE_S)
            views = self._client.live(run_ids)
            assert self._store_home is not None
            problem = problem_of(self._client.status(), self._store_home)
            problems += [problem] if problem else []
        except CollectorError:
            views = {}
        return views | {run_id: self._stored(run_id) for run_id in run_ids if run_id not in views}

    def _stored(self, run_id: str) -> LiveView:
        """Return a live view with the values that the store has."""
        assert self._reader is not None
        try:
            summaries = self._reader.summary([run_id])
            markers = self._reader.markers([run_id])
        except StoreError:
            return LiveView()
        logged: dict[str, float] = {}
        measured: dict[str, float] = {}
        for summary in summaries:
            if math.isfinite(summary.last):
                values = logged if summary.series.listener == SOFTWARE else measured
                values[summary.series.metric] = summary.last
        epochs = [marker.step for marker in markers if marker.kind is MarkerKind.EPOCH]
        return LiveView(
            cpu_cores=measured.get(_CPU_METRIC),
            rss_bytes=measured.get(_MEMORY_METRIC),
            metrics=logged,
            epoch=epochs[-1] if epochs else None,
        )

    def _view(
        self, holder: Holder, pending: Sequence[WorkloadKey], workloads: Sequence[WorkloadProgress]
    ) -> ProgressView:
        since_s = _since_s(holder)
        left, running_s = list(pending), 0.0
        for workload in workloads:
            if workload.state is WorkloadState.RUNNING:  # first, wherever it is in the file
                if workload.key in left:
                    left.remove(workload.key)
                left.insert(0, workload.key)
                running_s = workload.taken_s or 0.0
                break
        done, ended_s = self._ended_workloads(workloads, since_s)
        return ProgressView(
            done=done,
            total=done + len(left),
            elapsed_s=max(0.0, Clock.as_it_is().now_ns() / 1e9 - since_s),
            remaining_s=remaining_s(left, ended_s, running_s=running_s),
        )

    def _ended_workloads(
        self, workloads: Sequence[WorkloadProgress], since_s: float
    ) -> tuple[int, dict[WorkloadKey, list[float]]]:
        """Return how many workloads this start has ended, and the times of each in s.

        For workloads that this start has not finished, they are those of earlier starts.
        """
        done = 0
        now_s: dict[WorkloadKey, list[float]] = {}
        before_s: dict[WorkloadKey, list[float]] = {}
        known = {workload.key for workload in workloads}
        for experiment in {key.experiment for key in known}:
            for record in self._reader.workloads(experiment) if self._reader is not None else ():
                key = WorkloadKey(experiment, record.label)
                if key not in known or record.ended_ns is None:
                    continue
                of_this_start = record.created_ns / 1e9 >= since_s
                done += of_this_start
                if record.status is RunStatus.FINISHED:
                    taken_s = (record.ended_ns - record.created_ns) / 1e9
                    (now_s if of_this_start else before_s).setdefault(key, []).append(taken_s)
        return done, before_s | now_s

    # Follow and stop -----------------------------------------------------------------------------

    def follow(self, console: RunConsole, stop: StopRequest) -> int:
        holder = self.lock.holder()
        if holder is None:
            raise self._not_running()
        log = _Log(holder, console)
        next_look_s = 0.0
        while not stop and self.lock.holder() == holder:
            log.relay()
            if time.monotonic() >= next_look_s:
                next_look_s = time.monotonic() + LOOK_S
                self._show(console)
            stop.wait(POLL_S)
        console.hide_live()
        end_s = time.monotonic() + _LAST_LINE_S
        log.relay()
        while not stop and log.is_unfinished and time.monotonic() < end_s:
            stop.wait(POLL_S)
            log.relay()
        if stop or log.exit_code is not None:
            return log.exit_code or 0
        resumed = call(self.file, options=holder.options)
        console.say(f"ended; exit code unknown; {resumed} resumes it", "dim")
        return 0 if self.look().has_finished else 1

    def _show(self, console: RunConsole) -> None:
        try:
            progress = self.look()
        except ExperimentError:
            return  # the file is being saved: keep the last table
        console.experiment = progress.progress
        if progress.running is None:
            console.hide_live()
        else:
            console.show_live(progress.running)

    def _not_running(self) -> UsageError:
        if not self.file.exists():
            return UsageError(
                f"Expected an experiment file, got {self.file}, which does not exist",
                "Name the file that was started; `radt ls` lists runs",
            )
        log = last_log(self.file, self.home)
        return UsageError(
            f"{self.file} is not running",
            f"Its last output is in {log}"
            if log
            else f"{call(self.file, 'status')} shows its progress",
        )

    # Stop ----------------------------------------------------------------------------------------

    def stop(self, console: RunConsole, *, now: bool) -> bool:
        holder = self.lock.holder()
        if holder is None:
            return False
        self.options = holder.options
        if not holder.is_here:
            raise UsageError(
                f"{self.file} is being run by {holder}",
                f"On {holder.host}: {call(self.file, 'stop')}",
            )
        self._ask_to_end(holder, now=now)
        console.show_wait(f"{holder} was {'killed' if now else 'asked to end'}")
        if not self.wait_for_release(holder, STOP_PATIENCE_S):
            raise HeldError(
                f"{holder} did not stop {self.file} within {STOP_PATIENCE_S:.0f} s",
                f"Run kill -9 {holder.pid}; the next start cleans up after its runs"
                if now
                else call(self.file, "stop --now"),
            )
        return True

    def _ask_to_end(self, holder: Holder, *, now: bool) -> None:
        """Signal the runner as its terminal would; with ``now``, signal it twice."""
        # In a shell's background job SIGINT is ignored, and the runner leaves it so.
        ignored = procfs.status_mask(holder.pid, "SigIgn") or 0
        polite = signal.SIGTERM if ignored >> (signal.SIGINT - 1) & 1 else signal.SIGINT
        second = signal.SIGTERM if polite is signal.SIGINT else signal.SIGHUP
        try:
            os.kill(holder.pid, polite)
            if now:  # a different signal, because two pending equal ones are merged into one
                os.kill(holder.pid, second)
        except ProcessLookupError:
            pass  # it has ended by itself
        except PermissionError:
            raise UsageError(
                f"{self.file} is being run by {holder}; only that user may stop it",
                f"Ask {holder.user}, or: sudo {call(self.file, 'stop')}",
            ) from None


def _pending(
    plan: ExperimentPlan, holder: Holder | None, repeat: int, records: Mapping[str, RunRecord]
) -> list[WorkloadKey]:
    """Return the workloads left for the current start, or for the next one, in its order."""
    options = StartOptions(repeat=repeat)
    if holder is not None:
        options = replace(options, rerun=holder.rerun, only=holder.only)

    def given_up(workload: WorkloadPlan) -> bool:
        """Return True if this start ran it without success: it will not be tried again."""
        if holder is None or _runs(workload):
            return False
        if workload.is_auto and workload.runs[0].status is RunStatus.SKIPPED:
            return False  # it ran out of memory beside others, and runs again
        return any(
            run.status is not RunStatus.FINISHED
            and run.run_id in records
            and records[run.run_id].created_ns / 1e9 >= _since_s(holder)
            for run in workload.runs
            if run.status is not None and run.status.ended
        )

    pending = pending_workloads(plan, options)
    return [each.plan.key for each in pending if not given_up(each.plan)]


def _state(
    workload: WorkloadPlan,
    holder: Holder | None,
    running: Collection[WorkloadKey],
    waiting: Mapping[WorkloadKey, object],
) -> WorkloadState:
    """Return the state of a workload; ``waiting`` are those to come, in their order."""
    key = workload.key
    if key in running:
        return WorkloadState.RUNNING
    if any(run.status is RunStatus.RUNNING for run in workload.trained):
        return WorkloadState.INTERRUPTED
    if key in waiting:
        return WorkloadState.NEXT if key == next(iter(waiting)) else WorkloadState.WAITING
    left_out = holder is not None and not is_chosen(workload.label, holder.only)
    return WorkloadState.LEFT_OUT if left_out else WorkloadState.DONE


def _progress_of(
    workload: WorkloadPlan,
    state: WorkloadState,
    repeat: int,
    records: Mapping[str, RunRecord],
    live: Mapping[str, LiveView],
) -> WorkloadProgress:
    runs = []
    for row in workload.runs:
        run = RowProgress(
            row.letter,
            row.label,
            row.status or RunStatus.SCHEDULED,
            run_id=row.run_id,
            role=row.role,
        )
        if (record := records.get(row.run_id)) is not None:
            run.reason = record.end_reason
            run.set_times(record)
            run.live = live.get(record.run_id, run.live)
        runs.append(run)
    started = [run.started_monotonic_s for run in runs if run.started_monotonic_s is not None]
    return WorkloadProgress(
        experiment=workload.experiment,
        label=workload.label,
        runs=runs,
        state=state,
        repeats_done=first_repeat(workload) - 1,
        repeats=repeat,
        activity="" if started else "preparing",
        started_monotonic_s=min(started, default=None),
    )


def _runs(workload: WorkloadPlan) -> bool:
    return any(run.status is RunStatus.RUNNING for run in workload.runs)


def _since_s(holder: Holder) -> float:
    return datetime.fromisoformat(holder.since).timestamp()


def _since(holder: Holder) -> str:
    since = datetime.fromisoformat(holder.since).astimezone()
    today = since.date() == datetime.now().astimezone().date()
    return f"{since:%H:%M:%S}" if today else f"{since:%Y-%m-%d %H:%M}"


def _split_only(options: str) -> tuple[list[str], str]:
    """Return the labels in the options ``--only`` of a command line, and the other options."""
    labels: list[str] = []
    others: list[str] = []
    words = iter(shlex.split(options))
    for word in words:
        name, equals, value = word.partition("=")
        if name == "--only":
            given = value if equals else next(words, "")
            labels += map(str.strip, given.split(","))
        else:
            others.append(word)
    return labels, shlex.join(others)


class _Log:
    """Relays the output of a runner that prints into a file.

    ``exit_code`` comes from the log's last line; None until that is written.
    """

    def __init__(self, holder: Holder, console: RunConsole) -> None:
        self._console = console
        self._tail: LogTail | None = None
        self.exit_code: int | None = None
        if not holder.log:
            console.say(f"{holder} prints to its own terminal", "dim")
            return
        try:
            tail = LogTail(Path(holder.log), _TAIL_BYTES)
            lines = tail.lines()
        except OSError as error:
            console.say(Text(f"{holder.log} cannot be read: {error.strerror}", "red"))
            return
        self._tail = tail
        if len(lines) > SHOWN_LINES:
            console.say(f"  … see {holder.log} for earlier output", "dim")
        self._print(lines[-SHOWN_LINES:])

    @property
    def is_unfinished(self) -> bool:
        """Return True if the last line may still be written."""
        return self._tail is not None and self.exit_code is None

    def relay(self) -> None:
        """Print the output since the last call."""
        if self._tail is not None:
            with suppress(OSError):  # removed, or its disk is not available at present
                self._print(self._tail.lines())

    def _print(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._console.relay(line)
            self.exit_code = exit_code(line)
