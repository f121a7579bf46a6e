"""experiments/many-models: valid files; every arm ends with the same parameters, bit by bit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pytest

from tests.support.bench import Bench

TINY = "--samples 64 --batch-size 16 --epochs 1"


@pytest.mark.long
def test_a_tiny_variant_trains_the_same_in_each_arm(
    bench: Bench, finish: Callable[..., None]
) -> None:
    arms = "concurrent|round robin|shared input"
    finish("many-models", arms, 5, "--models", f"{TINY} --models")
    checksums: dict[str, list[float]] = defaultdict(list)
    with bench.reader as reader:
        runs = list(reader.runs())
        for run in runs:
            for series in reader.summary([run.run_id]):
                if series.series.metric.endswith("/checksum"):
                    checksums[series.series.metric].append(series.maximum)
    assert len(checksums) == 3
    for values in checksums.values():
        assert len(values) == 3
        assert len(set(values)) == 1
    children = [run for run in runs if run.name == "lenet"]
    assert len(children) >= 3  # one run a job
