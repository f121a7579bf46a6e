"""Fixtures: a laboratory with MLflow in a SQLite file."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from radt.home import Home
from tests.delivery.mlflow.lab import Lab, closing, make_lab
from tests.support.bench import mlflow_database


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A data folder of its own with MLflow in SQLite."""
    home = Home(tmp_path / "radt-data").create()
    shutil.copy(mlflow_database(), home.path / "mlflow.db")
    with closing(make_lab(home, home.default_tracking_uri)) as made:
        yield made
