"""The state of a submission for people: the live table and the lines of ``radt status``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from radt import units
from radt.cluster.engine import JobState, Phase
from radt.cluster.monitor import MonitoredJob, SubmissionMonitor
from radt.cluster.slurm import waits_for
from radt.cluster.submission import SubmittedRow
from radt.experiment.columns import QUEUED, parse_repeats, parse_status
from radt.experiment.plan import WorkloadKey
from radt.experiment.status import RowStatus
from radt.model import Role, RunStatus
from radt.runner.console import shown_path
from radt.runner.live import NAME_COLUMNS, progress_line, runs_text
from radt.runner.progress import ProgressView, RowProgress, WorkloadProgress, WorkloadState

_LABEL_COLUMNS = 12
#: Number of reasons shown for queued jobs, the most frequent ones.
_MOST_REASONS = 2
_MOST_WAITING = 50


@dataclass(frozen=True, slots=True)
class JobView:
    """A job, and the ``label`` of its current or next workload.

    ``attempt`` is the newest that has begun, 0 for none; ``running_s`` is for how long it has sent
    heartbeats. For a queued job, ``reason`` is the engine's, ``waits_for`` its meaning, and
    ``starts`` the engine's estimate, if it has one.
    """

    job_id: str
    label: str
    roles: Sequence[Role]
    nodes: str = ""
    attempt: int = 0
    running_s: float = 0.0
    reason: str = ""
    waits_for: str = ""
    starts: str = ""

    @classmethod
    def of(cls, monitor: SubmissionMonitor, job: MonitoredJob) -> JobView:
        """Describe a job that the engine has."""
        assert job.state is not None
        key = current_workload(monitor, job)
        newest = job.views[-1] if job.views else None
        start = newest.start if newest is not None else None
        reason = _reason(job.state)
        return cls(
            job_id=monitor.job_id(job),
            label=key.label,
            roles=[row.role for row in job.workloads[key]],
            nodes=job.state.nodes,
            attempt=newest.number if newest is not None else 0,
            running_s=newest.beats * start.beat_s if newest and start else 0.0,
            reason=reason,
            waits_for=waits_for(reason),
            starts=job.state.starts,
        )


@dataclass(frozen=True, slots=True)
class Overview:
    """A submission at one instant.

    ``queued`` counts jobs by the engine's reason, ``waiting`` are the first of them;
    ``unsubmitted`` counts those that the engine does not have yet; ``ending`` those whose last
    report is still missing. ``starts`` is the engine's estimate of the next start. ``problem`` is
    why the engine or the folder cannot be reached, ``remedy`` what to do about it. ``id`` and
    ``folder`` are the submission's.
    """

    engine: str
    running: Sequence[JobView]
    queued: Mapping[str, int]
    unsubmitted: int = 0
    ending: int = 0
    starts: str = ""
    held: str = ""
    away: bool = False
    problem: str = ""
    remedy: str = ""
    waiting: Sequence[JobView] = ()
    id: str = ""
    folder: str = ""

    @classmethod
    def of(cls, monitor: SubmissionMonitor) -> Overview:
        """Describe a submission by its monitor."""
        submission, jobs = monitor.spool.submission, monitor.jobs.values()
        running = [JobView.of(monitor, job) for job in jobs if job.is_running]
        queued = [job for job in jobs if job.is_queued]
        states = [job.state for job in queued if job.state is not None]
        unsubmitted = len(monitor.unsubmitted)
        return cls(
            engine=submission.engine.partition(":")[0],
            running=running,
            queued=dict(Counter(map(_reason, states))),  # `asdict` cannot copy a Counter
            unsubmitted=unsubmitted,
            ending=len(jobs) - len(running) - len(queued) - unsubmitted,
            starts=min((state.starts for state in states if state.starts), default=""),
            held=monitor.held,
            away=bool(monitor.away),
            problem=monitor.away or monitor.folder_problem,
            remedy=monitor.remedy,
            waiting=[JobView.of(monitor, job) for job in queued[:_MOST_WAITING]],
            id=submission.submission_id,
            folder=str(monitor.spool.path),
        )

    def lines(self, width: int) -> list[Text]:
        """Return lines about the submission and its jobs, for a terminal of this width."""
        name = Text(f"  submission {self.id} in {shown_path(Path(self.folder))}", "dim")
        return [name, *overview_lines(self, width)]

    def document(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"headline": headline(self).plain.strip(), **asdict(self)}


def _reason(state: JobState) -> str:
    return "held" if state.phase is Phase.HELD else state.reason


def workload_progress(
    key: WorkloadKey, rows: Sequence[SubmittedRow], statuses: Mapping[int, RowStatus]
) -> WorkloadProgress:
    """Return the progress of a workload, from the statuses of its rows by line."""
    known = [statuses.get(row.line, RowStatus("")) for row in rows]
    details = [status.text.partition(": ")[2] for status in known]
    runs = []
    for row, status, detail in zip(rows, known, details, strict=True):
        parsed = parse_status(status.text) or RunStatus.SCHEDULED
        reason, run_id = detail if parsed.ended else "", status.run_id or ""
        runs.append(RowProgress(row.letter, row.name, parsed, reason, run_id, row.role))
    present = {run.status for run in runs}
    state = WorkloadState.WAITING if RunStatus.SCHEDULED in present else WorkloadState.DONE
    places = [
        detail
        for begin in (RunStatus.RUNNING, QUEUED)
        for status, detail in zip(known, details, strict=True)
        if status.text.startswith(begin)
    ]
    return WorkloadProgress(
        experiment=key.experiment,
        label=key.label,
        state=WorkloadState.RUNNING if RunStatus.RUNNING in present else state,
        runs=runs,
        repeats_done=min(parse_repeats(status.text) for status in known),
        repeats=max(row.asked for row in rows),
        place=next(iter(places), ""),
    )


def current_workload(monitor: SubmissionMonitor, job: MonitoredJob) -> WorkloadKey:
    """Return the workload of a job that is running, or runs next."""
    for wanted in (RunStatus.RUNNING, None):
        for key, rows in job.workloads.items():
            for row in rows:
                text = monitor.status(row)
                if parse_status(text) is wanted or (wanted is None and not row.is_over(text)):
                    return key
    return list(job.workloads)[-1]


def headline(view: Overview) -> Text:
    """Return ``slurm · 3 jobs run on 2 nodes, 40 queued (30 Priority, 10 Resources)``."""
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
    """Return the headline, problems, and a line for each running job, at most ``most`` of them."""
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
        began = f"▶ {units.stopwatch(job.running_s)}" if job.attempt else "▶ starting"
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
    """Return the live table for a width and height."""
    # Reserve lines for the cursor and the experiment's progress.
    most = height - 5 - bool(view.problem) - bool(view.remedy) - bool(view.held)
    lines = overview_lines(view, width, most)
    if progress is not None:
        lines += [Text(), progress_line(progress, width)]
    return Text("\n").join(lines)
