"""experiments/data-echoing: valid files, and a tiny variant with exact counts of decodings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.bench import Bench
from tests.support.waiting import TIMEOUT_S

FOLDER = Path(__file__).parents[2] / "experiments" / "data-echoing"
#: 2×3+4: ten epochs of uses, six of decoding.
TINY = (
    "--samples 60 --validation-samples 40 --test-samples 20 --edge 32 --batch-size 10 "
    "--echo-epochs 2 --fresh-epochs 4 --width 2"
)


@pytest.mark.long
def test_a_tiny_variant_decodes_as_much_less_as_it_says(
    bench: Bench, finish: Callable[..., None]
) -> None:
    arms = "fresh|finetune 1|one cycle 3|echo 1"
    finish("data-echoing", arms, 4, "--validation-samples 500", TINY)
    totals: dict[str, tuple[float, float]] = {}
    with bench.reader as reader:
        for run in reader.runs():
            sums = {
                series.series.metric: reader.samples(
                    run.run_id, series.series.series_no
                ).values.sum()
                for series in reader.summary([run.run_id])
                if series.series.metric in ("loader.decoded", "loader.echoed")
            }
            params = reader.params(run.run_id)
            arm = "one cycle" if params["one_cycle"] == "True" else params["arm"]
            totals[arm] = sums["loader.decoded"], sums["loader.echoed"]
            for metric, count in (("accuracy", 40), ("test_accuracy", 20)):
                (series,) = (s for s in reader.summary([run.run_id]) if s.series.metric == metric)
                assert 0 <= series.minimum <= series.maximum <= 1
                assert series.maximum * count == pytest.approx(round(series.maximum * count))
    assert totals["fresh"] == (600, 0)
    fewer = (360, 240)  # 40 %
    assert totals["finetune"] == totals["one cycle"] == fewer
    decoded, echoed = totals["echo"]
    # It ends in the middle of an epoch, where a part of the next fill is decoded.
    assert 600 <= decoded + echoed <= 610
    assert decoded <= 220


@pytest.mark.long
def test_the_papers_regression_finds_the_line() -> None:
    done = subprocess.run(
        [sys.executable, "regression.py", "--repeats", "3"],
        cwd=FOLDER,
        env=dict(os.environ, RADT_MODE="off"),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    found = dict(re.findall(r"(\w+) (-?\d+\.\d+)", done.stdout))
    left = 0.01  # of the way: about exp(-50,000 × 5e-5 × 3)
    assert float(found["intercept"]) == pytest.approx(7, abs=7 * left + 0.1)
    assert float(found["slope"]) == pytest.approx(3, abs=3 * left + 0.1)
    assert float(found["loss"]) == pytest.approx(float(found["loss_unseen"]), rel=0.05)
