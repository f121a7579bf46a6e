"""A folder as a user has it, with the ``radt`` command, for tests of whole runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bench import Bench, bench_in


@pytest.fixture
def bench(
    tmp_path: Path, shares_collector: bool, request: pytest.FixtureRequest
) -> Iterator[Bench]:
    """A user's folder; runs in it go to MLflow where the test is marked ``mlflow``."""
    with bench_in(
        tmp_path,
        columns=100,
        with_mlflow=request.node.get_closest_marker("mlflow") is not None,
        shares_collector=shares_collector,
        RADT_COLLECTOR_IDLE_S="60" if shares_collector else "2",
    ) as made:
        yield made
