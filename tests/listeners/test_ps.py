"""The ps listener against threads of which is known what they use and where."""

from __future__ import annotations

import psutil
import pytest

from radt.listeners.api import Target
from radt.listeners.ps import PsListener
from tests.listeners.workloads import (
    BURN,
    FAMILY,
    IDLE,
    THREADS,
    Bench,
    Timed,
    bench,
    opened,
    sample,
    targets,
)

__all__ = ["bench"]

_CPU = "process.thread.cpu.utilization"
_CORE = "process.thread.core"
#: Rounding to ticks, of user and system time.
_TICKS_S = 0.03


def _timed(**options: str | None) -> Timed:
    return Timed(opened(PsListener(), **options), _TICKS_S)


def test_a_busy_thread_has_a_name_and_a_core_and_a_later_one_takes_its_place(
    bench: Bench,
) -> None:
    workload = bench.start(THREADS)
    name = f"{psutil.Process(workload.pid).name()}/crunch (1) x"
    # Of a wall-clock time that may be long: what is busy for a moment is named all the same.
    timed = _timed(min="0.002")
    assert timed.sample(*targets(workload)).metrics("0") == set(), "nothing to compare with"
    for _ in range(2):
        facts = workload.work()
        sampled = timed.sample(*targets(workload))
        assert name in sampled.entities(_CPU, "0")
        timed.assert_used(sampled(_CPU, "0", name), facts["cpu_s"])
        assert sampled(_CORE, "0", name) == facts["core"]
        assert not any("waits" in entity for entity in sampled.entities(_CPU, "0"))
        workload.work()
        ended = timed.sample(*targets(workload))
        assert name not in ended.entities(_CPU, "0")
    assert not any(entity.endswith(" 2") for entity in ended.entities(_CPU, "0"))


def test_an_idle_thread_that_was_busy_goes_on_at_nothing(bench: Bench) -> None:
    burn = bench.start(BURN, 0.2)
    name = psutil.Process(burn.pid).name()
    timed = _timed(min="0.002")  # busy for a moment of what may be a long time
    timed.sample(*targets(burn))
    used_s = burn.work()["cpu_s"]
    sampled = timed.sample(*targets(burn))
    timed.assert_used(sampled(_CPU, "0", name), used_s)
    assert sampled(_CPU, "0", "other") * timed.shortest_s <= _TICKS_S
    assert sampled.raw(_CORE, "0", "other") is None
    idle = timed.sample(*targets(burn))
    assert idle(_CPU, "0", name) <= _TICKS_S / timed.shortest_s
    assert idle(_CORE, "0", name) in range(psutil.cpu_count())
    burn.process.kill()
    burn.process.wait()
    assert timed.sample(*targets(burn)).metrics("0") == set()


def test_beyond_the_highest_number_all_is_other(bench: Bench) -> None:
    burns = [bench.start(BURN, seconds) for seconds in (0.1, 0.3, 0.1)]
    name = psutil.Process(burns[0].pid).name()
    tree = Target("0", pids=tuple(burn.pid for burn in burns))
    timed, choosy = _timed(max="1", min="0"), _timed(min="1000")
    timed.sample(tree)
    choosy.sample(tree)
    for burn in burns:
        burn.go()
    used_s = [burn.done()["cpu_s"] for burn in burns]
    sampled = timed.sample(tree)
    assert sampled.entities(_CPU, "0") == {name, "other"}
    timed.assert_used(sampled(_CPU, "0", name), used_s[1])  # the busiest
    rest = sampled(_CPU, "0", "other")
    assert rest * timed.shortest_s - 3 * _TICKS_S <= used_s[0] + used_s[2]
    assert used_s[0] + used_s[2] <= rest * timed.longest_s + 3 * _TICKS_S
    assert choosy.sample(tree).entities(_CPU, "0") == {"other"}, "none was busy enough"


def test_processes_of_one_name_are_numbered(bench: Bench) -> None:
    burns = [bench.start(BURN, 0.2) for _ in range(2)]
    name = psutil.Process(burns[0].pid).name()
    tree = Target("0", pids=tuple(burn.pid for burn in burns))
    timed = _timed(min="0.002")
    timed.sample(tree)
    for burn in burns:
        burn.go()
    for burn in burns:
        burn.done()
    assert timed.sample(tree).entities(_CPU, "0") == {name, f"{name} 2", "other"}
    # Of another run, names are its own.
    first, second = targets(*burns)
    timed = _timed(min="0")
    timed.sample(first, second)
    assert timed.sample(first, second).entities(_CPU, "1") <= {name, "other"}


def test_threads_that_did_nothing_have_no_series(bench: Bench) -> None:
    parent = bench.start(FAMILY, 2, 1)
    timed = _timed(min="0")
    children = parent.work()["children"]
    tree = Target("0", pids=(parent.pid, *children))
    timed.sample(tree)
    assert timed.sample(tree).entities(_CPU, "0") == {"other"}, "none has used anything"


def test_no_process_no_thread() -> None:
    timed = _timed()
    for _ in range(2):
        assert timed.sample(Target("0"), Target("1", pids=(4194304,))).readings == []


@pytest.mark.parametrize(
    ("word", "value"),
    [("max", None), ("max", "many"), ("min", None), ("min", "nan"), ("min", "-1"), ("min", "x")],
)
def test_options_that_make_no_sense(word: str, value: str | None) -> None:
    with pytest.raises(ValueError, match=word):
        PsListener.check_option(word, value)


def test_options_that_do(bench: Bench) -> None:
    PsListener.check_option("max", "8")
    PsListener.check_option("min", "0.5")
    workload = bench.start(IDLE)
    assert sample(opened(PsListener(), max="0", min="0"), *targets(workload)).readings == []
