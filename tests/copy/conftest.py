"""A run that travels from one store to another, each way."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from radt.home import Home
from tests.copy.postgres_way import PostgresWay
from tests.copy.ways import WAYS, Way, way_of
from tests.delivery.conftest import lab
from tests.delivery.mlflow.lab import Lab

__all__ = ["lab"]


@pytest.fixture(params=(*WAYS, "postgres"))
def way(
    request: pytest.FixtureRequest,
    archives: None,
    lab: Lab,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Way]:
    # The cluster is started by another user, who may not see this folder.
    database = request.getfixturevalue("database") if request.param == "postgres" else ""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    home = Home(tmp_path / "there %20 é" / "radt-data").create()
    if request.param == "postgres":
        yield PostgresWay(lab, home, uri=database)
    else:
        yield way_of(request.param, lab, home, request)
