"""One contract of status, attach and stop: runs here, on a simulated cluster, on a real Slurm."""

from __future__ import annotations

import io
import json
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from radt.cli import attach, status
from radt.cli.status import as_document, command, status_lines, watcher_of
from radt.cluster import watch
from radt.cluster.engine import JobId, JobState
from radt.cluster.opened import mark_open, open_submission
from radt.cluster.overview import Overview, workload_progress
from radt.cluster.settings import ClusterSettings
from radt.cluster.submission import SubmittedRow
from radt.experiment.lock import ExperimentLock
from radt.experiment.plan import WorkloadKey
from radt.experiment.source import ExperimentFile
from radt.experiment.status import RowStatus
from radt.home import Home
from radt.model import RunStatus
from radt.runner.active import StopRequest
from radt.runner.console import RunConsole
from radt.runner.local_watch import LocalWatcher
from radt.runner.progress import ExperimentProgress, WorkloadState
from tests.cluster.kit import Simulation, make_spool, monitor_of
from tests.cluster.study import TRAIN, study_on
from tests.support.bench import bench_in
from tests.support.servers import slurm_cluster
from tests.support.simulated import SimulatedEngine
from tests.support.simulated_nodes import SimulatedNodes
from tests.support.slurm import Slurm
from tests.support.waiting import wait_until

TIMEOUT_S = 180.0


@dataclass
class Held:
    """An experiment of one workload of two rows at work; ``prints`` is in its output.

    ``go`` lets its runs end.
    """

    file: Path
    prints: str
    go: Callable[[], None]

    def look(self) -> ExperimentProgress:
        with watcher_of(self.file, None) as watcher:
            return watcher.look()

    def statuses(self) -> list[str]:
        table = ExperimentFile.read(self.file).table
        return [record.cells[1].value for record in table.rows]


class TickingEngine(SimulatedEngine):
    """A cluster whose time passes with each question; ``tick_s`` is 0 while its runs are held."""

    tick_s = 0.0

    def states(self, arrays: Collection[str]) -> Mapping[JobId, JobState]:
        self.advance(self.tick_s)
        return super().states(arrays)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Held]:
    with bench_in(tmp_path, columns=80, with_mlflow=False) as bench:
        bench.script("train.py", TRAIN)
        table = "Workload,Status,Run,Devices,File\n" + "pair,,,cpu,train.py\n" * 2
        file = bench.experiment(table, "study.csv")
        bench.radt(file.name, "--detach")
        wait_until(lambda: len(list(bench.folder.glob("started.*"))) == 2, "the rows to run")

        def go() -> None:
            (bench.folder / "go").touch()

        yield Held(file, "trains", go)
        go()
        wait_until(lambda: ExperimentLock(file).holder() is None, "the runner to end")


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Held:
    engine = TickingEngine(nodes=1)
    spool = make_spool(tmp_path, [["pair*2"]])
    engine.runner = SimulatedNodes(spool)
    mark_open(spool)
    simulation = Simulation(spool, engine, engine.runner, monitor_of(spool, engine))
    simulation.pass_time(30)
    monkeypatch.setattr(watch, "reopened", lambda *_: (ClusterSettings(), engine))
    monkeypatch.setenv("RADT_CLUSTER_POLL_S", "0.1")

    def go() -> None:
        engine.tick_s = 30.0

    return Held(simulation.file, "a run prints something", go)


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with slurm_cluster(1, 2) as cluster:
        yield cluster


@pytest.fixture
def on_slurm(slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    with study_on(slurm, tmp_path) as study:
        study.write({"pair": 2})
        follower = study.start("study.csv")
        wait_until(lambda: study.started() == 2, "the rows to run")
        follower.send_signal(signal.SIGINT)
        follower.communicate()
        for name, value in study.environ.items():
            monkeypatch.setenv(name, value)
        yield Held(study.file, "trains", study.go)


@pytest.fixture(params=["local", "simulated", "on_slurm"])
def held(request: pytest.FixtureRequest) -> Held:
    made: Held = request.getfixturevalue(request.param)
    return made


@dataclass
class Follower:
    """Who follows an experiment in a thread, as ``radt attach`` does."""

    held: Held
    stop: StopRequest
    code: int | None = None

    def __post_init__(self) -> None:
        self._output = io.StringIO()
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()
        wait_until(lambda: self.held.prints in self._output.getvalue(), "output of the runs")

    def _follow(self) -> None:
        with (
            watcher_of(self.held.file, None) as watcher,
            RunConsole(Console(file=self._output, width=80)) as console,
        ):
            self.code = watcher.follow(console, self.stop)

    def join(self) -> int | None:
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()
        return self.code


def test_status_shows_what_runs(held: Held) -> None:
    wait_until(lambda: held.look().running is not None, "the workload runs")
    progress = held.look()
    assert (progress.name, progress.is_running) == ("study", True)
    (workload,) = progress.workloads
    assert (workload.label, workload.state) == ("pair", WorkloadState.RUNNING)
    assert [(run.letter, run.name, run.status) for run in workload.runs] == [
        (letter, "train", RunStatus.RUNNING) for letter in "ab"
    ]
    document = as_document(progress)
    found = [(run["status"], run["reason"]) for run in document["workloads"][0]["runs"]]
    assert found == [("RUNNING", "")] * 2
    assert all(run["run"] for run in document["workloads"][0]["runs"])
    lines = [line.plain for line in status_lines(progress, 80)]
    assert lines[0].startswith("study · 1 workload, 2 runs · ")
    assert any("pair" in line and "▶" in line for line in lines)


def test_attach_ends_with_the_experiment(held: Held) -> None:
    follower = Follower(held, StopRequest())
    held.go()
    assert follower.join() == 0
    assert held.statuses() == ["FINISHED"] * 2
    assert not held.look().is_running


def test_attach_waits_while_the_file_is_being_saved(
    local: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[bool] = []
    look = LocalWatcher.look

    def look_and_note(watcher: LocalWatcher) -> ExperimentProgress:
        looks.append(False)
        progress = look(watcher)
        looks[-1] = True
        return progress

    def next_look() -> bool:
        number = len(looks)
        wait_until(lambda: len(looks) > number + 1, "the end of the next look")
        return looks[number]

    monkeypatch.setattr(LocalWatcher, "look", look_and_note)
    follower = Follower(local, StopRequest())
    away = local.file.with_suffix(".saving")
    local.file.rename(away)
    assert not next_look()
    local.file.write_text("half of it", encoding="utf-16")
    assert not next_look()
    away.rename(local.file)
    assert next_look()
    local.go()
    assert follower.join() == 0
    assert local.statuses() == ["FINISHED"] * 2


def test_who_stops_watching_stops_nothing(held: Held) -> None:
    stop = StopRequest()
    follower = Follower(held, stop)
    stop.request()
    follower.join()
    assert held.look().is_running


def test_stop_ends_the_runs_and_writes_their_statuses(held: Held) -> None:
    with (
        watcher_of(held.file, None) as watcher,
        RunConsole(Console(file=io.StringIO())) as console,
    ):
        assert watcher.stop(console, now=False)
    assert held.statuses() == ["KILLED: stopped by the user"] * 2
    assert not held.look().is_running


@pytest.mark.parametrize(
    ("name", "content"),
    [("home/radt.db", "no store" * 1000), ("home", "no folder"), ("radt.toml", 'repeat = "x"\n')],
)
def test_what_a_stop_does_not_need_does_not_keep_it_from_the_statuses(
    simulated: Held, name: str, content: str
) -> None:
    broken = simulated.file.parent / name
    broken.parent.mkdir(exist_ok=True)
    broken.write_text(content)
    test_stop_ends_the_runs_and_writes_their_statuses(simulated)


def test_a_submission_of_an_earlier_version_without_rows_is_watched_and_stopped(
    simulated: Held,
) -> None:
    (simulated.file.parent / "train.py").touch()
    (written,) = simulated.file.parent.glob("submissions/*/submission.json")
    values = json.loads(written.read_text())
    del values["rows"]
    written.write_text(json.dumps(values))
    test_status_shows_what_runs(simulated)
    test_stop_ends_the_runs_and_writes_their_statuses(simulated)


def test_status_shows_jobs_also_if_the_store_cannot_be_read(simulated: Held) -> None:
    store = simulated.file.parent / "home" / "radt.db"
    store.parent.mkdir()
    store.write_text("no store" * 1000)
    shown = CliRunner().invoke(command, [str(simulated.file), "--json"])
    assert shown.exit_code == 0, shown.exception
    document = json.loads(shown.output)
    assert [workload["state"] for workload in document["workloads"]] == ["running"]
    (problem,) = document["problems"]
    assert str(store) in problem


@pytest.mark.parametrize("name", ["tracking-uri", "store-uri"])
def test_settings_that_say_nowhere_are_told_and_statuses_written(
    simulated: Held, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (simulated.file.parent / "radt.toml").write_text(f"{name} = 1\n")
    with watcher_of(simulated.file, None) as watcher, RunConsole(Console(width=200)) as console:
        assert watcher.stop(console, now=False)
    assert simulated.statuses() == ["KILLED: stopped by the user"] * 2
    assert "runs are not collected" in capsys.readouterr().out


def test_where_a_queued_workload_waits_is_its_place_and_no_end_of_its_runs() -> None:
    row = SubmittedRow(line=1, done=0, asked=1, letter="a", name="train")
    queued = {1: RowStatus("QUEUED: 1_2 Resources")}
    shown = workload_progress(WorkloadKey("study", "x"), [row], queued)
    assert (shown.state, shown.place) == (WorkloadState.WAITING, "1_2 Resources")
    assert (shown.runs[0].status, shown.runs[0].reason) == (RunStatus.SCHEDULED, "")


def test_each_submission_is_shown_before_the_next_is_looked_at(
    simulated: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = open_submission(simulated.file)
    assert spool is not None
    monkeypatch.setattr(status, "open_submissions", lambda _home: [spool, spool])
    shown = io.StringIO()
    before: list[tuple[str, float]] = []
    look = watch.ClusterWatcher.look

    def look_and_note(watcher: watch.ClusterWatcher) -> ExperimentProgress:
        before.append((shown.getvalue(), watcher._patience_s))
        progress = look(watcher)
        assert isinstance(progress.jobs, Overview)
        jobs = replace(progress.jobs, problem="the folder is full")  # no word of the cluster's
        return replace(progress, jobs=jobs)

    monkeypatch.setattr(watch.ClusterWatcher, "look", look_and_note)
    status._show_open(Home(simulated.file.parent), Console(file=shown), as_json=False)
    assert [("study" in text, patience_s) for text, patience_s in before] == [
        (False, watch.ANSWER_S),
        (True, watch.ANSWER_S),
    ]


@pytest.mark.parametrize(
    ("signals", "code"),
    [((signal.SIGINT,), 0), ((signal.SIGTERM,), 143), ((signal.SIGINT, signal.SIGINT), None)],
)
def test_who_is_asked_twice_leaves_attach_at_once(
    simulated: Held,
    monkeypatch: pytest.MonkeyPatch,
    signals: tuple[signal.Signals, ...],
    code: int | None,
) -> None:
    # As in a terminal, also where the tests themselves are a job in the background.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    ended = []

    def follow(_watcher: object, _console: RunConsole, _stop: StopRequest) -> int:
        for number in signals:
            signal.raise_signal(number)
        ended.append(True)  # what it waited for has come
        return 1

    monkeypatch.setattr(watch.ClusterWatcher, "follow", follow)

    done = CliRunner().invoke(attach.command, [str(simulated.file)], standalone_mode=False)
    signal.signal(signal.SIGINT, before)
    assert done.return_value == code
    assert bool(ended) is (code is not None)
