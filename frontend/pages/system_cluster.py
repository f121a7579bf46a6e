"""The card of the System page about clusters: nodes, queue, and what waits for what."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dash import html
from dash.development.base_component import Component

from radt import units
from radt.frontend.data.machine import Reading
from radt.frontend.data.submissions import NodeJob, QueuedJob, Submission
from radt.frontend.pages.system_parts import Cell, Column, quiet, shown, table, trouble

#: What Slurm's reasons mean; https://slurm.schedmd.com/job_reason_codes.html
_REASONS = {
    "Priority": "jobs before it in the queue",
    "Resources": "a node with room for it",
    "BeginTime": "its time to start again, after its node failed or another job took it",
    "Dependency": "another job",
    "JobArrayTaskLimit": "other jobs of its array",
    "ReqNodeNotAvail": "a node that is down, drained or reserved",
    "PartitionDown": "its partition, which is down",
    "PartitionTimeLimit": "nothing: its time is longer than the partition allows",
    "held": "a release: see above",
}
#: Beginnings of reasons about limits of an account or a quality of service.
_LIMITS = ("Assoc", "QOS", "MaxJobs", "MaxSubmit")
_COLUMNS = [Column("workload", grows=True), Column("runs", True), Column("job")]


def cluster_card(reading: Reading[Sequence[Submission]]) -> list[Component]:
    """Return what is submitted to a cluster, where it runs and why it waits."""

    def draw(submissions: Sequence[Submission]) -> list[Component]:
        if not submissions:
            return [quiet("Nothing is submitted.")]
        return [part for one in submissions for part in _submission(one)]

    return shown(reading, draw)


def _submission(one: Submission) -> list[Component]:
    parts: list[Component] = [
        html.H3([f"{Path(one.file).name} ", html.Span(one.headline, className="system-quiet")]),
    ]
    if one.problem:
        parts.append(trouble(one.problem, one.remedy))
    if one.held:
        parts.append(trouble(f"Held: {one.held}", "Mend that, then start the file again"))
    if one.running:
        parts.append(
            table(
                f"Nodes of {one.submission_id}",
                [
                    Column("node"),
                    *_COLUMNS,
                    Column("attempt", True, "which start of the job it is"),
                    Column("beats", True, "signs of life since this start, one in 10 s"),
                ],
                [_running(job) for job in one.running],
            )
        )
    if one.queued:
        more = one.queued_count - len(one.queued)
        parts.append(
            table(
                f"Queue of {one.submission_id}",
                [*_COLUMNS, Column("reason"), Column("waits for", grows=True), Column("may start")],
                [_queued(job) for job in one.queued],
                f"… and {units.plural(more, 'job')} more." if more > 0 else "",
            )
        )
    if one.submission_id:
        nobody = "by nobody: nothing is submitted again, and runs stay on the shared folder"
        where = f"Submission {one.submission_id} of {one.file}."
        parts.append(quiet(f"{where} Followed {f'by {one.follower}' if one.follower else nobody}."))
    return parts


def _running(job: NodeJob) -> Sequence[Cell]:
    attempt = str(job.attempt) if job.attempt else "starting"
    return [job.nodes, job.workload, str(job.runs), job.job_id, attempt, f"{job.beats:,}"]


def _queued(job: QueuedJob) -> Sequence[Cell]:
    starts = job.starts.replace("T", " ") or units.NO_VALUE
    reason = job.reason or units.NO_VALUE
    return [job.workload, str(job.runs), job.job_id, reason, waits_for(job.reason), starts]


def waits_for(reason: str) -> str:
    """Return what a job waits for, given the cluster's word for it."""
    if reason.startswith(_LIMITS):
        return "jobs of its account to end: a limit is reached"
    known = next((text for word, text in _REASONS.items() if reason.startswith(word)), "")
    return known or units.NO_VALUE
