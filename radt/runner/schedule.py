"""Runs an experiment: workload after workload, resuming what was cut off."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

from radt import units
from radt.errors import RadtError, RunNotFoundError, StatusError
from radt.experiment.plan import RunPlan, WorkloadPlan
from radt.experiment.status import RowStatus, StatusSink
from radt.model import RunStatus
from radt.runner.active import status_text
from radt.runner.due import Due
from radt.runner.ending import Ending
from radt.runner.estimate import ProgressView, remaining_s
from radt.runner.live import label_width, repeated
from radt.runner.notify import Notice, Notifier
from radt.runner.options import ExperimentOptions
from radt.runner.outcome import ExperimentOutcome, RunOutcome, WorkloadOutcome
from radt.runner.recovery import Settled, recover
from radt.runner.session import Session
from radt.runner.stop import StopRequest
from radt.runner.workload import WorkloadRunner

SERIES_TAG = "radt.series"


class Schedule:
    """Runs what is due of a plan. One object, one call of `run`.

    Args:
        statuses: Writes them into the experiment file; None for a script run directly.
    """

    def __init__(
        self,
        session: Session,
        settled: Settled,
        due: Sequence[Due],
        options: ExperimentOptions,
        stop: StopRequest,
        statuses: StatusSink | None,
        notifier: Notifier,
    ) -> None:
        self._session = session
        self._settled = settled
        self._plan = settled.plan
        self._due = due
        self._options = options
        self._stop = stop
        self._statuses = statuses
        self._notifier = notifier
        self._outcomes: list[WorkloadOutcome] = []
        #: Workloads that did not finish: a repeat of them would not either.
        self._given_up: set[tuple[str, str]] = set()
        self._first_failure = ""
        self._series: dict[tuple[str, str], str] = {}
        self._ended_s: dict[tuple[str, str], list[float]] = {}

    def run(self) -> ExperimentOutcome:
        """Run it; the caller holds the experiment's lock and listens for signals.

        If a workload cannot be recorded, or statuses cannot be written, that is the outcome's
        ``problem``: what ran until then has been measured.

        Raises:
            RadtError: What an earlier runner left could not be recovered; nothing was started.
        """
        recover(self._session, self._settled, self._statuses, repeats=self._options.repeat)
        started_s = time.monotonic()
        problem: RadtError | None = None
        try:
            self._run_all(started_s)
        except RadtError as error:
            problem = error
        try:
            if self._statuses is not None:
                self._statuses.flush()
        except StatusError as error:
            problem = problem or error
        outcome = self._outcome(started_s, problem)
        file = str(self._plan.path)
        what = str(problem or "")
        self._notifier.send(Notice.of_experiment(self._plan.name, outcome, file, problem=what))
        return outcome

    def _run_all(self, started_s: float) -> None:
        self._session.console.label_width = label_width(
            repeated(due.plan.label, due.repeat, due.repeats) for due in self._due
        )
        for position, due in enumerate(self._due, start=1):
            if self._stop:
                break
            self._show_progress(position, started_s)
            if _key(due.plan) in self._given_up:
                continue
            if self._options.fail_fast and self._given_up:
                self._skip(due, f"{self._first_failure} did not finish (--fail-fast)")
                continue
            if self._outcomes:
                self._cool_down()
            if not self._stop:
                self._run_one(position, due)

    def _run_one(self, position: int, due: Due) -> None:
        outcome = WorkloadRunner(
            self._session,
            due,
            self._options,
            series_id=self._series_of(due),
            position=position,
            total=len(self._due),
            stop=self._stop,
            statuses=self._statuses,
        ).run()
        self._outcomes.append(outcome)
        self._session.console.workload_ended(position, len(self._due), outcome)
        if outcome.status is RunStatus.FINISHED:
            self._ended_s.setdefault(_key(due.plan), []).append(outcome.elapsed_s)
        else:
            self._given_up.add(_key(due.plan))
            self._first_failure = self._first_failure or outcome.label
            if not self._stop:
                self._notifier.send(Notice.of_workload(due.plan, outcome, str(self._plan.path)))

    def _skip(self, due: Due, reason: str) -> None:
        """Say in the file why the rows were not run; the next start runs them."""
        ending = Ending(RunStatus.SKIPPED, reason)
        if self._statuses is not None:
            text = status_text(ending, due.repeat, due.repeats)
            try:
                self._statuses.set_many({run.line: RowStatus(text) for run in due.plan.runs})
            except StatusError as error:  # the next write tries again
                self._session.console.say(f"  {error}", style="red")
        self._given_up.add(_key(due.plan))
        self._outcomes.append(
            WorkloadOutcome(
                label=due.plan.label,
                workload_id="",
                runs=[_skipped(run, reason) for run in due.plan.runs],
                start_skew_s=None,
                repeat=due.repeat,
                repeats=due.repeats,
            )
        )

    def _cool_down(self) -> None:
        """Let the hardware come to rest; a stop ends the rest."""
        end_s = time.monotonic() + self._options.cooldown_s
        while (left_s := end_s - time.monotonic()) > 0 and not self._stop:
            self._session.console.show_wait(f"cooling down, {units.duration(left_s)} left")
            self._stop.wait(min(left_s, 1.0))
        self._session.console.hide_live()

    def _series_of(self, due: Due) -> str:
        """An id that all repeats of a workload share, also those of an earlier start."""
        key = _key(due.plan)
        if key not in self._series:
            self._series[key] = (due.repeat > 1 and self._earlier_series(due)) or uuid.uuid4().hex
        return self._series[key]

    def _earlier_series(self, due: Due) -> str:
        for run in due.plan.runs:
            if run.run_id:
                try:
                    record = self._session.reader.find_run(run.run_id)
                except RunNotFoundError:
                    continue
                tags = self._session.reader.tags(record.run_id)
                if SERIES_TAG in tags:
                    return tags[SERIES_TAG]
        return ""

    def _show_progress(self, position: int, started_s: float) -> None:
        left = [_key(due.plan) for due in self._due[position - 1 :]]
        self._session.console.experiment = ProgressView(
            done=position - 1,
            total=len(self._due),
            elapsed_s=time.monotonic() - started_s,
            remaining_s=remaining_s(left, self._ended_s, cooldown_s=self._options.cooldown_s),
        )

    def _outcome(self, started_s: float, problem: RadtError | None) -> ExperimentOutcome:
        ran = {_key(due.plan) for due in self._due}
        return ExperimentOutcome(
            workloads=self._outcomes,
            skipped=sum(len(one.runs) for one in self._plan.workloads if _key(one) not in ran),
            elapsed_s=time.monotonic() - started_s,
            interrupted_by=self._stop.number,
            problem=problem,
        )


def _key(workload: WorkloadPlan) -> tuple[str, str]:
    return workload.experiment, workload.label


def _skipped(run: RunPlan, reason: str) -> RunOutcome:
    return RunOutcome(run.letter, run.label, "", RunStatus.SKIPPED, reason, None)
