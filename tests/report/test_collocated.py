"""Whether workloads or runs of an experiment are compared."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import pytest

from radt.analysis.collocated import is_about_collocation
from radt.analysis.selection import select
from radt.model import RunStatus
from radt.store.records import RunRecord

#: A row: its params, its devices, its collocation.
Row = tuple[str, str, str]


def row(params: str, devices: str = "0", collocation: str = "-") -> Row:
    return params, devices, collocation


def answer(workloads: Sequence[Sequence[Row]], status: RunStatus = RunStatus.FINISHED) -> bool:
    """The answer for workloads that ran one after the other."""
    runs = [
        RunRecord(
            f"run {number} {place}",
            f"start {number}",
            "study",
            f"{number:03}",
            "abcdefgh"[place],
            f"train #{10 * number + place}",
            created_ns=1_000 * number + place,
            status=status,
            devices=devices,
            collocation=collocation,
            command=shlex.join(["python", "train.py", *params.split()]),
        )
        for number, rows in enumerate(workloads)
        for place, (params, devices, collocation) in enumerate(rows)
    ]
    return is_about_collocation(select(runs, {}))


def batches(params: Sequence[str], size: int, collocation: str = "-") -> list[list[Row]]:
    """Rows of a sweep, ``size`` at a time."""
    rows = [row(each, collocation=collocation) for each in params]
    return [rows[first : first + size] for first in range(0, len(rows), size)]


RATES = [f"--lr {lr} --seed {seed}" for lr in (0.1, 0.2, 0.3, 0.4, 0.5) for seed in range(3)]


@pytest.mark.parametrize("status", [RunStatus.FINISHED, RunStatus.RUNNING])
@pytest.mark.parametrize(
    ("workloads", "expected"),
    [
        pytest.param([], False, id="nothing"),
        pytest.param(batches(RATES, 1), False, id="sweep, one at a time"),
        pytest.param(batches(RATES, 4), False, id="sweep, the last batch is smaller"),
        pytest.param(batches(RATES, 4, "MPS"), False, id="sweep under MPS"),
        pytest.param(batches([f"--seed {n}" for n in range(7)], 3), False, id="seeds"),
        pytest.param(
            [[row("--seed 1", "0"), row("--seed 1", "1")]], False, id="a GPU for each copy"
        ),
        pytest.param(
            [[row("--lr 1")], [row("--lr 1"), row("--lr 2")]], True, id="alone and beside another"
        ),
        pytest.param([[row("--size 1", "cpu")] * 3], True, id="copies of one run"),
        pytest.param(
            [[row("--size 1 --out a")], [row("--size 1 --out b"), row("--size 2 --out c")]],
            True,
            id="alone and beside another, with own output",
        ),
        pytest.param(
            [
                [row("--lr 1"), row("--lr 2")],
                [row("--lr 1", "0", "MPS"), row("--lr 2", "0", "MPS")],
            ],
            True,
            id="the same pair without and with MPS",
        ),
        pytest.param(
            [[row("--lr 1", "0", "3g.40gb")], [row("--lr 1", "0", "7g.80gb")]],
            True,
            id="instances of two sizes",
        ),
        pytest.param(
            [[row("--lr 1", "0+1")], [row("--lr 1", "0+1"), row("--lr 2", "1")]],
            True,
            id="one of two GPUs shared",
        ),
    ],
)
def test_an_experiment_is_about_collocation_if_the_same_work_shares_differently(
    workloads: list[list[Row]], expected: bool, status: RunStatus
) -> None:
    assert answer(workloads, status) is expected


def test_a_workload_that_runs_again_is_no_other_way_to_share() -> None:
    first = RunRecord("r1", "s1", "x", "1", "a", "n", 1, RunStatus.FINISHED, command="t.py --lr 1")
    again = [
        RunRecord(f"r{n}", "s2", "x", "1", "ab"[n], "n", 2, RunStatus.FINISHED, command=f"t.py {n}")
        for n in range(2)
    ]
    assert not is_about_collocation(select([first, *again], {}))
