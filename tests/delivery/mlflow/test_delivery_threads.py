"""Tasks: a failure is tried again, concerns nobody else, and never ends the thread."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator

import mlflow.store.db.utils as mlflow_db
import pytest

from radt.delivery.mlflow.errors import DeliveryError, ErrorKind
from radt.delivery.mlflow.runs import RunCreator
from radt.delivery.mlflow.target import MlflowTarget
from radt.delivery.mlflow.tasks import Delivery, TaskKind
from radt.delivery.mlflow.uploader import Uploader
from radt.delivery.process import LAST_TRIES
from radt.errors import StoreError
from radt.store.reader import StoreReader
from radt.store.records import RunRecord
from tests.delivery.mlflow.lab import START_NS, Lab, Threads, wait_until
from tests.support.waiting import TIMEOUT_S


@pytest.fixture
def start(lab: Lab) -> Iterator[Callable[[], Threads]]:
    started: list[Threads] = []

    def make() -> Threads:
        started.append(Threads(lab))
        return started[-1]

    yield make
    for threads in started:
        threads.finish()


def test_locked_database_is_tried_again(
    lab: Lab,
    start: Callable[[], Threads],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (first,) = lab.add_workload()
    lab.creator().register_pending()
    lab.log(first, "loss", [1.0, 2.0])
    lab.end(first)
    (second,) = lab.add_workload()
    text = mlflow_db.sql.text
    database = sqlite3.connect(lab.home.path / "mlflow.db", isolation_level=None)
    database.execute("BEGIN EXCLUSIVE")
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "radt.delivery.mlflow"):
        # MLflow waits 20 seconds for a lock; a test need not while it holds one.
        patch.setattr(
            mlflow_db.sql, "text", lambda statement: text(statement.replace("= 20000", "= 1"))
        )
        start()
        wait_until(lambda: f"{second.workload_id} waits" in caplog.text, "the new run met the lock")
        wait_until(lambda: f"{first.run_id} waits" in caplog.text, "the ended one too")
    assert "database is locked" in caplog.text
    database.execute("ROLLBACK")
    database.close()
    wait_until(lambda: lab.record(second).mlflow_run_id, "the second registered")
    wait_until(
        lambda: (
            first.run_id not in {r.run_id for r in lab.reader.runs_to_deliver(lab.tracking_uri)}
        ),
        "the first delivered",
    )
    assert [value for _, value, _ in lab.history(first, "loss")] == [1.0, 2.0]


def test_a_workload_is_closed_once_and_not_tried_before(
    lab: Lab, start: Callable[[], Threads], monkeypatch: pytest.MonkeyPatch
) -> None:
    (running,), (first,), (second,) = (lab.add_workload() for _ in range(3))
    lab.creator().register_pending()
    (unregistered,) = lab.add_workload()
    for run in (first, second, unregistered):
        lab.end(run)
    tried: list[str] = []
    close = Uploader.close_workload

    def noted(uploader: Uploader, workload_id: str) -> bool:
        tried.append(workload_id)
        return close(uploader, workload_id)

    def not_now(*_: object) -> None:
        raise DeliveryError(ErrorKind.BUSY, "not now")

    monkeypatch.setattr(Uploader, "close_workload", noted)
    monkeypatch.setattr(RunCreator, "register", not_now)
    threads = start()
    wait_until(lambda: {first.workload_id, second.workload_id} <= set(tried), "two closed")
    lab.end(running)
    threads.notify()
    wait_until(lambda: running.workload_id in tried, "the third one")
    assert sorted(tried) == sorted(run.workload_id for run in (running, first, second))


def test_a_workload_that_fails_holds_nobody_up(
    lab: Lab, start: Callable[[], Threads], monkeypatch: pytest.MonkeyPatch
) -> None:
    (bad,) = lab.add_workload(name="bad")
    (good,) = lab.add_workload(name="good", created_ns=START_NS + 1)
    create = MlflowTarget.create_run

    def refuse_bad(target: MlflowTarget, experiment: str, name: str, *rest: object) -> str:
        if "bad" in name:
            raise DeliveryError(ErrorKind.BUSY, "database is locked")
        return create(target, experiment, name, *rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(MlflowTarget, "create_run", refuse_bad)
        start()
        wait_until(lambda: lab.record(good).mlflow_run_id, "the good one created")
        assert lab.record(bad).mlflow_run_id is None
    wait_until(lambda: lab.record(bad).mlflow_run_id, "the bad one too")


def test_a_run_that_fails_holds_nobody_up(
    lab: Lab, start: Callable[[], Threads], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = lab.add_workload(2)
    deliver = Uploader.deliver

    def fail_bad(uploader: Uploader, run: RunRecord) -> None:
        if run.run_id == bad.run_id:
            raise ZeroDivisionError("a bug")
        deliver(uploader, run)

    lab.end(bad)
    lab.end(good)
    with monkeypatch.context() as patch:
        patch.setattr(Uploader, "deliver", fail_bad)
        start()
        wait_until(
            lambda: (
                [run.run_id for run in lab.reader.runs_to_deliver(lab.tracking_uri)] == [bad.run_id]
            ),
            "the good one delivered",
        )
    wait_until(lambda: not lab.reader.runs_to_deliver(lab.tracking_uri), "the bad one too")


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("owner", ["creator", "reader"])
def test_store_that_fails_for_a_while(
    lab: Lab, start: Callable[[], Threads], monkeypatch: pytest.MonkeyPatch, owner: str
) -> None:
    (run,) = lab.add_workload()
    lab.end(run)
    failures = iter([StoreError("disk full")] * 2)
    where, name = {
        "creator": (RunCreator, "register"),
        "reader": (StoreReader, "workloads_to_deliver"),
    }[owner]
    original = getattr(where, name)

    def fail_twice(*arguments: object) -> object:
        for error in failures:
            raise error
        return original(*arguments)

    monkeypatch.setattr(where, name, fail_twice)
    start()
    wait_until(lambda: not lab.reader.runs_to_deliver(lab.tracking_uri), "delivered")


def test_unreachable_stops_the_round_and_finishing_gives_up_in_the_end(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = lab.add_workload(5)
    lab.creator().register_pending()
    for run in runs:
        lab.end(run)
    asked: list[str] = []

    def unreachable(target: MlflowTarget, run_id: str, *rest: object) -> None:
        asked.append(run_id)
        raise DeliveryError(ErrorKind.UNREACHABLE, "connection refused")

    monkeypatch.setattr(MlflowTarget, "set_tags", unreachable)
    monkeypatch.setattr(Threads, "start", lambda _: None)
    threads = Threads(lab)
    Delivery.finish(threads)
    Delivery.run(threads)
    workers = TaskKind.ENDED.workers
    assert LAST_TRIES <= len(asked) <= workers * LAST_TRIES, "others would meet the same"
    assert len(lab.reader.runs_to_deliver(lab.tracking_uri)) == 5, "left to the next deliverer"


def test_a_task_that_ends_as_the_thread_is_told_to_finish(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else wakes the thread then."""
    (run,) = lab.add_workload()
    monkeypatch.setattr(Threads, "start", lambda _: None)
    threads = Threads(lab)
    threads._start_due()
    wait_until(lambda: threads._done, "created")
    Delivery.finish(threads)
    threads._wake.clear()
    thread = threading.Thread(target=threads.run, daemon=True)
    thread.start()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    assert lab.record(run).mlflow_run_id


def test_finishing_does_a_task_that_is_always_due_once(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, ended = lab.add_workload(2)
    lab.creator().register_pending()
    lab.end(ended)
    lab.log(running, "loss", [1.0])
    tried: list[str] = []
    deliver = Uploader.deliver

    def noted(uploader: Uploader, run: RunRecord) -> None:
        tried.append(run.run_id)
        deliver(uploader, run)

    monkeypatch.setattr(Uploader, "deliver", noted)
    monkeypatch.setattr(Threads, "start", lambda _: None)
    threads = Threads(lab, live_interval_s=0.0)
    Delivery.finish(threads)
    thread = threading.Thread(target=threads.run, daemon=True)
    thread.start()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    assert sorted(tried) == sorted([running.run_id, ended.run_id])
