"""One start of an experiment on a cluster, and what others do with its open submissions."""

from __future__ import annotations

import os
import platform
import secrets
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from radt import settings as radt_settings
from radt import units
from radt.cluster.collecting import Collection
from radt.cluster.course import Course
from radt.cluster.engine import ArrayRequest, Engine
from radt.cluster.follow import Followed, Follower
from radt.cluster.opened import mark_open, open_submission
from radt.cluster.rows import submitted_rows, submitted_table
from radt.cluster.same_node import on_one_node
from radt.cluster.script import array_request
from radt.cluster.settings import ClusterSettings, Recording
from radt.cluster.settle import Patience
from radt.cluster.shape import JobArray, Shape, WorkloadKey
from radt.cluster.shaping import arrays_for, ask_about
from radt.cluster.slurm import Slurm
from radt.cluster.spool import Request, Spool, Submission
from radt.cluster.submit import Submitter
from radt.devices.machine import Machine
from radt.errors import ClusterError, RadtError, UsageError
from radt.experiment.files import table_path
from radt.experiment.lock import ExperimentLock, start_options, user_name
from radt.experiment.plan import FAILURES, ExperimentPlan, RunPlan, WorkloadPlan
from radt.experiment.source import ExperimentFile, open_source
from radt.experiment.status import StatusSink, StatusWriter
from radt.home import STORE_VARIABLE, TRACKING_VARIABLE, Home
from radt.listeners import registry
from radt.paths import sqlite_file
from radt.runner.active import StopRequest
from radt.runner.console import RunConsole
from radt.runner.notify import Notification, Notifier
from radt.runner.outcome import ExperimentOutcome
from radt.runner.pending import ExperimentOptions, PendingWorkload, pending_workloads
from radt.runner.recording import Session, open_session
from radt.runner.start import (
    Confirm,
    ask_first,
    hint_lines,
    notifying,
    print_closing,
    print_header,
)
from radt.setting_values import find_settings


@dataclass(frozen=True, slots=True)
class ClusterStart:
    """Where a start runs: ``on`` is what names the cluster, ``settings`` are those of it."""

    on: str
    settings: ClusterSettings
    engine: Engine


def course_of(
    spool: Spool,
    settings: ClusterSettings,
    engine: Engine,
    *,
    looks_only: bool = False,
) -> Course:
    """Return the course of a submission; see `Course`.

    Raises:
        RadtError: Its experiment file cannot be read.
    """
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
    return Course(
        spool,
        engine,
        submitter,
        submitted_rows(spool),
        Patience(outcome_s=radt_settings.variable(radt_settings.CLUSTER_LATE_S, os.environ).value),
        looks_only=looks_only,
        poll_s=radt_settings.variable(radt_settings.CLUSTER_POLL_S, os.environ).value,
    )


def reopened(spool: Spool, patience_s: float | None = None) -> tuple[ClusterSettings, Engine]:
    """Return the settings and the engine of a submission, which waits `patience_s` for an answer.

    Raises:
        UsageError: The settings file no longer has its cluster.
    """
    submission = spool.submission
    file = find_settings(Path(submission.file).parent)
    settings = ClusterSettings.named(submission.engine, file)
    if settings is None:
        raise UsageError(f"{spool.path} names no cluster", "Remove the folder")
    return settings, Slurm(patience_s)


@dataclass(frozen=True, slots=True)
class Fresh:
    """What is to be submitted of a file."""

    source: ExperimentFile
    plan: ExperimentPlan
    options: ExperimentOptions
    pending: Sequence[PendingWorkload]
    arrays: Sequence[JobArray]

    @property
    def failed_before(self) -> list[RunPlan]:
        """Rows that an earlier start saw fail, and that do not run again."""
        due = {WorkloadKey.of(workload.plan) for workload in self.pending}
        only = self.options.only
        return [
            run
            for workload in self.plan.workloads
            if WorkloadKey.of(workload) not in due and (not only or workload.label in only)
            for run in workload.runs
            if run.status in FAILURES
        ]


def plan_fresh(
    path: Path, start: ClusterStart, options: ExperimentOptions, devices: str, home: Home
) -> Fresh:
    """Return what is pending of a file, as arrays that the engine would take.

    Raises:
        ExperimentError: The file has problems, or a shape that fits nowhere.
        ClusterError: The engine is not there.
    """
    source = open_source(path)
    plan = source.plan(Machine.of_cluster(), registry.load(), devices)
    options = options.with_repeat_of(source.repeat, plan)
    pending = pending_workloads(plan, options)
    arrays: Sequence[JobArray] = ()
    if pending:
        engine, settings = start.engine, start.settings
        arrays = arrays_for(source.shown, pending, settings, max_array_size=engine.max_array_size)
        if settings.same_node:
            arrays = on_one_node(arrays, plan, settings, engine, home)
        first: dict[Shape, tuple[int, JobArray]] = {}
        for number, array in enumerate(arrays):
            first.setdefault(array.shape, (number, array))
        folder = settings.submissions(home.path) / "test"
        asked = {
            array: array_request(
                folder, number, array, settings, name=plan.name, intent="radt: a test"
            )
            for number, array in first.values()
        }
        ask_about(source.shown, plan, asked, engine)
    return Fresh(source, plan, options, pending, arrays)


def start_on_cluster(
    path: Path,
    start: ClusterStart,
    *,
    home: Home,
    options: ExperimentOptions,
    console: Console,
    tracking_uri: str | None = None,
    store_uri: str | None = None,
    devices: str = "",
    confirm: Confirm | None = None,
) -> ExperimentOutcome:
    """Go on with what a file has submitted, or submit what is pending of it, and follow that.

    Args:
        path: The experiment file.
        start: Where to run.
        home: The data folder of this host.
        options: Of the start.
        console: Printed to.
        tracking_uri: MLflow's address.
        store_uri: Postgres's.
        devices: Overrides the Devices column.
        confirm: Asked before what the user may not expect.

    Raises:
        ExperimentError: The file has problems; nothing was submitted.
        HeldError: Somebody follows it already.
        RadtError: It could not be submitted or recorded.
    """
    with ExperimentLock(path, home=home.path, options=options):
        spool = open_submission(path, home)
        fresh = None
        if spool is None:
            fresh = plan_fresh(path, start, options, devices, home)
            ask_first(fresh.pending, fresh.options, confirm)
            plan = fresh.plan
        else:
            plan = plan_of(spool)
        with _watch(path, home, options, console, plan, tracking_uri, store_uri) as watch:
            if spool is not None and watch.go_on(spool):
                fresh = plan_fresh(path, start, options, devices, home)
            if fresh is not None:
                watch.run_fresh(fresh, start, devices)
                plan = fresh.plan
            outcome = watch.close(plan, [] if fresh is None else fresh.failed_before)
    if outcome.problem is not None:
        raise outcome.problem
    return outcome


def plan_of(spool: Spool) -> ExperimentPlan:
    """Return as much of a plan as a submission knows: the names of its workloads."""
    submission = spool.submission
    keys = (key for job in submission.jobs for key in submission.workloads(job))
    workloads = (WorkloadPlan(key.experiment, key.label, ()) for key in keys)
    return ExperimentPlan(Path(submission.file), tuple(workloads))


@contextmanager
def _watch(
    path: Path,
    home: Home,
    options: ExperimentOptions,
    console: Console,
    plan: ExperimentPlan,
    tracking_uri: str | None,
    store_uri: str | None,
) -> Iterator[_Watch]:
    stop = StopRequest()
    with (
        RunConsole(console, quiet=options.quiet) as output,
        notifying(options, plan, output) as notifier,
        open_session(
            home,
            Machine.of_cluster(),
            output,
            explicit_tracking_uri=tracking_uri,
            explicit_store_uri=store_uri,
            start_options=start_options(path, home.path),
        ) as session,
        stop.listening(),
    ):
        session.open()
        yield _Watch(path, session, options, notifier, stop)


class _Watch:
    """What one start does with one submission after the other."""

    def __init__(
        self,
        path: Path,
        session: Session,
        options: ExperimentOptions,
        notifier: Notifier,
        stop: StopRequest,
    ) -> None:
        self._path = path
        self._session = session
        self._options = options
        self._notifier = notifier
        self._stop = stop
        self._began_s = time.monotonic()
        self._found = Followed()

    def go_on(self, spool: Spool) -> bool:
        """Follow an open submission; what is held of it may start again.

        Returns:
            Whether what is left of the file is to be submitted now: all of it had ended before this
            start, or this start is to run again what has failed.
        """
        settings, engine = reopened(spool)
        course = course_of(spool, settings, engine)
        course.release()
        jobs = len(course.jobs)
        self._session.console.say(
            f"  goes on with what was submitted before, {units.plural(jobs, 'job')}: "
            f"{spool.submission.submission_id}",
            "dim",
        )
        if self._options.rerun:
            self._session.console.say("  what has failed runs again when they have ended", "dim")
        statuses = StatusWriter(table_path(self._path), submitted_table(spool))
        self._follow(spool, course, settings.name, statuses)
        if self._stop or self._found.problem is not None:
            return False
        if not (self._found.settled_at_once or self._options.rerun):
            return False
        if not spool.is_closed:
            # A later look would write its statuses over those of what is submitted now.
            self._found.problem = ClusterError(
                f"runs of {spool.submission.submission_id} could not be collected, so nothing "
                "more was submitted",
                "Mend what is said above, and start again",
            )
        return spool.is_closed

    def run_fresh(self, fresh: Fresh, start: ClusterStart, devices: str) -> None:
        """Submit what is pending, and follow it."""
        where = f"{start.settings.name}, {units.plural(len(fresh.arrays), 'array')}"
        print_header(self._session, fresh.plan, fresh.pending, where)
        if not fresh.pending or self._stop:
            return
        self._found = Followed()  # what runs again counts once
        statuses = fresh.source.writer()
        if fresh.source.note:
            self._session.console.say(f"  {fresh.source.note}", "dim")
        submission = self._submission(fresh, start, devices)
        spool = Spool.create(
            start.settings.submissions(self._session.home.path),
            submission,
            fresh.source.table.text.encode(errors="surrogateescape"),
        )
        mark_open(spool)
        course = course_of(spool, start.settings, start.engine)
        self._follow(spool, course, start.settings.name, statuses)

    def close(self, plan: ExperimentPlan, failed_before: Sequence[RunPlan]) -> ExperimentOutcome:
        """Print the last lines and return what came of it."""
        console, found = self._session.console, self._found
        outcome = ExperimentOutcome(
            workloads=found.workloads,
            failed_before=failed_before,
            elapsed_s=time.monotonic() - self._began_s,
            interrupted_by=self._stop.number,
            problem=found.problem,
        )
        if self._stop:
            console.say("")
            console.say("  this only ends the looking: the jobs go on")
            hints = {
                f"radt {command} {shlex.quote(str(self._path))}": purpose
                for command, purpose in _HINTS.items()
            }
            for line in hint_lines(hints, console.width):
                console.say(line)
            return outcome
        file, problem = str(self._path), str(found.problem or "")
        self._notifier.send(Notification.of_experiment(plan.name, outcome, file, problem=problem))
        try:
            print_closing(self._session, plan, outcome, None)
        except RadtError as error:
            if found.problem is None:  # else that is why, and more to the point
                console.say(f"  {error}", "red")
        return outcome

    def _submission(self, fresh: Fresh, start: ClusterStart, devices: str) -> Submission:
        options = asdict(fresh.options)
        if devices:
            options["devices"] = devices
        return Submission(
            submission_id=f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}",
            engine=start.on,
            file=str(table_path(self._path).absolute()),
            host=platform.node(),
            user=user_name(),
            radt_version=version("radt"),
            python=sys.executable,
            arrays=tuple(fresh.arrays),
            options=options,
            settings=self._node_settings(start.settings),
            home=str(self._session.home.path.absolute()),
        )

    def _node_settings(self, settings: ClusterSettings) -> dict[str, str]:
        """The variables by which nodes find MLflow and Postgres themselves, if they are to."""
        if settings.record is not Recording.DIRECT:
            return {}
        session = self._session
        found = {STORE_VARIABLE: session.store_uri} if session.store_uri else {}
        if session.tracking_uri and sqlite_file(session.tracking_uri) is None:
            found[TRACKING_VARIABLE] = session.tracking_uri
        if not found:
            raise UsageError(
                f'record = "direct" in {settings.source} needs a server that nodes reach',
                "Set --tracking-uri or --store-uri to one, or remove the line",
            )
        return found

    def _follow(self, spool: Spool, course: Course, engine_name: str, statuses: StatusSink) -> None:
        session = self._session
        with Collection(
            spool,
            session.home,
            tracking_uri=session.tracking_uri,
            store_uri=session.store_uri,
            client=session.client,
        ) as collection:
            follower = Follower(
                spool,
                course,
                session.home,
                session.console,
                engine_name=engine_name,
                collection=collection,
                statuses=statuses,
                notifier=self._notifier,
                stop=self._stop,
                wait_for_file_s=self._options.wait_for_file_s,
            )
            followed = follower.run()
        self._found.workloads += followed.workloads
        self._found.problem = followed.problem
        self._found.settled_at_once = followed.settled_at_once


_HINTS = {
    "status": "progress, queue and estimated start",
    "attach": "look again, with the output of the runs",
    "stop": "cancel the jobs",
}
