"""What tests of environments share: an empty cache, and tools on PATH."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.environments import Tools, Workbench


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workbench:
    """A project in a folder with a name that needs care, and nothing built yet."""
    folder = tmp_path / "my projéct"
    folder.mkdir()
    cache = tmp_path / "cache"
    monkeypatch.setenv("RADT_ENVIRONMENTS", str(cache))
    # Neither the network nor this machine's settings of pip take part.
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return Workbench(folder, cache, tmp_path / "log" / "environment.log")


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    """An empty folder in front of PATH."""
    folder, state = tmp_path / "bin", tmp_path / "state"
    folder.mkdir()
    state.mkdir()
    monkeypatch.setenv("FAKE_STATE", str(state))
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return Tools(folder, state)
