"""Runs experiments on a cluster, and reopens submissions for status, attach and stop."""

from __future__ import annotations

import os
import platform
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from radt import settings as radt_settings
from radt import units
from radt.cluster.collecting import Collection
from radt.cluster.engine import ArrayRequest, Engine
from radt.cluster.follow import SubmissionFollower
from radt.cluster.monitor import SubmissionMonitor
from radt.cluster.opened import mark_open, open_submission
from radt.cluster.script import array_request
from radt.cluster.settings import ClusterSettings, RecordMode
from radt.cluster.shaping import arrays_for, ask_about, on_one_node
from radt.cluster.slurm import Slurm
from radt.cluster.spool import Spool
from radt.cluster.submission import JobArray, Request, Submission, SubmittedRow
from radt.cluster.submit import Submitter
from radt.devices.machine import Machine
from radt.errors import ClusterError, UsageError
from radt.experiment.files import table_path
from radt.experiment.lock import user_name
from radt.experiment.plan import ExperimentPlan, WorkloadKey, WorkloadPlan
from radt.experiment.source import ExperimentFile
from radt.experiment.status import StatusSink, StatusWriter
from radt.home import STORE_VARIABLE, TRACKING_VARIABLE
from radt.paths import sqlite_file
from radt.runner.auto import groups_of_measured
from radt.runner.context import RunnerContext
from radt.runner.options import StartOptions, Work
from radt.runner.outcome import ExperimentOutcome
from radt.setting_values import find_settings

#: Placeholder for the name that a submission will get.
_NO_ID = "DATE-TIME-ID"


def monitor_of(
    spool: Spool,
    settings: ClusterSettings,
    engine: Engine,
    *,
    observes_only: bool = False,
) -> SubmissionMonitor:
    """Return a monitor of a submission; see `SubmissionMonitor`.

    Raises:
        RadtError: An earlier version submitted it, and its rows cannot be planned any more.
    """
    if not spool.submission.rows:  # an earlier version submitted it
        keys = list(_keys_of(spool.submission))
        plan = spool.plan(Machine.of_cluster(), keys)
        asked = int(spool.submission.options.get("repeat", 1))
        spool.submission = replace(spool.submission, rows=_submitted_rows(plan.workloads, asked))
    submission = spool.submission
    name = plan_of(spool).name

    def build(request: Request) -> ArrayRequest:
        made = array_request(
            spool.path,
            request.array,
            submission.arrays[request.array],
            settings,
            name=name,
            intent=spool.intent(request),
            indices=request.indices,
        )
        spool.put_script(request, made.script)
        return made

    submitter = Submitter(spool, engine, build, max_jobs=settings.max_jobs)
    return SubmissionMonitor(
        submitter,
        outcome_s=radt_settings.variable(radt_settings.CLUSTER_LATE_S, os.environ).value,
        observes_only=observes_only,
        poll_s=radt_settings.variable(radt_settings.CLUSTER_POLL_S, os.environ).value,
    )


def reopened(spool: Spool, patience_s: float | None = None) -> tuple[ClusterSettings, Engine]:
    """Return settings and engine of a submission; `patience_s` limits the wait for an answer.

    Raises:
        UsageError: The settings file no longer has its cluster.
    """
    submission = spool.submission
    file = find_settings(Path(submission.file).parent)
    settings = ClusterSettings.named(submission.engine, file)
    if settings is None:
        raise UsageError(f"{spool.path} names no cluster", "Remove the folder")
    return settings, Slurm(patience_s)


def plan_of(spool: Spool) -> ExperimentPlan:
    """Return a partial plan from a submission: the names of its workloads."""
    submission = spool.submission
    workloads = (WorkloadPlan(key.experiment, key.label, ()) for key in _keys_of(submission))
    return ExperimentPlan(Path(submission.file), tuple(workloads))


def _keys_of(submission: Submission) -> Iterator[WorkloadKey]:
    for job in submission.jobs:
        yield from submission.workloads(job)


def _submitted_rows(
    plans: Iterable[WorkloadPlan], asked: int
) -> dict[WorkloadKey, Sequence[SubmittedRow]]:
    return {
        plan.key: tuple(
            SubmittedRow(run.line, run.repeats_done, asked, run.letter, run.label, run.role)
            for run in plan.runs
        )
        for plan in plans
    }


class SlurmExecutor:
    """Submits workloads as jobs of a cluster and follows them; an `Executor`.

    Args:
        on: The cluster's name in ``--on``.
        settings: The settings of the cluster.
        engine: The cluster; Slurm unless given.

    Attributes:
        requests: For each array of the last plan, what the engine would be asked for and its
            answer.
    """

    outlives_start = True

    def __init__(self, on: str, settings: ClusterSettings, engine: Engine | None = None) -> None:
        self.machine = Machine.of_cluster()
        self.settings = settings
        self.requests: Mapping[JobArray, ArrayRequest] = {}
        self.answers: Mapping[JobArray, str] = {}
        self._on = on
        self._engine = engine or Slurm()
        #: Why radt formed workloads, by label.
        self._grouped_by: Mapping[str, str] = {}
        self._spool: Spool | None = None
        self._outcome = ExperimentOutcome()
        self._began_s = time.monotonic()

    def plan(self, path: Path, options: StartOptions) -> Work:
        work = Work.of(path, options, self.machine)
        labels, self._grouped_by = groups_of_measured(work)
        if labels:
            work = Work.of(path, options, self.machine, labels)
        assert work.source is not None
        self.requests = {}
        if work.pending:
            engine, settings, shown = self._engine, self.settings, work.source.shown
            arrays = arrays_for(shown, work.pending, settings, max_array_size=engine.max_array_size)
            if settings.same_node:
                arrays = on_one_node(arrays, work.plan, settings, engine, options.home)
            folder = settings.submissions(options.home.path) / _NO_ID
            self.requests = {
                array: array_request(
                    folder, number, array, settings, name=work.plan.name, intent="radt: a test"
                )
                for number, array in enumerate(arrays)
            }
            self.answers = ask_about(shown, work.plan, self.requests, engine)
        return work

    def begin(self, path: Path, options: StartOptions, _say: Callable[[str], None]) -> Work:
        self._spool = open_submission(path, options.home)
        if self._spool is None:
            return self.plan(path, options)
        return Work(replace(plan_of(self._spool), path=path), options, ())

    def resume(self, context: RunnerContext, work: Work) -> Work:
        context.open()
        if self._spool is None or not self._go_on(context, self._spool):
            return work
        return self.plan(work.plan.path, work.options)

    def where(self, _work: Work) -> str:
        return f"{self.settings.name}, {units.plural(len(self.requests), 'array')}"

    def run(
        self, context: RunnerContext, work: Work, statuses: StatusSink | None
    ) -> ExperimentOutcome:
        if work.pending and work.source is not None and not context.stop:
            spool = Spool.create(
                self.settings.submissions(context.home.path),
                self._submission(context, work),
                work.source.table.text.encode(errors="surrogateescape"),
            )
            mark_open(spool)
            monitor = monitor_of(spool, self.settings, self._engine)
            self._follow(context, monitor, statuses)
        elapsed_s = time.monotonic() - self._began_s
        return replace(self._outcome, failed_before=work.failed_before, elapsed_s=elapsed_s)

    def _go_on(self, context: RunnerContext, spool: Spool) -> bool:
        """Follow an open submission; release its jobs if they are held.

        Returns:
            True if the remaining work of the file is to be submitted now: the submission had ended
            before this start, or this start reruns failed rows.
        """
        settings, engine = reopened(spool)
        monitor = monitor_of(spool, settings, engine)
        monitor.release()
        context.console.say(
            f"  continues the earlier submission, {units.plural(len(monitor.jobs), 'job')}: "
            f"{spool.submission.submission_id}",
            "dim",
        )
        rerun = context.options.rerun
        if rerun:
            context.console.say("  failed rows run again when they have ended", "dim")
        settled_at_once = self._follow(context, monitor, status_writer(spool))
        if context.stop or self._outcome.problem is not None:
            return False
        if not (settled_at_once or rerun):
            return False
        if not spool.is_closed:
            # The next look would write the old submission's statuses over those of the new one.
            problem = ClusterError(
                f"runs of {spool.submission.submission_id} could not be collected, so nothing "
                "more was submitted",
                "Fix the problem above, and start again",
            )
            self._outcome = replace(self._outcome, problem=problem)
        return spool.is_closed

    def _submission(self, context: RunnerContext, work: Work) -> Submission:
        return Submission(
            submission_id=f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}",
            engine=self._on,
            file=str(table_path(work.plan.path).absolute()),
            host=platform.node(),
            user=user_name(),
            radt_version=version("radt"),
            python=sys.executable,
            arrays=tuple(self.requests),
            options=work.options.for_nodes(),
            settings=self._node_settings(context),
            home=str(context.home.path.absolute()),
            rows=_submitted_rows((pending.plan for pending in work.pending), work.options.repeat),
            grouped_by=self._grouped_by,
        )

    def _node_settings(self, context: RunnerContext) -> dict[str, str]:
        """Return the variables by which nodes reach MLflow and Postgres; none unless DIRECT."""
        if self.settings.record is not RecordMode.DIRECT:
            return {}
        found = {STORE_VARIABLE: context.store_uri} if context.store_uri else {}
        if context.tracking_uri and sqlite_file(context.tracking_uri) is None:
            found[TRACKING_VARIABLE] = context.tracking_uri
        if not found:
            raise UsageError(
                f'record = "direct" in {self.settings.source} needs a server that nodes reach',
                "Set --tracking-uri or --store-uri to one, or remove the line",
            )
        return found

    def _follow(
        self,
        context: RunnerContext,
        monitor: SubmissionMonitor,
        statuses: StatusSink | None,
    ) -> bool:
        """Follow jobs to their ends; return True if all of them had ended before."""
        with Collection(
            monitor.spool,
            context.home,
            tracking_uri=context.tracking_uri,
            store_uri=context.store_uri,
            client=context.client,
        ) as collection:
            follower = SubmissionFollower(
                monitor,
                context.home,
                context.console,
                collection=collection,
                statuses=statuses,
                notifier=context.notifier,
                stop=context.stop,
                wait_for_file_s=context.options.wait_for_file_s,
            )
            self._outcome = follower.run()
        return follower.settled_at_once


def status_writer(spool: Spool) -> StatusWriter:
    """Return a writer of statuses for the rows of a submission into its experiment file.

    Raises:
        ExperimentError: The copy of the file as it was submitted cannot be read.
        StatusError: The file cannot be read.
    """
    submitted = ExperimentFile.read(spool.experiment_csv).table
    return StatusWriter(table_path(spool.submission.file), submitted)
