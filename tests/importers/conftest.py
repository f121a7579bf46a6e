"""An MLflow database of each test's own, made by MLflow's client, and a store to import into."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from tests.importers.mlflow_support import Study


@pytest.fixture(scope="session")
def mlflow_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database with nothing in it; to make one takes seconds."""
    path = tmp_path_factory.mktemp("mlflow-template") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def study(mlflow_template: Path, tmp_path: Path) -> Study:
    """An experiment in a database of its own."""
    path = tmp_path / "of mlflow" / "mlflow.db"
    path.parent.mkdir()
    shutil.copy(mlflow_template, path)
    return Study(f"sqlite:///{path}")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store that is not there yet."""
    return tmp_path / "radt.db"
