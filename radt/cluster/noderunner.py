"""Runs a job of a submission on its node: ``python -m radt.cluster.noderunner FOLDER ARRAY INDEX``.

The rows are run as a start on one machine runs them, except that their statuses and what is
recorded of them go into the shared folder (`radt.cluster.spool`). All of the job is in a folder on
the node's disk (`radt.cluster.nodeplace`) and ends with it.

The exit code is 0 if all rows of the job have finished.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from radt import __version__, settings
from radt.cluster.firstnode import FirstNode
from radt.cluster.gpus import allocated_machine
from radt.cluster.node import NodeStop, engine_job_id, node_name, node_number, this_start
from radt.cluster.nodeplace import COLLECTOR_GRACE_S, NodePlace, end_collector
from radt.cluster.nodeplan import Carried, options_of, planned, series_of
from radt.cluster.othernode import OtherNode
from radt.cluster.pulse import NodeStatuses, Pulse
from radt.cluster.shipping import Shipper
from radt.cluster.spool import MOST_ATTEMPTS, Attempt, JobKey, Spool
from radt.collector.client import hurry_uploads
from radt.collector.leftovers import drain_leftovers
from radt.delivery.backlog import backlogs
from radt.devices.machine import Machine
from radt.errors import ClusterError, CollectorError, RadtError
from radt.experiment.columns import parse_status
from radt.experiment.plan import ExperimentPlan
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
from radt.inventory import read_hardware
from radt.model import RunStatus
from radt.paths import is_database
from radt.runner.console import RunConsole
from radt.runner.notify import Notifier
from radt.runner.pending import PendingWorkload, Settled, pending_workloads
from radt.runner.recording import Session, open_session
from radt.runner.schedule import Schedule
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

#: Where MLflow keeps the artifacts of new experiments of a database.
ARTIFACT_ROOT_VARIABLE = "MLFLOW_DEFAULT_ARTIFACT_ROOT"
#: How long a job waits at its end for MLflow and Postgres, where it brings runs there itself.
DELIVERY_S = 120.0
#: How long the last word may take, whatever all else has taken.
LAST_WORD_S = 5.0
_POLL_S = 0.1
_COLUMNS = 120


@dataclass(slots=True)
class Work:
    """What is left of a job here; ``problem`` is why that cannot be said."""

    carried: Carried
    machine: Machine = field(default_factory=lambda: Machine(1))
    plan: ExperimentPlan | None = None
    pending: Sequence[PendingWorkload] = ()
    problem: str = ""

    @property
    def is_done(self) -> bool:
        """Whether another attempt has done it."""
        return self.plan is not None and not self.pending

    @property
    def code(self) -> int:
        """The exit code, once it is done."""
        return 0 if _has_finished(self.carried.rows) else 1


class NodeRunner:
    """Runs a job. One object, one call of `run`."""

    def __init__(self, spool: Spool, job: JobKey, stop: NodeStop) -> None:
        self._spool = spool
        self._submission = spool.submission
        self._job = job
        self._stop = stop
        self._shape = spool.submission.arrays[job.array].shape
        self._superseded_by = 0

    def run(self) -> int:
        """Run what the job has left to run; return the exit code.

        Raises:
            RadtError: The job cannot be run, and nobody can be told in the shared folder.
            OSError: The same.
        """
        known = self._spool.attempts(self._job)
        work = self._work(known)
        if work.is_done:
            return work.code
        if self._shape.nodes > 1 and (number := node_number()):
            return self._join(number, work)
        attempt = self._claimed()
        if attempt.number > len(known) + 1:  # the folder had shown an old state of itself
            work = self._work(self._spool.attempts(self._job, attempt.number - 1))
        carried = work.carried
        if work.is_done:
            attempt.put_statuses(carried.rows, kept=carried.kept, ended=True)
            return work.code
        if attempt.number > MOST_ATTEMPTS:
            rows = [run.line for workload in work.pending for run in workload.plan.runs]
            return self._refuse(attempt, carried, f"started {MOST_ATTEMPTS} times", rows)
        if held := self._spool.held or self._spool.stopped:
            return self._refuse(attempt, carried, held)
        if work.plan is None:
            return self._refuse(attempt, carried, self._spool.unfit(work.problem))
        team, nodes = None, self._shape.nodes
        if nodes > 1:
            team = FirstNode(attempt, carried.rows, nodes, self._stop, self._spool.unfit)
        return self._run(attempt, carried, work.plan, work.pending, work.machine, team)

    def _join(self, number: int, work: Work) -> int:
        """Run the parts of another node than the job's first, which has claimed the attempt."""
        team = OtherNode.joined(self._spool, self._job, number, work.problem, self._stop)
        if team is None:
            return 1
        carried = Carried(team.rows)
        plan = planned(self._spool, self._job, work.machine, carried)
        pending = pending_workloads(plan, options_of(self._submission))
        return self._run(team.attempt.part(number), carried, plan, pending, work.machine, team)

    # Before anything runs -------------------------------------------------------------------------

    def _work(self, before: Sequence[Attempt]) -> Work:
        """What earlier attempts have left of the job."""
        work = Work(Carried.of([attempt.view() for attempt in before]))
        try:
            self._check()
            work.machine = allocated_machine(self._shape.gpus)
            work.plan = planned(self._spool, self._job, work.machine, work.carried)
            work.pending = pending_workloads(work.plan, options_of(self._submission))
        except RadtError as error:
            work.problem = f"{error} (on {node_name()})"
        return work

    def _check(self) -> None:
        """Check that this node sees what the submit host saw.

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

    def _claimed(self) -> Attempt:
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
        self, attempt: Attempt, carried: Carried, reason: str, killed: Sequence[int] = ()
    ) -> int:
        """Say in the shared folder why nothing runs."""
        print(f"radt: {reason}", file=sys.stderr, flush=True)  # noqa: T201 - the job's own log
        rows = {line: RowStatus(f"{RunStatus.KILLED}: {reason}") for line in killed}
        attempt.put_statuses({**carried.rows, **rows}, kept=carried.kept, ended=True, reason=reason)
        return 1

    # The rows -------------------------------------------------------------------------------------

    def _run(
        self,
        attempt: Attempt,
        carried: Carried,
        plan: ExperimentPlan,
        pending: Sequence[PendingWorkload],
        machine: Machine,
        team: FirstNode | OtherNode | None,
    ) -> int:
        statuses = NodeStatuses(carried.rows, carried.kept)
        on_arrived = statuses.arrived
        name = f"{self._submission.submission_id}-{self._job}.{attempt.number}"
        if team is not None:
            team.on_arrived, on_arrived = statuses.arrived, team.arrived
            name += f".{team.number}"
        with NodePlace.made(name) as place:
            self._set_environment(place)
            shipper = Shipper(
                place.home,
                attempt,
                settings.variable(settings.CLUSTER_PART_S, os.environ).value,
                with_files=not self._submission.reaches_mlflow,
                on_arrived=on_arrived,
            )
            pulse = Pulse(
                self._spool,
                self._job,
                attempt,
                statuses,
                place.output_log,
                beat_s=settings.variable(settings.CLUSTER_BEAT_S, os.environ).value,
                on_superseded=lambda newest: self._superseded(newest, shipper),
            )
            pulse.start()
            reason = "radt stopped on an error"
            try:
                if team is not None:
                    team.start()
                with (
                    place.output_log.open("a", encoding="utf-8") as log,
                    RunConsole(Console(file=log, width=_COLUMNS)) as output,
                    open_session(
                        place.home,
                        machine,
                        output,
                        explicit_tracking_uri=self._uri(TRACKING_VARIABLE, NO_MLFLOW),
                        explicit_store_uri=self._uri(STORE_VARIABLE, NO_POSTGRES),
                        tags=self._tags(attempt),
                        spread=team,
                    ) as session,
                    closing(Notifier("", output.say)) as notifier,
                ):
                    shipper.start()
                    print_header(session, plan, pending)
                    outcome = Schedule(
                        session,
                        Settled(plan, {}),
                        pending,
                        options_of(self._submission),
                        self._stop,
                        statuses,
                        notifier,
                        series_of(self._submission, self._job),
                    ).run()
                    self._wait_until_stored(session)
                    self._wait_until_delivered(session)
                reason = self._stop.reason if self._stop else str(outcome.problem or "")
            except RadtError as error:
                reason = self._stop.reason if self._stop else str(error)
            finally:
                self._hand_over(place, shipper, pulse, statuses, reason, team)
                if team is not None:
                    team.close()
        is_done = not self._superseded_by and _has_finished(statuses.rows)
        return 0 if is_done else 1

    def _set_environment(self, place: NodePlace) -> None:
        """Have this process, and all that it starts, keep to the job's own folder."""
        own = {
            HOME_VARIABLE: str(place.home.path),
            RUNTIME_VARIABLE: str(place.runtime),
            TRACKING_VARIABLE: NO_MLFLOW,
            settings.COLLECTOR_OWNER.variables[0]: str(os.getpid()),
        }
        os.environ.pop(STORE_VARIABLE, None)
        os.environ.update(own | dict(self._submission.settings))
        if is_database(self._uri(TRACKING_VARIABLE, NO_MLFLOW)):
            # Else new experiments would keep their artifacts in the job's folder.
            artifacts = Home(self._spool.path.parents[1]).artifacts
            os.environ.setdefault(ARTIFACT_ROOT_VARIABLE, str(artifacts))

    def _uri(self, variable: str, none: str) -> str:
        return self._submission.settings.get(variable) or none

    def _tags(self, attempt: Attempt) -> dict[str, str]:
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

    def _wait_until_stored(self, session: Session) -> None:
        """Return when the collector has all of the runs in the store."""
        deadline_s = self._deadline()
        while time.monotonic() < deadline_s():
            try:
                if not session.client.status().runs:
                    return
            except CollectorError:
                return  # what it has left is read from the runs' folders
            time.sleep(_POLL_S)

    def _wait_until_delivered(self, session: Session) -> None:
        """Return when MLflow and Postgres have what this node brings there, or will not have it."""
        if not self._submission.is_direct:
            return
        hurry_uploads(session.home.store_path)
        deadline_s = Deadline(self._stop, time.monotonic() + DELIVERY_S)
        while time.monotonic() < deadline_s():
            waiting = backlogs(session.home.store_path, session.store_uri)
            if not any(backlog.ended or backlog.workloads for backlog in waiting):
                return
            time.sleep(_POLL_S)

    def _hand_over(
        self,
        place: NodePlace,
        shipper: Shipper,
        pulse: Pulse,
        statuses: NodeStatuses,
        reason: str,
        team: FirstNode | OtherNode | None,
    ) -> None:
        """Bring all that is left into the shared folder, and say how the job ended."""
        with suppress(OSError):  # the node's disk is full; the end says what could not be sent
            end_collector(place.runtime, COLLECTOR_GRACE_S)
        if self._superseded_by:
            pulse.drop()
            return
        with suppress(RadtError):  # there may be no run at all
            drain_leftovers(place.home)
        deadline_s = self._deadline()
        unsent = shipper.finish(deadline_s, lambda: bool(self._stop))
        if unsent:
            where = f"{place.path} on {node_name()}"
            try:
                place.keep()
            except OSError as error:
                where += f" until the next job there ({error.strerror})"
            unsent = f"not all was sent, and is in {where}: {unsent}"
        if team is not None:
            unsent = team.finish(reason, unsent, deadline_s)
        if unsent:
            statuses.lose(unsent)
        least_s = time.monotonic() + LAST_WORD_S
        if not pulse.finish(reason or unsent, lambda: max(least_s, deadline_s())):
            print(f"radt: {reason or unsent}", file=sys.stderr, flush=True)  # noqa: T201

    def _deadline(self) -> Deadline:
        patience_s = settings.variable(settings.CLUSTER_PATIENCE_S, os.environ).value
        return Deadline(self._stop, time.monotonic() + patience_s)


@dataclass(frozen=True, slots=True)
class Deadline:
    """Until when something may take, by the monotonic clock: less once the job is asked to end."""

    stop: NodeStop
    at_most_s: float

    def __call__(self) -> float:
        return min(self.at_most_s, self.stop.deadline_s)


def _has_finished(rows: Mapping[int, RowStatus]) -> bool:
    return all(parse_status(row.text) is RunStatus.FINISHED for row in rows.values())


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
