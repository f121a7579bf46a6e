"""Rows with the workload ``auto``: measured alone, then grouped by what was measured."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from radt.model import RunStatus
from tests.support.bench import Bench, wait_until

#: Waits for a while without using a CPU, so that rows of it can share one.
WAITS = """
import pathlib, sys, threading
with open(pathlib.Path(__file__).with_name("order.txt"), "a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
threading.Event().wait(0.5)
"""
#: Runs out of memory if another of its kind runs.
GREEDY = """
import pathlib, sys, threading
here = pathlib.Path(__file__).parent
mine = here / f"greedy-{sys.argv[-1]}"
mine.touch()
try:
    for _ in range(10):
        if len(list(here.glob("greedy-*"))) > 1:
            threading.Event().wait(0.5)  # for the other one to see it, too
            raise MemoryError
        threading.Event().wait(0.1)
finally:
    mine.unlink()
"""
HEAD = "Workload,Listeners,File,Params\n"
#: Runs of half a second have no samples at the default of 1 Hz.
ROW = "auto,top@50ms,{},{}\n"
FOUR = HEAD + "".join(ROW.format("waits.py", f"--seed {number}") for number in range(1, 5))


def statuses(bench: Bench, path: Path) -> list[str]:
    return [row.get("Status", "") for row in bench.rows(path)]


def groups(bench: Bench) -> dict[str, list[str]]:
    """The params of the runs that finished, by the label of their workload."""
    found: dict[str, list[str]] = {}
    for run in bench.reader.runs():
        if run.status is RunStatus.FINISHED:
            found.setdefault(run.workload, []).append(bench.reader.params(run.run_id)["Params"])
    return {label: sorted(params) for label, params in found.items()}


def reasons(bench: Bench) -> dict[str, str]:
    runs = bench.reader.runs()
    return {run.workload: bench.reader.tags(run.run_id)["radt.grouped_by"] for run in runs}


def test_a_kind_runs_alone_first_and_then_its_rows_share(bench: Bench) -> None:
    bench.script("waits.py", WAITS)
    path = bench.experiment(FOUR)
    plan = bench.shown("validate", path.name)
    assert "experiment: radt groups 4 rows of 1 kind" in plan
    assert "run alone first: waits (line 2)" in plan
    done = bench.radt(path.name)
    assert statuses(bench, path) == ["FINISHED"] * 4
    assert groups(bench) == {
        "auto-1": ["--seed 1"],
        "auto-2": ["--seed 2", "--seed 3", "--seed 4"],
    }
    assert reasons(bench)["auto-1"] == "alone, to be measured"
    pattern = r"\d[\d.]* m?s predicted, \d[\d.]* m?s one after the other"
    assert re.fullmatch(pattern, reasons(bench)["auto-2"])
    assert "auto-2: a waits + b waits + c waits" in done.stdout
    report = bench.shown("report", "experiment")
    assert "radt formed auto-1: alone, to be measured." in report
    assert f"radt formed auto-2: {reasons(bench)['auto-2']}." in report
    status = bench.shown("status", path.name)
    assert [line.split()[1] for line in status.splitlines() if "✔" in line] == ["auto-1", "auto-2"]


def test_what_an_earlier_experiment_measured_is_known(bench: Bench) -> None:
    bench.script("waits.py", WAITS)
    bench.experiment(
        "Experiment,Listeners,File,Params\nold,top@50ms,waits.py,--seed 9\n", "old.csv"
    )
    bench.radt("old.csv")
    path = bench.experiment(FOUR)
    assert "measured alone: waits (line 2)" in bench.shown("validate", path.name)
    bench.radt(path.name)
    assert list(groups(bench)) == ["1", "auto-1"]


def test_rows_that_run_out_of_memory_together_run_again_alone(bench: Bench) -> None:
    bench.script("greedy.py", GREEDY)
    path = bench.experiment(
        HEAD + "".join(ROW.format("greedy.py", f"--seed {number}") for number in range(3))
    )
    done = bench.radt(path.name, "--fail-fast")  # it is no failure
    assert statuses(bench, path) == ["FINISHED"] * 3
    assert groups(bench) == {
        "auto-1": ["--seed 0"],
        "auto-3": ["--seed 1"],
        "auto-4": ["--seed 2"],
    }
    ran_out = [run for run in bench.reader.runs() if run.status is RunStatus.OOM]
    assert [run.workload for run in ran_out] == ["auto-2", "auto-2"]
    assert reasons(bench)["auto-4"] == "alone, because it ran out of memory or time before"
    assert "3 runs FINISHED" in done.stdout


def test_repeats_of_a_group_stay_together_in_this_start_and_the_next(bench: Bench) -> None:
    bench.script("waits.py", WAITS)
    path = bench.experiment(FOUR)
    bench.radt(path.name, "--repeat", "2")
    seeds = ["--seed 2", "--seed 3", "--seed 4"]
    assert groups(bench) == {"auto-1": ["--seed 1"] * 2, "auto-2": sorted(seeds * 2)}
    bench.radt(path.name, "--repeat", "3")
    assert groups(bench) == {"auto-1": ["--seed 1"] * 3, "auto-2": sorted(seeds * 3)}
    assert statuses(bench, path) == ["FINISHED 3/3"] * 4
    series = {
        (run.workload, bench.reader.tags(run.run_id)["radt.series"]) for run in bench.reader.runs()
    }
    assert len(series) == 2
    assert "radt formed auto-1: alone, to be measured." in bench.shown("report", "experiment")


def test_a_stopped_start_is_resumed_with_new_groups(bench: Bench) -> None:
    gate = bench.signal_ready("gate")
    bench.script(
        "waits.py",
        WAITS
        + "path = pathlib.Path(__file__)\n"
        + "if len(path.with_name('order.txt').read_text().splitlines()) > 1:\n"
        + "    open(path.with_name('gate')).read()\n",
    )
    path = bench.experiment(FOUR)
    runner = bench.start(path.name)
    wait_until(lambda: statuses(bench, path).count("RUNNING") == 3, "three rows share")
    status = bench.shown("status", path.name)
    assert re.search(r"auto-2 +3 runs", status)
    runner.send_signal(signal.SIGINT)
    assert runner.wait(180) == 128 + signal.SIGINT
    assert statuses(bench, path)[0] == "FINISHED"
    bench.script("waits.py", WAITS)
    del gate
    bench.radt(path.name)
    assert statuses(bench, path) == ["FINISHED"] * 4
    assert groups(bench)["auto-3"] == ["--seed 2", "--seed 3", "--seed 4"]


def test_fail_fast_skips_the_rows_that_wait(bench: Bench) -> None:
    bench.script("waits.py", WAITS)
    bench.script("fails.py", "raise SystemExit(4)")
    path = bench.experiment(
        "Workload,File\nauto,fails.py\nauto,waits.py\nauto,waits.py\n1,waits.py\n"
    )
    bench.radt(path.name, "--fail-fast", "--repeat", "2", code=1)
    first, *others = statuses(bench, path)
    assert first == "FAILED 1/2: exit code 4"
    assert others == ["SKIPPED 1/2: auto-1 did not finish (--fail-fast)"] * 3


def test_only_auto_runs_the_rows_that_radt_groups(bench: Bench) -> None:
    bench.script("waits.py", WAITS)
    path = bench.experiment("Workload,File\n1,waits.py\nauto,waits.py\nauto,waits.py\n")
    bench.radt(path.name, "--only", "auto")
    assert statuses(bench, path) == ["", "FINISHED", "FINISHED"]
