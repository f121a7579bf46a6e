"""A submission is followed through faults to its end, at the price that is promised."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console

from radt.cluster.attempt import AttemptStart
from radt.cluster.collecting import Collected, Collection
from radt.cluster.engine import ArrayRequest, JobEnd, JobId, Phase
from radt.cluster.follow import WRITE_S, PacedStatuses, SubmissionFollower
from radt.cluster.overview import JobView, Overview, cluster_table, headline
from radt.cluster.spool import Spool
from radt.cluster.submission import JobKey
from radt.errors import StatusError, StoreError
from radt.experiment.plan import WorkloadKey
from radt.experiment.status import RowStatus
from radt.home import Home
from radt.model import Role, RunStatus
from radt.runner.active import StopRequest
from radt.runner.console import RunConsole
from radt.runner.notify import Notifier
from radt.runner.progress import ProgressView
from tests.cluster.kit import SHAPE, Simulation, make_spool, monitor_of
from tests.support.simulated import SimulatedEngine, SimulatedStart, Work, one_minute
from tests.support.simulated_nodes import SimulatedNodes

JOBS = [["solo"], ["pair*2"], ["three*3"], ["short", "shorter"], *([f"w{n}"] for n in range(8))]
ROWS = 1 + 2 + 3 + 2 + 8


def finished_once(simulation: Simulation) -> None:
    assert set(simulation.statuses()) == {"FINISHED"}
    assert all(simulation.runs())
    assert set(simulation.nodes.finished.values()) == {1}
    assert simulation.engine.unended == 0


def test_workloads_run_and_the_file_says_so(tmp_path: Path) -> None:
    engine = SimulatedEngine(nodes=1, gpus=2)
    simulation = Simulation.of(tmp_path, JOBS, engine, arrays=2)
    simulation.step()
    assert simulation.statuses()[:3] == ["QUEUED: 1_0 Resources", *["QUEUED: 1_1 Resources"] * 2]
    simulation.pass_time(20)
    assert simulation.statuses()[:3] == ["RUNNING: node1"] * 3
    simulation.finish()
    finished_once(simulation)
    assert len(simulation.changes.ended) == len(JOBS)
    assert len(simulation.statuses()) == ROWS


def test_the_engine_is_asked_once_in_15_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = SimulatedEngine(nodes=1)
    simulation = Simulation.of(tmp_path, JOBS, engine)
    asked: list[float] = []
    states = engine.states

    def noted(arrays: Sequence[str]) -> object:
        asked.append(engine.time_s)
        return states(arrays)

    monkeypatch.setattr(engine, "states", noted)
    while not simulation.monitor.is_settled:
        simulation.step()
        engine.advance(1)
    assert min(later - before for before, later in pairwise(asked)) >= 15


def test_a_node_that_fails(tmp_path: Path) -> None:
    engine = SimulatedEngine(nodes=2)
    simulation = Simulation.of(tmp_path, JOBS, engine)
    simulation.pass_time(30)
    engine.fail_node("node1")
    simulation.pass_time(20)
    assert "QUEUED: 1_0 BeginTime" in simulation.statuses()
    simulation.finish()
    finished_once(simulation)
    assert simulation.spool.last_attempt(JobKey(0, 0)) == 2


def test_a_preempted_job_is_submitted_again(tmp_path: Path) -> None:
    engine = SimulatedEngine(nodes=2)
    simulation = Simulation.of(tmp_path, JOBS, engine)
    simulation.pass_time(30)
    engine.preempt(JobId("1", 3))
    simulation.pass_time(1)
    engine.advance(1)
    assert engine.states(["1"])[JobId("1", 3)].end is JobEnd.FAILED  # it has ended politely
    simulation.finish()
    finished_once(simulation)
    assert engine.questions["submit"] == 2


def test_an_engine_that_is_away(tmp_path: Path) -> None:
    engine = SimulatedEngine(nodes=6)
    simulation = Simulation.of(tmp_path, [["a"], ["b"]], engine, seconds=4000.0)
    simulation.pass_time(30)
    before = simulation.statuses()
    engine.is_away = True
    engine.questions.clear()
    simulation.pass_time(3600)
    assert simulation.statuses() == before == ["RUNNING: node1"] * 2
    assert engine.questions["states"] < 20  # ever more rarely
    assert len(simulation.changes.notes) == 1
    engine.is_away = False
    simulation.finish()
    assert len(simulation.changes.notes) == 2
    finished_once(simulation)


def test_outcomes_settle_without_the_engine(tmp_path: Path) -> None:
    engine = SimulatedEngine(nodes=6)
    simulation = Simulation.of(tmp_path, [["a"], ["b"]], engine)
    simulation.pass_time(30)
    engine.is_away = True
    simulation.pass_time(120)
    assert simulation.monitor.is_settled
    assert simulation.statuses() == ["FINISHED"] * 2


def test_a_controller_that_forgets_what_had_not_begun(tmp_path: Path) -> None:
    engine = SimulatedEngine(nodes=2)
    simulation = Simulation.of(tmp_path, JOBS, engine)
    simulation.step()
    engine.forget("1")
    other = ArrayRequest("other", "radt:other:0:1", SHAPE, range(len(JOBS)), "", "")
    nodes = simulation.nodes
    engine.runner = lambda start: (one_minute if start.request is other else nodes)(start)
    assert engine.submit(other) == "1"  # the number that it had given already
    simulation.pass_time(50)
    assert engine.questions["submit"] == 2
    assert simulation.statuses()[0] == "QUEUED: 1_0 Resources"
    simulation.finish()
    assert engine.questions["submit"] == 3
    finished_once(simulation)


def test_jobs_that_are_cancelled_in_the_queue_stay_so(tmp_path: Path) -> None:
    engine = SimulatedEngine(nodes=1)
    simulation = Simulation.of(tmp_path, JOBS, engine)
    simulation.pass_time(10)
    engine.drop(JobId("1", 5))  # Slurm no longer shows it, while others of its array are there
    simulation.finish()
    assert simulation.statuses().count("KILLED: the job was cancelled") == 1
    assert simulation.statuses().count("FINISHED") == ROWS - 1
    assert engine.questions["submit"] == 1


def test_a_job_that_the_queue_forgets_while_the_folder_is_away_is_not_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = SimulatedEngine(nodes=1, gpus=1)
    simulation = Simulation.of(tmp_path, [["a"], ["b"], ["c"]], engine)
    with monkeypatch.context() as away:  # for the submit host only
        away.setattr(Spool, "started_jobs", lambda _: os.listdir("/no such folder"))
        simulation.pass_time(90)
        engine.drop(JobId("1", 0))  # it has finished
        simulation.pass_time(40)
        assert simulation.monitor.folder_problem
        assert not any(text.startswith("KILLED") for text in simulation.statuses())
    simulation.finish()
    assert simulation.statuses() == ["FINISHED"] * 3
    assert engine.questions["submit"] == 1


def test_a_job_of_which_nothing_is_heard_any_more_is_lost(tmp_path: Path) -> None:
    engine = SimulatedEngine(nodes=2)

    def hangs(start: SimulatedStart) -> Work:
        attempt = simulation.spool.claim(JobKey(0, start.job.index))
        attempt.begin(AttemptStart(start.node, str(start.job), 1, "0"))
        attempt.beat()
        attempt.put_statuses({2: RowStatus("RUNNING", "run1")})
        yield 1e9
        return 0

    simulation = Simulation.of(tmp_path, [["a"]], engine)
    engine.runner = hangs
    simulation.pass_time(30)
    engine.forget("1")
    began_s = engine.time_s
    simulation.finish()
    assert simulation.statuses() == ["KILLED: lost"]
    assert engine.time_s - began_s >= 300
    assert simulation.runs() == ["run1"]


def test_a_job_has_run_for_as_long_as_its_own_heartbeats_say(tmp_path: Path) -> None:
    engine = SimulatedEngine(nodes=1, gpus=1)

    def beats_fast(start: SimulatedStart) -> Work:
        attempt = simulation.spool.claim(JobKey(0, start.job.index))
        attempt.begin(AttemptStart(start.node, str(start.job), 1, "0", beat_s=2.5))
        attempt.beat()
        attempt.beat()
        yield 1e9
        return 0

    simulation = Simulation.of(tmp_path, [["a"], ["b"]], engine)
    engine.runner = beats_fast
    simulation.pass_time(30)
    overview = Overview.of(simulation.monitor)
    assert [job.running_s for job in overview.running] == [5.0]
    assert [job.waits_for for job in overview.waiting] == ["a node with room for it"]


def test_jobs_that_cannot_begin_hold_the_rest(tmp_path: Path) -> None:
    engine = SimulatedEngine(nodes=1, gpus=4)
    simulation = Simulation.of(tmp_path, [[f"w{n}"] for n in range(10)], engine, seconds=30)

    def unfit(start: SimulatedStart) -> Work:
        """A node without radt, as the batch script says it."""
        attempt = simulation.spool.claim(JobKey(0, start.job.index))
        yield 3.0
        reason = f"python is missing, {start.job.index}"
        if held := simulation.spool.held:
            reason = held
        else:
            simulation.spool.unfit(reason)
        attempt.put_statuses({}, ended=True, reason=reason)
        return 1

    engine.runner = unfit
    for _ in range(60):
        simulation.step()
        engine.advance(1)
    assert simulation.monitor.is_stuck
    failed = [text for text in simulation.statuses() if text.startswith("FAILED")]
    assert 1 <= len(failed) <= 2
    assert sum("are held" in note for note in simulation.changes.notes) == 1
    assert "python is missing" in simulation.spool.held
    engine.runner = simulation.nodes
    simulation.look_anew()
    simulation.monitor.release()
    simulation.finish()
    assert sorted(set(simulation.statuses())) == [*sorted(set(failed)), "FINISHED"]
    assert not simulation.spool.held


def test_jobs_that_end_without_a_word_hold_the_rest(tmp_path: Path) -> None:
    engine = SimulatedEngine(nodes=1, gpus=1)
    simulation = Simulation.of(tmp_path, [[f"w{n}"] for n in range(10)], engine)

    def mute(_start: SimulatedStart) -> Work:
        yield 50.0
        return 1

    engine.runner = mute
    simulation.pass_time(400)
    assert simulation.monitor.is_stuck
    assert simulation.statuses().count("FAILED: the job ended without reporting a result") < 6
    assert Phase.HELD in {state.phase for state in engine.states(["1"]).values()}


def test_what_is_said_of_a_workload_that_failed(tmp_path: Path) -> None:
    spool, engine = make_spool(tmp_path, [["bad*2"]], repeat=2), SimulatedEngine(nodes=1)
    engine.runner = nodes = SimulatedNodes(spool)
    nodes.ended[WorkloadKey("study", "bad")] = RunStatus.FAILED
    simulation = Simulation(spool, engine, nodes, monitor_of(spool, engine))
    simulation.pass_time(30)
    shown = io.StringIO()
    target = f"sh -c 'cat > \"{tmp_path}/notice\"'"
    with (
        RunConsole(Console(file=shown, width=100)) as console,
        closing(Notifier(target, console.say)) as notifier,
    ):
        SubmissionFollower(
            simulation.monitor,
            Home(tmp_path / "home"),
            console,
            collection=None,
            statuses=None,
            notifier=notifier,
            stop=StopRequest(),
            on_look=lambda _monitor: engine.advance(30),
            clock=lambda: engine.time_s,
        ).run()
    assert re.search(r"1/1  bad 1/2 +2 runs +✘", shown.getvalue()), shown.getvalue()
    notice = json.loads((tmp_path / "notice").read_text())
    assert notice["text"] == "study: workload bad had 2 FAILED (2 × train)"


def test_a_stopped_submission_ends(tmp_path: Path) -> None:
    engine = SimulatedEngine(nodes=1)
    simulation = Simulation.of(tmp_path, JOBS, engine, max_jobs=6)
    simulation.pass_time(70)
    simulation.spool.stop("stopped by the user")
    simulation.finish(most_s=400)
    assert engine.unended == 0
    assert set(simulation.statuses()) == {"FINISHED", "KILLED: stopped by the user"}
    assert simulation.statuses()[-1].startswith("KILLED")


def test_who_only_looks_submits_and_cancels_nothing(tmp_path: Path) -> None:
    engine = SimulatedEngine(nodes=1)
    simulation = Simulation.of(tmp_path, JOBS, engine, observes_only=True)
    simulation.pass_time(60)
    simulation.spool.stop("stopped by the user")
    simulation.pass_time(60)
    assert set(engine.questions) == {"states"}


def test_who_only_looks_sees_what_the_follower_submits(tmp_path: Path) -> None:
    engine = SimulatedEngine(nodes=1)
    simulation = Simulation.of(tmp_path, JOBS, engine, max_jobs=4)
    simulation.step()
    looker = monitor_of(Spool(simulation.spool.path), engine, observes_only=True)
    for second in range(5000):
        looker.step(engine.time_s)
        if simulation.monitor.is_settled:
            break
        simulation.step()
        if second == 30:
            engine.preempt(JobId("1", 0))  # it is submitted once more
        engine.advance(1)
    looker.step(engine.time_s + 100)
    assert looker.is_settled
    assert {status.text for status in looker.statuses.values()} == {"FINISHED"}
    finished_once(simulation)


def test_a_shared_folder_that_is_away(tmp_path: Path) -> None:
    engine = SimulatedEngine(nodes=2)
    simulation = Simulation.of(tmp_path, [["a"], ["b"]], engine)
    simulation.pass_time(30)
    jobs = simulation.spool.path / "jobs"
    hidden = jobs.with_name("hidden")
    jobs.rename(hidden)
    for _ in range(100):
        simulation.monitor.step(engine.time_s + 1000)
    assert "jobs" in simulation.monitor.folder_problem
    assert simulation.statuses() == ["RUNNING: node1"] * 2
    hidden.rename(jobs)
    simulation.finish()
    finished_once(simulation)


class Sink:
    """Notes what is written; while it is told to, it fails and keeps what it was given."""

    def __init__(self) -> None:
        self.written: list[dict[int, str]] = []
        self.fails = False
        self._kept: dict[int, str] = {}

    def set_many(self, statuses: dict[int, RowStatus]) -> None:
        self._kept |= {line: status.text for line, status in statuses.items()}
        if self.fails:
            raise StatusError("study.csv is away")
        self.written.append(self._kept)
        self._kept = {}

    def flush(self) -> None:
        self.set_many({})


def test_the_file_is_written_every_two_seconds_at_most() -> None:
    sink, said = Sink(), list[str]()
    paced = PacedStatuses(sink, said.append)
    for second in range(10):
        paced.put({2: RowStatus(f"QUEUED: {second}")})
        paced.write_if_due(second * WRITE_S / 4)
    assert sink.written == [{2: f"QUEUED: {second}"} for second in (0, 4, 8)]
    paced.flush()
    assert sink.written[-1] == {2: "QUEUED: 9"}


def test_a_file_that_cannot_be_written_is_said_once() -> None:
    sink, said = Sink(), list[str]()
    paced = PacedStatuses(sink, said.append)
    sink.fails = True
    for second in range(3):
        paced.put({2: RowStatus(f"QUEUED: {second}")})
        paced.write_if_due(second * 100.0)
    assert said == ["study.csv is away"]
    sink.fails = False
    paced.write_if_due(200.0 + WRITE_S / 2)
    assert sink.written == []
    paced.write_if_due(300.0)  # without news
    assert sink.written == [{2: "QUEUED: 2"}]


class Collecting:
    """Notes which jobs it was to collect; cannot store anything the first few times."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.stored: set[JobKey] = set()

    def collect(self, jobs: Sequence[JobKey]) -> Collected:
        if self.failures:
            self.failures -= 1
            raise StoreError("the store is locked")
        self.stored.update(jobs)
        return Collected()


def test_a_job_that_ended_between_two_looks_is_collected_again_after_a_failure(
    tmp_path: Path,
) -> None:
    engine = SimulatedEngine(nodes=len(JOBS))
    simulation = Simulation.of(tmp_path, JOBS, engine, seconds=2.0)
    monitor, collecting = simulation.monitor, Collecting(failures=2)
    with RunConsole(Console(file=io.StringIO())) as console:
        follower = SubmissionFollower(
            monitor,
            Home(tmp_path / "home"),
            console,
            collection=cast("Collection", collecting),
            statuses=None,
            notifier=Notifier("", console.say),
            stop=StopRequest(),
            clock=lambda: engine.time_s,
        )
        while not (monitor.is_settled and engine.time_s > 200):
            follower.step()
            engine.advance(1.0)
    assert collecting.failures == 0
    assert collecting.stored == set(simulation.spool.submission.jobs)


def test_of_many_queued_jobs_some_are_described_and_all_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Describing all of them, once a second, took an eighth of a core for 10,000 jobs."""
    simulation = Simulation.of(
        tmp_path, [[f"job{number}"] for number in range(80)], SimulatedEngine(nodes=1)
    )
    simulation.pass_time(30)
    described = []
    describe = JobView.of
    monkeypatch.setattr(
        JobView, "of", lambda monitor, job: described.append(job) or describe(monitor, job)
    )
    overview = Overview.of(simulation.monitor)
    assert sum(overview.queued.values()) == 80 - len(overview.running)
    assert len(overview.waiting) == 50
    assert len(described) == 50 + len(overview.running)


def test_the_live_table_is_that_of_this_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs are described only after a look; nothing that is shown may be older than the jobs."""
    simulation = Simulation.of(tmp_path, JOBS, SimulatedEngine(nodes=1, node_failures=0.2))
    monitor, engine = simulation.monitor, simulation.engine
    tables: list[str] = []
    with RunConsole(Console(file=io.StringIO())) as console:
        monkeypatch.setattr(console, "show_text", lambda draw: tables.append(draw(100, 40).plain))
        follower = SubmissionFollower(
            monitor,
            Home(tmp_path / "home"),
            console,
            collection=None,
            statuses=None,
            notifier=Notifier("", console.say),
            stop=StopRequest(),
            clock=lambda: engine.time_s,
        )
        while not monitor.is_settled:
            follower.step()
            follower.show()
            assert tables[-1].startswith(cluster_table(Overview.of(monitor), 100, 40, None).plain)
            engine.advance(1.0)
    assert len({table.splitlines()[0] for table in tables}) > 5


VIEW = Overview(
    engine="slurm",
    running=[
        JobView("1234_7", "S+S+S", [Role.TRAINING] * 3, "gpu-07", 2, 4350.0),
        JobView("1234_11", "M", [Role.TRAINING], "gpu-08", 1, 190.0),
        JobView("1234_12", "a-very-long-label", [Role.TRAINING], "gpu-09"),
    ],
    queued={"Priority": 30, "Resources": 10},
    unsubmitted=3,
    starts="2026-11-25T16:42:00",
)


def test_the_live_table_fits_the_terminal() -> None:
    progress = ProgressView(57, 100, 4350.0, 7200.0)
    table = cluster_table(VIEW, 80, 24, progress)
    lines = table.plain.splitlines()
    assert lines[0].startswith(
        "  slurm · 3 jobs run on 3 nodes, 40 queued (30 Priority, 10 Resources), 3 to be"
    )
    assert " ".join(lines[1].split()) == "gpu-07 S+S+S 3 runs ▶ 1:12:30 1234_7 attempt 2"
    assert lines[3].endswith("1234_12")
    assert "57/100 workloads" in lines[-1]
    assert max(map(len, lines)) <= 80
    assert "… 3 more" in cluster_table(VIEW, 80, 5, progress).plain
    assert len(cluster_table(VIEW, 80, 5, progress).plain.splitlines()) < 5


def test_what_is_wrong_is_shown() -> None:
    away = Overview("slurm", [], {}, ending=2, problem="squeue does not answer", held="no python")
    text = cluster_table(away, 80, 24, None).plain
    assert "2 ending" in text
    assert "squeue does not answer" in text
    assert "held: no python" in text
    assert headline(Overview("slurm", [], {})).plain == "  slurm · all jobs ended"


def test_a_stop_ends_what_is_held(tmp_path: Path) -> None:
    engine = SimulatedEngine(nodes=1)
    simulation = Simulation.of(tmp_path, JOBS, engine)
    simulation.pass_time(20)
    simulation.spool.hold("two jobs could not begin")
    simulation.pass_time(120)
    assert simulation.monitor.is_stuck
    simulation.spool.stop("stopped by the user")
    simulation.step()
    assert not simulation.monitor.is_stuck
    simulation.finish(most_s=400)
    assert engine.unended == 0
    assert set(simulation.statuses()) == {"FINISHED", "KILLED: stopped by the user"}
