"""What tests of faults share: a real collector, a user's folder."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from radt.collector.client import CollectorClient
from tests.collector.collector_kit import DEADLINE_S, Project, alive, holder, wait_for
from tests.support.bench import Bench, bench_in


@pytest.fixture
def quick(private_folders: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A collector that writes often; whatever one a test started is gone after it."""
    monkeypatch.setenv("RADT_FLUSH_S", "0.05")
    monkeypatch.setenv("RADT_COLLECTOR_IDLE_S", "60")
    yield
    for name in ("guardian", "worker"):
        if (pid := holder(name)) is not None:
            with suppress(ProcessLookupError):  # it was about to go by itself
                os.kill(pid, signal.SIGTERM)
            wait_for(lambda pid=pid: not alive(pid), f"the end of the {name}")


@pytest.fixture
def client(quick: None) -> Iterator[CollectorClient]:
    client = CollectorClient(timeout_s=DEADLINE_S).reach()
    yield client
    client.close()


@pytest.fixture
def project(client: CollectorClient, tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path / "radt-data", client)
    yield project
    project.close()


@pytest.fixture
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """A user's folder; runs in it go to MLflow where the test is marked ``mlflow``."""
    with_mlflow = request.node.get_closest_marker("mlflow") is not None
    with bench_in(
        tmp_path, columns=100, with_mlflow=with_mlflow, RADT_COLLECTOR_IDLE_S="2"
    ) as made:
        yield made
