"""experiments/offload: valid files, and a tiny variant whose losses are equal in all arms."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.bench import Bench

TINY = "--width 64 --layers 6 --heads 2 --length 8 --tokens 32 --steps 2 --memory 1500KB"


@pytest.mark.long
def test_a_tiny_variant_has_the_same_losses_in_all_arms(
    bench: Bench, finish: Callable[..., None]
) -> None:
    finish("offload", "resident 4|needed 4|ahead 4 again", 3, "--arm", f"{TINY} --arm")
    losses = []
    with bench.reader as reader:
        for run in reader.runs():
            series = {summary.series.metric: summary for summary in reader.summary([run.run_id])}
            arm = dict(reader.params(run.run_id))["arm"]
            loss = reader.samples(run.run_id, series["loss"].series.series_no)
            losses.append(loss.values.tolist())
            if arm != "resident":
                assert 0 < series["offload.resident"].maximum <= 1_500_000
                assert series["offload.wait"].minimum >= 0
                assert series["counted_mb"].maximum <= 1.5
            names = [marker.name for marker in reader.markers([run.run_id])]
            # Loaded when needed, each load is waited for.
            assert ("load segment" in names) or arm != "needed"
    assert len(losses) == 3
    assert losses.count(losses[0]) == 3
