"""Following thousands of rows: submissions, questions, CPU time, memory, files."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.results import Bar, Findings, Table
from radt import units
from radt.cluster.collecting import Collection
from radt.cluster.engine import ArrayRequest, Shape
from radt.cluster.follow import WRITE_S, SubmissionFollower
from radt.cluster.monitor import POLL_S, SubmissionMonitor
from radt.cluster.shaping import arrays_of
from radt.cluster.spool import Spool
from radt.cluster.submission import JobArray, Request, Submission, SubmittedRow
from radt.cluster.submit import Submitter
from radt.experiment.plan import WorkloadKey
from radt.experiment.status import RowStatus, StatusWriter
from radt.home import Home
from radt.runner.active import StopRequest
from radt.runner.console import RunConsole
from radt.runner.notify import Notifier
from tests.support.simulated import SimulatedEngine
from tests.support.simulated_nodes import SimulatedNodes

_WORKLOAD_S = 60.0
_FAULTS = 0.05
_MB = 1e6


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one experiment.

    ``submit_s`` until all was submitted, ``settle_s`` to bring the file up to date after nobody had
    looked. ``cpu`` is the follower's CPU time by the virtual time that it followed.
    """

    rows: int
    nodes: int
    submits: int
    submit_s: float
    virtual_s: float
    questions: int
    cpu: float
    writes: int
    rss_bytes: int
    settle_s: float
    files_a_run: float
    finished: int
    run_twice: int

    @property
    def question_s(self) -> float:
        """Between two questions to the engine."""
        return self.virtual_s / max(1, self.questions - 1)  # the first one is at 0

    @property
    def write_s(self) -> float:
        """Between two writes of the file."""
        return self.virtual_s / max(1, self.writes)


def measure(rows: Sequence[int], nodes: Sequence[int]) -> Findings:
    """Measure each number of rows on most nodes, and fewest rows on each number of nodes.

    Most rows on few nodes would be followed for days.
    """
    most_rows, most_nodes = max(rows), max(nodes)
    sizes = dict.fromkeys(
        [(count, most_nodes) for count in rows] + [(min(rows), count) for count in nodes]
    )
    costs = sorted((_in_process(*size) for size in sizes), key=lambda cost: (cost.rows, cost.nodes))
    ends = Table(
        "To submit an experiment, and to bring its file up to date when nobody had looked",
        ("rows", "nodes", "sbatch", "submitted", "settled", "files a run"),
    )
    between = Table(
        "To follow it",
        ("rows", "nodes", "takes", "squeue", "CPU", "memory", "file written"),
        note="CPU time of the follower by the time that the experiment takes.",
    )
    for cost in costs:
        size = (f"{cost.rows:,}", str(cost.nodes))
        ends.rows.append(
            (
                *size,
                f"{cost.submits}",
                f"{cost.submit_s:.1f} s",
                f"{cost.settle_s:.1f} s",
                f"{cost.files_a_run:.1f}",
            )
        )
        between.rows.append(
            (
                *size,
                units.duration(cost.virtual_s),
                f"one in {cost.question_s:.1f} s",
                f"{cost.cpu:.2%}",
                f"{cost.rss_bytes / _MB:.0f} MB",
                f"once in {cost.write_s:.1f} s",
            )
        )
    most = next(cost for cost in costs if (cost.rows, cost.nodes) == (most_rows, most_nodes))
    return Findings([ends, between], _bars(most))


def _bars(cost: Cost) -> list[Bar]:
    what = f"{cost.rows:,} rows"
    often_s = cost.question_s
    return [
        Bar(f"{what} are submitted in 1 s", f"{cost.submit_s:.2f} s", cost.submit_s <= 1),
        Bar("by fewer than 20 submissions", str(cost.submits), cost.submits < 20),
        Bar("one question in 15 s at most", f"one in {often_s:.1f} s", often_s >= POLL_S - 0.01),
        Bar("the follower takes less than 4 % of a core", f"{cost.cpu:.1%}", cost.cpu < 0.04),
        Bar(
            "and less than 300 MB, with the simulation",
            f"{cost.rss_bytes / _MB:.0f} MB",
            cost.rss_bytes < 300 * _MB,
        ),
        Bar(f"{what} are settled in 6 s", f"{cost.settle_s:.1f} s", cost.settle_s <= 6),
        Bar(
            "the file is written once in 2 s at most",
            f"once in {cost.write_s:.1f} s",
            cost.write_s >= WRITE_S,
        ),
        Bar("at most 4 files a run", f"{cost.files_a_run:.1f}", cost.files_a_run <= 4),
        Bar("each workload finishes", f"{cost.finished:,}", cost.finished == cost.rows),
        Bar("and none twice", str(cost.run_twice), cost.run_twice == 0),
    ]


def _in_process(rows: int, nodes: int) -> Cost:
    """Measure in a process of its own, whose memory nobody has used before."""
    command = [sys.executable, "-m", "benchmarks.cluster.scale", str(rows), str(nodes)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Cost(**json.loads(done.stdout))


def _cost(rows: int, nodes: int) -> Cost:
    with tempfile.TemporaryDirectory() as folder:
        followed = _Experiment(Path(folder) / "followed", rows, nodes)
        followed.follow()
        unwatched = _Experiment(Path(folder) / "unwatched", rows, nodes)
        settle_s = unwatched.settle_afterwards()
        finished = followed.nodes.finished
        return Cost(
            rows=rows,
            nodes=nodes,
            submits=followed.submits,
            submit_s=followed.submit_s,
            virtual_s=followed.engine.time_s,
            questions=followed.engine.questions["states"],
            cpu=followed.cpu_s / followed.engine.time_s,
            writes=followed.statuses.writes,
            rss_bytes=followed.rss_bytes,
            settle_s=settle_s,
            files_a_run=sum(path.is_file() for path in followed.spool.path.rglob("*")) / rows,
            finished=len(finished),
            run_twice=sum(count > 1 for count in finished.values()),
        )


class _CountingWriter(StatusWriter):
    """Counts how often the file is written."""

    writes = 0

    def set_many(self, statuses: Mapping[int, RowStatus]) -> None:
        self.writes += 1
        super().set_many(statuses)


class _Experiment:
    """Rows of two shapes on a simulated cluster."""

    def __init__(self, folder: Path, rows: int, nodes: int) -> None:
        folder.mkdir()
        self.cpu_s = self.submit_s = 0.0
        self.submits = self.rss_bytes = 0
        self.engine = SimulatedEngine(
            nodes, gpus=1, node_failures=_FAULTS, preemptions=_FAULTS, fault_within_s=_WORKLOAD_S
        )
        self._home = Home(folder / "radt-data")
        self._stop = StopRequest()
        began_s = time.perf_counter()
        self.spool = self._spool(folder, rows)
        self.submit_s = time.perf_counter() - began_s
        self.statuses = _CountingWriter(self.spool.submission.file)
        self.nodes = SimulatedNodes(self.spool, _WORKLOAD_S)
        self.engine.runner = self.nodes

    def _spool(self, folder: Path, rows: int) -> Spool:
        labels = [f"w{number}" for number in range(rows)]
        lines = ["Workload,Status,Run,File", *(f"{label},,,train.py" for label in labels)]
        content = "".join(f"{line}\n" for line in lines)
        file = folder / "study.csv"
        file.write_text(content)
        keys = [WorkloadKey("study", label) for label in labels]
        arrays: Sequence[JobArray] = arrays_of(
            ((key, Shape(gpus=1, cpus=1 + number % 2)) for number, key in enumerate(keys)),
            max_array_size=self.engine.max_array_size,
        )
        submission = Submission(
            *("20261125-120000-abcd", "slurm", str(file), "login", "me", "0", "python"),
            arrays=tuple(arrays),
            rows={
                key: [SubmittedRow(line, name="train")] for line, key in enumerate(keys, start=2)
            },
        )
        return Spool.create(folder / "submissions", submission, content.encode())

    def _monitor(self) -> SubmissionMonitor:
        submitter = Submitter(self.spool, self.engine, self._request)
        return SubmissionMonitor(submitter)

    def _request(self, request: Request) -> ArrayRequest:
        shape = self.spool.submission.arrays[request.array].shape
        return ArrayRequest("study", self.spool.intent(request), shape, request.indices, "", "")

    def follow(self) -> None:
        """Follow it from its submission to its end, second by second."""
        monitor = self._monitor()
        with (
            Path("/dev/null").open("w") as nowhere,
            Collection(self.spool, self._home) as collection,
            RunConsole(Console(file=nowhere, force_terminal=True, width=80, height=24)) as console,
        ):
            follower = self._follower(monitor, console, collection)
            while not monitor.is_settled:
                began_s, cpu_s = time.perf_counter(), time.process_time()
                follower.step()
                follower.show()
                console.flush()
                self.cpu_s += time.process_time() - cpu_s
                if not self.submits:
                    self.submit_s += time.perf_counter() - began_s
                    self.submits = self.engine.questions["submit"]
                self.engine.advance(1.0)
        self.rss_bytes = _peak_rss_bytes()

    def settle_afterwards(self) -> float:
        """Submit it, look again once all jobs have ended; seconds that this takes."""
        self._monitor().step(0.0)
        while self.engine.unended:
            self.engine.advance(1000.0)
        self.engine.advance(1000.0)
        monitor, began_s = self._monitor(), time.perf_counter()
        with (
            Path("/dev/null").open("w") as nowhere,
            Collection(self.spool, self._home) as collection,
            RunConsole(Console(file=nowhere)) as console,
        ):
            self._stop.request()  # it only updates the statuses of the file
            self._follower(monitor, console, collection).run()
        return time.perf_counter() - began_s

    def _follower(
        self, monitor: SubmissionMonitor, console: RunConsole, collection: Collection
    ) -> SubmissionFollower:
        return SubmissionFollower(
            monitor,
            self._home,
            console,
            collection=collection,
            statuses=self.statuses,
            notifier=Notifier("", lambda _text: None),
            stop=self._stop,
            clock=lambda: self.engine.time_s,
        )


def _peak_rss_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmHWM")


if __name__ == "__main__":
    print(json.dumps(asdict(_cost(int(sys.argv[1]), int(sys.argv[2])))))
