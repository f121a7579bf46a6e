"""Runs a job of a submission on its node: ``python -m radt.cluster.noderunner FOLDER ARRAY INDEX``.

The rows run as in a start on one machine, except that their statuses and records go into the shared
folder (`radt.cluster.spool`). All local files are in a folder on the node's disk
(`radt.cluster.node`) and are removed with the job.

The exit code is 0 if all rows of the job have finished.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console

from radt import __version__, settings
from radt.cluster.attempt import AttemptView, JobAttempt
from radt.cluster.first_node import FirstNode
from radt.cluster.gpus import allocated_machine
from radt.cluster.multinode import OtherNode
from radt.cluster.node import (
    COLLECTOR_GRACE_S,
    NodeStop,
    ScratchFolder,
    end_collector,
    engine_job_id,
    node_name,
    node_number,
    this_start,
)
from radt.cluster.shipping import AttemptHeartbeat, NodeStatuses, Shipper
from radt.cluster.spool import MOST_ATTEMPTS, Spool
from radt.cluster.submission import JobKey, Submission
from radt.collector.recovery import recover_runs
from radt.collocation.inventory import read_inventory
from radt.collocation.planner import DeviceRequest, on_given_instances
from radt.delivery.mlflow.variables import ROOT
from radt.devices.hardware import read_hardware
from radt.devices.machine import Devices, Machine
from radt.errors import ClusterError, CollectorError, RadtError
from radt.experiment.columns import parse_repeats, parse_repeats_asked, parse_status
from radt.experiment.plan import FAILURES, RunPlan, WorkloadKey, WorkloadPlan
from radt.experiment.status import RowStatus
from radt.home import (
    HOME_VARIABLE,
    NO_MLFLOW,
    NO_POSTGRES,
    RUNTIME_VARIABLE,
    STORE_VARIABLE,
    TRACKING_VARIABLE,
    Home,
)
from radt.model import RunStatus
from radt.paths import is_database
from radt.runner.console import RunConsole
from radt.runner.context import RunnerContext
from radt.runner.delivering import PendingUploads
from radt.runner.notify import Notifier
from radt.runner.options import StartOptions, Work, pending_workloads
from radt.runner.outcome import RunEnd
from radt.runner.schedule import LocalSchedule
from radt.runner.start import print_header
from radt.tags import (
    CLUSTER_ATTEMPT,
    CLUSTER_HARDWARE,
    CLUSTER_JOB,
    CLUSTER_JOB_ID,
    CLUSTER_NODE,
    CLUSTER_NODES,
    CLUSTER_SUBMISSION,
)

#: Seconds reserved for the last report, however long the rest has taken.
FINAL_REPORT_S = 5.0
_POLL_S = 0.1
_COLUMNS = 120


@dataclass(slots=True)
class Left:
    """The rows an attempt still has to run; ``problem`` is why that cannot be determined.

    ``rows`` are the statuses from earlier attempts, ``kept`` their runs that remain valid.
    """

    rows: Mapping[int, RowStatus] = field(default_factory=dict)
    kept: frozenset[str] = frozenset()
    machine: Machine = field(default_factory=lambda: Machine(1))
    work: Work | None = None
    problem: str = ""

    @classmethod
    def by(cls, attempts: Sequence[AttemptView]) -> Left:
        """Return the work left after the newest attempt with a report, which covers earlier ones.

        A row that was interrupted runs again, with the same repeat.
        """
        for view in reversed(attempts):
            if view.kept is not None:
                rows = {line: _cut_off(row, view.number) for line, row in view.statuses.items()}
                return cls({line: row for line, row in rows.items() if row is not None}, view.kept)
        return cls()

    @property
    def is_done(self) -> bool:
        """Return True if earlier attempts have finished the job."""
        return self.work is not None and not self.work.pending


class NodeRunner:
    """Runs a job. Each object is for one call of `run`."""

    def __init__(self, spool: Spool, job: JobKey, stop: NodeStop) -> None:
        self._spool = spool
        self._submission = spool.submission
        self._job = job
        self._stop = stop
        self._shape = spool.submission.arrays[job.array].shape
        self._superseded_by = 0

    def run(self) -> int:
        """Run the rows that the job still has to run; return the exit code.

        Raises:
            RadtError: The job cannot run, and this cannot be reported in the shared folder.
            OSError: The same.
        """
        known = self._spool.attempts(self._job)
        left = self._left(known)
        if left.is_done:
            return _exit_code(left.rows)
        if self._shape.nodes > 1 and (number := node_number()):
            return self._join(number, left)
        attempt = self._claimed()
        if attempt.number > len(known) + 1:  # the listing was out of date
            left = self._left(self._spool.attempts(self._job, attempt.number - 1))
        if left.is_done:
            attempt.put_statuses(left.rows, kept=left.kept, ended=True)
            return _exit_code(left.rows)
        if attempt.number > MOST_ATTEMPTS:
            pending = () if left.work is None else left.work.pending
            rows = [run.line for workload in pending for run in workload.plan.runs]
            return self._refuse(attempt, left, f"started {MOST_ATTEMPTS} times", rows)
        if held := self._spool.held or self._spool.stopped:
            return self._refuse(attempt, left, held)
        if left.work is None:
            return self._refuse(attempt, left, self._spool.unfit(left.problem))
        multi_node, nodes = None, self._shape.nodes
        if nodes > 1:
            multi_node = FirstNode(attempt, left.rows, nodes, self._stop, self._spool.unfit)
        return self._run(attempt, left, left.work, multi_node)

    def _join(self, number: int, left: Left) -> int:
        """Run this node's parts of an attempt that the job's first node has claimed."""
        multi_node = OtherNode.joined(self._spool, self._job, number, left.problem, self._stop)
        if multi_node is None:
            return 1
        left.rows, left.kept = multi_node.rows, frozenset()
        work = remaining_work(self._spool, self._job, left.machine, left.rows)
        return self._run(multi_node.attempt.part(number), left, work, multi_node)

    # Before anything runs -------------------------------------------------------------------------

    def _left(self, before: Sequence[JobAttempt]) -> Left:
        """Return what earlier attempts left to do."""
        left = Left.by([attempt.view() for attempt in before])
        try:
            self._check()
            left.machine = allocated_machine(self._shape.gpus)
            left.work = remaining_work(self._spool, self._job, left.machine, left.rows)
        except RadtError as error:
            left.problem = f"{error} (on {node_name()})"
        return left

    def _check(self) -> None:
        """Check that this node sees the same files as the submit host.

        Raises:
            ClusterError: It does not.
        """
        wanted = self._submission.radt_version
        if __version__ != wanted:
            raise ClusterError(
                f"the interpreter {sys.executable} has radt {__version__}, and radt {wanted} "
                "submitted the job",
                f"Install radt {wanted} there, or submit again",
            )
        folder = Path(self._submission.file).parent
        if not folder.is_dir():
            raise ClusterError(
                f"{folder}, the folder of the experiment file, is not there",
                "Keep it in a folder that all nodes share",
            )

    def _claimed(self) -> JobAttempt:
        try:
            attempt = self._spool.claim(self._job)
            attempt.begin(this_start())
        except OSError as error:
            raise ClusterError(
                f"cannot write into {self._spool.path} on {node_name()}: {error.strerror}",
                "Check that this node may write there, and that there is room",
            ) from error
        return attempt

    def _refuse(
        self, attempt: JobAttempt, left: Left, reason: str, killed: Sequence[int] = ()
    ) -> int:
        """Report in the shared folder why nothing runs."""
        print(f"radt: {reason}", file=sys.stderr, flush=True)  # noqa: T201 - the job's own log
        rows = {line: RowStatus(f"{RunStatus.KILLED}: {reason}") for line in killed}
        attempt.put_statuses({**left.rows, **rows}, kept=left.kept, ended=True, reason=reason)
        return 1

    # The rows -------------------------------------------------------------------------------------

    def _run(
        self,
        attempt: JobAttempt,
        left: Left,
        work: Work,
        multi_node: FirstNode | OtherNode | None,
    ) -> int:
        statuses = NodeStatuses(left.rows, left.kept)
        on_arrived = statuses.arrived
        name = f"{self._submission.submission_id}-{self._job}.{attempt.number}"
        if multi_node is not None:
            multi_node.on_arrived, on_arrived = statuses.arrived, multi_node.arrived
            name += f".{multi_node.number}"
        with ScratchFolder.made(name) as scratch:
            self._set_environment(scratch)
            shipper = Shipper(
                scratch.home,
                attempt,
                settings.variable(settings.CLUSTER_PART_S, os.environ).value,
                with_files=not self._submission.reaches_mlflow,
                on_arrived=on_arrived,
            )
            heartbeat = AttemptHeartbeat(
                self._spool,
                self._job,
                attempt,
                statuses,
                scratch.output_log,
                beat_s=settings.variable(settings.CLUSTER_BEAT_S, os.environ).value,
                on_superseded=lambda newest: self._superseded(newest, shipper),
            )
            heartbeat.start()
            reason = "radt stopped on an error"
            try:
                if multi_node is not None:
                    multi_node.start()
                with (
                    scratch.output_log.open("a", encoding="utf-8") as log,
                    RunConsole(Console(file=log, width=_COLUMNS)) as output,
                    RunnerContext(
                        replace(
                            work.options,
                            home=scratch.home,
                            tracking_uri=self._uri(TRACKING_VARIABLE, NO_MLFLOW),
                            store_uri=self._uri(STORE_VARIABLE, NO_POSTGRES),
                        ),
                        left.machine,
                        output,
                        Notifier("", output.say),
                        self._stop,
                        tags=self._tags(attempt),
                        multi_node=multi_node,
                    ) as context,
                ):
                    shipper.start()
                    print_header(context, work, str(left.machine))
                    series = series_by_workload(self._submission, self._job)
                    outcome = LocalSchedule(context, work, statuses, series).run()
                    self._wait_until_stored(context)
                    self._wait_until_delivered(context)
                reason = self._stop.reason if self._stop else str(outcome.problem or "")
            except RadtError as error:
                reason = self._stop.reason if self._stop else str(error)
            finally:
                self._hand_over(scratch, shipper, heartbeat, statuses, reason, multi_node)
                if multi_node is not None:
                    multi_node.close()
        lines = [run.line for workload in work.pending for run in workload.plan.runs]
        return 1 if self._superseded_by else _exit_code(statuses.rows, lines)

    def _set_environment(self, scratch: ScratchFolder) -> None:
        """Make this process and its children use the job's scratch folder."""
        own = {
            HOME_VARIABLE: str(scratch.home.path),
            RUNTIME_VARIABLE: str(scratch.runtime),
            TRACKING_VARIABLE: NO_MLFLOW,
            settings.COLLECTOR_OWNER.variables[0]: str(os.getpid()),
        }
        os.environ.pop(STORE_VARIABLE, None)
        os.environ.update(own | dict(self._submission.settings))
        if is_database(self._uri(TRACKING_VARIABLE, NO_MLFLOW)):
            # Otherwise new experiments would keep their artifacts in the job's folder.
            artifacts = Home(self._spool.path.parents[1]).artifacts
            os.environ.setdefault(ROOT, str(artifacts))

    def _uri(self, variable: str, none: str) -> str:
        return self._submission.settings.get(variable) or none

    def _tags(self, attempt: JobAttempt) -> dict[str, str]:
        tags = {
            CLUSTER_SUBMISSION: self._submission.submission_id,
            CLUSTER_JOB: str(self._job),
            CLUSTER_ATTEMPT: str(attempt.number),
            CLUSTER_NODE: node_name(),
            CLUSTER_HARDWARE: read_hardware().kind,
        }
        if self._shape.nodes > 1:
            tags[CLUSTER_NODES] = str(self._shape.nodes)
        return tags | ({CLUSTER_JOB_ID: job_id} if (job_id := engine_job_id()) else {})

    def _superseded(self, newest: int, shipper: Shipper) -> None:
        self._superseded_by = newest
        shipper.drop()
        self._stop.request_once(f"superseded by attempt {newest}")

    # The end --------------------------------------------------------------------------------------

    def _wait_until_stored(self, context: RunnerContext) -> None:
        deadline_s = self._deadline()
        while time.monotonic() < deadline_s():
            try:
                if not context.client.status().runs:
                    return
            except CollectorError:
                return  # the rest is read from the runs' folders
            time.sleep(_POLL_S)

    def _wait_until_delivered(self, context: RunnerContext) -> None:
        """Wait until MLflow and Postgres have this node's uploads, or permanently refuse them."""
        if not self._submission.is_direct:
            return
        delivery = PendingUploads(
            context.home.store_path, [context.tracking_uri], context.store_uri
        )
        limit_s = settings.variable(settings.COLLECTOR_DELIVERY_S, os.environ).value
        delivery.wait(self._deadline(limit_s))

    def _hand_over(
        self,
        scratch: ScratchFolder,
        shipper: Shipper,
        heartbeat: AttemptHeartbeat,
        statuses: NodeStatuses,
        reason: str,
        multi_node: FirstNode | OtherNode | None,
    ) -> None:
        """Send everything left to the shared folder, and report how the job ended."""
        with suppress(OSError):  # the node's disk is full; the last report says what is missing
            end_collector(scratch.runtime, COLLECTOR_GRACE_S)
        if self._superseded_by:
            heartbeat.drop()
            return
        with suppress(RadtError):  # there may be no runs
            recover_runs(scratch.home)
        deadline_s = self._deadline()
        unsent = shipper.finish(deadline_s, lambda: bool(self._stop))
        if unsent:
            where = f"{scratch.path} on {node_name()}"
            try:
                scratch.keep()
            except OSError as error:
                where += f" until the next job there ({error.strerror})"
            unsent = f"not all was sent, and is in {where}: {unsent}"
        if multi_node is not None:
            unsent = multi_node.finish(reason, unsent, deadline_s)
        if unsent:
            statuses.lose(unsent)
        least_s = time.monotonic() + FINAL_REPORT_S
        if not heartbeat.finish(reason or unsent, lambda: max(least_s, deadline_s())):
            print(f"radt: {reason or unsent}", file=sys.stderr, flush=True)  # noqa: T201

    def _deadline(self, limit_s: float | None = None) -> Callable[[], float]:
        """Return a deadline on the monotonic clock; it moves closer once the job is to end."""
        if limit_s is None:
            limit_s = settings.variable(settings.CLUSTER_PATIENCE_S, os.environ).value
        at_most_s = time.monotonic() + limit_s
        return lambda: min(at_most_s, self._stop.deadline_s)


def _exit_code(rows: Mapping[int, RowStatus], lines: Iterable[int] = ()) -> int:
    """Return 0 if all repeats of all rows have finished, also of those with these lines."""
    texts = (rows[line].text if line in rows else "" for line in {*rows, *lines})
    return int(any(parse_repeats(text) < parse_repeats_asked(text) for text in texts))


def _cut_off(row: RowStatus, attempt: int) -> RowStatus | None:
    status = parse_status(row.text)
    if status not in (RunStatus.RUNNING, RunStatus.KILLED):
        return row
    if not parse_repeats(row.text):
        return None  # as if it had not begun
    ending = RunEnd(RunStatus.KILLED, f"attempt {attempt} was cut off")
    repeat, asked = parse_repeats(row.text) + 1, parse_repeats_asked(row.text)
    return replace(row, text=ending.text(repeat, asked))


def remaining_work(
    spool: Spool, job: JobKey, machine: Machine, rows: Mapping[int, RowStatus]
) -> Work:
    """Return the remaining work of a job's workloads on this node.

    Raises:
        ExperimentError: The rows cannot run here; see `Spool.plan`.
        ClusterError: The submission's file lacks them.
        UsageError: The settings file beside the experiment file cannot be used.
        DeviceError: The driver does not work, so the job's MIG instances are unknown.
    """
    submission = spool.submission
    plan = spool.plan(machine, submission.workloads(job))
    rerun = bool(submission.options.get("rerun", False))
    workloads = tuple(
        replace(
            workload, runs=tuple(_as_left(run, rows.get(run.line), rerun) for run in workload.runs)
        )
        for workload in map(_on_its_instances, plan.workloads)
    )
    plan = replace(plan, workloads=workloads)
    options = StartOptions.of_a_node(submission.options)
    pending = [
        replace(each, grouped_by=submission.grouped_by.get(each.plan.label, ""))
        for each in pending_workloads(plan, options)
    ]
    return Work(plan, options, pending)


def _on_its_instances(workload: WorkloadPlan) -> WorkloadPlan:
    """Return a workload with its rows on the GPUs that hold the job's MIG instances."""
    if all(run.collocation.mig is None for run in workload.runs):
        return workload
    requests = [
        DeviceRequest(run.letter, run.devices.gpus, run.collocation) for run in workload.runs
    ]
    placed = on_given_instances(requests, read_inventory())
    return replace(
        workload,
        runs=tuple(
            replace(run, devices=Devices(request.gpus))
            for run, request in zip(workload.runs, placed, strict=True)
        ),
    )


def _as_left(run: RunPlan, row: RowStatus | None, rerun: bool) -> RunPlan:
    if row is not None:
        return replace(
            run,
            status=parse_status(row.text),
            repeats_done=parse_repeats(row.text),
            repeats_asked=parse_repeats_asked(row.text),
            run_id=row.run_id or run.run_id,
        )
    # Rows that failed before the submission are retried once, not in each attempt.
    if run.status is RunStatus.RUNNING or (rerun and run.status in FAILURES):
        return replace(run, status=RunStatus.KILLED)
    return run


def series_by_workload(submission: Submission, job: JobKey) -> dict[WorkloadKey, str]:
    """Return the series ids that repeats of each workload share, across all attempts."""
    return {
        key: uuid.uuid5(
            uuid.NAMESPACE_URL, f"{submission.submission_id}/{key.experiment}/{key.label}"
        ).hex
        for key in submission.workloads(job)
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a job; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m radt.cluster.noderunner")
    parser.add_argument("submission", type=Path)
    parser.add_argument("array", type=int)
    parser.add_argument("index", type=int)
    given = parser.parse_args(arguments)
    stop = NodeStop()
    stop.take_signals()
    try:
        return NodeRunner(Spool(given.submission), JobKey(given.array, given.index), stop).run()
    except (RadtError, OSError) as error:
        print(f"radt: {error}", file=sys.stderr, flush=True)  # noqa: T201 - the job's own log
        return 1


if __name__ == "__main__":
    sys.exit(main())
