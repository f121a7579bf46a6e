"""Listeners that raise, hang, or take the collector down: the run goes on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from collector_kit import DEADLINE_S, Project, holder, wait_for

from radt.collector.client import CollectorClient
from radt.model import MissingReason, RunStatus

#: What a listener does is in a file that the test writes: "ok", "raise", "exit", "hang", "die".
_PLUGIN = """
import os, sys, threading, time
import os
from pathlib import Path
from radt.listeners.api import Availability, Listener, Metric, Reading
from radt.model import MissingReason, Scope

ORDERS = Path({folder!r})

class Faulty(Listener):
    name = "faulty"

    @classmethod
    def probe(cls):
        return Availability(True)

    @classmethod
    def metrics(cls):
        return [Metric("faulty.value", "1", Scope.HOST)]

    def open(self):
        with (ORDERS / "opened").open("a") as file: file.write("x")

    def close(self):
        with (ORDERS / "closed").open("a") as file: file.write("x")

    def sample(self, targets):
        order = (ORDERS / "order").read_text()
        if order == "once":
            (ORDERS / "order").write_text("ok")
        if order in ("raise", "once"):
            raise RuntimeError("out of paper")
        if order == "crowded":
            with (ORDERS / "crowded").open("a") as file: file.write("x")
            raise OSError(24, "Too many open files")
        if order == "exit":
            sys.exit(3)
        if order == "hang":
            threading.Event().wait()
        if order == "die":
            os._exit(9)
        if order == "undeclared":
            return [Reading("faulty.other", 1.0)]
        if order in ("missing", "nan"):
            with (ORDERS / order).open("a") as file: file.write("x")
        if order == "missing":
            return [Reading("faulty.value", MissingReason.PERMISSION)]
        if order == "nan":
            return [Reading("faulty.value", float("nan"))]
        return [Reading("faulty.value", 1.0)]
"""


class Orders:
    """Tells the faulty listener what to do."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.give("ok")

    def give(self, order: str) -> None:
        temporary = self._folder / "new"
        temporary.write_text(order)
        temporary.replace(self._folder / "order")

    def count(self, what: str) -> int:
        path = self._folder / what
        return len(path.read_text()) if path.exists() else 0


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Orders:
    """Installs the faulty listener as a plug-in; must come before the collector starts."""
    site, folder = tmp_path / "site", tmp_path / "orders"
    info = site / "faulty-1.0.dist-info"
    info.mkdir(parents=True)
    folder.mkdir()
    (site / "faulty.py").write_text(_PLUGIN.format(folder=str(folder)))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[radt.listeners]\nfaulty = faulty:Faulty\n")
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    return Orders(folder)


@pytest.fixture
def impatient(collector: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener that does not return is soon given up; must come before the collector starts."""
    monkeypatch.setenv("RADT_COLLECTOR_HANG_S", "2")


@pytest.fixture
def faulty(orders: Orders, project: Project) -> Project:
    return project


def _markers(project: Project, run) -> list[tuple[str, str]]:
    return [(one.name, one.detail) for one in project.reader.markers([run.run_id])]


def test_one_failure_is_a_restart(orders: Orders, faulty: Project) -> None:
    run = faulty.run("top", "faulty")
    wait_for(lambda: run.has("faulty.value", 2))
    count = run.counts["faulty.value"]
    orders.give("once")
    wait_for(
        lambda: (
            ("listener faulty restarted", "raised RuntimeError: out of paper")
            in _markers(faulty, run)
        )
    )
    wait_for(lambda: run.has("faulty.value", count + 3))
    run.finish()
    ledger = run.ledger["faulty"]
    assert ledger.state == "ended"
    assert ledger.missed >= 1
    wait_for(lambda: orders.count("closed") == 2, "its thread to close it")  # after the run's end
    assert orders.count("opened") == 2
    details = [gap.detail for gap in faulty.reader.gaps([run.run_id]) if gap.listener == "faulty"]
    assert "raised RuntimeError: out of paper" in details


def test_a_collector_without_a_free_descriptor_is_no_fault_of_the_listener(
    orders: Orders, faulty: Project
) -> None:
    run = faulty.run("faulty")
    wait_for(lambda: run.has("faulty.value", 2))
    orders.give("crowded")
    wait_for(lambda: orders.count("crowded") > 5)
    orders.give("ok")
    count = run.counts["faulty.value"]
    wait_for(lambda: run.has("faulty.value", count + 3))
    run.finish()
    assert run.ledger["faulty"].state == "ended"
    assert run.ledger["faulty"].missed >= 5
    assert _markers(faulty, run) == []
    wait_for(lambda: orders.count("closed") == 1, "its thread to close it")  # after the run's end
    assert orders.count("opened") == 1
    details = {gap.detail for gap in faulty.reader.gaps([run.run_id])}
    assert "OSError: [Errno 24] Too many open files" in details


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ("raise", "raised RuntimeError: out of paper"),
        ("exit", "raised SystemExit: 3"),
        ("undeclared", "raised ListenerError: it reads faulty.other"),
    ],
)
def test_failures_in_a_row_drop_it(
    orders: Orders, faulty: Project, order: str, reason: str
) -> None:
    run = faulty.run("top", "faulty")
    wait_for(lambda: run.has("faulty.value", 2))
    orders.give(order)
    wait_for(lambda: run.ledger["faulty"].state == "dropped")
    count = run.counts["system.load"]
    wait_for(lambda: run.has("system.load", count + 3), "the other listener to go on")
    assert reason in run.ledger["faulty"].reason
    run.finish()
    assert run.row.status is RunStatus.FINISHED
    ledger = run.ledger["faulty"]
    assert ledger.state == "dropped"
    assert ledger.missed > 3, "what it would have read until the end is missed"
    names = [name for name, _ in _markers(faulty, run)]
    assert names.count("listener faulty restarted") == 2
    assert names.count("listener faulty dropped") == 1
    assert run.ledger["top"].state == "ended"

    orders.give("ok")  # a later run gets it again
    later = faulty.run("faulty")
    wait_for(lambda: later.has("faulty.value"))
    later.finish()


def test_a_listener_that_hangs_is_left_behind(
    impatient: None, orders: Orders, faulty: Project
) -> None:
    run = faulty.run("top", "faulty")
    wait_for(lambda: run.has("faulty.value"))
    orders.give("hang")
    wait_for(lambda: any("did not return" in detail for _, detail in _markers(faulty, run)))
    orders.give("ok")
    count = run.counts["faulty.value"]
    wait_for(lambda: run.has("faulty.value", count + 3), "a new instance to take over")
    run.finish()
    assert run.ledger["faulty"].missed >= 5
    assert run.ledger["top"].missed < run.ledger["faulty"].missed


@pytest.mark.long
def test_one_that_hangs_again_and_again_is_dropped(
    impatient: None, orders: Orders, faulty: Project
) -> None:
    orders.give("hang")
    run = faulty.run("top", "faulty")
    wait_for(lambda: run.ledger["faulty"].state == "dropped")
    run.finish()
    assert run.has("system.load")
    assert not run.has("faulty.value")


def test_one_that_takes_the_collector_down_is_not_started_a_fourth_time(
    orders: Orders, faulty: Project
) -> None:
    run = faulty.run("top", "faulty")
    wait_for(lambda: run.has("faulty.value"))
    first = holder("worker")
    orders.give("die")
    wait_for(lambda: run.ledger["faulty"].state == "unavailable")
    assert "died 3 times" in run.ledger["faulty"].reason
    assert holder("worker") != first
    count = run.counts["system.load"]
    wait_for(lambda: run.has("system.load", count + 5))
    run.finish()
    assert run.row.status is RunStatus.FINISHED
    assert orders.count("opened") == 3


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize(
    ("order", "reason"), [("missing", MissingReason.PERMISSION), ("nan", MissingReason.LOST)]
)
def test_a_missing_value_is_a_gap_with_its_reason(
    orders: Orders, faulty: Project, order: str, reason: MissingReason
) -> None:
    run = faulty.run("faulty")
    wait_for(lambda: run.has("faulty.value", 2))
    orders.give(order)
    # By its own count: the store may get readings of before only now.
    wait_for(lambda: orders.count(order) > 3)
    orders.give("ok")
    count = run.counts["faulty.value"]
    wait_for(lambda: run.has("faulty.value", count + 3))
    run.finish()
    (series,) = faulty.reader.series([run.run_id])
    (gap,) = [one for one in faulty.reader.gaps([run.run_id]) if one.series_no == series.series_no]
    assert gap.reason is reason
    times_ns = run.times_ns("faulty.value")
    assert not [time_ns for time_ns in times_ns if gap.start_ns <= time_ns < gap.end_ns]
    assert gap.end_ns in times_ns
    assert run.ledger["faulty"].received > len(times_ns)


def test_a_plugin_that_cannot_be_imported_leaves_the_others(orders: Orders, tmp_path: Path) -> None:
    (tmp_path / "site" / "faulty.py").write_text("raise RuntimeError('broken')")
    client = CollectorClient(timeout_s=DEADLINE_S).reach()
    project = Project(tmp_path / "radt-data", client)
    run, warnings = project.register("faulty", "top")
    assert any("faulty is not installed" in warning for warning in warnings)
    run.start()
    wait_for(lambda: run.has("system.load"))
    run.finish()
    project.close()
    client.close()
