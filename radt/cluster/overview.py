"""What a submission is at, for people: the live table and the lines of ``radt status``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text

from radt import units
from radt.cluster.course import Course, CourseJob
from radt.cluster.engine import Phase
from radt.cluster.shape import WorkloadKey
from radt.cluster.spool import BEAT_S
from radt.experiment.columns import parse_status
from radt.model import Role, RunStatus
from radt.runner.live import NAME_COLUMNS, ProgressView, progress_line, runs_text

_LABEL_COLUMNS = 12
#: A queue has few reasons; the most frequent say enough.
_MOST_REASONS = 2
_MOST_WAITING = 50


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job on a node. ``label`` is of the workload that runs; ``elapsed_s`` is by its beats."""

    nodes: str
    job_id: str
    label: str
    roles: Sequence[Role]
    attempt: int
    beats: int

    @property
    def elapsed_s(self) -> float:
        return self.beats * BEAT_S


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A job in the queue: its next workload, why it waits, and when it may start, if known."""

    job_id: str
    label: str
    roles: Sequence[Role]
    reason: str
    starts: str


@dataclass(frozen=True, slots=True)
class Overview:
    """A submission at one instant.

    ``queued`` counts jobs by the engine's reason, ``waiting`` are the first of them;
    ``unsubmitted`` counts those that the engine does not have yet; ``ending`` those of which a last
    word is awaited. ``starts`` is the engine's estimate of the next start. ``problem`` is why the
    engine or the folder cannot be asked, ``remedy`` what to do about it.
    """

    engine: str
    running: Sequence[RunningJob]
    queued: Mapping[str, int]
    unsubmitted: int = 0
    ending: int = 0
    starts: str = ""
    held: str = ""
    problem: str = ""
    remedy: str = ""
    waiting: Sequence[WaitingJob] = ()

    @classmethod
    def of(cls, course: Course, engine: str) -> Overview:
        """What a course is at."""
        jobs = list(course.jobs.values())
        running = [job for job in jobs if job.is_running]
        queued = [job for job in jobs if job.is_queued and job.state is not None]
        starts = sorted(job.state.starts for job in queued if job.state and job.state.starts)
        reasons = Counter(
            "held" if job.state.phase is Phase.HELD else job.state.reason
            for job in queued
            if job.state is not None
        )
        unsubmitted = course.unsubmitted
        return cls(
            engine=engine,
            running=[_running(course, job) for job in running],
            queued=dict(reasons),  # `asdict` would make nonsense of a Counter
            unsubmitted=unsubmitted,
            ending=len(jobs) - len(running) - len(queued) - unsubmitted,
            starts=starts[0] if starts else "",
            held=course.held,
            problem=course.away or course.folder_problem,
            remedy=course.remedy,
            waiting=[_waiting(course, job) for job in queued[:_MOST_WAITING]],
        )


def _running(course: Course, job: CourseJob) -> RunningJob:
    newest = job.views[-1] if job.views else None
    key = current_workload(job)
    return RunningJob(
        nodes=job.state.nodes if job.state is not None else "",
        job_id=course.job_id(job),
        label=key.label,
        roles=[row.role for row in job.workloads[key]],
        attempt=newest.number if newest is not None else 0,
        beats=newest.beats if newest is not None else 0,
    )


def _waiting(course: Course, job: CourseJob) -> WaitingJob:
    assert job.state is not None
    key = current_workload(job)
    return WaitingJob(
        job_id=course.job_id(job),
        label=key.label,
        roles=[row.role for row in job.workloads[key]],
        reason="held" if job.state.phase is Phase.HELD else job.state.reason,
        starts=job.state.starts,
    )


def current_workload(job: CourseJob) -> WorkloadKey:
    """Return the workload of a job that runs, or is to run next."""
    for wanted in (RunStatus.RUNNING, None):
        for key, rows in job.workloads.items():
            for row in rows:
                known = job.settlement.rows.get(row.line)
                text = "" if known is None else known.text
                if parse_status(text) is wanted or (wanted is None and not row.is_over(text)):
                    return key
    return list(job.workloads)[-1]


def headline(view: Overview) -> Text:
    """``slurm · 3 jobs run on 2 nodes, 40 queued (30 Priority, 10 Resources)``."""
    nodes = {job.nodes for job in view.running}
    parts = []
    if view.running:
        verb = "runs" if len(view.running) == 1 else "run"
        amount = units.plural(len(view.running), "job")
        parts.append(f"{amount} {verb} on {units.plural(len(nodes), 'node')}")
    if count := sum(view.queued.values()):
        reasons = Counter(view.queued).most_common(_MOST_REASONS)
        known = [f"{number} {reason}" for reason, number in reasons if reason]
        if len(known) == 1 and reasons[0][1] == count:
            known = [reasons[0][0]]
        parts.append(f"{count:,} queued" + (f" ({', '.join(known)})" if known else ""))
    if view.unsubmitted:
        parts.append(f"{view.unsubmitted:,} to be submitted")
    if view.ending > 0:
        parts.append(f"{view.ending:,} ending")
    line = Text.assemble("  ", (view.engine, "bold"), f" · {', '.join(parts) or 'all jobs ended'}")
    if view.starts:
        line.append(f" · next start about {view.starts.replace('T', ' ')}", "dim")
    return line


def overview_lines(view: Overview, width: int, most: int | None = None) -> list[Text]:
    """The headline, what is wrong, and a line for each running job, at most ``most`` of them."""
    lines = [headline(view)]
    if view.problem:
        lines.append(Text(f"  {view.problem}; statuses stay as they are", "yellow"))
        if view.remedy:
            lines.append(Text(f"  {view.remedy}", "dim"))
    if view.held:
        lines.append(Text(f"  held: {view.held}", "red"))
    shown = view.running if most is None else view.running[: max(0, most)]
    nodes = max((len(job.nodes) for job in shown), default=0)
    labels = max((len(job.label) for job in shown), default=0)
    ids = max((len(job.job_id) for job in shown), default=0)
    for job in shown:
        again = f"attempt {job.attempt}" if job.attempt > 1 else ""
        began = f"▶ {units.stopwatch(job.elapsed_s)}" if job.attempt else "▶ starting"
        lines.append(
            Text.assemble(
                (f"       {job.nodes:<{min(nodes, NAME_COLUMNS)}}  ", "cyan"),
                (f"{job.label:<{min(labels, _LABEL_COLUMNS)}}  ", "bold"),
                f"{runs_text(job.roles):<7}  ",
                (f"{began:<10}  ", "cyan"),
                (f"{job.job_id:<{ids}}  {again}", "dim"),
            )
        )
    if hidden := len(view.running) - len(shown):
        lines.append(Text(f"       … {hidden} more", "dim"))
    for line in lines:
        line.rstrip()
        line.truncate(width, overflow="ellipsis")
    return lines


def cluster_table(view: Overview, width: int, height: int, progress: ProgressView | None) -> Text:
    """The live table, in that many columns and lines."""
    # The cursor stands below, and the experiment's progress.
    most = height - 5 - bool(view.problem) - bool(view.remedy) - bool(view.held)
    lines = overview_lines(view, width, most)
    if progress is not None:
        lines += [Text(), progress_line(progress, width)]
    return Text("\n").join(lines)
