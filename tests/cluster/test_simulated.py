"""The simulated cluster behaves as Slurm does, and repeats exactly."""

from __future__ import annotations

import pytest

from radt.cluster.engine import ArrayRequest, JobEnd, JobId, JobState, Phase, Shape
from radt.errors import ClusterError, EngineAwayError, SubmitLimitError
from tests.support.simulated import Notice, SimulatedEngine, SimulatedStart, Work


def request(jobs: int, shape: Shape | None = None) -> ArrayRequest:
    return ArrayRequest(*("radt", "radt:test:0", shape or Shape(gpus=1), range(jobs), "", ""))


def phases(engine: SimulatedEngine, array: str) -> list[Phase]:
    return [state.phase for _, state in sorted(engine.states([array]).items())]


def test_jobs_start_in_order_where_they_fit_and_end() -> None:
    engine = SimulatedEngine(nodes=1, gpus=2)
    array = engine.submit(request(3))
    engine.advance(0)
    assert phases(engine, array) == [Phase.RUNNING, Phase.RUNNING, Phase.QUEUED]
    engine.advance(60)
    assert phases(engine, array) == [Phase.ENDED, Phase.ENDED, Phase.RUNNING]
    engine.advance(60)
    assert engine.states([array])[JobId(array, 2)] == JobState(
        Phase.ENDED, nodes="node1", end=JobEnd.COMPLETED
    )
    assert engine.unended == 0
    engine.advance(1000)
    assert engine.states([array]) == {}


def test_what_never_fits_and_what_is_too_much_is_refused() -> None:
    engine = SimulatedEngine(gpus=2, max_queued=3, max_array_size=10)
    for refuse in (engine.check, engine.submit):
        with pytest.raises(ClusterError, match="not available"):
            refuse(request(1, Shape(gpus=3)))
    with pytest.raises(SubmitLimitError):
        engine.submit(request(4))
    with pytest.raises(ClusterError, match="array"):
        engine.submit(request(11))
    assert engine.unended == 0


def test_an_answer_that_is_lost_is_found() -> None:
    engine = SimulatedEngine()
    engine.lost_answers = 1
    with pytest.raises(EngineAwayError):
        engine.submit(request(1))
    array = engine.find("radt:test:0")
    assert array is not None and len(engine.states([array])) == 1
    engine.is_away = True
    with pytest.raises(EngineAwayError):
        engine.find("radt:test:0")


def test_a_failed_node_queues_its_jobs_again() -> None:
    starts: list[SimulatedStart] = []
    ends: list[str] = []

    def runner(start: SimulatedStart) -> Work:
        starts.append(start)
        try:
            yield 60.0
        except GeneratorExit:
            ends.append("killed")
            raise
        ends.append("done")
        return 0

    engine = SimulatedEngine(nodes=2, gpus=1, runner=runner)
    array = engine.submit(request(1))
    engine.advance(30)
    engine.fail_node("node1")
    assert phases(engine, array) == [Phase.QUEUED] and ends == ["killed"]
    engine.advance(119)
    assert phases(engine, array) == [Phase.QUEUED]
    engine.advance(2)
    assert [(start.node, start.restarts) for start in starts] == [("node1", 0), ("node2", 1)]
    engine.advance(60)
    assert ends == ["killed", "done"]
    assert engine.states([array])[JobId(array, 0)].end is JobEnd.COMPLETED


def test_a_preempted_job_that_ends_within_the_grace_is_not_queued_again() -> None:
    told: list[Notice | None] = []

    def polite(_start: SimulatedStart) -> Work:
        told.append((yield 1000.0))
        return 1

    def deaf(_start: SimulatedStart) -> Work:
        while True:
            yield 1000.0

    for runner, phase in ((polite, Phase.ENDED), (deaf, Phase.QUEUED)):
        engine = SimulatedEngine(runner=runner)
        array = engine.submit(request(1))
        engine.advance(1)
        engine.preempt(JobId(array, 0))
        engine.advance(61)
        assert phases(engine, array) == [phase]
    assert told == [Notice.PREEMPTED]


def test_cancelled_ones_end_politely_or_by_force() -> None:
    told: list[Notice | None] = []

    def slow(_start: SimulatedStart) -> Work:
        told.append((yield 1000.0))
        yield 1000.0
        return 0

    engine = SimulatedEngine(nodes=1, gpus=1, runner=slow)
    array = engine.submit(request(3))
    engine.advance(1)
    engine.cancel([JobId(array, 0), JobId(array, 2), JobId(array, 9), JobId("99", 0)])
    engine.advance(1)
    assert phases(engine, array) == [Phase.RUNNING, Phase.QUEUED, Phase.ENDED]
    assert told == [Notice.CANCELLED]
    engine.advance(30)
    assert phases(engine, array) == [Phase.ENDED, Phase.RUNNING, Phase.ENDED]
    engine.cancel([JobId(array, 1)], now=True)
    engine.advance(0)
    assert {state.end for state in engine.states([array]).values()} == {JobEnd.CANCELLED}
    assert engine.unended == 0


def test_the_time_limit_ends_a_job_after_a_notice() -> None:
    told: list[Notice | None] = []

    def endless(_start: SimulatedStart) -> Work:
        while True:
            told.append((yield 1000.0))

    engine = SimulatedEngine(runner=endless)
    array = engine.submit(request(1, Shape(gpus=1, time_s=600)))
    engine.advance(500)
    assert told == [Notice.TIME_LIMIT]
    engine.advance(100)
    assert engine.states([array])[JobId(array, 0)].end is JobEnd.TIMEOUT


def test_a_notice_takes_the_place_of_a_wait() -> None:
    def saves_first(_start: SimulatedStart) -> Work:
        notice = yield 990.0
        assert notice is Notice.TIME_LIMIT
        yield 115.0
        return 0

    engine = SimulatedEngine(runner=saves_first)
    array = engine.submit(request(1, Shape(gpus=1, time_s=1000)))
    engine.advance(994)
    assert phases(engine, array) == [Phase.RUNNING]
    engine.advance(2)
    assert engine.states([array])[JobId(array, 0)].end is JobEnd.COMPLETED


def test_held_jobs_wait_for_their_release() -> None:
    engine = SimulatedEngine(nodes=1, gpus=1)
    array = engine.submit(request(3))
    engine.advance(1)
    engine.hold([JobId(array, index) for index in range(3)])
    engine.advance(100)
    assert phases(engine, array) == [Phase.ENDED, Phase.HELD, Phase.HELD]
    engine.release([JobId(array, 2)])
    engine.advance(100)
    assert phases(engine, array) == [Phase.ENDED, Phase.HELD, Phase.ENDED]


def test_thousands_of_jobs_with_failures_end_the_same_every_time() -> None:
    def simulate() -> list[tuple[float, str, JobId]]:
        starts: list[tuple[float, str, JobId]] = []

        def runner(start: SimulatedStart) -> Work:
            starts.append((start.time_s, start.node, start.job))
            return 1 if (yield 60.0) else 0

        engine = SimulatedEngine(
            20, gpus=4, runner=runner, seed=7, node_failures=0.05, preemptions=0.05
        )
        for _ in range(2):
            engine.submit(request(1000))
        for _ in range(1000):
            engine.advance(15)
        assert engine.unended == 0
        return starts

    first = simulate()
    assert len(first) > 2000, "some started again"
    assert simulate() == first
