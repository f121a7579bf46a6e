"""Submissions for tests: a file, its spool, and a cluster whose nodes write as real ones do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import ascii_lowercase

from radt.cluster.engine import ArrayRequest, Engine, Shape
from radt.cluster.executor import status_writer
from radt.cluster.monitor import StepChanges, SubmissionMonitor
from radt.cluster.spool import Spool
from radt.cluster.submission import JobArray, Request, Submission, SubmittedRow
from radt.cluster.submit import Submitter
from radt.experiment.plan import WorkloadKey
from radt.experiment.source import ExperimentFile
from tests.support.simulated import SimulatedEngine
from tests.support.simulated_nodes import SimulatedNodes

OUTCOME_S = 60.0
SHAPE = Shape(gpus=1)


def make_spool(
    folder: Path, jobs: Sequence[Sequence[str]], *, repeat: int = 1, arrays: int = 1
) -> Spool:
    """A submission of jobs, each of workloads by their labels; a label ``x*3`` has three rows."""
    lines = ["Workload,Status,Run,File"]
    names: list[list[WorkloadKey]] = []
    rows: dict[WorkloadKey, Sequence[SubmittedRow]] = {}
    for labels in jobs:
        keys = []
        for label in labels:
            name, _, count = label.partition("*")
            key, first = WorkloadKey("study", name), len(lines) + 1
            lines += [f"{name},,,train.py"] * int(count or 1)
            rows[key] = [
                SubmittedRow(line, asked=repeat, letter=letter, name="train")
                for line, letter in zip(range(first, len(lines) + 1), ascii_lowercase, strict=False)
            ]
            keys.append(key)
        names.append(keys)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "study.csv"
    content = "".join(f"{line}\n" for line in lines)
    file.write_text(content)
    size = -(-len(names) // arrays)
    submission = Submission(
        submission_id="20261125-120000-abcd",
        engine="slurm",
        file=str(file),
        host="login",
        user="me",
        radt_version="0",
        python="python",
        arrays=tuple(
            JobArray(SHAPE, tuple(map(tuple, names[start : start + size])))
            for start in range(0, len(names), size)
        ),
        options={"repeat": repeat},
        home=str(folder / "home"),
        rows=rows,
    )
    return Spool.create(folder / "submissions", submission, content.encode())


def submitter_of(spool: Spool, engine: Engine, max_jobs: int | None = None) -> Submitter:
    """A submitter whose requests say as much as the simulation needs."""

    def build(request: Request) -> ArrayRequest:
        shape = spool.submission.arrays[request.array].shape
        return ArrayRequest("study", spool.intent(request), shape, request.indices, "", "")

    return Submitter(spool, engine, build, max_jobs=max_jobs)


@dataclass
class Simulation:
    """A submission on a simulated cluster, and who follows it."""

    spool: Spool
    engine: SimulatedEngine
    nodes: SimulatedNodes
    monitor: SubmissionMonitor
    max_jobs: int | None = None
    changes: StepChanges = field(default_factory=StepChanges)

    @classmethod
    def of(
        cls,
        folder: Path,
        jobs: Sequence[Sequence[str]],
        engine: SimulatedEngine,
        *,
        max_jobs: int | None = None,
        arrays: int = 1,
        seconds: float = 60.0,
        observes_only: bool = False,
    ) -> Simulation:
        spool = make_spool(folder, jobs, arrays=arrays)
        nodes = SimulatedNodes(spool, seconds)
        engine.runner = nodes
        monitor = monitor_of(spool, engine, max_jobs, observes_only=observes_only)
        return cls(spool, engine, nodes, monitor, max_jobs)

    @property
    def file(self) -> Path:
        return Path(self.spool.submission.file)

    def look_anew(self, kind: type[Spool] = Spool) -> None:
        """Another process begins to follow."""
        self.spool = kind(self.spool.path)
        self.monitor = monitor_of(self.spool, self.engine, self.max_jobs)

    def step(self) -> StepChanges:
        """Do what is due now, and write it into the file."""
        changes = self.monitor.step(self.engine.time_s)
        status_writer(self.spool).set_many(changes.statuses)
        self.changes.notes += changes.notes
        self.changes.ended += changes.ended
        return changes

    def pass_time(self, seconds: float, step_s: float = 5.0) -> None:
        """Let time pass, somebody looking."""
        end_s = self.engine.time_s + seconds
        while self.engine.time_s < end_s and not self.monitor.is_settled:
            self.step()
            self.engine.advance(step_s)

    def finish(self, most_s: float = 50_000.0) -> None:
        """Follow to the end."""
        self.pass_time(most_s)
        assert self.monitor.is_settled, self.statuses()

    def statuses(self) -> list[str]:
        """The Status cells of the file."""
        table = ExperimentFile.read(self.file).table
        return [record.cells[1].value for record in table.rows]

    def runs(self) -> list[str]:
        """The Run cells of the file."""
        return [record.cells[2].value for record in ExperimentFile.read(self.file).table.rows]


def monitor_of(
    spool: Spool, engine: Engine, max_jobs: int | None = None, *, observes_only: bool = False
) -> SubmissionMonitor:
    submitter = submitter_of(spool, engine, max_jobs)
    return SubmissionMonitor(submitter, outcome_s=OUTCOME_S, observes_only=observes_only)
