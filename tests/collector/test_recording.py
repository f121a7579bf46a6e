"""A run from registration to its end, with real processes and a real store."""

from __future__ import annotations

import sqlite3
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from collector_kit import Project, wait_for

from radt.collector.client import CollectorClient
from radt.collector.protocol import Registration, RunRequest
from radt.errors import CollectorError
from radt.model import RunStatus, Scope


@pytest.mark.shared_collector
def test_a_run_is_recorded_to_its_end(project: Project) -> None:
    run, warnings = project.register("top")
    assert warnings == []
    run.start()
    wait_for(lambda: run.row.status is RunStatus.RUNNING)
    assert run.row.pid == run.process.pid
    wait_for(lambda: run.has("process.cpu.utilization", more_than=3))
    assert run.row.started_ns is not None
    run.finish(RunStatus.FAILED, exit_code=3, reason="exit code 3")

    row = run.row
    assert (row.status, row.exit_code, row.end_reason) == (RunStatus.FAILED, 3, "exit code 3")
    times_ns = run.times_ns("system.memory.used")
    assert row.started_ns < times_ns[0] <= times_ns[-1] <= row.ended_ns
    rss_ns = run.times_ns("process.memory.rss")
    # Between the process' end and the news of it there may be a reading of the host alone.
    assert rss_ns == times_ns[: len(rss_ns)], "one instant, one time stamp"
    assert len(rss_ns) > 3
    ledger = run.ledger["top"]
    assert ledger.state == "ended"
    assert ledger.received == len(times_ns)
    assert ledger.expected == ledger.received + ledger.missed
    assert ledger.sampling_ns > 0
    scopes = {one.metric: (one.scope, one.unit) for one in project.reader.series([run.run_id])}
    assert scopes["process.memory.rss"] == (Scope.PROCESS, "By")
    assert scopes["system.cpu.utilization"] == (Scope.HOST, "1")


@pytest.mark.shared_collector
def test_the_first_end_of_a_run_counts(project: Project) -> None:
    run = project.run()
    run.finish(RunStatus.FINISHED)
    # As from a client that lost the first answer, and whose collector was restarted since.
    project.client.register(run.registration)
    run.finish(RunStatus.FAILED, reason="later")
    assert run.row.status is RunStatus.FINISHED


@pytest.mark.shared_collector
def test_readings_are_of_the_runs_own_processes(project: Project) -> None:
    one, two = project.run(), project.run()
    two.process.stdin.write("")  # both idle
    wait_for(lambda: one.has("process.count", 2) and two.has("process.count", 2))
    for run in (one, two):
        numbers = {one.metric: one.series_no for one in project.reader.series([run.run_id])}
        counts = project.reader.samples(run.run_id, numbers["process.count"]).values
        assert set(counts) == {1.0}, "its own process and no other"
    live = project.client.live([one.run_id, two.run_id, "unknown"])
    assert set(live) == {one.run_id, two.run_id}
    assert live[one.run_id].rss_bytes > 1e6
    assert live[one.run_id].samples > 0


@pytest.mark.shared_collector
def test_two_runs_of_one_interval_share_their_readings(project: Project) -> None:
    one, two = project.run(), project.run()
    wait_for(lambda: two.has("process.count", 5))
    assert project.client.status().listeners == ("top@0.05s",)
    one.finish()
    two.finish()
    shared = set(one.times_ns("system.load")) & set(two.times_ns("system.load"))
    assert len(shared) >= 5


def described(project: Project, **fields: Any) -> RunRequest:
    """A run as its runner describes it, which no store knows."""
    row = project.row(uuid.uuid4().hex)
    registration = Registration(row.run_id, str(project.home.store_path), row.spool)
    run = RunRequest(
        registration, row.workload_id, "e", pid=1, started_monotonic_ns=1, has_runner=True
    )
    return replace(run, **fields)


@pytest.mark.shared_collector
def test_rows_of_a_workload_are_written_for_a_runner(project: Project) -> None:
    runs = [
        described(project, workload_id="w", workload="1", letter=letter, name="cnn", **fields)
        for letter, fields in {"a": {"params": {"lr": "1"}}, "b": {"tags": {"t": "x"}}}.items()
    ]
    assert project.client.record(runs) == ["cnn", "cnn"]
    first, second = (project.reader.run(run.registration.run_id) for run in runs)
    assert (first.letter, second.letter, first.status) == ("a", "b", RunStatus.SCHEDULED)
    assert project.reader.params(first.run_id) == {"lr": "1"}
    assert project.reader.tags(second.run_id) == {"t": "x"}
    assert project.reader.workload("w").status is RunStatus.SCHEDULED

    numbered = [described(project, name="train", is_numbered=True) for _ in range(2)]
    assert [project.client.record([run]) for run in numbered] == [["train #1"], ["train #2"]]


@pytest.mark.shared_collector
def test_rows_that_are_there_already_stay_as_they_are(project: Project) -> None:
    """As from a runner that got no answer, wrote them itself, and went on."""
    known, new = described(project, name="known"), described(project, name="new")
    assert project.client.record([known]) == ["known"]
    run_id = known.registration.run_id
    project.writer.end_run(run_id, RunStatus.FINISHED, 5)
    assert project.client.record([replace(known, name="later"), new]) == ["known", "new"]
    assert project.reader.run(run_id).status is RunStatus.FINISHED


def test_a_collector_of_an_earlier_build_hurries_without_a_word(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project.client, "_ask", lambda *_: {"ok": True})
    assert project.client.flush(project.home.store_path) == {}


def test_a_runner_waits_for_its_rows_while_others_hold_the_store(project: Project) -> None:
    runner = CollectorClient(start=False, timeout_s=180, patience_s=5)
    begun_s = project.client.status().uptime_s
    with (
        closing(sqlite3.connect(project.home.store_path)) as database,
        ThreadPoolExecutor() as pool,
    ):
        database.execute("BEGIN EXCLUSIVE")
        names = pool.submit(runner.record, [described(project, name="cnn")])
        wait_for(lambda: project.client.status().uptime_s > begun_s + 7, "others would give up")
        database.rollback()
        assert names.result() == ["cnn"]
    assert runner.away is None
    runner.close()


@pytest.mark.shared_collector
def test_rows_are_written_all_or_none(project: Project) -> None:
    runs = [described(project), described(project, started_monotonic_ns=2**63)]
    with pytest.raises(CollectorError):
        project.client.record(runs)
    assert project.reader.runs() == []


@pytest.mark.shared_collector
def test_a_run_may_do_without_listeners(project: Project) -> None:
    run, warnings = project.register()
    run.start()
    run.finish()
    assert warnings == []
    assert run.row.status is RunStatus.FINISHED
    assert run.ledger == {}


@pytest.mark.shared_collector
def test_unknown_and_unavailable_listeners_are_warned_of(project: Project) -> None:
    run, warnings = project.register("top", "smi", "nonsense")
    assert any("nonsense is not installed" in warning for warning in warnings)
    assert any("smi is unavailable" in warning for warning in warnings)
    run.start()
    wait_for(lambda: run.has("system.load"))
    run.finish()
    assert run.ledger["smi"].state == "unavailable"
    assert "NVML" in run.ledger["smi"].reason
    assert run.ledger["top"].state == "ended"


def test_a_run_that_the_store_does_not_have_is_refused(project: Project) -> None:
    run, _ = project.register("top")
    stranger = type(run)(project, run.registration.__class__(**_fields(run, "f" * 32)))
    project.client.register(stranger.registration)
    with pytest.raises(CollectorError, match="is not in the store"):
        project.client.finish(stranger.run_id, RunStatus.FINISHED)
    run.finish()
    assert run.row.status is RunStatus.FINISHED


def _fields(run, run_id: str) -> dict[str, object]:
    registration = run.registration
    return {
        name: getattr(registration, name)
        for name in ("store_path", "spool", "tracking_uri", "listeners", "devices", "env")
    } | {"run_id": run_id}


@pytest.mark.shared_collector
def test_two_stores_at_once(project: Project, tmp_path: Path) -> None:
    other = Project(tmp_path / "other", project.client)
    try:
        one, two = project.run(), other.run()
        wait_for(lambda: one.has("system.load", 3) and two.has("system.load", 3))
        one.finish()
        two.finish()
        assert [run.run_id for run in project.reader.runs()] == [one.run_id]
        assert [run.run_id for run in other.reader.runs()] == [two.run_id]
        assert set(one.times_ns("system.load")) & set(two.times_ns("system.load"))
    finally:
        other.close()


def test_environment_for_delivery_stays_off_the_disk(project: Project, client) -> None:
    from dataclasses import replace

    from radt.home import runtime_dir

    run, _ = project.register("top")
    secret = replace(
        run.registration, run_id=project.row("a" * 32).run_id, env={"MLFLOW_X": "s3cret"}
    )
    project.writer.put_run(project.row(secret.run_id))
    client.register(secret)
    remembered = list((runtime_dir() / "runs").glob("*.json"))
    assert len(remembered) == 2
    for path in runtime_dir().rglob("*"):
        if path.is_file():
            assert b"s3cret" not in path.read_bytes(), path


@pytest.mark.shared_collector
def test_a_bad_request_is_answered_and_the_next_one_too(client: CollectorClient) -> None:
    import socket

    from radt.collector.protocol import decode, encode, socket_path

    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(str(socket_path()))
        lines = raw.makefile("rb")
        requests = ({"op": "dance"}, {"op": ["hello"]}, {"op": "register"}, {"op": "\ud800"})
        nested, digits = b"[" * 200_000 + b"\n", b"9" * 5000 + b"\n"
        for line in (b"rubbish\n", b"[1]\n", nested, digits, *map(encode, requests)):
            raw.sendall(line)
            answer = decode(lines.readline())
            assert answer["ok"] is False
            assert "the collector failed" not in answer["error"]
        raw.sendall(encode({"op": "hello"}))
        assert decode(lines.readline())["ok"] is True


def test_status_says_what_it_costs(project: Project) -> None:
    project.run()
    status = project.client.status()
    assert status.guardian_pid is not None
    assert len(status.runs) == 1
    assert 10e6 < status.rss_bytes < 200e6
    assert 0 < status.cpu_s < 60
    assert 0 < status.uptime_s < time.monotonic()
