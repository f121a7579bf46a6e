"""A Postgres database as the tracking URI, and a server that wants user and password."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from radt.delivery.backlog import mlflow_backlogs
from radt.delivery.mlflow.errors import DeliveryError, ErrorKind
from radt.delivery.mlflow.target import MlflowTarget, _patient
from radt.home import Home
from tests.delivery.mlflow.lab import Threads, closing, make_lab, wait_until
from tests.support import servers
from tests.support.mlflow_server import MlflowServer


def test_a_postgres_that_is_killed_and_started_again(tmp_path: Path) -> None:
    """As people write it: MLflow's own client would look for psycopg 3 here."""
    home = Home(tmp_path / "radt-data").create()
    with servers.postgres_cluster() as postgres, servers.database_of(postgres) as uri:
        assert uri.startswith("postgresql://")
        with closing(make_lab(home, uri)) as lab:
            lab.target = MlflowTarget(uri, home.artifacts)
            lab.target.connect()
            threads = Threads(lab, live_interval_s=0.05)
            (run,) = lab.add_workload()
            lab.start(run)
            threads.notify()
            wait_until(lambda: lab.record(run).mlflow_run_id, "created")
            lab.log(run, "loss", [float(i) for i in range(1500)])
            threads.notify()
            wait_until(lambda: lab.reader.delivered(run.run_id).get(0, 0) > 0, "some are there")
            postgres.kill()
            lab.log(run, "accuracy", [float(i) for i in range(1500)], series_no=1)
            threads.notify()
            wait_until(lambda: mlflow_backlogs(lab.reader)[0].problem, "noticed")
            (found,) = mlflow_backlogs(lab.reader)
            assert servers.PASSWORD not in found.sentence()
            postgres.start()
            lab.end(run)
            threads.notify()
            wait_until(lambda: not lab.reader.runs_to_deliver(uri), "delivered")
            threads.finish()
            for key in ("loss", "accuracy"):
                values = [value for _, value, _ in lab.history(run, key)]
                assert values == [float(i) for i in range(1500)]
            assert lab.mlflow_run(run).info.status == "FINISHED"
            assert str(home.artifacts) in lab.mlflow_run(run).info.artifact_uri


@pytest.mark.long
def test_a_postgres_that_is_away_is_said_at_once(tmp_path: Path) -> None:
    """MLflow's own client would sleep for minutes first."""
    target = MlflowTarget("postgresql://me:secret@127.0.0.1:9/mlflow", tmp_path)
    begun_s = time.monotonic()
    with pytest.raises(DeliveryError) as caught:
        target.connect()
    assert caught.value.kind is ErrorKind.UNREACHABLE
    assert "refused" in caught.value.message
    assert "secret" not in caught.value.message
    assert time.monotonic() - begun_s < 60
    patient = _patient("postgresql+psycopg2://me@db/x?connect_timeout=3")
    assert "connect_timeout=3" in patient
    assert "tcp_user_timeout=30000" in patient


def test_basic_auth(
    tmp_path: Path,
    mlflow_server_with_auth: MlflowServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    home = Home(tmp_path / "radt-data").create()
    environ = mlflow_server_with_auth.client_environ
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with closing(make_lab(home, mlflow_server_with_auth.uri)) as lab:
        (run,) = lab.add_workload()
        lab.log(run, "loss", [1.0, 2.0])
        lab.end(run)

        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "wrong")
        threads = Threads(lab)
        wait_until(lambda: mlflow_backlogs(lab.reader)[0].problem, "noticed")
        (left,) = mlflow_backlogs(lab.reader)
        assert "refuses user and password (401)" in left.problem

        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", environ["MLFLOW_TRACKING_PASSWORD"])
        threads.finish()
        assert not lab.reader.runs_to_deliver(lab.tracking_uri)
        assert mlflow_backlogs(lab.reader) == []
        assert [value for _, value, _ in lab.history(run, "loss")] == [1.0, 2.0]
        assert caplog.text.count("waits: the server refuses user and password") == 1
        assert environ["MLFLOW_TRACKING_PASSWORD"] not in caplog.text
