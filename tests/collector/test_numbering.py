"""Which series of a run values belong to."""

from __future__ import annotations

import pytest

from radt.collector.routing import Numbering, SeriesKey
from radt.listeners.api import Metric
from radt.model import SOFTWARE, THROUGH_MLFLOW, Scope

KEY = SeriesKey(SOFTWARE, "loss")
METRIC = Metric("loss", "", Scope.RUN)


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("first", [THROUGH_MLFLOW, ""])
def test_a_metric_that_is_logged_both_ways_is_uploaded(first: str) -> None:
    """The uploader leaves out what only MLflow's functions log."""
    numbering = Numbering("run", (), ())
    numbering.series(KEY, METRIC, None, first)
    assert [series.method for series in numbering.new_series()] == [first]
    for method in ("", THROUGH_MLFLOW):
        assert numbering.series(KEY, METRIC, None, method) == 0
    assert numbering.new_series()[-1].method == ""

    resumed = Numbering("run", numbering.new_series()[-1:], ())
    assert resumed.series(KEY, METRIC, None, THROUGH_MLFLOW) == 0
    assert resumed.new_series() == ()
