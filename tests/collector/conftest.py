"""A real collector for every test that asks for one."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for collector_kit, shared by the tests here

from collector_kit import DEADLINE_S, Project, alive, holder, wait_for

from radt.collector.client import CollectorClient


@pytest.fixture(autouse=True)
def collector(
    private_folders: None, shares_collector: bool, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Quick settings; whatever collector a test started for itself is gone after it."""
    monkeypatch.setenv("RADT_FLUSH_S", "0.05")
    # On a busy machine a reading may take seconds: one hangs only where a test has it hang.
    monkeypatch.setenv("RADT_COLLECTOR_HANG_S", "120")
    monkeypatch.setenv("RADT_COLLECTOR_IDLE_S", "60")
    yield
    if shares_collector:
        return
    for name in ("guardian", "worker"):
        if (pid := holder(name)) is not None:
            with suppress(ProcessLookupError):  # it was about to go by itself
                os.kill(pid, signal.SIGTERM)
            wait_for(lambda pid=pid: not alive(pid), f"the end of the {name}")


@pytest.fixture
def client(collector: None) -> Iterator[CollectorClient]:
    client = CollectorClient(timeout_s=DEADLINE_S).reach()
    yield client
    client.close()


@pytest.fixture
def project(client: CollectorClient, shares_collector: bool, tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path / "radt-data", client)
    yield project
    if shares_collector:
        project.end_runs()
    project.close()
