"""MLflow's client is as impatient here as in the uploader's process."""

from __future__ import annotations

import pytest

from radt.delivery.mlflow.variables import FOR_UPLOADER


@pytest.fixture(autouse=True)
def uploaders_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in FOR_UPLOADER.items():
        monkeypatch.setenv(name, value)
