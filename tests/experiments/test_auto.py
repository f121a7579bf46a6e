"""experiments/auto: four kinds, ways that have all rows, and a table of what they took."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from radt.analysis.baselines import ignored_params, work_of
from radt.devices.gpus import Gpu
from radt.devices.host import Host
from radt.devices.machine import Machine
from radt.experiment.plan import ExperimentPlan
from radt.experiment.source import open_source
from radt.listeners import registry
from tests.support.bench import Bench

FOLDER = Path(__file__).parents[2] / "experiments" / "auto"
sys.path.insert(0, str(FOLDER))  # as for `python compare.py`

import compare  # noqa: E402
import train  # noqa: E402

GPUS = tuple(Gpu(number, "NVIDIA H200", f"GPU-{number}") for number in range(2))
#: Ends as `train.py` does, without its work: a large row finds no memory at its first try.
_STAND_IN = """
import sys
from pathlib import Path
import radt

with radt.Run():
    if "large" in sys.argv:
        tried = Path(f"{sys.argv[-1]}.tried")
        if not tried.exists():
            tried.touch()
            raise MemoryError("only 0.5 GB are left")
"""


def plan_of(name: str, machine: Machine) -> ExperimentPlan:
    return open_source(FOLDER / name).plan(machine, registry.load())


@pytest.mark.parametrize(
    ("name", "machine", "counts"),
    [
        ("experiment.csv", Machine(2), [4, 2, 4, 2]),
        ("experiment.csv", Machine(16, GPUS), [4, 2, 4, 2]),
        ("gpu.csv", Machine(16, GPUS), [4, 3, 3, 2]),
    ],
)
def test_files_have_twelve_rows_of_four_kinds(
    name: str, machine: Machine, counts: list[int]
) -> None:
    plan = plan_of(name, machine)
    assert all(workload.is_auto and len(workload.runs) == 1 for workload in plan.workloads)
    kinds = Counter(work_of(run.arguments, ignored_params()) for run in plan.runs)
    assert list(kinds.values()) == counts
    assert len({run.arguments for run in plan.runs}) == 12


def test_rows_without_devices_may_use_all_gpus() -> None:
    choices = {run.auto for run in plan_of("gpu.csv", Machine(16, GPUS)).runs}
    assert [(each.any_device, each.any_collocation) for each in choices] == [(True, True)]


def test_each_way_has_all_rows() -> None:
    kinds = [row["Name"] for row in compare.rows()]
    assert set(kinds) == set(train.KINDS)
    assert compare.workloads(compare.SERIAL, kinds) == [""] * 12
    assert set(Counter(compare.workloads(compare.PAIRS, kinds)).values()) == {2}
    best: dict[str, list[str]] = {}
    for kind, label in zip(kinds, compare.workloads(compare.BEST, kinds), strict=True):
        best.setdefault(label, []).append(kind)
    assert sorted(map(sorted, best.values())) == sorted(map(sorted, compare.BEST_GROUPS))


def test_data_fill_a_share_of_the_memory_that_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    block = np.arange(1_000, dtype=np.float32)
    host = replace(Host.detect(), available_bytes=80_000, memory_limit_bytes=40_000)
    monkeypatch.setattr(Host, "detect", lambda: host)
    blocks = train.copies(block, 0.6)
    assert np.array_equal(blocks, np.tile(block, (6, 1)))
    assert train.copies(block, 0).shape == (1, 1_000)


def test_data_stop_before_the_memory_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter((80_000, 40_000, 7_000))
    host = Host.detect()
    monkeypatch.setattr(Host, "detect", lambda: replace(host, available_bytes=next(readings)))
    with pytest.raises(MemoryError, match=r"only 0\.0 GB are left"):
        train.copies(np.zeros(100, np.float32), 0.6)


def test_table_compares_with_serial_in_the_same_repeat() -> None:
    outcomes = {
        compare.SERIAL: [compare.Outcome(each, 12, 0, each) for each in (60.0, 70.0, 80.0)],
        compare.PAIRS: [compare.Outcome(each / 2, 6, 2, None) for each in (60.0, 70.0, 80.0)],
        compare.AUTO: [
            *(compare.Outcome(30.0, 7, 0, 5.0), compare.Outcome(31.0, 8, 0, 5.0)),
            compare.Outcome(32.0, 7, 0, 5.0),
        ],
    }
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in compare.lines(outcomes)][
        2:
    ]
    assert cells[0] == ["serial", "70.0 ± 24.8 s", "–", "12", "0", "70.0 ± 24.8 J"]
    assert cells[1] == [
        *("always two", "35.0 ± 12.4 s", "0.50 (0.50 to 0.50)", "6", "2", "not measured")
    ]
    assert cells[2][:2] == ["auto", "31.0 ± 2.5 s"]
    assert cells[2][3:] == ["7 or 8", "0", "5.0 ± 0.0 J"]


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("kind", ["single", "double", "waiting"])
def test_kinds_train(bench: Bench, kind: str) -> None:
    shutil.copy(FOLDER / "train.py", bench.folder)
    bench.radt("train.py", "--kind", kind, "--epochs", "2")
    with bench.reader as reader:
        (run,) = reader.runs()
        summaries = {each.series.metric: each for each in reader.summary([run.run_id])}
    assert summaries["loss"].count == 2
    assert summaries["loss"].last < summaries["loss"].maximum
    assert summaries["step.time"].count == 2 * train.KINDS[kind].steps


@pytest.mark.long
def test_rows_that_ran_out_of_memory_run_again_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.script("train.py", _STAND_IN)
    for name, value in bench.env.items():
        monkeypatch.setenv(name, value)
    outcome = compare.run_way(compare.PAIRS, bench.folder)
    assert (outcome.groups, outcome.lost) == (8, 2)
