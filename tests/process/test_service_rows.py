"""Edge cases of service rows: ends that cross, limits of training, a runner that is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.bench import Bench

pytestmark = pytest.mark.shared_collector

#: Trains until its service is up.
TRAIN = """\
import pathlib, time
while not pathlib.Path("b.up").exists():
    time.sleep(0.01)
"""

HEADER = "Experiment,Workload,Name,Role,Devices,Listeners,File,Params,Status,Run\n"
ROWS = "s,1,train,,cpu,none,train.py,,,\ns,1,data,service,cpu,none,serve.py,,,\n"


def statuses(bench: Bench, path: Path) -> list[str]:
    return [row["Status"] for row in bench.rows(path)]


@pytest.mark.long
def test_a_service_that_failed_before_it_was_asked_has_failed(bench: Bench) -> None:
    """What it left behind still runs when the others have ended; only then is its end known."""
    bench.script(
        "serve.py",
        "import os, pathlib, subprocess, sys, time\n"
        "left = 'import pathlib, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); '\n"
        "left += 'pathlib.Path(\"left\").touch(); time.sleep(10000)'\n"
        "subprocess.Popen([sys.executable, '-c', left])\n"
        "while not pathlib.Path('left').exists():\n"
        "    time.sleep(0.01)\n"
        "pathlib.Path('b.up').write_text(str(os.getpid()))\n"
        "raise SystemExit(5)\n",
    )
    # The keeper takes the process away before it ends what that has left.
    bench.script(
        "train.py",
        "import os, pathlib, time\n"
        "while not pathlib.Path('b.up').exists():\n"
        "    time.sleep(0.01)\n"
        "pid = int(pathlib.Path('b.up').read_text() or '0')\n"
        "while pathlib.Path(f'/proc/{pid}').exists():\n"
        "    time.sleep(0.01)\n",
    )
    path = bench.experiment(HEADER + ROWS)
    bench.radt("experiment.csv", code=1)
    assert statuses(bench, path) == ["FINISHED", "FAILED: exit code 5"]


@pytest.mark.long
def test_a_service_that_lost_its_runner_when_all_had_ended_is_not_interrupted(
    bench: Bench,
) -> None:
    """The next start would not run its workload again."""
    bench.script("train.py", TRAIN)
    bench.script("serve.py", "")
    bench.experiment(
        HEADER
        + "s,1,train,,cpu,none,train.py,,FINISHED,\n"
        + "s,1,data,service,cpu,none,serve.py,,RUNNING,\n"
    )
    status = json.loads(bench.shown("status", "experiment.csv", "--json"))
    assert status["workloads"][0]["state"] == "done"


@pytest.mark.long
def test_limits_of_training_are_not_for_services(bench: Bench) -> None:
    """One that logs as a run does would end at the limit, before the others need it no more."""
    bench.script("train.py", TRAIN)
    bench.script(
        "serve.py",
        "import pathlib, time, radt\n"
        "with radt.Run() as run:\n"
        "    for epoch in run.epochs(1000000):\n"
        "        if epoch == 3:\n"
        "            pathlib.Path('b.up').touch()\n"
        "        time.sleep(0.01)\n"
        "pathlib.Path('b.up').touch()\n"
        "pathlib.Path('b.limited').touch()\n",
    )
    path = bench.experiment(HEADER + ROWS)
    bench.radt("experiment.csv", "--max-epoch", "1")
    assert statuses(bench, path) == ["FINISHED"] * 2
    assert not (bench.folder / "b.limited").exists(), "it served beyond the limit"
