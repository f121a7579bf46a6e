"""The comparison with MLflow where there is none."""

from __future__ import annotations

import sys
from typing import Any, cast

import pytest

from radt.cli.db_mlflow import check_mlflow
from radt.errors import TrackingError


def test_without_mlflow_the_rest_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mlflow", "mlflow.entities", "mlflow.tracking"):
        monkeypatch.setitem(sys.modules, name, cast(Any, None))
    with pytest.raises(TrackingError, match="which cannot be loaded"):
        list(check_mlflow(cast(Any, None), "http://127.0.0.1:9", None))
