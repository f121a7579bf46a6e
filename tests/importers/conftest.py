"""An MLflow database of each test's own, and a store to import into."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.importers.mlflow_support import Study
from tests.importers.wandb_support import Folder, record
from tests.support.bench import mlflow_database


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """An experiment in a database of its own."""
    path = tmp_path / "of mlflow" / "mlflow.db"
    path.parent.mkdir()
    shutil.copy(mlflow_database(), path)
    return Study(f"sqlite:///{path}")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store that is not there yet."""
    return tmp_path / "radt.db"


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Runs of W&B, which nobody changes."""
    return record(tmp_path_factory.mktemp("wandb"))
