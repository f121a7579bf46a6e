"""Jobs are submitted once, whoever is killed when, and no more than may wait."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from radt.cluster.engine import Shape
from radt.cluster.spool import Spool
from radt.errors import EngineAwayError
from tests.cluster import kit
from tests.cluster.kit import Simulation, make_spool, submitter_of
from tests.support.simulated import SimulatedEngine

JOBS = [[f"w{number}"] for number in range(6)]


class Killed(BaseException):
    """The submitter is killed."""


@contextmanager
def killed_at(step: int, engine: SimulatedEngine) -> Iterator[Callable[[], int]]:
    """Kill whoever submits at the n-th moment before or after a thing that others can see.

    Gives a function that tells how many of these moments there were.
    """
    passed = 0

    def watched(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal passed
            for moment in ("before", "after"):
                passed += 1
                if passed == step:
                    raise Killed
                if moment == "before":
                    answer = method(*args, **kwargs)
            return answer

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("intend", "submitted", "give_up", "put_script"):
            patch.setattr(Spool, name, watched(getattr(Spool, name)))
        for name in ("submit", "states", "find"):
            patch.setattr(engine, name, watched(getattr(engine, name)))
        yield lambda: passed


def check(simulation: Simulation) -> None:
    """Each workload has run once, and the engine has no job that nobody knows."""
    assert set(simulation.nodes.finished.values()) == {1}
    assert len(simulation.nodes.finished) == len(JOBS)
    known = {request.job_id for request in simulation.spool.requests()}
    assert simulation.engine.arrays <= known
    assert simulation.statuses() == ["FINISHED"] * len(JOBS)
    assert simulation.engine.unended == 0


def test_killed_at_any_moment_and_started_again(tmp_path: Path) -> None:
    step = 0
    while True:
        step += 1
        simulation = Simulation.of(tmp_path / str(step), JOBS, SimulatedEngine(), arrays=2)
        try:
            with killed_at(step, simulation.engine) as passed:
                simulation.pass_time(30)
        except Killed:
            simulation.engine.advance(1)
            simulation.look_anew()
            simulation.finish()
            check(simulation)
        else:
            assert passed() < step
            break
    assert step > 15  # intents, submissions and questions, before and after each


def test_killed_again_and_again(tmp_path: Path) -> None:
    chance = random.Random(7)
    simulation = Simulation.of(tmp_path, JOBS, SimulatedEngine(nodes=1), max_jobs=3, arrays=2)
    kills = 0
    while kills < 20 and not simulation.monitor.is_settled:
        try:
            with killed_at(chance.randrange(1, 12), simulation.engine):
                simulation.pass_time(500)
        except Killed:
            kills += 1
            simulation.engine.advance(chance.random() * 40)
            simulation.look_anew()
    simulation.finish()
    assert kills > 5
    check(simulation)


def test_an_answer_that_is_lost_is_found(tmp_path: Path) -> None:
    engine = SimulatedEngine()
    engine.lost_answers = 1
    simulation = Simulation.of(tmp_path, JOBS, engine)
    simulation.finish()
    check(simulation)
    assert engine.questions["submit"] == 1


def test_what_was_submitted_before_an_answer_was_lost_is_not_submitted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = SimulatedEngine()
    simulation = Simulation.of(tmp_path, JOBS, engine, arrays=2)
    submit = engine.submit

    def loses_the_second(request: Any) -> str:
        name = submit(request)
        if engine.questions["submit"] == 2:
            raise EngineAwayError("no answer")
        return name

    monkeypatch.setattr(engine, "submit", loses_the_second)
    simulation.finish()
    check(simulation)
    assert engine.questions["submit"] == 2


def test_an_answer_that_is_lost_for_longer_than_the_job_is_remembered(tmp_path: Path) -> None:
    engine = SimulatedEngine(nodes=6, keep_ended_s=10)
    engine.lost_answers = 1
    simulation = Simulation.of(tmp_path, JOBS, engine)
    simulation.step()
    engine.advance(600)  # nobody looks; all of it has run, and is forgotten
    assert engine.states(["1"]) == {}
    simulation.look_anew()
    simulation.finish()
    assert set(simulation.nodes.finished.values()) == {1}
    assert engine.questions["submit"] == 1


def test_an_engine_that_never_took_a_request_is_asked_again(tmp_path: Path) -> None:
    engine = SimulatedEngine()
    simulation = Simulation.of(tmp_path, JOBS, engine)
    engine.is_away = True
    simulation.step()
    assert [request.job_id for request in simulation.spool.requests()] == [""]
    engine.is_away = False
    simulation.finish()
    check(simulation)


@pytest.mark.parametrize("max_jobs", [1, 3, 100])
def test_no_more_jobs_than_may_wait(tmp_path: Path, max_jobs: int) -> None:
    engine = SimulatedEngine(nodes=1)
    simulation = Simulation.of(tmp_path, JOBS, engine, max_jobs=max_jobs)
    most = 0
    while not simulation.monitor.is_settled:
        simulation.step()
        most = max(most, engine.unended)
        engine.advance(5)
    assert most == min(max_jobs, len(JOBS))
    check(simulation)


def test_a_window_is_not_filled_job_by_job(tmp_path: Path) -> None:
    engine = SimulatedEngine(nodes=1)
    jobs = [[f"w{number}"] for number in range(80)]
    simulation = Simulation.of(tmp_path, jobs, engine, max_jobs=16)
    simulation.finish()
    assert engine.questions["submit"] <= 1 + 80 / (16 / 4)


def test_a_limit_of_the_site_shrinks_what_is_submitted(tmp_path: Path) -> None:
    engine = SimulatedEngine(nodes=1, max_queued=4)
    simulation = Simulation.of(tmp_path, JOBS, engine)
    simulation.step()
    assert engine.unended > 0
    simulation.finish()
    check(simulation)


def test_a_shape_that_is_refused_fails_its_rows_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = Simulation.of(tmp_path, JOBS, SimulatedEngine(), arrays=2)
    good = simulation.spool.submission.arrays[0]
    request = kit.ArrayRequest

    def made(name: str, intent: str, shape: Shape, *rest: Any) -> Any:
        return request(name, intent, shape if ":0:" in intent else Shape(gpus=99), *rest)

    monkeypatch.setattr(kit, "ArrayRequest", made)
    simulation.look_anew()
    simulation.finish()
    half = len(good.jobs)
    assert simulation.statuses()[:half] == ["FINISHED"] * half
    refused = simulation.statuses()[half:]
    assert all(text.startswith("FAILED: the cluster refuses") for text in refused)


def test_ids_are_known_to_whoever_comes_next(tmp_path: Path) -> None:
    spool, engine = make_spool(tmp_path, JOBS), SimulatedEngine()
    first = submitter_of(spool, engine)
    jobs = list(spool.submission.jobs)
    assert list(first.submit(jobs, 0)) == jobs
    second = submitter_of(Spool(spool.path), engine)
    assert [second.job_id(job) for job in jobs] == [first.job_id(job) for job in jobs]
    assert not second.unanswered


def test_a_request_that_arrives_late_is_not_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = SimulatedEngine()
    simulation = Simulation.of(tmp_path, JOBS, engine)
    on_its_way: list[Any] = []

    def is_cut_off(request: Any) -> str:
        on_its_way.append(request)
        raise EngineAwayError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(engine, "submit", is_cut_off)
        simulation.step()
    simulation.look_anew()
    simulation.step()  # the engine does not have it yet
    engine.submit(on_its_way[0])
    simulation.finish()
    check(simulation)
    assert engine.questions["submit"] == 1
