"""The folder that submit host and nodes share: one per submission, and one writer per file.

::

    submissions/ID/
    ├── submission.json           written once, before anything is submitted
    ├── experiment.csv            the experiment file at submission
    ├── arrays/3/
    │   ├── script.1.sh           batch script of the jobs of request.1.json
    │   ├── request.1.json        the jobs to request from the engine, written before the request
    │   └── job.1.8812            the engine's id of those jobs, written after its answer
    ├── jobs/3-17/attempts/2/     made by the node that starts the job, with the next free number
    │   ├── start.json            where and when it started
    │   ├── beat.41               heartbeat: renamed every `Start.beat_s`
    │   ├── statuses.3.json       statuses of the rows so far; the last one says that it has ended
    │   ├── output.log            output of the node runner
    │   ├── meeting.json          address and secret of the first node, until the others have joined
    │   ├── nodes/1/              the same files of another node, if the job has several
    │   └── runs/RUN_ID/          new data of a run, until the submit host has it
    │       ├── RUN_ID.4.radt     a bundle with the changes since RUN_ID.3.radt
    │       └── files.5.tar       its output.log and artifacts, once it has ended
    ├── unfit/first, second       made by the first nodes that could not run any job
    ├── hold                      why no further job may start; renamed to ``released`` afterwards
    ├── stopped                   why the rest will not run
    └── closed                    exists once the submission is settled

A network file system may show a file's old content, but never a new name with old content.
Therefore files appear atomically, are never changed in place, and those with content that matters
get names that were never used before.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from radt.cluster.attempt import JobAttempt, put
from radt.cluster.engine import INTENT
from radt.cluster.submission import JobKey, Request, Submission
from radt.devices.machine import Machine
from radt.errors import ClusterError
from radt.experiment.plan import ExperimentPlan, WorkloadKey
from radt.experiment.source import ExperimentFile
from radt.listeners import registry

#: Maximum number of starts of a job: one that has never ended by then never will.
MOST_ATTEMPTS = 5
#: Made by jobs that find no radt, no folder or another version; the second one holds the
#: remaining jobs.
_UNFIT = ("first", "second")
#: Maximum delay in s until the folder shows that jobs are held.
_HOLD_VISIBLE_S = 60.0
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]+")
MOST_UNFIT = len(_UNFIT)
_REQUEST = re.compile(r"request\.(\d+)\.json")
_JOB = re.compile(r"job\.(\d+)\.(.+)")
_NUMBERED = re.compile(r"(?:request|refused)\.(\d+)(?:\.json)?")


class Spool:
    """The folder of a submission.

    Args:
        path: The folder; see `create` for a new one.

    Attributes:
        problems: Unexpected content of the folder: a sentence each, in the order of discovery.

    Raises:
        ClusterError: It contains no submission that this radt understands.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: dict[str, None] = {}
        #: Requests with an id; they never change.
        self._answered: dict[tuple[int, int], Request] = {}
        try:
            self.submission = Submission.from_json((path / "submission.json").read_text())
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ClusterError(
                f"{path} has no submission that this radt can read: {error}",
                "Check that the folder is there, and that radt is the version that submitted it",
            ) from error

    @classmethod
    def create(cls, folder: Path, submission: Submission, experiment: bytes) -> Spool:
        """Make the folder of a submission in ``folder``, private to the user.

        Raises:
            ClusterError: It cannot be written.
        """
        path = folder / submission.submission_id
        try:
            path.mkdir(mode=0o700, parents=True)
            for name in ("arrays", "jobs"):
                (path / name).mkdir(mode=0o700)
            (path / "experiment.csv").write_bytes(experiment)
            put(path / "submission.json", submission.to_json())
        except OSError as error:
            raise ClusterError(
                f"cannot write the submission into {path}: {error.strerror}",
                "Set folder in [cluster] of radt.toml to a folder that all nodes see",
            ) from error
        return cls(path)

    @property
    def experiment_csv(self) -> Path:
        """Path of the experiment file at submission."""
        return self.path / "experiment.csv"

    def plan(self, machine: Machine, keys: Sequence[WorkloadKey]) -> ExperimentPlan:
        """Return the plan of these workloads of the submitted file on a machine.

        Relative paths are resolved beside the experiment file, which may have changed since.

        Raises:
            ExperimentError: The rows cannot run there.
            ClusterError: The submitted file lacks them.
            UsageError: The settings file beside the experiment file cannot be used.
        """
        submission = self.submission
        table = ExperimentFile.read(self.experiment_csv).table
        file = ExperimentFile(Path(submission.file), submission.file, table)
        devices = str(submission.options.get("devices", ""))
        wanted = [(key.experiment, key.label) for key in keys]
        labels = {row.line: key.label for key, rows in submission.rows.items() for row in rows}
        plan = file.plan(machine, registry.load(), devices, only=wanted, groups=labels)
        found = {workload.key: workload for workload in plan.workloads}
        if missing := [key for key in keys if key not in found]:
            raise ClusterError(f"{self.experiment_csv} has no workload {missing[0].label}")
        return replace(plan, workloads=tuple(found[key] for key in keys))

    # Arrays: written by the submit host -----------------------------------------------------------

    def put_script(self, request: Request, script: str) -> None:
        """Keep the batch script of a request: the settings may change before the next one."""
        put(self._array(request.array) / f"script.{request.number}.sh", script)

    def intend(self, array: int, indices: Sequence[int]) -> Request:
        """Note that jobs of an array are about to be requested from the engine."""
        folder = self._array(array)
        folder.mkdir(mode=0o700, exist_ok=True)
        names = [entry.name for entry in os.scandir(folder)]
        used = [int(match[1]) for name in names if (match := _NUMBERED.fullmatch(name))]
        request = Request(array, max(used, default=0) + 1, tuple(indices))
        put(self._request_file(request), json.dumps(request.indices))
        return request

    def intent(self, request: Request) -> str:
        """Return the text by which the engine finds the jobs again."""
        return f"{INTENT}{self.submission.submission_id}:{request.array}:{request.number}"

    def submitted(self, request: Request, job_id: str) -> Request:
        """Note the engine's id of the jobs; return the request with it."""
        (self._array(request.array) / f"job.{request.number}.{job_id}").touch(mode=0o600)
        return replace(request, job_id=job_id)

    def give_up(self, request: Request) -> None:
        """Forget a request that the engine has refused; its number is not used again."""
        file = self._request_file(request)
        with suppress(FileNotFoundError):
            file.rename(file.with_name(f"refused.{request.number}"))
        file.with_name(f"refused.{request.number - 1}").unlink(missing_ok=True)
        file.with_name(f"script.{request.number}.sh").unlink(missing_ok=True)

    def requests(self) -> list[Request]:
        """Return all requests; those of an array are in order.

        An unreadable request counts as one for all jobs that are in no other request, so that no
        job is submitted twice.

        Raises:
            OSError: The folder cannot be read.
        """
        arrays = range(len(self.submission.arrays))
        return [request for array in arrays for request in self._requests(array)]

    def _array(self, array: int) -> Path:
        return self.path / "arrays" / str(array)

    def _request_file(self, request: Request) -> Path:
        return self._array(request.array) / f"request.{request.number}.json"

    def _requests(self, array: int) -> list[Request]:
        folder = self._array(array)
        names = [entry.name for entry in os.scandir(folder)] if folder.is_dir() else []
        ids = {m[1]: m[2] for name in names if (m := _JOB.fullmatch(name))}
        jobs = range(len(self.submission.arrays[array].jobs))
        numbers = sorted(int(match[1]) for name in names if (match := _REQUEST.fullmatch(name)))
        found: dict[int, Request] = {}
        damaged: list[Request] = []
        for number in numbers:
            if request := self._answered.get((array, number)):
                found[number] = request
                continue
            request = Request(array, number, (), ids.get(str(number), ""))
            file = self._request_file(request)
            try:
                indices = _indices(file.read_text(errors="replace"), jobs)
            except FileNotFoundError:
                continue  # just given up by the submitting process
            if indices is None:
                self.problems[f"{file} is damaged; radt looks for its jobs in the queue"] = None
                damaged.append(request)
                continue
            found[number] = replace(request, indices=indices)
            if request.job_id:
                self._answered[array, number] = found[number]
        asked = {index for request in found.values() for index in request.indices}
        rest = tuple(index for index in jobs if index not in asked)
        found |= {request.number: replace(request, indices=rest) for request in damaged}
        return [found[number] for number in sorted(found)]

    # Attempts: written by the nodes ---------------------------------------------------------------

    def _attempts(self, job: JobKey) -> Path:
        return self.path / f"jobs/{job}/attempts"

    def claim(self, job: JobKey) -> JobAttempt:
        """Make the folder of the next attempt, which no other node can get.

        Raises:
            OSError: It cannot be made.
        """
        folder = self._attempts(job)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        number = self.last_attempt(job) + 1
        while True:
            try:
                (folder / str(number)).mkdir(mode=0o700)
            except FileExistsError:  # a listing may be out of date, mkdir is not
                number += 1
                continue
            return JobAttempt(folder / str(number))

    def last_attempt(self, job: JobKey) -> int:
        """Return the highest number of an attempt; 0 if there is none."""
        try:
            names = [entry.name for entry in os.scandir(self._attempts(job))]
        except FileNotFoundError:
            return 0
        return max((int(name) for name in names if name.isdecimal()), default=0)

    def started_jobs(self) -> set[JobKey]:
        """Return jobs that have an attempt or are about to have one.

        Raises:
            OSError: The folder cannot be read.
        """
        started = set()
        for entry in os.scandir(self.path / "jobs"):
            if (key := JobKey.parse(entry.name)) is not None:
                started.add(key)
            elif not entry.name.startswith("."):  # NFS creates hidden files of its own
                self.problems[f"{entry.path} is not a job's folder; radt ignores it"] = None
        return started

    def job_log(self, array: int, name: str) -> Path:
        """Return the path of a batch script's output; ``name`` is the engine's name of the job."""
        return self._array(array) / f"output.{name}.log"

    def attempts(self, job: JobKey, last: int | None = None) -> list[JobAttempt]:
        """Return all attempts of a job in order, up to number ``last`` if that is known."""
        last = self.last_attempt(job) if last is None else last
        return [JobAttempt(self._attempts(job) / str(number + 1)) for number in range(last)]

    # The submission -------------------------------------------------------------------------------

    def unfit(self, reason: str) -> str:
        """Note that a node could not run any job; the second note holds the rest.

        Return why the job does not run. From the third node on, wait until the rest is held, and
        return the reason of that.

        Raises:
            OSError: It cannot be written.
        """
        for name in _UNFIT:
            try:
                (self.path / "unfit" / name).mkdir(mode=0o700, parents=True)
            except FileExistsError:
                continue
            if name == _UNFIT[-1]:
                self.hold(f"two jobs could not begin: {reason}")
            return reason
        end_s = time.monotonic() + _HOLD_VISIBLE_S
        while not (held := self.held) and time.monotonic() < end_s:
            time.sleep(1.0)
        return held or reason

    def hold(self, reason: str) -> None:
        """Let no further job start.

        The reason is one line: the batch script reads it, and jobs report it verbatim, so that
        their reports can be compared.
        """
        put(self.path / "hold", " ".join(_CONTROLS.sub(" ", reason).split()))

    def release(self) -> None:
        """Let jobs start again."""
        shutil.rmtree(self.path / "unfit", ignore_errors=True)
        with suppress(FileNotFoundError):
            (self.path / "hold").replace(self.path / "released")

    @property
    def held(self) -> str:
        """Return why no further job may start; "" if they may."""
        return _text(self.path / "hold")

    @property
    def released(self) -> str:
        """Return why jobs were held that have since been released; "" if none were."""
        return _text(self.path / "released")

    def stop(self, reason: str) -> None:
        """Note that work which has not run yet will not run."""
        put(self.path / "stopped", reason)

    @property
    def stopped(self) -> str:
        """Return why the rest will not run; "" if it will."""
        return _text(self.path / "stopped")

    def close(self) -> None:
        """Mark the submission as settled."""
        (self.path / "closed").touch(mode=0o600)

    @property
    def is_closed(self) -> bool:
        return (self.path / "closed").exists()


def _indices(text: str, jobs: range) -> tuple[int, ...] | None:
    """Return the job indices of a request; None if they cannot be read."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    is_valid = isinstance(found, list) and all(type(n) is int and n in jobs for n in found)
    return tuple(found) if is_valid else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
