"""What a listener can say beside numbers: options in, methods, markers and times of its own out."""

from __future__ import annotations

import os
import signal
import sqlite3
from pathlib import Path

import pytest
from collector_kit import Project, Run, alive, holder, wait_for

from radt.model import MarkerKind, Scope, SeriesKind

_PLUGIN = """
import time
from radt.listeners.api import Availability, Listener, Metric, Occurrence, Reading
from radt.model import Scope, SeriesKind

class Talker(Listener):
    name = "talker"
    accepts = {"loud": "says so", "times=N": "a factor", "wide": "400 series"}
    by_default = True

    @classmethod
    def probe(cls):
        return Availability(True)

    @classmethod
    def metrics(cls):
        return [
            Metric("talker.interval", "s", Scope.HOST, method="its own"),
            Metric("talker.options", "1", Scope.HOST),
            Metric("talker.share", "J", Scope.PROCESS, SeriesKind.COUNTER, estimated=True,
                   method="equal shares", wraps_at=4.0),
            Metric("talker.device", "1", Scope.GPU, method="read"),
            Metric("talker.seldom", "1", Scope.HOST, regular=False),
            Metric("talker.late", "1", Scope.HOST),
            Metric("talker.wide", "1", Scope.HOST),
        ]

    def open(self):
        self.since = time.monotonic_ns()

    def sample(self, targets):
        yield Reading("talker.interval", self.interval_s)
        yield Reading("talker.options", 100.0 * ("loud" in self.options)
                      + float(self.options.get("times", 0)))
        yield Reading("talker.late", 1.0, at_ns=time.monotonic_ns() - 10_000_000)
        yield Reading("talker.seldom", 1.0)
        for number in range(400 * ("wide" in self.options)):
            yield Reading("talker.wide", 1.0, str(number))
        if self.since:
            yield Occurrence("everybody", "hears this")
            yield Occurrence("card", gpu="GPU-1", at_ns=self.since)
            self.since = 0
        for target in targets:
            yield Reading("talker.share", 0.5, run_id=target.run_id)
            if target.profiler:
                yield Occurrence("profiled", target.profiler, run_id=target.run_id)
            for gpu in target.gpus:
                yield Reading("talker.device", 1.0, gpu, gpu=gpu, method="as " + gpu)
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installs the talking listener; must come before the collector starts."""
    info = tmp_path / "site" / "talker-1.0.dist-info"
    info.mkdir(parents=True)
    (info.parent / "talker.py").write_text(_PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: talker\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[radt.listeners]\ntalker = talker:Talker\n")
    monkeypatch.setenv("PYTHONPATH", str(info.parent), prepend=os.pathsep)


@pytest.fixture
def talking(plugin: None, project: Project) -> Project:
    return project


def _events(project: Project, run: Run) -> list[tuple[str, str]]:
    markers = project.reader.markers([run.run_id])
    return [(one.name, one.detail) for one in markers if one.kind is MarkerKind.EVENT]


def _last(project: Project, run: Run, metric: str) -> float | None:
    found = {one.series.metric: one.last for one in project.reader.summary([run.run_id])}
    return found.get(metric)


def test_options_and_interval_reach_the_listener(talking: Project) -> None:
    plain = talking.run("talker")
    told = talking.run("talker:loud:times=7", interval_s=0.1)
    wait_for(lambda: told.has("talker.options") and plain.has("talker.options"))
    assert _last(talking, told, "talker.options") == 107
    assert _last(talking, plain, "talker.options") == 0
    assert _last(talking, told, "talker.interval") == 0.1
    assert _last(talking, plain, "talker.interval") == 0.05


def test_options_that_make_no_sense_are_warned_of(talking: Project) -> None:
    run, warnings = talking.register("talker:soft", "top")
    assert warnings == [
        "listener talker has no option 'soft'; the listener is skipped. "
        "It takes talker:loud, talker:times=N, talker:wide"
    ]
    run.start()
    wait_for(lambda: run.has("system.load"))
    assert "talker" not in run.ledger


def test_series_say_how_their_values_come_about(talking: Project) -> None:
    run = talking.run("talker", devices=("GPU-1",))
    wait_for(lambda: run.has("talker.share"))
    series = {one.metric: one for one in talking.reader.series([run.run_id])}
    share = series["talker.share"]
    assert (share.method, share.estimated, share.wraps_at) == ("equal shares", True, 4.0)
    assert (share.scope, share.kind) == (Scope.PROCESS, SeriesKind.COUNTER)
    assert series["talker.interval"].method == "its own"
    assert not series["talker.interval"].estimated
    assert series["talker.interval"].wraps_at is None
    assert series["talker.device"].method == "as GPU-1"
    assert series["talker.device"].interval_s == 0.05
    assert series["talker.seldom"].interval_s is None


def test_a_value_may_have_been_taken_before_the_reading(talking: Project) -> None:
    run = talking.run("talker")
    wait_for(lambda: run.has("talker.late", 3))
    run.finish()
    before_ns = [
        read - taken
        for read, taken in zip(
            run.times_ns("talker.interval"), run.times_ns("talker.late"), strict=True
        )
    ]
    # 10 ms before the listener came to it, which on a busy machine may be later than it began.
    assert all(one <= 10_000_000 for one in before_ns)
    assert max(before_ns) > 0


def test_occurrences_become_markers_of_the_runs_they_concern(talking: Project) -> None:
    one, _ = talking.register("talker", devices=("GPU-1",))
    other, _ = talking.register("talker", profiler="nsys")
    one.start()
    other.start()
    wait_for(lambda: ("profiled", "nsys") in _events(talking, other))
    wait_for(lambda: ("card", "") in _events(talking, one))
    assert ("everybody", "hears this") in _events(talking, one)
    assert ("card", "") not in _events(talking, other)
    assert ("profiled", "nsys") not in _events(talking, one)


def test_devices_may_be_known_only_at_the_start(
    talking: Project,
) -> None:
    run, _ = talking.register("talker", devices=("0",))
    run.start(devices=("MIG-7",))
    wait_for(lambda: run.has("talker.device", 2))
    worker = holder("worker")
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: not alive(worker))
    count = run.counts["talker.device"]
    wait_for(lambda: run.has("talker.device", count + 2), "readings by the next worker")
    entities = {one.entity for one in talking.reader.series([run.run_id]) if one.entity}
    assert entities == {"MIG-7"}


def test_the_usual_listeners_are_those_that_work_here(talking: Project) -> None:
    run, warnings = talking.register("default")
    run.start()
    wait_for(lambda: run.has("talker.interval") and run.has("system.load"))
    assert warnings == []
    assert "smi" not in run.ledger, "there is no GPU here"


def test_the_ledger_has_the_longest_reading_and_how_late_they_began(talking: Project) -> None:
    run = talking.run("top")
    wait_for(lambda: run.ledger["top"].received > 3)
    run.finish()
    ledger = run.ledger["top"]
    assert 0 < ledger.sampling_max_ns <= ledger.sampling_ns
    assert ledger.received * ledger.sampling_max_ns >= ledger.sampling_ns
    assert 0 < ledger.late_max_ns <= ledger.late_ns


def test_many_series_are_written_several_points_at_a_time(talking: Project) -> None:
    """Writing costs by the series, however few its points are."""
    wide = talking.run("talker:wide")
    wait_for(lambda: wide.ledger["talker"].received > 30)
    with sqlite3.connect(talking.home.store_path) as connection:
        ((chunks, points),) = connection.execute(
            "SELECT COUNT(*), SUM(point_count) FROM chunk JOIN series USING (run_id, series_no) "
            "WHERE metric = 'talker.wide' AND entity = '399'"
        )
    wide.finish()
    assert points >= 30
    assert points > 2 * chunks
