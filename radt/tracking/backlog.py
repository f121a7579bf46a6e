"""What MLflow does not have yet, as far as the store knows. Light: no MLflow is imported."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from radt import units
from radt.masking import masked
from radt.store.reader import StoreReader
from radt.tracking.problems import EVERYTHING, Problem, latest, problem_file, read_problems


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits for one MLflow.

    Attributes:
        tracking_uri: Its address, without passwords.
        ended: Runs that have ended and are not complete there.
        running: Runs that have not ended.
        workloads: Workloads of more than these runs that are still open there.
        since_ns: End of the run that has waited longest; None if none waits.
        problem: What went wrong last, None if nothing is known to.
        blocked: Whether the problem concerns all: MLflow cannot be reached, or refuses us.
    """

    tracking_uri: str
    ended: int
    running: int
    workloads: int
    since_ns: int | None = None
    problem: Problem | None = None
    blocked: bool = False

    @property
    def waiting(self) -> bool:
        """Whether there is anything that a working MLflow would have by now."""
        return self.problem is not None or self.ended > 0

    def sentence(self) -> str:
        """One line for people; empty if nothing waits.

        With a problem: ``MLflow at http://mlflow:5000 does not have all of 3 runs yet: no
        connection: connection refused (since 12:04); they are kept here, the next run or `radt
        sync` brings them there``.
        """
        if not self.waiting:
            return ""
        count = self.ended + self.running
        runs = units.plural(count, "run")
        text = f"MLflow at {self.tracking_uri} does not have all of {runs} yet"
        if self.problem is None:
            return f"{text}; they are being brought there"
        since = datetime.fromtimestamp(self.problem.since_ns / 1e9).astimezone()
        form = "%H:%M" if since.date() == datetime.now().astimezone().date() else "%Y-%m-%d %H:%M"
        they, them = ("it is", "it") if count == 1 else ("they are", "them")
        return (
            f"{text}: {self.problem.text} (since {since.strftime(form)}); "
            f"{they} kept here, the next run or `radt sync` brings {them} there"
        )


def backlog(reader: StoreReader) -> list[Backlog]:
    """What waits for each MLflow that runs of a local store go to; those with nothing left out.

    Raises:
        StoreError: The store cannot be read.
    """
    uris = dict.fromkeys(one.tracking_uri for one in reader.workloads() if one.tracking_uri)
    found = [_backlog_of(reader, uri) for uri in uris]
    return [one for one in found if one.waiting or one.running or one.workloads]


def _backlog_of(reader: StoreReader, uri: str) -> Backlog:
    runs = reader.runs_to_deliver(uri)
    workloads = reader.workloads_to_deliver(uri)
    ended = [run for run in runs if run.status.ended]
    problems: dict[str, Problem] = {}
    if (runs or workloads) and reader.address.path is not None:
        problems = read_problems(problem_file(reader.address.path, uri))
    return Backlog(
        tracking_uri=masked(uri),
        ended=len(ended),
        running=len(runs) - len(ended),
        workloads=len(workloads),
        since_ns=min((run.ended_ns or run.created_ns for run in ended), default=None),
        problem=problems.get(EVERYTHING) or latest(problems.values()),
        blocked=EVERYTHING in problems,
    )
