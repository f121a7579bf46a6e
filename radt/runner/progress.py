"""A running experiment as seen from another process: its progress, its output and its end.

Watching does not disturb the runner: the file and the store are only read, the lock is only
inspected, and a collector that is not running is not started.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Self

from rich.text import Text

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
from radt.experiment.lock import ExperimentLock, Holder
from radt.experiment.plan import ExperimentPlan, RunPlan, WorkloadPlan, actions, first_repeat
from radt.experiment.source import open_source
from radt.home import Home
from radt.listeners import registry
from radt.listeners.api import Registry
from radt.model import SOFTWARE, MarkerKind, RunStatus
from radt.runner.active import INTERRUPT_GRACE_S, TERMINATE_GRACE_S, StopRequest
from radt.runner.console import RunConsole
from radt.runner.detach import last_log
from radt.runner.live import ProgressView, RunView, WorkloadView, remaining_s
from radt.runner.output import Tail
from radt.runner.recording import problem_of
from radt.runner.supervisor import exit_code
from radt.store.reader import StoreReader
from radt.store.records import RunRecord
from radt.tags import START

#: A workload's experiment and label.
Key = tuple[str, str]


class WorkloadState(StrEnum):
    """The state of a workload in its experiment."""

    DONE = "done"
    RUNNING = "running"
    INTERRUPTED = "interrupted"  # its runner died; the next start runs it again
    NEXT = "next"
    WAITING = "waiting"
    LEFT_OUT = "left out"  # not among the labels of --only


@dataclass(frozen=True, slots=True)
class WorkloadProgress:
    """One workload of the file.

    ``repeats_done`` of ``repeats`` have finished; ``runs`` are its rows as a live table shows
    them, each by its current or last run. ``place`` is a job's node, or its state in the queue.
    """

    experiment: str
    label: str
    state: WorkloadState
    runs: Sequence[RunView]
    repeats_done: int
    repeats: int
    place: str = ""

    @property
    def status(self) -> RunStatus | None:
        """Return the worst status of its rows; None before any was run."""
        known = [run.status for run in self.runs if run.status is not RunStatus.SCHEDULED]
        return RunStatus.worst(known) if known else None

    @property
    def taken_s(self) -> float | None:
        """Return the time of its slowest row so far, in s. Services do not count."""
        return max(
            (run.elapsed_s for run in self.runs if run.elapsed_s is not None and not run.role),
            default=None,
        )

    def view(self, position: int, total: int) -> WorkloadView:
        """Return the workload as the live table shows it."""
        started = [run.started_monotonic_s for run in self.runs if run.started_monotonic_s]
        running = self.state is WorkloadState.RUNNING
        return WorkloadView(
            position=position,
            total=total,
            label=self.label,
            runs=self.runs,
            state="" if started else "preparing",
            started_monotonic_s=min(started, default=None) if running else None,
            repeat=min(self.repeats_done + 1, self.repeats),
            repeats=self.repeats,
        )


class Jobs(Protocol):
    """The jobs of an experiment on a cluster."""

    def lines(self, width: int) -> list[Text]:
        """Return them for a terminal of this width."""

    def document(self) -> dict[str, Any]:
        """Return them for programs."""


@dataclass(frozen=True, slots=True)
class ExperimentProgress:
    """The state of an experiment at one instant.

    ``holder`` is its runner, or for ``jobs`` on a cluster the process that follows them (jobs are
    None for a local experiment); ``place`` says where it runs. ``progress`` is that of the current
    start (None if there is none). ``problems`` say what could not be determined, ``hint`` suggests
    the next command.
    """

    file: Path
    name: str
    is_running: bool
    holder: Holder | None
    workloads: Sequence[WorkloadProgress]
    progress: ProgressView | None = None
    problems: Sequence[str] = ()
    place: str = ""
    hint: str = ""
    jobs: Jobs | None = None

    @property
    def running(self) -> WorkloadProgress | None:
        """Return the running workload, if any."""
        at_work = (
            workload for workload in self.workloads if workload.state is WorkloadState.RUNNING
        )
        return next(at_work, None)

    @property
    def has_finished(self) -> bool:
        """Return True if every row that was run has FINISHED."""
        return {workload.status for workload in self.workloads} <= {RunStatus.FINISHED}


#: Seconds between reads of an experiment's output and lock, and between full updates.
POLL_S, LOOK_S = 0.1, 1.0


class Watcher(ABC):
    """Watches one experiment from another process. Use as a context manager.

    Attributes:
        file: The experiment file.
        subject: What continues after the user stops watching, for the message.
        options: The options that resume it once it was stopped.
    """

    subject: str
    options = ""

    def __init__(self, file: Path, find_home: Callable[[], Home]) -> None:
        self.file = file
        self._find_home = find_home
        self.lock = ExperimentLock(file)

    @cached_property
    def home(self) -> Home:
        """Its data folder, looked up when it is needed: a stop goes without.

        Raises:
            UsageError: The settings do not name a usable folder.
        """
        return self._find_home()

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...

    @abstractmethod
    def look(self) -> ExperimentProgress:
        """Return the current progress.

        Raises:
            RadtError: It cannot be read.
        """

    @abstractmethod
    def follow(self, console: RunConsole, stop: StopRequest) -> int:
        """Show its output and a live table until it ends or the user stops watching.

        Returns:
            The exit code of the experiment.

        Raises:
            RadtError: It is not running, or cannot go on.
        """

    @abstractmethod
    def stop(self, console: RunConsole, *, now: bool) -> bool:
        """End its runs and wait until their statuses are written.

        Args:
            console: Printed to.
            now: Kill them at once.

        Returns:
            True if it was running.

        Raises:
            RadtError: This user or machine may not stop it, or it did not end in time.
        """

    def wait_for_release(
        self, holder: Holder, patience_s: float, has_ended: Callable[[], bool] = lambda: False
    ) -> bool:
        """Wait for the holder of the lock to end; return True if it did."""
        end_s = time.monotonic() + patience_s
        while self.lock.holder() == holder and not has_ended():
            if time.monotonic() > end_s:
                return False
            time.sleep(POLL_S)
        return True


class _RemainingWork:
    """The work left for the current start, or for the next one.

    Args:
        plan: The file as it is now.
        holder: The process that runs it; None if there is none.
        repeat: The requested number of repeats of each workload.
        records: The store's record of the last run of each row.
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
        #: In the runner's order: all workloads once in file order, then the next repeat of all.
        self.left: Sequence[Key] = [key for _, _, key in sorted(due)]
        at_work = holder is not None
        running = {key_of(workload) for workload in plan.workloads if at_work and _runs(workload)}
        self._next = next((key for key in self.left if key not in running), None)

    def state(self, workload: WorkloadPlan) -> WorkloadState:
        """Return the state of a workload."""
        key = key_of(workload)
        if _runs(workload) and self._holder is not None:
            return WorkloadState.RUNNING
        if any(run.status is RunStatus.RUNNING for run in workload.trained):
            return WorkloadState.INTERRUPTED
        if key in self.left:
            return WorkloadState.NEXT if key == self._next else WorkloadState.WAITING
        return WorkloadState.LEFT_OUT if self._left_out(workload) else WorkloadState.DONE

    def _numbers(self, workload: WorkloadPlan) -> range:
        """Return the repeats still to be done, including the current one."""
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
        """Return True if this start ran it without success: it will not be tried again."""
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
    """Return the key that identifies a workload within its file."""
    return workload.experiment, workload.label


def _runs(workload: WorkloadPlan) -> bool:
    return any(run.status is RunStatus.RUNNING for run in workload.runs)


#: Seconds to wait for a collector that does not answer, before falling back to the store.
_PATIENCE_S = 2.0
_CPU_METRIC = "process.cpu.utilization"
_MEMORY_METRIC = "process.memory.rss"
#: Number of earlier output lines to show, taken from the last bytes of the output.
SHOWN_LINES = 20
_TAIL_BYTES = 64_000
#: Seconds after the runner's end for its supervisor to write the last line.
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
        self._home_in_use: Home | None = None
        self._reader: StoreReader | None = None
        self._client: CollectorClient | None = None
        self._ended: dict[str, RunRecord] = {}

    def __exit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.close()
        if self._client is not None:
            self._client.close()

    # Look ----------------------------------------------------------------------------------------

    @cached_property
    def _checked_against(self) -> tuple[Machine, Registry]:
        return Machine.detect(), registry.load()

    def look(self) -> ExperimentProgress:
        """Return the current progress.

        Raises:
            ExperimentError: The file cannot be read.
        """
        holder = self.lock.holder()
        problems: list[str] = []
        self._open_store(holder, problems)
        source = open_source(self.file)
        try:
            plan = source.plan(*self._checked_against)
        except ExperimentError as error:  # written for another machine, or being edited
            problems.append(f"{error.message.partition(',')[0]}: radt validate shows them")
            plan = ExperimentPlan(self.file.absolute(), ())
        asked = plan.repeats_asked if holder is None else holder.repeat
        repeat = max(source.repeat, asked)
        records = {
            key_of(workload): [self._record(run) for run in workload.runs]
            for workload in plan.workloads
        }
        known = [record for found in records.values() for record in found if record is not None]
        start = _RemainingWork(plan, holder, repeat, records)
        live = self._live(
            [record.run_id for record in known if record.status is RunStatus.RUNNING], problems
        )
        workloads = [
            WorkloadProgress(
                experiment=workload.experiment,
                label=workload.label,
                state=start.state(workload),
                runs=[
                    _run_view(run, record, live)
                    for run, record in zip(workload.runs, records[key_of(workload)], strict=True)
                ],
                repeats_done=first_repeat(workload) - 1,
                repeats=repeat,
            )
            for workload in plan.workloads
        ]
        return ExperimentProgress(
            file=self.file,
            name=plan.name if plan.workloads else self.file.stem,
            is_running=holder is not None,
            holder=holder,
            workloads=workloads,
            progress=self._progress(plan, start, workloads),
            problems=problems,
            place="not running" if holder is None else f"running since {_since(holder)}",
            hint="" if holder is not None else self._next_step(workloads, known),
        )

    def _next_step(self, workloads: Sequence[WorkloadProgress], runs: Sequence[RunRecord]) -> str:
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
        if runs and self._reader is not None:
            newest = max(runs, key=lambda run: run.created_ns)
            with suppress(StoreError):
                options = self._reader.tags(newest.run_id).get(START, "")
        words = shlex.split(options)
        only = _values(words, "--only")
        chosen = [label for label in labels if label in only] if only else labels
        if not chosen:  # the selection of the last start is done: suggest the rest
            options, chosen = shlex.join(_without(words, "--only")), labels
        verb = "starts" if statuses == {None} else "resumes"
        return f"{call(self.file, options=options)} {verb} with workload {chosen[0]}"

    def _open_store(self, holder: Holder | None, problems: list[str]) -> None:
        home = Home(Path(holder.home)) if holder is not None and holder.home else self.home
        if self._reader is not None and self._home_in_use != home:
            self._reader.close()
            self._reader = None
        self._home_in_use = home
        if self._reader is not None or (holder is None and not home.store_path.exists()):
            return  # it is open, or nothing was ever run
        try:
            self._reader = StoreReader(home.store_path)
        except (StoreError, OSError) as error:
            problems.append(str(error))

    def _record(self, run: RunPlan) -> RunRecord | None:
        """Return the store's record of a row's last run."""
        if not run.run_id or self._reader is None:
            return None
        if run.run_id not in self._ended:
            try:
                record = self._reader.find_run(run.run_id)
            except (RunNotFoundError, StoreError):
                return None  # recorded in another data folder, or pruned
            if not record.status.ended:
                return record
            self._ended[run.run_id] = record
        return self._ended[run.run_id]

    def _live(self, run_ids: Sequence[str], problems: list[str]) -> Mapping[str, LiveView]:
        """Return live views from the collector; none if another user or machine runs them.

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
            assert self._home_in_use is not None
            problem = problem_of(self._client.status(), self._home_in_use)
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

    def _progress(
        self, plan: ExperimentPlan, start: _RemainingWork, workloads: Sequence[WorkloadProgress]
    ) -> ProgressView | None:
        if start.since_s is None:
            return None
        left, running_s = list(start.left), 0.0
        for workload in workloads:
            if workload.state is WorkloadState.RUNNING:  # first, wherever it is in the file
                key = (workload.experiment, workload.label)
                if key in left:
                    left.remove(key)
                left.insert(0, key)
                running_s = workload.taken_s or 0.0
                break
        done, ended_s = self._ended_workloads(plan, start.since_s)
        return ProgressView(
            done=done,
            total=done + len(left),
            elapsed_s=max(0.0, Clock.as_it_is().now_ns() / 1e9 - start.since_s),
            remaining_s=remaining_s(left, ended_s, running_s=running_s),
        )

    def _ended_workloads(
        self, plan: ExperimentPlan, since_s: float
    ) -> tuple[int, dict[Key, list[float]]]:
        """Return how many workloads this start has ended, and the times of each in s.

        For workloads that this start has not finished, they are those of earlier starts.
        """
        done = 0
        now_s: dict[Key, list[float]] = {}
        before_s: dict[Key, list[float]] = {}
        known = {key_of(workload) for workload in plan.workloads}
        for experiment in {experiment for experiment, _ in known}:
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

    # Follow --------------------------------------------------------------------------------------

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
                _show(self.look(), console)
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
        polite = signal.SIGTERM if _ignores(holder.pid, signal.SIGINT) else signal.SIGINT
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


def _run_view(run: RunPlan, record: RunRecord | None, live: Mapping[str, LiveView]) -> RunView:
    status = run.status or RunStatus.SCHEDULED
    view = RunView(run.letter, run.label, status, role=run.role, run_id=run.run_id)
    if record is not None:
        view.detail = record.end_reason
        view.started_monotonic_s = _monotonic_s(record.started_ns)
        view.ended_monotonic_s = _monotonic_s(record.ended_ns)
        if record.run_id in live:
            view.update(live[record.run_id])
    return view


def _monotonic_s(wall_ns: int | None) -> float | None:
    """Convert wall-clock ns, taken on any machine, to seconds of this machine's monotonic clock."""
    return None if wall_ns is None else (wall_ns - Clock.as_it_is().offset_ns) / 1e9


def _since(holder: Holder) -> str:
    since = datetime.fromisoformat(holder.since).astimezone()
    today = since.date() == datetime.now().astimezone().date()
    return f"{since:%H:%M:%S}" if today else f"{since:%Y-%m-%d %H:%M}"


def _values(words: Sequence[str], option: str) -> list[str]:
    """Return the values of an option that may be repeated or separated by commas."""
    pairs = zip(words, [*words, ""][1:], strict=True)
    texts = [
        word.partition("=")[2] or after for word, after in pairs if word.partition("=")[0] == option
    ]
    return [value.strip() for text in texts for value in text.split(",")]


def _without(words: Sequence[str], option: str) -> list[str]:
    """Return a command line without an option and its values."""
    return [
        word
        for before, word in zip(["", *words], words, strict=False)
        if word.partition("=")[0] != option and before != option
    ]


def _show(look: ExperimentProgress, console: RunConsole) -> None:
    if look.running is None:
        console.hide_live()
        return
    console.experiment = look.progress
    done, total = (look.progress.done, look.progress.total) if look.progress else (0, 1)
    console.show_live(look.running.view(done + 1, max(total, done + 1)))


class _Log:
    """Relays what a runner prints, if it prints into a file.

    ``exit_code`` comes from the log's last line; None until that is written.
    """

    def __init__(self, holder: Holder, console: RunConsole) -> None:
        self._console = console
        self._tail: Tail | None = None
        self.exit_code: int | None = None
        if not holder.log:
            console.say(f"{holder} prints to its own terminal", "dim")
            return
        try:
            tail = Tail(Path(holder.log), _TAIL_BYTES)
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


def _ignores(pid: int, number: signal.Signals) -> bool:
    """Return True if a process ignores this signal (``SigIgn``, proc_pid_status(5))."""
    try:
        text = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return False
    ignored = re.search(rb"^SigIgn:\s*([0-9a-f]+)", text, re.MULTILINE)
    return ignored is not None and bool(int(ignored[1], 16) >> (number - 1) & 1)
