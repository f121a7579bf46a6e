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
    ├── hold                      why no further job may start; ``released`` once they may again
    ├── stopped                   why the rest will not run
    └── closed                    exists once all of it is settled

A network file system may show a file's old content, but never a new name with old content.
Therefore files appear atomically under names that were never used before, and are never changed in
place.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from radt.cluster.engine import INTENT, Shape
from radt.errors import ClusterError
from radt.experiment.plan import WorkloadPlan
from radt.experiment.status import RowStatus
from radt.files import write_whole
from radt.home import STORE_VARIABLE, TRACKING_VARIABLE

BEAT_S = 10.0
#: Maximum number of starts of a job: one that has never ended by then never will.
MOST_ATTEMPTS = 5
#: Made by jobs that find no radt, no folder or another version; the second one holds the others.
_UNFIT = ("first", "second")
#: Maximum delay in s until the folder shows that jobs are held.
_HOLD_COMES_S = 60.0
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]+")
MOST_UNFIT = len(_UNFIT)
#: Reasons of an attempt that was asked to end: by SIGTERM, by the signal before the time limit.
PREEMPTED = "preempted"
TIME_LIMIT = "the job's time limit"
_STATUSES = re.compile(r"statuses\.(\d+)\.json")
_REQUEST = re.compile(r"request\.(\d+)\.json")
_JOB = re.compile(r"job\.(\d+)\.(.+)")
_BEAT = re.compile(r"beat\.(\d+)")
_KEY = re.compile(r"(\d+)-(\d+)")


@dataclass(frozen=True, slots=True, order=True)
class WorkloadKey:
    """A workload of an experiment file."""

    experiment: str
    label: str

    @classmethod
    def of(cls, workload: WorkloadPlan) -> WorkloadKey:
        return cls(workload.experiment, workload.label)


@dataclass(frozen=True, slots=True)
class JobArray:
    """Jobs of one shape, by index: each runs its workloads one after the other."""

    shape: Shape
    jobs: tuple[tuple[WorkloadKey, ...], ...]


@dataclass(frozen=True, slots=True, order=True)
class JobKey:
    """A job of a submission: the number of its array, and its index in the array; ``3-17``."""

    array: int
    index: int

    def __str__(self) -> str:
        return f"{self.array}-{self.index}"

    @classmethod
    def parse(cls, text: str) -> JobKey | None:
        """Parse the result of `str`; return None for any other text."""
        match = _KEY.fullmatch(text)
        return None if match is None else cls(int(match[1]), int(match[2]))


@dataclass(frozen=True, slots=True)
class Submission:
    """A submission with all information that a node needs.

    ``file`` is the experiment file on the submit host; ``options`` are those of the start
    (`StartOptions.for_nodes`); ``settings`` are environment variables for the nodes: with
    ``RADT_TRACKING_URI`` or ``RADT_STORE_URI`` among them, nodes upload runs there, otherwise the
    submit host does. ``home`` is the data folder on the submit host, which gets the runs.
    """

    submission_id: str
    engine: str
    file: str
    host: str
    user: str
    radt_version: str
    python: str
    arrays: tuple[JobArray, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    home: str = ""

    def workloads(self, job: JobKey) -> tuple[WorkloadKey, ...]:
        return self.arrays[job.array].jobs[job.index]

    @property
    def is_direct(self) -> bool:
        """Return True if nodes reach MLflow or Postgres directly (``record = "direct"``)."""
        return self.reaches_mlflow or bool(self.settings.get(STORE_VARIABLE))

    @property
    def reaches_mlflow(self) -> bool:
        """Return True if nodes upload to MLflow; the submit host only does it for dead nodes."""
        return bool(self.settings.get(TRACKING_VARIABLE))

    @property
    def jobs(self) -> Iterator[JobKey]:
        for number, array in enumerate(self.arrays):
            yield from (JobKey(number, index) for index in range(len(array.jobs)))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse the result of `to_json`.

        Raises:
            ValueError: It is not a submission.
            TypeError: The same.
            KeyError: The same.
        """
        values = json.loads(text)
        arrays = tuple(
            JobArray(
                Shape(**array["shape"]),
                tuple(tuple(WorkloadKey(**key) for key in job) for job in array["jobs"]),
            )
            for array in values.pop("arrays")
        )
        return cls(**values, arrays=arrays)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)


@dataclass(frozen=True, slots=True)
class Request:
    """Jobs of an array that are requested from the engine together.

    ``job_id`` is the engine's id of them, "" while it is unknown.
    """

    array: int
    number: int
    indices: tuple[int, ...]
    job_id: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """Where and when an attempt began, and the seconds between its heartbeats.

    ``job_id`` is the engine's, such as ``1234_7``.
    """

    host: str
    job_id: str
    pid: int
    radt_version: str
    restarts: int = 0
    beat_s: float = BEAT_S


@dataclass(frozen=True, slots=True)
class AttemptView:
    """An attempt as its folder shows it.

    ``beats`` counts its heartbeats; only its growth is meaningful. ``statuses`` are keyed by the
    lines of the submitted file. ``ended`` says that the attempt itself reported its end; ``reason``
    is why it did not run all of its workloads. ``kept`` are the ids of its ended runs and of those
    that it keeps from earlier attempts: all other runs of earlier attempts are invalid. None before
    its first report.
    """

    number: int
    start: Start | None
    beats: int
    statuses: Mapping[int, RowStatus]
    ended: bool
    reason: str = ""
    kept: frozenset[str] | None = None


class Attempt:
    """The folder of one start of a job; only its node writes to it."""

    def __init__(self, path: Path, number: int | None = None) -> None:
        self.path = path
        self.number = int(path.name) if number is None else number
        self._beats = 0
        self._written = 0

    @property
    def output_log(self) -> Path:
        return self.path / "output.log"

    def run_folder(self, run_id: str) -> Path:
        """Return the folder for the archive of a run."""
        return self.path / "runs" / run_id

    def run_folders(self) -> Sequence[Path]:
        folder = self.path / "runs"
        return sorted(folder.iterdir()) if folder.is_dir() else []

    def part(self, node: int) -> Attempt:
        """Make the folder of another node of this attempt, with the same structure."""
        path = self.path / "nodes" / str(node)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Attempt(path, self.number)

    def parts(self) -> dict[int, Attempt]:
        """Return the folders of the other nodes, by number."""
        folder = self.path / "nodes"
        names = sorted(entry.name for entry in os.scandir(folder)) if folder.is_dir() else []
        return {int(name): Attempt(folder / name, self.number) for name in names}

    def begin(self, start: Start) -> None:
        put(self.path / "start.json", json.dumps(asdict(start)))

    def beat(self) -> None:
        """Write a heartbeat."""
        before, after = (self.path / f"beat.{self._beats + more}" for more in (0, 1))
        if self._beats == 0:
            after.touch(mode=0o600)
        else:
            try:
                before.rename(after)
            except FileNotFoundError:  # it was renamed, but the server's answer was lost
                after.touch(mode=0o600)
        self._beats += 1

    def put_statuses(
        self,
        statuses: Mapping[int, RowStatus],
        *,
        ended: bool = False,
        reason: str = "",
        kept: Iterable[str] = (),
    ) -> None:
        """Report the statuses of all rows; the last time with ``ended``.

        Args:
            kept: See `AttemptView`.

        Raises:
            OSError: It cannot be written; the next call reports them again.
        """
        rows = {line: asdict(status) for line, status in statuses.items()}
        content = {"rows": rows, "ended": ended, "reason": reason, "kept": sorted(kept)}
        number = self._written + 1
        put(self.path / f"statuses.{number}.json", json.dumps(content))
        before, self._written = self._written, number
        (self.path / f"statuses.{before}.json").unlink(missing_ok=True)
        if ended:  # leave as few files as possible
            (self.path / f"beat.{self._beats}").unlink(missing_ok=True)

    def view(self) -> AttemptView:
        """Return the current content of the folder."""
        names = [entry.name for entry in os.scandir(self.path)]
        beats = [int(match[1]) for name in names if (match := _BEAT.fullmatch(name))]
        start = _json(self.path / "start.json") if "start.json" in names else None
        numbers = sorted(int(m[1]) for name in names if (m := _STATUSES.fullmatch(name)))
        content: dict[str, Any] = {}
        for number in reversed(numbers):  # the newest may be replaced while reading
            if found := _json(self.path / f"statuses.{number}.json"):
                content = found
                break
        return AttemptView(
            self.number,
            Start(**start) if start else None,
            max(beats, default=0),
            {int(line): RowStatus(**row) for line, row in content.get("rows", {}).items()},
            bool(content.get("ended", False)),
            str(content.get("reason", "")),
            frozenset(content["kept"]) if "kept" in content else None,
        )


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

    # Arrays: written by the submit host -----------------------------------------------------------

    def put_script(self, request: Request, script: str) -> None:
        """Keep the batch script of a request: the settings may change before the next one."""
        folder = self.path / "arrays" / str(request.array)
        put(folder / f"script.{request.number}.sh", script)

    def intend(self, array: int, indices: Sequence[int]) -> Request:
        """Note that jobs of an array are about to be requested from the engine."""
        numbers = [request.number for request in self._requests(array)]
        request = Request(array, max(numbers, default=0) + 1, tuple(indices))
        path = self.path / "arrays" / str(array) / f"request.{request.number}.json"
        path.parent.mkdir(mode=0o700, exist_ok=True)
        put(path, json.dumps(request.indices))
        return request

    def intent(self, request: Request) -> str:
        """Return the text by which the engine finds the jobs again."""
        return f"{INTENT}{self.submission.submission_id}:{request.array}:{request.number}"

    def submitted(self, request: Request, job_id: str) -> Request:
        """Note the engine's id of the jobs; return the request with it."""
        folder = self.path / "arrays" / str(request.array)
        (folder / f"job.{request.number}.{job_id}").touch(mode=0o600)
        return replace(request, job_id=job_id)

    def give_up(self, request: Request) -> None:
        """Forget a request that the engine has refused."""
        path = self.path / "arrays" / str(request.array) / f"request.{request.number}.json"
        path.unlink(missing_ok=True)

    def requests(self) -> list[Request]:
        """Return all requests; those of an array are in order.

        An unreadable request counts as one for all jobs that are in no other request, so that no
        job is submitted twice.

        Raises:
            OSError: The folder cannot be read.
        """
        arrays = range(len(self.submission.arrays))
        return [request for array in arrays for request in self._requests(array)]

    def _requests(self, array: int) -> list[Request]:
        folder = self.path / "arrays" / str(array)
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
            file = folder / f"request.{number}.json"
            request = Request(array, number, (), ids.get(str(number), ""))
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

    def claim(self, job: JobKey) -> Attempt:
        """Make the folder of the next attempt, which no other node can get.

        Raises:
            OSError: It cannot be made.
        """
        folder = self.path / "jobs" / str(job) / "attempts"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        number = self.last_attempt(job) + 1
        while True:
            try:
                (folder / str(number)).mkdir(mode=0o700)
            except FileExistsError:  # a listing may be out of date, mkdir is not
                number += 1
                continue
            return Attempt(folder / str(number))

    def last_attempt(self, job: JobKey) -> int:
        """Return the highest number of an attempt; 0 if there is none."""
        folder = self.path / "jobs" / str(job) / "attempts"
        try:
            names = [entry.name for entry in os.scandir(folder)]
        except FileNotFoundError:
            return 0
        return max((int(name) for name in names if name.isdecimal()), default=0)

    def started_jobs(self) -> set[JobKey]:
        """Return jobs that have attempts, or are about to.

        Raises:
            OSError: The folder cannot be read.
        """
        started = set()
        for entry in os.scandir(self.path / "jobs"):
            if (key := JobKey.parse(entry.name)) is not None:
                started.add(key)
            elif not entry.name.startswith("."):  # NFS creates hidden files of its own
                self.problems[f"{entry.path} is not of a job, and is left alone"] = None
        return started

    def job_log(self, array: int, name: str) -> Path:
        """Return the path of a batch script's output; ``name`` is the engine's name of the job."""
        return self.path / "arrays" / str(array) / f"output.{name}.log"

    def attempts(self, job: JobKey, last: int | None = None) -> list[Attempt]:
        """Return all attempts of a job in order, up to number ``last`` if that is known."""
        folder = self.path / "jobs" / str(job) / "attempts"
        last = self.last_attempt(job) if last is None else last
        return [Attempt(folder / str(number + 1)) for number in range(last)]

    # The submission -------------------------------------------------------------------------------

    def unfit(self, reason: str) -> str:
        """Note that a node could not run any job; the second note holds the rest.

        Returns why the job does not run: from the third node on, that the rest is held, which this
        call waits for.

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
        end_s = time.monotonic() + _HOLD_COMES_S
        while not (held := self.held) and time.monotonic() < end_s:
            time.sleep(1.0)
        return held or reason

    def hold(self, reason: str) -> None:
        """Let no further job start.

        The reason is kept in one line: the batch script reads it, too, and jobs report it literally
        for comparison.
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
        """Return why now released jobs were held; "" if none were."""
        return _text(self.path / "released")

    def stop(self, reason: str) -> None:
        """Note that work which has not run yet will not run."""
        put(self.path / "stopped", reason)

    @property
    def stopped(self) -> str:
        """Return why the rest will not run; "" if it will."""
        return _text(self.path / "stopped")

    def close(self) -> None:
        """Note that all of it is settled."""
        (self.path / "closed").touch(mode=0o600)

    @property
    def is_closed(self) -> bool:
        return (self.path / "closed").exists()


def put(path: Path, text: str) -> None:
    """Write a small file atomically."""
    write_whole(path, text, mode=0o600, durable=True)


def _indices(text: str, jobs: range) -> tuple[int, ...] | None:
    """Return the job indices of a request; None if they cannot be read."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    is_whole = isinstance(found, list) and all(type(n) is int and n in jobs for n in found)
    return tuple(found) if is_whole else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def _json(path: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError):  # ValueError: cut off by a full disk
        return None
