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
for _ in range(2):
    LogisticRegression(C=0.5).fit(x, y)
radt.finish()
with radt.Run(name="mine"):
    LogisticRegression(C=0.25).fit(x, y)
"""


@pytest.mark.mlflow
def test_fits_are_the_runs(alone: Alone) -> None:
    alone.run(SCRIPT)
    runs = trainings(alone.reader)
    assert len(runs) == 2
    mine = runs.pop("mine")
    ((_, first),) = runs.items()
    assert (first.params["C"], mine.params["C"]) == ("0.5", "0.25")
    assert [value for _, value in first.metrics["training_accuracy_score"]] == [1.0, 1.0]
    assert [value for _, value in mine.metrics["training_accuracy_score"]] == [1.0]
