"""experiments/overlapped-validation: valid files, and tiny arms with equal losses and metrics."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.bench import Bench

ARMS = ["serial", "thread", "process"]


@pytest.mark.long
def test_tiny_arms_train_and_validate_the_same(bench: Bench, finish: Callable[..., None]) -> None:
    arms = "|".join(f"decode {arm}" for arm in ARMS)
    finish("overlapped-validation", arms, 3, "--load decode", "--load tiny")
    found: dict[str, dict[str, list[tuple[int, float]]]] = {}
    with bench.reader as reader:
        for run in reader.runs():
            arm = dict(reader.params(run.run_id))["arm"]
            found[arm] = {}
            for series in reader.series([run.run_id]):
                samples = reader.samples(run.run_id, series.series_no)
                if samples.steps is not None:
                    pairs = zip(samples.steps.tolist(), samples.values.tolist(), strict=True)
                    found[arm][series.metric] = sorted(pairs)
    assert list(found) == ARMS
    for metrics in found.values():
        for name in ("loss", "val_loss", "val_accuracy"):
            assert metrics[name] == found["serial"][name], name
            assert [step for step, _ in metrics[name]] == [1, 2]
        (total,) = metrics["total"]
        assert total[1] > 0
    for arm in ("thread", "process"):
        assert found[arm]["validation.bound"][0][1] <= found[arm]["validation.reached"][0][1]
