"""Watches an experiment whose runs are jobs of a cluster: status, attach and stop."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path

from radt import settings
from radt.cluster.collecting import Collection
from radt.cluster.executor import monitor_of, plan_of, reopened, status_writer
from radt.cluster.follow import SubmissionFollower
from radt.cluster.monitor import SubmissionMonitor
from radt.cluster.opened import open_submission
from radt.cluster.overview import Overview, current_workload, workload_progress
from radt.cluster.spool import Spool
from radt.cluster.submission import JobKey
from radt.collector.client import CollectorClient
from radt.errors import EngineAwayError, HeldError, UsageError
from radt.experiment.files import call
from radt.experiment.lock import ExperimentLock, Holder
from radt.home import Home
from radt.runner.active import StopRequest
from radt.runner.console import RunConsole
from radt.runner.notify import Notifier
from radt.runner.outcome import STOPPED
from radt.runner.output import LogTail
from radt.runner.progress import ExperimentProgress
from radt.runner.watch import Watcher
from radt.settings import Settings

#: Seconds that a cluster gets to answer `radt status`; and, if it did not, once more.
ANSWER_S = 10.0
ANSWER_AGAIN_S = 1.0
#: Seconds for a follower elsewhere to notice a stop, and for jobs to end.
_STOP_PATIENCE_S = 180.0
#: Seconds for a follower to submit the rest after a submission has ended.
_NEXT_PATIENCE_S = 180.0
_POLL_S = 0.2
#: Maximum bytes to show of output from before the user attached.
_FIRST_BYTES = 4000


class ClusterWatcher(Watcher):
    """Watches a submission.

    The holder of the experiment's lock writes its statuses: another process that follows the jobs
    if there is one, otherwise this one during a look.

    Args:
        file: The experiment file.
        spool: Its submission.
        patience_s: Time limit for the cluster's answer.
        observes_only: Do not change the file.
    """

    subject = "the jobs continue"

    def __init__(
        self, file: Path, spool: Spool, *, patience_s: float = ANSWER_S, observes_only: bool = False
    ) -> None:
        super().__init__(file, lambda: Home(Path(spool.submission.home)))
        self.lock = ExperimentLock(file, home=self.home.path)
        self._spool = spool
        self._patience_s = patience_s
        self._observes_only = observes_only
        self.options = f"--on {spool.submission.engine}"

    def __exit__(self, *_: object) -> None:
        pass

    @contextmanager
    def _lock_if_free(self) -> Iterator[Holder | None]:
        """Hold the experiment's lock within the context; yield its holder if it is taken."""
        try:
            self.lock.acquire()
        except HeldError:
            holder = self.lock.holder()
            if holder is None:
                raise
            yield holder
            return
        try:
            yield None
        finally:
            self.lock.release()

    def look(self) -> ExperimentProgress:
        """Return the current progress, and update the statuses if no other process does.

        Raises:
            ClusterError: The engine refuses to answer, or the submission cannot be read.
        """
        if self._observes_only:
            return self._look(self.lock.holder(), writes=False)
        with self._lock_if_free() as holder:
            return self._look(holder, writes=holder is None)

    def _look(self, holder: Holder | None, *, writes: bool) -> ExperimentProgress:
        spool = self._spool
        cluster, engine = reopened(spool, self._patience_s)
        monitor = monitor_of(spool, cluster, engine, observes_only=True)
        changes = monitor.step(time.monotonic())
        if writes:
            status_writer(spool).set_many(changes.statuses)
        rows = sorted(spool.submission.rows.items(), key=lambda item: item[1][0].line)
        if monitor.is_settled:
            hint = f"{call(self.file, 'attach')} collects what the jobs have recorded"
        elif monitor.held:
            hint = f"{call(self.file, options=self.options)} lets the jobs start"
        else:
            hint = (
                f"{call(self.file, 'attach')} follows the jobs, {call(self.file, 'stop')} "
                "cancels them"
            )
        return ExperimentProgress(
            file=self.file,
            name=plan_of(spool).name,
            is_running=not monitor.is_settled,
            holder=holder,
            workloads=[workload_progress(key, of_key, monitor.statuses) for key, of_key in rows],
            place=f"on {spool.submission.engine}",
            hint=hint,
            jobs=Overview.of(monitor),
        )

    def follow(self, console: RunConsole, stop: StopRequest) -> int:
        """Follow as `Watcher` does; continue with another process's next submission."""
        with self._lock_if_free() as holder:
            if holder is not None:
                console.say(f"  {holder} writes the statuses; this only looks", "dim")
            current: Spool | None = self._spool
            code = 0
            while current is not None:
                # The last code counts: failed rows of earlier submissions have run again in it.
                code = self._follow(current, console, stop, is_ours=holder is None)
                current = None if holder is None else self._next(holder, current, stop)
        return code

    def _next(self, holder: Holder, before: Spool, stop: StopRequest) -> Spool | None:
        """Wait for a follower's next submission; return None if the follower ends instead."""
        end_s = time.monotonic() + _NEXT_PATIENCE_S
        while not stop and self.lock.holder() == holder and time.monotonic() < end_s:
            found = open_submission(self.file)
            if found is not None and found.path != before.path:
                return found
            stop.wait(_POLL_S)
        return None

    def _follow(
        self,
        spool: Spool,
        console: RunConsole,
        stop: StopRequest,
        *,
        is_ours: bool,
        with_output: bool = True,
    ) -> int:
        """Follow a submission, writing its statuses if no other process does."""
        tails = OutputTails(spool, console)
        with (
            closing(Notifier("", console.say)) as notifier,
            self._collection(spool, console) if is_ours else nullcontext() as collection,
        ):
            outcome = SubmissionFollower(
                monitor_of(spool, *reopened(spool), observes_only=not is_ours),
                self.home,
                console,
                collection=collection,
                statuses=status_writer(spool) if is_ours else None,
                notifier=notifier,
                stop=stop,
                on_look=tails.relay if with_output else lambda _monitor: None,
            ).run()
        if outcome.problem is not None:
            raise outcome.problem
        return outcome.exit_code

    @contextmanager
    def _collection(self, spool: Spool, console: RunConsole) -> Iterator[Collection | None]:
        """Yield what takes the runs; None if the settings do not say where to: statuses come first.

        The store is opened with the first run that is taken.
        """
        try:
            values = Settings.of(self.file.absolute().parent)
            tracking_uri = self.home.tracking_uri(
                values[settings.TRACKING_URI] or self.home.default_tracking_uri
            )
            store_uri = self.home.store_uri(
                values[settings.STORE_URI] or None, tracking_uri=tracking_uri
            )
        except UsageError as error:
            console.say(f"  runs are not collected: {error}", "red", indent=2)
            yield None
            return
        with (
            closing(CollectorClient.for_runner()) as client,
            Collection(
                spool, self.home, tracking_uri=tracking_uri, store_uri=store_uri, client=client
            ) as collection,
        ):
            yield collection

    def stop(self, console: RunConsole, *, now: bool) -> bool:
        """See `Watcher`.

        Raises:
            EngineAwayError: The engine does not answer; the next process that looks cancels the
                jobs.
            HeldError: The process that follows the jobs has not noticed the stop in time.
        """
        spool = self._spool
        spool.stop(STOPPED)  # first, so that no process submits any more
        cluster, engine = reopened(spool)
        monitor = monitor_of(spool, cluster, engine, observes_only=True)
        monitor.step(time.monotonic())
        if monitor.away:
            raise EngineAwayError(
                f"{monitor.away}: jobs of {self.file} may go on",
                f"Run {call(self.file, 'stop')} again; whoever looks at the jobs cancels them, too",
            )
        engine.cancel(monitor.unended(), now=now)
        with self._lock_if_free() as holder:
            if holder is None:
                self._follow(spool, console, StopRequest(), is_ours=True, with_output=False)
            elif not self.wait_for_release(holder, _STOP_PATIENCE_S, lambda: spool.is_closed):
                raise HeldError(
                    f"the jobs were cancelled; {holder} has not brought {self.file} up to date",
                    f"See {call(self.file, 'status')}",
                )
        return True


class OutputTails:
    """Prints the output of running jobs' node runners, each line with its workload and node."""

    def __init__(self, spool: Spool, console: RunConsole) -> None:
        self._spool = spool
        self._console = console
        self._tails: dict[Path, LogTail] = {}
        self._running: dict[JobKey, str] = {}

    def relay(self, monitor: SubmissionMonitor) -> None:
        """Print the output since the last call, including that of jobs that have ended since."""
        now = {
            job.key: f"{current_workload(monitor, job).label} on {job.state.nodes}"
            for job in monitor.jobs.values()
            if job.is_running and job.state is not None
        }
        for key, where in {**self._running, **now}.items():
            with suppress(OSError):  # not there yet, or temporarily unreachable
                for attempt in self._spool.attempts(key)[-1:]:
                    log = attempt.output_log
                    for line in self._tails.setdefault(log, LogTail(log, _FIRST_BYTES)).lines():
                        if text := line.strip():
                            self._console.relay(f"  {where} │ {text}")
        self._running = now
