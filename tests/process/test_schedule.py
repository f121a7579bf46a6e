"""Which workloads a start runs, in which order, how often, and what ends them."""

from __future__ import annotations

import re
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from radt.model import RunStatus
from tests.support.bench import Bench, let_go, wait_until

pytestmark = pytest.mark.shared_collector

#: Appends its name to a file that all runs share, then does what it is told.
NOTES_ITSELF = """
import os, sys, pathlib
with open(pathlib.Path(__file__).with_name("order.txt"), "a") as file:
    file.write(sys.argv[1] + "\\n")
"""


def ran(bench: Bench) -> list[str]:
    """The names of all runs that were started, in order."""
    path = bench.folder / "order.txt"
    return path.read_text().split() if path.exists() else []


def statuses(bench: Bench, path: Path) -> list[str]:
    return [row["Status"] for row in bench.rows(path)]


def test_a_workload_is_a_unit_if_one_row_must_run_all_do(bench: Bench) -> None:
    bench.script("train.py", NOTES_ITSELF)
    path = bench.experiment(
        "Workload,Status,Run,File,Params\n"
        "1,FINISHED,old,train.py,1a\n"
        "2,FINISHED,old,train.py,2a\n"
        "2,KILLED: stopped by the user,old,train.py,2b\n"
        "3,FAILED: exit code 1,old,train.py,3a\n"
    )
    done = bench.radt(path.name, code=1)  # line 5 has failed and stays so
    assert sorted(ran(bench)) == ["2a", "2b"]
    assert statuses(bench, path) == ["FINISHED", "FINISHED", "FINISHED", "FAILED: exit code 1"]
    assert "2: all rows run, including 1 finished row" in " ".join(done.stdout.split())
    assert [row["Run"] == "old" for row in bench.rows(path)] == [True, False, False, True]


def test_repeats_go_round_the_experiment_and_count_in_the_status(bench: Bench) -> None:
    bench.script("train.py", NOTES_ITSELF)
    path = bench.experiment("Workload,File,Params\nx,train.py,x\ny,train.py,y\n")
    bench.radt(path.name, "--repeat", "2")
    assert ran(bench) == ["x", "y", "x", "y"]
    assert statuses(bench, path) == ["FINISHED 2/2", "FINISHED 2/2"]
    bench.radt(path.name, "--repeat", "3")
    assert ran(bench) == ["x", "y"] * 3, "only what was missing of three"
    bench.radt(path.name, "--repeat", "3")
    assert len(ran(bench)) == 6
    runs = [run for run in bench.reader.runs() if run.workload == "x"]
    tags = [bench.reader.tags(run.run_id) for run in runs]
    assert sorted(tag["radt.repeat"] for tag in tags) == ["1/2", "2/2", "3/3"]
    assert len({tag["radt.series"] for tag in tags}) == 1, "a later start goes on with the series"


@pytest.mark.long
def test_what_failed_is_not_repeated_by_this_start_or_the_next(bench: Bench) -> None:
    bench.script("train.py", NOTES_ITSELF)
    bench.script("fail.py", NOTES_ITSELF + "raise SystemExit(4)")
    path = bench.experiment("Workload,File,Params\nx,train.py,xa\nx,fail.py,xb\ny,train.py,y\n")
    bench.radt(path.name, "--repeat", "2", code=1)
    assert sorted(ran(bench)) == ["xa", "xb", "y", "y"]
    ended = ["FINISHED 1/2", "FAILED 1/2: exit code 4", "FINISHED 2/2"]
    assert statuses(bench, path) == ended
    bench.radt(path.name, "--repeat", "2", code=1)
    assert (len(ran(bench)), statuses(bench, path)) == (4, ended)
    bench.script("fail.py", NOTES_ITSELF)
    bench.radt(path.name, "--repeat", "2", "--rerun")
    assert sorted(ran(bench)[4:]) == ["xa", "xa", "xb", "xb"]
    assert statuses(bench, path) == ["FINISHED 2/2"] * 3


@pytest.mark.long
def test_repeats_are_not_forgotten_when_a_runner_has_died(bench: Bench) -> None:
    bench.signal_ready("gate")
    bench.script("wait.py", NOTES_ITSELF + "open(pathlib.Path(__file__).with_name('gate')).read()")
    path = bench.experiment("Workload,Status,File,Params\nx,,wait.py,x\ny,RUNNING 2/3,wait.py,y\n")
    runner = bench.start(path.name, "--repeat", "3")
    wait_until(lambda: ran(bench) == ["x"], "the other one runs")
    runner.send_signal(signal.SIGINT)
    assert runner.wait(180) == 128 + signal.SIGINT
    assert statuses(bench, path) == [
        "KILLED 1/3: stopped by the user",
        "KILLED 2/3: its runner died",
    ]


@pytest.mark.long
def test_a_row_that_finished_unsaid_is_not_run_again(bench: Bench) -> None:
    """The disk was full, or the runner killed, between the run's end and the file's."""
    bench.script("train.py", NOTES_ITSELF + "raise SystemExit(int(sys.argv[2]))")
    path = bench.experiment(
        "Workload,File,Params\nx,train.py,x 0\ny,train.py,y 4\nz,train.py,z 0\n"
    )
    bench.radt(path.name, code=1)
    said = statuses(bench, path)
    assert said == ["FINISHED", "FAILED: exit code 4", "FINISHED"]
    unsaid = path.read_text().replace("FINISHED", "RUNNING", 1).replace(said[1], "RUNNING")
    path.write_text(unsaid)
    again = bench.radt(path.name, code=1)
    assert "2 of 3 rows done, 1 failed" in again.stdout
    assert "line 3: y a train" in again.stdout
    assert ran(bench) == ["x", "y", "z"]
    assert statuses(bench, path) == said
    assert "2 of 3 rows done, 1 failed" in bench.radt(path.name, "--only", "x").stdout
    path.write_text(unsaid)
    bench.radt(path.name, "--repeat", "2", code=1)
    assert statuses(bench, path) == ["FINISHED 2/2", "FAILED 1/2: exit code 4", "FINISHED 2/2"]
    assert ran(bench)[3:] == ["x", "z"]


@pytest.mark.long
def test_a_run_of_a_dead_runner_on_another_host_is_ended_by_the_next_start(bench: Bench) -> None:
    bench.script("train.py", NOTES_ITSELF)
    path = bench.experiment("Workload,File,Params\nx,train.py,x\n")
    bench.radt(path.name)
    path.write_text(path.read_text().replace("FINISHED", "RUNNING"))
    with closing(sqlite3.connect(bench.home / "radt.db")) as store, store:
        store.execute("UPDATE run SET status = 'RUNNING', ended_ns = NULL, host = 'another'")
        store.execute("UPDATE workload SET status = 'RUNNING', ended_ns = NULL")
    bench.radt(path.name)
    assert ran(bench) == ["x", "x"]
    lost, again = sorted(bench.reader.runs(), key=lambda run: run.created_ns)
    assert (lost.status, lost.end_reason) == (RunStatus.KILLED, "its runner died")
    assert again.status is RunStatus.FINISHED
    assert RunStatus.RUNNING not in {workload.status for workload in bench.reader.workloads()}


@pytest.mark.long
def test_interrupted_repeats_go_on_where_they_were(bench: Bench) -> None:
    gate = bench.signal_ready("gate")
    bench.script(
        "train.py",
        NOTES_ITSELF
        + "path = pathlib.Path(__file__)\n"
        + "if len(path.with_name('order.txt').read_text().split()) == 3:\n"
        + "    open(path.with_name('gate')).read()\n",
    )
    path = bench.experiment("Workload,File,Params\nx,train.py,x\ny,train.py,y\n")
    runner = bench.start(path.name, "--repeat", "3")
    wait_until(lambda: len(ran(bench)) == 3, "the second round began")
    runner.send_signal(signal.SIGINT)
    said, _ = runner.communicate(timeout=180)
    assert runner.returncode == 128 + signal.SIGINT
    assert f"radt {path.name} --repeat 3" in said
    assert statuses(bench, path) == ["KILLED 2/3: stopped by the user", "FINISHED 1/3"]
    gate.unlink()
    bench.radt(path.name)  # the file says that three were asked for
    assert statuses(bench, path) == ["FINISHED 3/3", "FINISHED 3/3"]
    assert ran(bench)[3:] == ["x", "y", "x", "y"]


@pytest.mark.long
def test_a_row_that_is_edited_between_its_repeats_runs_as_it_is_now_with_the_next_start(
    bench: Bench,
) -> None:
    bench.script(
        "edit.py",
        NOTES_ITSELF
        + "path = pathlib.Path(__file__).with_name('experiment.csv')\n"
        + "path.write_text(path.read_text().replace('train.py,old', 'train.py,new'))\n",
    )
    bench.script("train.py", NOTES_ITSELF)
    path = bench.experiment("Workload,File,Params\n1,train.py,old\n2,edit.py,edits\n")
    done = bench.radt(path.name, "--repeat", "2", code=1)
    assert ran(bench) == ["old", "edits", "edits"]
    assert statuses(bench, path) == ["FINISHED 1/2", "FINISHED 2/2"]
    assert done.stdout.count("line 2 changed since this start") == 1
    assert "takes effect at the next start" in done.stdout
    bench.radt(path.name)
    assert ran(bench)[3:] == ["new"]
    assert statuses(bench, path) == ["FINISHED 2/2", "FINISHED 2/2"]


def test_only_runs_the_workloads_that_are_named(bench: Bench) -> None:
    bench.script("train.py", NOTES_ITSELF)
    path = bench.experiment(
        "Workload,File,Params\nx,train.py,x\ny,train.py,y\nz,train.py,z\nnew one,train.py,n\n"
    )
    done = bench.radt(path.name, "--only", "z,x", "--only", "new one")
    assert "done before" not in done.stdout
    assert ran(bench) == ["x", "z", "n"]
    again = bench.radt(path.name, "--only", "x")
    assert "3 of 4 rows done" in again.stdout
    assert len(ran(bench)) == 3
    refused = bench.radt(path.name, "--only", "yy", code=2)
    assert "no such workload" in refused.stderr
    assert "'y'" in refused.stderr
    assert statuses(bench, path) == ["FINISHED", "", "FINISHED", "FINISHED"]


def test_fail_fast_stops_neighbours_and_skips_the_rest_until_the_next_start(bench: Bench) -> None:
    bench.signal_ready("gate")
    bench.script("wait.py", NOTES_ITSELF + "open(pathlib.Path(__file__).with_name('gate')).read()")
    bench.script("fail.py", NOTES_ITSELF + "raise SystemExit(4)")
    bench.script("train.py", NOTES_ITSELF)
    path = bench.experiment(
        "Workload,File,Params\n1,wait.py,1a\n1,fail.py,1b\n2,train.py,2a\n3,train.py,3a\n"
    )
    done = bench.radt(path.name, "--fail-fast", code=1)
    assert statuses(bench, path) == [
        "KILLED: row b is FAILED (--fail-fast)",
        "FAILED: exit code 4",
        "SKIPPED: 1 did not finish (--fail-fast)",
        "SKIPPED: 1 did not finish (--fail-fast)",
    ]
    assert "SKIPPED" in done.stdout
    assert bench.rows(path)[2]["Run"] == ""
    bench.script("wait.py", NOTES_ITSELF)
    bench.script("fail.py", NOTES_ITSELF)
    bench.radt(path.name)
    assert set(statuses(bench, path)) == {"FINISHED"}


@pytest.mark.long
def test_a_row_that_cannot_be_started_stops_its_neighbours_too(bench: Bench) -> None:
    bench.signal_ready("gate")
    bench.script("wait.py", NOTES_ITSELF + "open(pathlib.Path(__file__).with_name('gate')).read()")
    bench.script("tool", "#!/no/such/interpreter").chmod(0o755)
    path = bench.experiment("Workload,File,Params\n1,wait.py,a\n1,./tool,b\n2,wait.py,c\n")
    bench.radt(path.name, "--fail-fast", code=1)
    first, second, third = statuses(bench, path)
    assert first == "KILLED: row b is FAILED (--fail-fast)"
    assert second.startswith("FAILED: ")
    assert third == "SKIPPED: 1 did not finish (--fail-fast)"


#: Says which signal it was asked by, as often as it was, and ends with 3 when the test lets it.
ASKED = (
    NOTES_ITSELF
    + """
import signal
here = pathlib.Path(__file__)
def asked(number, frame):
    with open(here.with_name(sys.argv[1] + ".asked"), "a") as file:
        file.write(signal.Signals(number).name + " ")
signal.signal(signal.SIGINT, asked)
here.with_name(sys.argv[1] + ".up").touch()
with open(here.with_name(sys.argv[1] + ".gate")) as gate:
    gate.read()
sys.exit(3)
"""
)


def asked(bench: Bench, name: str) -> str:
    path = bench.folder / f"{name}.asked"
    return path.read_text() if path.exists() else ""


@pytest.mark.long
def test_ctrl_c_with_fail_fast_asks_each_row_once(bench: Bench) -> None:
    bench.script("train.py", ASKED)
    gates = {name: bench.signal_ready(f"{name}.gate") for name in "ab"}
    path = bench.experiment("Workload,File,Params\n1,train.py,a\n1,train.py,b\n")
    runner = bench.start(path.name, "--fail-fast")
    wait_until(lambda: len(list(bench.folder.glob("*.up"))) == 2, "both run")
    runner.send_signal(signal.SIGINT)
    wait_until(lambda: asked(bench, "a") and asked(bench, "b"), "both were asked")
    let_go(gates["a"])
    wait_until(lambda: "KILLED" in statuses(bench, path)[0], "the first has ended")
    let_go(gates["b"])
    assert runner.wait(180) == 128 + signal.SIGINT
    assert statuses(bench, path) == ["KILLED: stopped by the user"] * 2
    assert asked(bench, "b") == "SIGINT "


@pytest.mark.long
def test_a_row_whose_time_is_over_is_not_asked_again_by_ctrl_c(bench: Bench) -> None:
    bench.script("train.py", ASKED)
    gates = {name: bench.signal_ready(f"{name}.gate") for name in "ab"}
    # Long enough for the script to get ready for the signal.
    path = bench.experiment("Workload,Timeout,File,Params\n1,10s,train.py,a\n1,,train.py,b\n")
    runner = bench.start(path.name)
    wait_until(lambda: asked(bench, "a"), "its time is over")
    wait_until((bench.folder / "b.up").exists, "the other runs")
    runner.send_signal(signal.SIGINT)
    wait_until(lambda: asked(bench, "b"), "the other was asked")
    for gate in gates.values():
        let_go(gate)
    assert runner.wait(180) == 128 + signal.SIGINT
    assert statuses(bench, path) == ["TIMEOUT: longer than 10 s", "KILLED: stopped by the user"]
    assert asked(bench, "a") == "SIGINT "


@pytest.mark.mlflow
def test_timeout_and_memory_that_ran_out_are_results_and_the_rest_goes_on(bench: Bench) -> None:
    bench.signal_ready("gate")
    bench.script("wait.py", NOTES_ITSELF + "open(pathlib.Path(__file__).with_name('gate')).read()")
    bench.script("train.py", NOTES_ITSELF)
    bench.script(
        "big.py",
        "class OutOfMemoryError(RuntimeError): pass\n"
        "OutOfMemoryError.__module__ = 'torch'\n"
        "raise OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has …')",
    )
    path = bench.experiment(
        "Workload,Timeout,File,Params\n1,1.5s,wait.py,a\n1,,train.py,b\n7,,big.py,\n8,,train.py,c\n"
    )
    done = bench.radt(path.name, code=1)
    timeout, neighbour, oom, last = statuses(bench, path)
    assert (timeout, neighbour, last) == ("TIMEOUT: longer than 1.5 s", "FINISHED", "FINISHED")
    assert oom.startswith("OOM: ")
    assert "2.00 GiB" in oom
    assert re.search(r"a  big  OOM: .*2\.00 GiB", done.stdout)
    assert "Tried to allocate 2.00 GiB" in done.stdout, "the last lines of its output"
    assert re.search(r"radt-data/runs/\w+/output\.log", done.stdout)
    run = next(run for run in bench.reader.runs() if run.status is RunStatus.TIMEOUT)
    assert run.end_reason == "longer than 1.5 s"
    bench.wait_delivered()
    tags = bench.mlflow.get_run(bench.rows(path)[0]["Run"]).data.tags
    assert tags["radt.status"] == "TIMEOUT"
    assert tags["radt.end_reason"] == "longer than 1.5 s"
    before = ran(bench)  # the first may have had no time to note itself
    bench.radt(path.name, code=1)
    assert ran(bench) == before, "a timeout and an OOM are results"


@pytest.mark.long
def test_a_workload_that_cannot_be_noted_in_the_file_does_not_run(bench: Bench) -> None:
    bench.script("away.py", NOTES_ITSELF + "os.rename('experiment.csv', 'away.csv')")
    bench.script("train.py", NOTES_ITSELF)
    path = bench.experiment("Workload,File,Params\n1,away.py,1\n2,train.py,2\n")
    done = bench.radt(path.name, "--wait-for-file", "0", code=1)
    assert ran(bench) == ["1"]
    assert "1 run FINISHED, 1 SKIPPED" in done.stdout
    assert "cannot be read: No such file or directory" in done.stderr
    assert "Traceback" not in done.stderr
    assert {run.workload: run.status for run in bench.reader.runs()} == {
        "1": RunStatus.FINISHED,
        "2": RunStatus.SKIPPED,
    }
    assert all(one.status.ended for one in bench.reader.workloads())


@pytest.mark.long
def test_a_file_that_is_away_or_something_else_is_waited_for(bench: Bench) -> None:
    bench.script(
        "edit.py",
        NOTES_ITSELF
        + "os.rename('experiment.csv', 'away.csv')\n"
        + "if sys.argv[1] == 'folder': os.mkdir('experiment.csv')\n"
        + "if sys.argv[1] == 'pipe': os.mkfifo('experiment.csv')\n"
        + "if sys.argv[1] == 'bytes': open('experiment.csv', 'wb').write(b'\\xff' * 99)\n"
        + "if sys.argv[1] == 'empty': open('experiment.csv', 'w')\n",
    )
    bench.script("train.py", NOTES_ITSELF)
    edits = ["away", "folder", "pipe", "bytes", "empty"]
    rows = "".join(f"{edit},edit.py,{edit}\n" for edit in edits)
    path = bench.experiment(f"Workload,File,Params\n{rows}last,train.py,last\n")
    runner = bench.start(path.name, "--wait-for-file", "1h")
    assert runner.stdout is not None
    said = []
    for line in runner.stdout:  # to its end; what hangs is killed with the test
        if "waiting up to" in line:
            said.append(line.strip())
            if path.is_dir():
                path.rmdir()
            path.unlink(missing_ok=True)
            path.with_name("away.csv").rename(path)
    assert runner.wait(180) == 0
    assert ran(bench) == [*edits, "last"]
    assert statuses(bench, path) == ["FINISHED"] * 6
    assert len(said) == 5
    # A busy machine takes a second or two of the hour before it is said.
    assert re.search(r"No such file or directory; waiting up to (1:00:00|59:\d\d)$", said[0])


@pytest.mark.long
def test_rows_that_were_changed_meanwhile_run_as_they_are_now_with_the_next_start(
    bench: Bench,
) -> None:
    text = "Workload,File,Params\n1,edit.py,1\n2,train.py,2a\n2,train.py,2b\n3,train.py,3\n"
    bench.script(
        "edit.py",
        NOTES_ITSELF
        + "path = pathlib.Path(__file__).with_name('experiment.csv')\n"
        + "path.write_text(path.read_text().replace('2b', '2c'))\n",
    )
    bench.script("train.py", NOTES_ITSELF)
    path = bench.experiment(text)
    done = bench.radt(path.name, code=1)
    assert ran(bench) == ["1", "3"], "what nobody asks for any more costs no time"
    first, second, third, last = statuses(bench, path)
    assert (first, third, last) == ("FINISHED", "", "FINISHED")
    reason = "line 4 changed since this start; the change takes effect at the next start"
    assert second == f"SKIPPED: {reason}"
    skipped = [run for run in bench.reader.runs() if run.status is RunStatus.SKIPPED]
    assert [run.end_reason for run in skipped] == [reason, reason]
    assert "rows that were changed or removed" not in done.stdout + done.stderr
    bench.radt(path.name)
    assert sorted(ran(bench)[2:]) == ["2a", "2c"]
    assert statuses(bench, path) == ["FINISHED"] * 4


def test_cooling_down_ends_with_ctrl_c(bench: Bench) -> None:
    bench.script("train.py", NOTES_ITSELF)
    path = bench.experiment("Workload,File,Params\nx,train.py,x\ny,train.py,y\n")
    runner = bench.start(path.name, "--cooldown", "1h")
    wait_until(lambda: statuses_or_none(bench, path)[:1] == ["FINISHED"], "the first has ended")
    runner.send_signal(signal.SIGINT)
    assert runner.wait(180) == 128 + signal.SIGINT
    assert statuses(bench, path) == ["FINISHED", ""]


def statuses_or_none(bench: Bench, path: Path) -> list[str]:
    return [row.get("Status", "") for row in bench.rows(path)]
