"""The progress of an experiment: its workloads, their runs, and when it will end.

All displays share this model. The runner updates it as its rows run, `radt.runner.local_watch`
reads it from another process, and `radt.cluster.watch` from the jobs of a cluster.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol, TypeVar

from rich.text import Text

from radt.clock import Clock
from radt.collector.protocol import LiveView
from radt.experiment.lock import Holder
from radt.experiment.plan import WorkloadKey
from radt.model import Role, RunStatus
from radt.store.records import RunRecord

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class RowProgress:
    """A row of a workload: waiting, running or ended.

    ``reason`` is empty for a finished run; ``tail`` is the end of its output, ``log`` the file with
    all of it (None if it was never started). Times are monotonic ones of this machine.
    """

    letter: str
    name: str
    status: RunStatus = RunStatus.SCHEDULED
    reason: str = ""
    run_id: str = ""
    role: Role = Role.TRAINING
    started_monotonic_s: float | None = None
    ended_monotonic_s: float | None = None
    live: LiveView = field(default_factory=LiveView)
    tail: Sequence[str] = ()
    log: Path | None = None

    @property
    def elapsed_s(self) -> float | None:
        """Return the seconds since the barrier, or the duration of an ended run."""
        if self.started_monotonic_s is None:
            return None
        end_s = time.monotonic() if self.ended_monotonic_s is None else self.ended_monotonic_s
        return end_s - self.started_monotonic_s

    def set_times(self, record: RunRecord) -> None:
        """Set start and end from the store's record, taken by any machine's clock."""
        offset_ns = Clock.as_it_is().offset_ns
        self.started_monotonic_s, self.ended_monotonic_s = (
            None if wall_ns is None else (wall_ns - offset_ns) / 1e9
            for wall_ns in (record.started_ns, record.ended_ns)
        )


class WorkloadState(StrEnum):
    """The state of a workload in its experiment."""

    DONE = "done"
    RUNNING = "running"
    INTERRUPTED = "interrupted"  # its runner died; the next start runs it again
    NEXT = "next"
    WAITING = "waiting"
    LEFT_OUT = "left out"  # not among the labels of --only


@dataclass(slots=True)
class WorkloadProgress:
    """A workload: each of its rows by its current or last run.

    ``repeats_done`` of ``repeats`` were finished before the current run. ``activity`` is what it is
    doing besides running; ``place`` is a job's node or its state in the queue, or the devices of a
    workload of this runner. ``elapsed_s`` includes set-up.
    """

    experiment: str
    label: str
    runs: Sequence[RowProgress]
    state: WorkloadState = WorkloadState.RUNNING
    repeats_done: int = 0
    repeats: int = 1
    activity: str = ""
    place: str = ""
    started_monotonic_s: float | None = None
    start_skew_s: float | None = None
    elapsed_s: float = 0.0

    @property
    def key(self) -> WorkloadKey:
        return WorkloadKey(self.experiment, self.label)

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

    @property
    def heading(self) -> str:
        """Return the label, with the current repeat if there are several: ``three 2/3``."""
        return repeated(self.label, min(self.repeats_done + 1, self.repeats), self.repeats)


def repeated(label: str, repeat: int, repeats: int) -> str:
    """Return a workload's label, with the repeat if there are several: ``three 2/3``."""
    return f"{label} {repeat}/{repeats}" if repeats > 1 else label


@dataclass(frozen=True, slots=True)
class ProgressView:
    """The progress of a start at one instant; ``done`` and ``total`` count workloads.

    ``remaining_s`` is None if it cannot be estimated.
    """

    done: int
    total: int
    elapsed_s: float
    remaining_s: float | None = None
    at_monotonic_s: float = field(default_factory=time.monotonic)

    def later(self, monotonic_s: float) -> ProgressView:
        """Return the progress at another instant, if nothing has ended in between."""
        passed_s = max(0.0, monotonic_s - self.at_monotonic_s)
        return replace(
            self,
            elapsed_s=self.elapsed_s + passed_s,
            remaining_s=None if self.remaining_s is None else max(0.0, self.remaining_s - passed_s),
            at_monotonic_s=monotonic_s,
        )

    @property
    def fraction(self) -> float:
        """Return the fraction done: of the time if its end can be estimated, else of workloads."""
        if self.remaining_s is not None and self.elapsed_s + self.remaining_s > 0:
            by_time = self.elapsed_s / (self.elapsed_s + self.remaining_s)
            return by_time if self.done < self.total else 1.0
        return self.done / self.total if self.total else 1.0


def remaining_s(
    left: Sequence[K],
    ended_s: Mapping[K, Sequence[float]],
    *,
    running_s: float = 0.0,
    cooldown_s: float = 0.0,
) -> float | None:
    """Return the estimated seconds until all is done; None as long as nothing has ended.

    A workload is expected to take the mean time of its earlier repeats, or without any, the mean of
    the other workloads' means.

    Args:
        left: The workloads still to be done, in order; a repeated one occurs several times.
        ended_s: The times that ended workloads took.
        running_s: How long the first of ``left`` has been running.
        cooldown_s: Pause before each workload but the first of ``left``.
    """
    means_s = {key: fmean(taken) for key, taken in ended_s.items() if taken}
    if not left:
        return 0.0
    if not means_s:
        return None
    usual_s = fmean(means_s.values())
    first_s, *others_s = (means_s.get(key, usual_s) for key in left)
    return max(0.0, first_s - running_s) + sum(others_s) + cooldown_s * len(others_s)


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
