"""Stores that are locked, full, or deleted under the collector."""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
from pathlib import Path

import pytest
from collector_kit import DEADLINE_S, Project, holder, wait_for

from radt.collector.client import CollectorClient
from radt.errors import CollectorError
from radt.model import RunStatus


def _received(project: Project, run) -> int:
    return project.client.live([run.run_id])[run.run_id].samples


def test_a_locked_store_loses_nothing(project: Project, tmp_path: Path) -> None:
    other = Project(tmp_path / "other", project.client)
    run, neighbour = project.run(), other.run()
    wait_for(lambda: run.has("system.load"))
    database = sqlite3.connect(project.home.store_path, timeout=DEADLINE_S)
    database.execute("BEGIN EXCLUSIVE")
    stored = run.counts["system.load"]
    received = _received(project, run)
    wait_for(lambda: _received(project, run) > received + 200, "sampling to go on")
    count = neighbour.counts["system.load"]
    wait_for(lambda: neighbour.has("system.load", count + 3), "the other store to be written")
    assert run.counts["system.load"] == stored
    with pytest.raises(CollectorError, match="not in its store yet"):
        run.finish(timeout_s=0.3)
    database.rollback()
    database.close()
    run.finish()
    ledger = run.ledger["top"]
    assert ledger.received == run.counts["system.load"] > stored + 10
    assert not [gap for gap in project.reader.gaps([run.run_id]) if "memory" in gap.detail]
    neighbour.finish()
    other.close()


def test_memory_is_bounded_while_the_store_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RADT_COLLECTOR_BUFFER", "90")
    client = CollectorClient(timeout_s=DEADLINE_S).reach()
    project = Project(tmp_path / "radt-data", client)
    run = project.run(interval_s=0.02)
    wait_for(lambda: run.has("system.load"))
    database = sqlite3.connect(project.home.store_path, timeout=DEADLINE_S)
    database.execute("BEGIN EXCLUSIVE")
    stored = sum(run.counts.values())
    wait_for(lambda: _received(project, run) >= stored + 90, "memory to be full")
    status = client.status()
    received = _received(project, run)
    wait_for(lambda: client.status().uptime_s > status.uptime_s + 1.5)
    assert _received(project, run) < received + 250, "it would be above 600"
    database.rollback()
    database.close()
    count = run.counts["system.load"]
    wait_for(lambda: run.has("system.load", count + 30), "sampling to resume")
    run.finish()
    ledger = run.ledger["top"]
    assert ledger.missed >= 20
    assert ledger.received == run.counts["system.load"]
    assert [gap for gap in project.reader.gaps([run.run_id]) if "memory was full" in gap.detail]
    project.close()
    client.close()


def test_a_full_disk_is_reported_and_survived(project: Project) -> None:
    run = project.run()
    wait_for(lambda: run.has("system.load"))
    # The kernel refuses to let the worker's files grow, as a full disk does.
    worker = holder("worker")
    limits = resource.prlimit(worker, resource.RLIMIT_FSIZE)
    resource.prlimit(worker, resource.RLIMIT_FSIZE, (1024, limits[1]))
    problem = wait_for(lambda: project.client.status().problems)
    assert str(project.home.store_path) in problem[0]
    received = _received(project, run)
    wait_for(lambda: _received(project, run) > received + 100)
    resource.prlimit(worker, resource.RLIMIT_FSIZE, limits)
    wait_for(lambda: not project.client.status().problems)
    run.finish()
    assert holder("worker") == worker
    ledger = run.ledger["top"]
    assert ledger.received == run.counts["system.load"]
    names = [marker.name for marker in project.reader.markers([run.run_id])]
    assert "store unavailable" in names


def test_a_store_deleted_under_it_costs_only_its_own_runs(project: Project, tmp_path: Path) -> None:
    other = Project(tmp_path / "other", project.client)
    run, neighbour = project.run(), other.run()
    wait_for(lambda: run.has("system.load") and neighbour.has("system.load"))
    shutil.rmtree(project.home.path)
    wait_for(lambda: project.client.status().runs == (neighbour.run_id,))
    with pytest.raises(CollectorError):
        project.client.finish(run.run_id, RunStatus.FINISHED)
    assert not project.home.store_path.exists(), "and is not made anew"
    count = neighbour.counts["system.load"]
    wait_for(lambda: neighbour.has("system.load", count + 3))
    neighbour.finish()
    other.close()

    again = Project(project.home.path, project.client)
    later = again.run()
    wait_for(lambda: later.has("system.load"))
    later.finish()
    assert later.row.status is RunStatus.FINISHED
    again.close()


def test_open_files_of_stores_that_are_done_with_are_closed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RADT_COLLECTOR_IDLE_S", "0.2")
    # Stays connected, so the collector stays.
    client = CollectorClient(timeout_s=DEADLINE_S).reach()
    project = Project(tmp_path / "radt-data", client)
    run = project.run()
    wait_for(lambda: run.has("system.load"))
    worker = holder("worker")
    assert _opened(worker, project.home.store_path)
    run.finish()
    wait_for(lambda: not _opened(worker, project.home.store_path))
    project.close()
    client.close()


def _opened(pid: int, path: Path) -> bool:
    folder = Path(f"/proc/{pid}/fd")
    targets = []
    for name in os.listdir(folder):
        try:
            targets.append(os.readlink(folder / name))
        except FileNotFoundError:
            continue
    return any(target.startswith(str(path)) for target in targets)
