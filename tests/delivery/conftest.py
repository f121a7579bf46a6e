"""Fixtures: a laboratory with MLflow in a SQLite file."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from radt.home import Home
from tests.delivery.mlflow.lab import Lab, closing, make_lab


@pytest.fixture(scope="session")
def mlflow_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database with its tables and nothing else: making one takes seconds."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments(max_results=1)
    return path


@pytest.fixture
def lab(tmp_path: Path, mlflow_template: Path) -> Iterator[Lab]:
    """A data folder of its own with MLflow in SQLite."""
    home = Home(tmp_path / "radt-data").create()
    shutil.copy(mlflow_template, home.path / "mlflow.db")
    with closing(make_lab(home, home.default_tracking_uri)) as made:
        yield made
