"""Totals of runs are the kernel's accounts of all their processes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import radt
from radt.model import RunStatus
from radt.runner import keeper
from radt.store.records import RunRecord
from radt.usage import TOTALS
from tests.support.bench import Bench
from tests.support.loads import ACCOUNT, LOAD

#: What the end of a process that wrote down its own accounts may take after that, of a core that
#: it shares.
ENDING_S = 0.03
#: Of bytes, faults and switches alike: its last file, and its end.
ENDING = 300
KINDS = ("cpu", "memory", "files", "children", "exec", "daemon")


@pytest.mark.parametrize(
    "seconds", [1, pytest.param(20, marks=[pytest.mark.long, pytest.mark.timeout(600)])]
)
def test_totals_are_what_the_kernel_counted_of_the_same_processes(
    bench: Bench, seconds: int
) -> None:
    bench.script("account.py", ACCOUNT)
    bench.script("load.py", LOAD)
    rows = [f"1,{kind},account.py,{kind}.json load.py {kind} {seconds}\n" for kind in KINDS]
    bench.experiment("Workload,Name,File,Params\n" + "".join(rows))
    process = bench.start("experiment.csv")
    output, _ = process.communicate(timeout=500)
    assert process.returncode == 0, output
    for run in bench.reader.runs():
        totals = radt.totals(run.run_id, home=bench.home)
        account = json.loads((bench.folder / f"{run.name}.json").read_text())
        if run.name != "files":
            assert totals["cpu_time_s"] > 0.99 * seconds
        for key, value in account.items():
            ending = ENDING_S if key == "cpu_time_s" else ENDING
            assert value <= totals[key] <= value * 1.005 + ending, (run.name, key, totals, account)
        assert totals["rss_peak_bytes"] == account["rss_peak_bytes"]
        assert totals["duration_s"] == pytest.approx(duration_s(run))
        # Later the file would only take room.
        assert not list(Path(run.spool).glob("usage*"))
    named = {run.name: radt.totals(run.run_id, home=bench.home) for run in bench.reader.runs()}
    assert named["memory"]["rss_peak_bytes"] > 150_000_000 > named["cpu"]["rss_peak_bytes"]
    assert named["files"]["io_written_bytes"] >= 40_000_000 * seconds
    assert named["files"]["io_read_bytes"] >= 40_000_000 * seconds


def duration_s(run: RunRecord) -> float:
    assert run.started_ns is not None
    assert run.ended_ns is not None
    return (run.ended_ns - run.started_ns) / 1e9


@pytest.mark.long
def test_a_run_ends_with_its_process_rather_than_when_its_end_is_handled(bench: Bench) -> None:
    """What it leaves behind is ended after that, and writes down when."""
    bench.script(
        "train.py",
        "import os, signal, sys, time\n"
        "ready, pipe = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    def end(*_):\n"
        "        open('asked', 'w').write(str(time.time_ns()))\n"
        "        sys.exit()\n"
        "    signal.signal(signal.SIGTERM, end)\n"
        "    os.close(pipe)\n"
        "    signal.pause()\n"
        "os.close(pipe)\n"
        "os.read(ready, 1)\n",
    )
    result = bench.radt("run", "train.py")
    (run,) = bench.reader.runs()
    assert run.ended_ns is not None
    assert run.ended_ns < int((bench.folder / "asked").read_text())
    shown = re.search(r"✔ ([\d.]+) (ms|s)", result.stdout)
    assert shown is not None
    taken_s = float(shown[1]) * (0.001 if shown[2] == "ms" else 1.0)
    assert taken_s == pytest.approx(duration_s(run), rel=0.005)  # three digits


@pytest.mark.long
def test_what_a_run_left_behind_and_was_ended_counts(bench: Bench) -> None:
    """Nobody of the run waits for it: the keeper ends and reaps it."""
    bench.script(
        "train.py",
        "import os, time\n"
        "ended, pipe = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        while time.process_time() < 1: pass\n"
        "        os.close(pipe)\n"
        "        time.sleep(1000)\n"
        "    os._exit(0)\n"
        "os.close(pipe)\n"
        "os.read(ended, 1)\n",
    )
    bench.radt("run", "train.py")
    (run,) = bench.reader.runs()
    assert run.status is RunStatus.FINISHED
    assert radt.totals(run.run_id, home=bench.home)["cpu_time_s"] >= 1


@pytest.mark.long
def test_a_killed_run_has_totals(bench: Bench) -> None:
    bench.script(
        "train.py",
        "import os, time\nwhile time.process_time() < 1: pass\nos.kill(os.getpid(), 9)\n",
    )
    bench.radt("run", "train.py", code=1)
    (run,) = bench.reader.runs()
    assert run.status is RunStatus.KILLED
    assert radt.totals(run.run_id, home=bench.home)["cpu_time_s"] >= 1


def test_the_keeper_names_the_totals_as_all_others_do() -> None:
    """It imports nothing of radt, so that it is up in milliseconds."""
    assert keeper.usage.keys() == {total.key for total in TOTALS}
