"""experiments/preemption: valid files, and a tiny variant whose losses are the same in all arms."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.bench import Bench

TINY = (
    "--steps 48 --seconds 2 --batch-size 4 --edge 8 --width 4 --blocks 1 --max-segment-ms 0.1 "
    "--requests-per-s 200 --serve-width 16"
)


@pytest.mark.long
def test_a_tiny_variant_serves_and_trains_the_same_in_all_arms(
    bench: Bench, finish: Callable[..., None]
) -> None:
    finish("preemption", "sliced|processes|migrate", 4, "--arm", f"{TINY} --arm")
    losses, served = {}, set()
    with bench.reader as reader:
        for run in reader.runs():
            for series in reader.summary([run.run_id]):
                values = reader.samples(run.run_id, series.series.series_no).values
                params = dict(reader.params(run.run_id))
                if series.series.metric == "loss" and "arm" in params:
                    losses[params["arm"]] = values.tolist()
                if series.series.metric == "latency":
                    assert (values > 0).all()
                    served.add(params["arm"])
    assert served == {"sliced", "lease", "migrate"}
    assert len(losses["sliced"]) == 48
    assert losses["sliced"] == losses["lease"] == losses["migrate"]
