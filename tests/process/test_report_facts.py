"""What a report says of real runs: memory as `radt.load` has it, and runs alone to compare with."""

from __future__ import annotations

import pytest

import radt
from radt.analysis.quantities import Quantity
from radt.analysis.report import read_report
from tests.support.bench import Bench

SCRIPT = """
import sys, time
import radt
held = bytearray(b"x" * 40_000_000)
with radt.Run() as run:
    for epoch in run.epochs(2):
        time.sleep(0.6)
"""
ROWS = """Workload,Name,File,Devices,Listeners,Params
1,solo,train.py,cpu,top,--width 1 --seed 1 --out a
2,pair,train.py,cpu,top,--width 1 --seed 2 --out b
2,pair,train.py,cpu,top,--width 1 --seed 3 --out c
3,wider,train.py,cpu,top,--width 2 --seed 1 --out a
3,wider,train.py,cpu,top,--width 2 --seed 1 --out a
"""


@pytest.mark.long
def test_memory_is_that_of_load_and_seeds_do_not_hide_the_run_alone(bench: Bench) -> None:
    bench.script("train.py", SCRIPT)
    bench.experiment(ROWS)
    bench.radt("experiment.csv")
    with bench.reader as reader:
        report = read_report(reader, "experiment")
    solo, pair, wider = report.workloads
    for workload in report.workloads:
        for group in workload.groups:
            frames = [
                radt.load(run.run.run_id, home=bench.home, metrics=["process.memory.rss"])
                for run in group.runs
            ]
            peaks = [frame["value"].max() for frame in frames]
            assert group.values[Quantity.MEMORY_PEAK].mean == pytest.approx(sum(peaks))
            assert min(peaks) > 40_000_000
    (group,) = pair.groups  # seeds and outputs make no other work
    assert len(group.runs) == 2
    assert group.baseline is not None
    assert group.baseline.run_ids == (solo.groups[0].runs[0].run.run_id,)
    assert wider.groups[0].baseline is None
    assert any(
        sentence.endswith("did the same: 3 (width is 2, alone 1).") for sentence in report.footnotes
    )
