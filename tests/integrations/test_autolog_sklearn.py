"""What MLflow logs of scikit-learn by itself is the run's, also if nobody opened one."""

from __future__ import annotations

import pytest

from tests.integrations.kit import trainings
from tests.run.conftest import Alone

SCRIPT = """\
import radt; radt.autolog()
import mlflow
from sklearn.linear_model import LogisticRegression

x, y = [[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1]
for c in (0.5, 1.0):
    LogisticRegression(C=c).fit(x, y)
with radt.Run(name="mine"):
    LogisticRegression(C=0.25).fit(x, y)
"""


@pytest.mark.mlflow
def test_fits_are_the_runs(alone: Alone) -> None:
    alone.run(SCRIPT)
    runs = trainings(alone.reader)
    assert "mine" in runs
    assert sorted(run.params["C"] for run in runs.values()) == ["0.25", "0.5", "1.0"]
    for run in runs.values():
        assert [value for _, value in run.metrics["training_accuracy_score"]] == [1.0]
