"""What the shared folder does not do is said once and tried again; what does not belong is left."""

from __future__ import annotations

import errno
import io
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from radt.cluster.follow import SubmissionFollower
from radt.cluster.spool import Spool
from radt.cluster.submission import JobKey
from radt.home import Home
from radt.model import RunStatus
from radt.runner.active import StopRequest
from radt.runner.console import RunConsole
from radt.runner.notify import Notifier
from tests.cluster.kit import Simulation
from tests.cluster.node_kit import collect
from tests.support.simulated import SimulatedEngine

JOBS = [[f"w{number}"] for number in range(10)]


class Failing(Spool):
    """A folder that fails at one thing, while there is one."""

    fails = ""

    def __getattribute__(self, name: str) -> Any:
        own = super().__getattribute__("__dict__")
        if name == own.get("fails"):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(own["path"]))
        return super().__getattribute__(name)


def finished_once(simulation: Simulation) -> None:
    assert simulation.statuses() == ["FINISHED"] * len(JOBS)
    assert set(simulation.nodes.finished.values()) == {1}
    assert simulation.engine.unended == 0


def notes(simulation: Simulation, text: str) -> list[str]:
    return [note for note in simulation.changes.notes if text in note]


@pytest.mark.parametrize(
    "what",
    [
        *("started_jobs", "attempts", "held", "released", "stopped"),
        *("requests", "intend", "submitted", "give_up"),
    ],
)
def test_a_folder_that_fails_for_a_while(tmp_path: Path, what: str) -> None:
    # The site takes three jobs at a time: some requests are refused and given up.
    engine = SimulatedEngine(nodes=1, max_queued=3)
    simulation = Simulation.of(tmp_path, JOBS, engine, arrays=2)
    simulation.look_anew(Failing)
    simulation.spool.__dict__["fails"] = what
    simulation.pass_time(200)
    assert not simulation.monitor.is_settled
    assert len(notes(simulation, "Stale file handle; jobs go on")) == 1
    assert not notes(simulation, "works again")
    simulation.spool.__dict__["fails"] = ""
    simulation.finish()
    assert len(notes(simulation, "works again")) == 1
    finished_once(simulation)
    known = {request.job_id for request in Spool(simulation.spool.path).requests()}
    assert engine.arrays <= known


def test_a_log_that_cannot_be_seen_keeps_no_workload_from_its_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exists = Path.exists

    def unless_stale(path: Path) -> bool:
        if path.name == "output.log":
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return exists(path)

    simulation = Simulation.of(tmp_path, JOBS, SimulatedEngine(nodes=1))
    simulation.finish()
    simulation.look_anew()
    monkeypatch.setattr(Path, "exists", unless_stale)
    console = Console(file=io.StringIO())
    with RunConsole(console) as shown, closing(Notifier("", shown.say)) as notifier:
        followed = SubmissionFollower(
            simulation.monitor,
            Home(tmp_path / "home"),
            shown,
            collection=None,
            statuses=None,
            notifier=notifier,
            stop=StopRequest(),
        ).run()
    assert [outcome.status for outcome in followed.workloads] == [RunStatus.FINISHED] * len(JOBS)


def test_what_is_not_of_a_job_is_left_alone(tmp_path: Path) -> None:
    simulation = Simulation.of(tmp_path, JOBS, SimulatedEngine(nodes=1))
    jobs = simulation.spool.path / "jobs"
    (jobs / "my notes").mkdir()
    (jobs / ".nfs0000000000c0ffee").touch()
    (jobs / "7-99").mkdir()
    simulation.pass_time(20)
    (jobs / str(JobKey(0, 0)) / "attempts" / "old").mkdir()
    (jobs / str(JobKey(0, 0)) / "attempts" / "1" / "beat.old").touch()
    simulation.finish()
    assert len(notes(simulation, "my notes is not a job's folder")) == 1
    assert not notes(simulation, "nfs")
    finished_once(simulation)
    assert not collect(simulation.spool, Home(tmp_path / "home")).problems
    assert (jobs / "my notes").exists()


@pytest.mark.parametrize("text", ["", "[0, 1", "{}", '["0"]', "[0, 10]", "[true]", "\x00"])
def test_a_request_that_cannot_be_read_is_looked_for(tmp_path: Path, text: str) -> None:
    engine = SimulatedEngine(nodes=1)
    simulation = Simulation.of(tmp_path, JOBS, engine)
    simulation.step()
    request = simulation.spool.path / "arrays" / "0" / "request.1.json"
    request.write_text(text)
    simulation.look_anew()
    simulation.finish()
    finished_once(simulation)
    assert len(notes(simulation, "request.1.json is damaged")) == 1
    assert engine.questions["submit"] == 1


def test_a_request_that_cannot_be_read_and_was_never_sent(tmp_path: Path) -> None:
    engine = SimulatedEngine(nodes=1)
    simulation = Simulation.of(tmp_path, JOBS, engine)
    request = simulation.spool.intend(0, range(5))
    (simulation.spool.path / "arrays" / "0" / f"request.{request.number}.json").write_text("[")
    simulation.look_anew()
    simulation.finish()
    finished_once(simulation)
    assert engine.questions["submit"] == 1
