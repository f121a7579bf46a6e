"""Service rows: started with their workload, not waited for, and asked to end after it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from radt.model import RunStatus
from radt.tags import ROLE
from tests.support.bench import Bench, wait_until
from tests.support.waiting import alive

pytestmark = pytest.mark.shared_collector

#: Notes in a folder of its own what it sees; run as NAME [what to do with signals].
SERVE = """
import os, pathlib, signal, sys, time
here = pathlib.Path(__file__).parent
name, way = sys.argv[1:3]

def end(number, _frame):
    seen = sorted(path.name for path in here.glob("trained-*"))
    (here / f"{name}.ended").write_text(f"{signal.Signals(number).name} {seen}")
    raise SystemExit(0)

if way != "default":
    signal.signal(signal.SIGINT, end if way == "polite" else signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if way == "deaf" else end)
(here / f"{name}.new").write_text(str(os.getpid()))
(here / f"{name}.new").rename(here / f"{name}.serving")
while True:
    signal.pause()
"""

#: Needs all services that it names: it ends only once they serve.
TRAIN = """
import os, pathlib, sys, time
here = pathlib.Path(__file__).parent
while not all((here / f"{name}.serving").exists() for name in sys.argv[2:]):
    time.sleep(0.02)
while (here / "hold").exists():
    time.sleep(0.02)
(here / f"trained-{sys.argv[1]}").touch()
"""


def served(bench: Bench, rows: str) -> Path:
    bench.script("serve.py", SERVE)
    bench.script("train.py", TRAIN)
    return bench.experiment(f"Workload,Name,Role,Devices,Listeners,File,Params\n{rows}")


def statuses(bench: Bench, path: Path) -> list[str]:
    """The Status cells; none before radt has added the column."""
    return [row.get("Status", "") for row in bench.rows(path)]


def serving(bench: Bench, name: str) -> int | None:
    """The process id of a service; None before it serves."""
    path = bench.folder / f"{name}.serving"
    return int(path.read_text()) if path.exists() else None


def test_services_are_asked_to_end_when_all_others_have_and_killed_if_they_do_not(
    bench: Bench,
) -> None:
    """First as Ctrl-C does, ten seconds later by SIGTERM, another five later by SIGKILL."""
    path = served(
        bench,
        "w,net-a,,cpu,none,train.py,a polite default patient deaf\n"
        "w,polite,service,cpu,none,serve.py,polite polite\n"
        "w,net-b,,cpu,none,train.py,b\n"
        "w,default,service,cpu,none,serve.py,default default\n"
        "w,patient,service,cpu,top,serve.py,patient patient\n"
        "w,deaf,service,cpu,none,serve.py,deaf deaf\n",
    )
    done = bench.radt(path.name, code=1)
    seen = "['trained-a', 'trained-b']"
    assert (bench.folder / "polite.ended").read_text() == f"SIGINT {seen}"
    assert (bench.folder / "patient.ended").read_text() == f"SIGTERM {seen}"
    killed = "KILLED: did not end when the other runs had ended"
    assert statuses(bench, path) == ["FINISHED"] * 5 + [killed]
    assert "2 runs + 4 services" in done.stdout
    assert "deaf (service)  KILLED: did not end" in done.stdout
    assert not any(alive(pid) for name in ("default", "deaf") if (pid := serving(bench, name)))
    runs = {run.name: run for run in bench.reader.runs()}
    tags = {name: bench.reader.tags(run.run_id).get(ROLE) for name, run in runs.items()}
    assert tags == {"net-a": None, "net-b": None} | dict.fromkeys(
        ("polite", "default", "patient", "deaf"), "service"
    )
    assert len({run.workload_id for run in runs.values()}) == 1
    measured = {one.metric for one in bench.reader.series([runs["patient"].run_id])}
    assert "process.cpu.utilization" in measured
    report = bench.shown("report", "experiment")
    assert "polite (service)" in report and "6 runs, 5 count: 1 killed" in report
    status = json.loads(bench.shown("status", path.name, "--json"))
    roles = [run["role"] for run in status["workloads"][0]["runs"]]
    assert roles == ["", "service", "", "service", "service", "service"]


def test_a_service_that_crashes_fails_by_itself_and_the_others_go_on(bench: Bench) -> None:
    path = served(
        bench,
        "w,net,,cpu,none,train.py,a gone\n"
        "w,gone,service,cpu,none,crash.py,\n"
        "w,short,service,cpu,none,short.py,\n",
    )
    bench.script(
        "crash.py",
        "import pathlib\n"
        "pathlib.Path(__file__).with_name('gone.serving').touch()\n"
        "raise SystemExit(3)\n",
    )
    bench.script("short.py", "")
    (bench.folder / "hold").touch()
    start = bench.start(path.name)
    wait_until(lambda: statuses(bench, path)[1].startswith("FAILED"), "the service has failed")
    assert statuses(bench, path)[0] == "RUNNING"
    (bench.folder / "hold").unlink()
    output, _ = start.communicate(timeout=180)
    assert start.returncode == 1, output
    # One that has no more to do may end when it likes.
    assert statuses(bench, path) == ["FINISHED", "FAILED: exit code 3", "FINISHED"]
    assert "gone (service)  FAILED: exit code 3" in output


@pytest.mark.long
def test_a_killed_start_is_resumed_with_its_service_which_never_runs_alone(bench: Bench) -> None:
    path = served(bench, "w,net,,cpu,none,train.py,a s\nw,s,service,cpu,none,serve.py,s polite\n")
    (bench.folder / "hold").touch()
    start = bench.start(path.name)
    wait_until(lambda: serving(bench, "s"), "the service serves")
    first = serving(bench, "s")
    assert first is not None
    start.kill()
    start.wait()
    wait_until(lambda: not alive(first), "the keepers have ended what they kept")
    (bench.folder / "s.serving").unlink()
    (bench.folder / "hold").unlink()
    bench.radt(path.name)
    assert statuses(bench, path) == ["FINISHED", "FINISHED"]
    assert serving(bench, "s") not in (None, first)
    # As if radt had been killed between the last run's end and the service's.
    for status in ("RUNNING", "KILLED: its runner died"):
        (bench.folder / "s.serving").unlink(missing_ok=True)
        header, net, service = path.read_text().splitlines()
        path.write_text(f"{header}\n{net}\n{service.replace(',FINISHED,', f',{status},')}\n")
        bench.radt(path.name)
        assert serving(bench, "s") is None, status
        assert statuses(bench, path)[0] == "FINISHED"
        path.write_text(f"{header}\n{net}\n{service}\n")
    # A row that is due brings a service that has finished with it.
    path.write_text(f"{header}\n{net.replace('FINISHED', '')}\n{service}\n")
    bench.radt(path.name)
    assert serving(bench, "s") is not None


@pytest.mark.long
def test_ctrl_c_asks_services_with_the_others(bench: Bench) -> None:
    path = served(
        bench,
        "w,net,,cpu,none,train.py,a s t\n"
        "w,s,service,cpu,none,serve.py,s polite\n"
        "w,t,service,cpu,none,serve.py,t default\n",
    )
    (bench.folder / "hold").touch()
    start = bench.start(path.name)
    wait_until(lambda: serving(bench, "s") and serving(bench, "t"), "the services serve")
    start.send_signal(signal.SIGINT)
    output, _ = start.communicate(timeout=180)
    assert start.returncode == 128 + signal.SIGINT, output
    stopped = "KILLED: stopped by the user"
    assert statuses(bench, path) == [stopped, "FINISHED", stopped]
    assert (bench.folder / "s.ended").read_text() == "SIGINT []"


@pytest.mark.long
def test_runs_that_wait_for_each_other_do_not_wait_for_a_service(bench: Bench) -> None:
    path = served(
        bench,
        "w,a,,cpu,none,block.py,\nw,b,,cpu,none,block.py,\n"
        "w,s,service,cpu,none,serve.py,s polite\n",
    )
    bench.script("block.py", "import radt\nwith radt.Run():\n    pass\n")
    bench.radt(path.name, "--sync", "context")
    assert {run.status for run in bench.reader.runs()} == {RunStatus.FINISHED}
    (workload,) = bench.reader.workloads()
    assert workload.start_skew_ns is not None


TWO_ROWS = (
    "Workload,Name,Role,Devices,Listeners,File\n"
    "1,train,,cpu,none,train.py\n1,data,service,cpu,none,serve.py\n"
)


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
    path = bench.experiment(TWO_ROWS)
    bench.radt("experiment.csv", code=1)
    assert statuses(bench, path) == ["FINISHED", "FAILED: exit code 5"]


@pytest.mark.long
def test_a_service_that_lost_its_runner_when_all_had_ended_is_not_interrupted(
    bench: Bench,
) -> None:
    """The next start would not run its workload again."""
    for name in ("train.py", "serve.py"):
        bench.script(name, "")
    bench.experiment(
        "Workload,Name,Role,Devices,Listeners,File,Status\n"
        "1,train,,cpu,none,train.py,FINISHED\n1,data,service,cpu,none,serve.py,RUNNING\n"
    )
    status = json.loads(bench.shown("status", "experiment.csv", "--json"))
    assert status["workloads"][0]["state"] == "done"


@pytest.mark.long
def test_limits_of_training_are_not_for_services(bench: Bench) -> None:
    """One that logs as a run does would end at the limit, before the others need it no more."""
    bench.script(
        "train.py",
        "import pathlib, time\nwhile not pathlib.Path('b.up').exists():\n    time.sleep(0.01)\n",
    )
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
    path = bench.experiment(TWO_ROWS)
    bench.radt("experiment.csv", "--max-epoch", "1")
    assert statuses(bench, path) == ["FINISHED"] * 2
    assert not (bench.folder / "b.limited").exists(), "it served beyond the limit"
