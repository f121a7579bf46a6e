"""Which MLflow a data folder's runs go to."""

from __future__ import annotations

from pathlib import Path

import pytest

from radt.home import Home


@pytest.mark.parametrize(
    ("explicit", "radt", "mlflow", "expected"),
    [
        ("http://given", "http://radt", "http://mlflow", "http://given"),
        (None, "http://radt", "http://mlflow", "http://radt"),
        (None, None, "http://mlflow", "http://mlflow"),
        (None, "", "", "sqlite:////data/mlflow.db"),
        (None, "none", "http://mlflow", ""),
        ("None", "http://radt", None, ""),
    ],
)
def test_the_nearest_tracking_uri_counts(
    monkeypatch: pytest.MonkeyPatch,
    explicit: str | None,
    radt: str | None,
    mlflow: str | None,
    expected: str,
) -> None:
    for name, value in (("RADT_TRACKING_URI", radt), ("MLFLOW_TRACKING_URI", mlflow)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert Home(Path("/data")).tracking_uri(explicit) == expected
