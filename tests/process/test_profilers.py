"""Rows under Nsight, with stand-ins for it: prefix, reports, marks, ends."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from radt import tags
from radt.model import RunStatus
from radt.store.records import RunRecord
from tests.support.bench import Bench, wait_until

FAKE = Path(__file__).parents[1] / "support" / "fake_nsight.py"
HEAD = "Workload,Name,Devices,Listeners,File,Params\n"
#: Does what its arguments say, and tells the stand-in what it would see.
TRAIN = """
import os, signal, sys, time
told = os.environ.get("FAKE_RANGES")
def tell(text):
    if told:
        with open(told, "a") as file:
            file.write(text + "\\n")
tell(f"pid {os.getpid()}")
for word in sys.argv[1:]:
    if word == "ranges":
        for _ in range(2):
            for line in ("push profile", "kernel", "pop"):
                tell(line)
    elif word == "kernel":
        tell("kernel")
    elif word == "hang":
        open("hanging", "w").close()
        time.sleep(600)
    elif word.startswith("-"):
        os.kill(os.getpid(), -int(word))
    elif not word.startswith("trouble:"):
        sys.exit(int(word))
"""


@dataclass
class Tools:
    """The stand-ins: what was asked of them, and what is to go wrong."""

    bench: Bench
    state: Path

    @property
    def calls(self) -> list[list[str]]:
        file = self.state / "calls"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def run(self, rows: str, code: int | None = 0) -> str:
        """Run rows and return what radt said."""
        self.bench.experiment(HEAD + rows)
        done = self.bench.radt("experiment.csv", code=code)
        return done.stdout + done.stderr


@pytest.fixture
def tools(bench: Bench, tmp_path: Path) -> Tools:
    folder, state = tmp_path / "bin", tmp_path / "state"
    folder.mkdir()
    state.mkdir()
    for name in ("nsys", "ncu"):
        tool = folder / name
        tool.write_text(f"#!{sys.executable}\n{FAKE.read_text(encoding='utf-8')}")
        tool.chmod(0o755)
    bench.env |= {"PATH": f"{folder}:{bench.env['PATH']}", "FAKE_STATE": str(state)}
    bench.script("train.py", TRAIN)
    return Tools(bench, state)


def only_run(bench: Bench) -> RunRecord:
    (run,) = bench.reader.runs()
    return run


def tags_of(bench: Bench, run: RunRecord) -> dict[str, str]:
    return bench.reader.tags_of([run.run_id])[run.run_id]


def reports(run: RunRecord) -> Sequence[str]:
    return sorted(path.name for path in Path(run.spool, "artifacts", "profiles").iterdir())


def by_name(bench: Bench) -> dict[str, RunRecord]:
    return {run.name: run for run in bench.reader.runs()}


def test_reports_marks_and_ends(tools: Tools, bench: Bench) -> None:
    """Rows one after another under each of them; the program's end is the run's."""
    bench.experiment(
        f"Experiment,{HEAD}"
        "a %100,1,nsys,cpu,top+nsys,train.py,ranges\n"
        "a %100,2,nsysraw,cpu,nsysraw,train.py,3\n"
        "a %100,3,ncu,cpu,ncu,train.py,ranges -15\n"
        "a %100,4,ncuraw,cpu,ncuraw:kernels=7,train.py,kernel -9\n"
        "a %100,5,ncuattach,cpu,ncuattach:port=50000,train.py,\n"
    )
    said = bench.radt("experiment.csv", code=1).stdout

    runs = by_name(bench)
    assert {name: (run.status, run.exit_code, run.end_reason) for name, run in runs.items()} == {
        "nsys": (RunStatus.FINISHED, 0, ""),
        "nsysraw": (RunStatus.FAILED, 3, "exit code 3"),
        "ncu": (RunStatus.KILLED, -15, "killed by SIGTERM"),
        "ncuraw": (RunStatus.KILLED, -9, "killed by SIGKILL"),
        "ncuattach": (RunStatus.FINISHED, 0, ""),
    }
    assert {name: reports(run) for name, run in runs.items()} == {
        "nsys": ["nsys_a-100_1_a.1.nsys-rep", "nsys_a-100_1_a.2.nsys-rep"],
        "nsysraw": ["nsysraw_a-100_2_a.nsys-rep"],
        "ncu": ["ncu_a-100_3_a.ncu-rep"],
        "ncuraw": ["ncuraw_a-100_4_a.ncu-rep"],
        "ncuattach": [],
    }
    for name, run in runs.items():
        assert tags_of(bench, run)[tags.PROFILED] == name
        assert (tags.PROFILER_PROBLEM in tags_of(bench, run)) == (name == "ncuattach")
    notice = tags_of(bench, runs["ncuattach"])[tags.PROFILER_NOTICE]
    assert "--mode attach --hostname 127.0.0.1 --port 50000" in notice
    assert "a waits at its first CUDA call" in said
    assert "not installed" not in said  # the collector is not asked for profilers
    assert " --launch-count 7 " in " ".join(tools.calls[3])


@pytest.mark.long
@pytest.mark.mlflow
def test_reports_are_artifacts_and_comparisons_leave_the_workload_out(
    tools: Tools, bench: Bench
) -> None:
    said = tools.run(
        "1,net,cpu,nsys,train.py,ranges\n1,other,cpu,none,train.py,\n2,alone,cpu,none,train.py,\n"
    )
    assert "3 runs, 1 counts: 2 profiled" in said
    shown = bench.shown("report", "experiment")
    assert "alone" in shown and "other" not in shown
    shown = bench.shown("report", "experiment", "--profiled")
    assert "alone" in shown and "other" in shown and "net (nsys)" in shown

    bench.wait_delivered()
    runs = bench.mlflow_runs("experiment")
    net, other = runs["(1 a) net"], runs["(1 b) other"]
    found = bench.mlflow.list_artifacts(net.info.run_id, "profiles")
    assert [file.path for file in found] == [
        "profiles/nsys_experiment_1_a.1.nsys-rep",
        "profiles/nsys_experiment_1_a.2.nsys-rep",
    ]
    assert net.data.tags[tags.PROFILED] == "nsys"
    assert tags.PROFILED not in other.data.tags
    assert other.data.tags[tags.PROFILED_BESIDE] == "a"
    assert tags.PROFILED_BESIDE not in net.data.tags
    assert len(tools.calls) == 1


def test_what_can_go_wrong(tools: Tools, bench: Bench) -> None:
    said = tools.run(
        "1,no range,cpu,nsys,train.py,\n"
        "2,no kernel,cpu,ncu,train.py,kernel\n"
        "3,permission,cpu,ncu,train.py,ranges trouble:permission\n"
        "4,crashes,cpu,nsys,train.py,ranges trouble:crashes\n"
        "5,refuses,cpu,ncu,train.py,ranges trouble:refuses\n"
        "6,early,cpu,nsys,train.py,hang trouble:early\n"
        "7,shutdown,cpu,ncu,train.py,ranges hang trouble:shutdown\n",
        code=1,
    )

    runs = by_name(bench)
    assert {name: (run.status, run.end_reason) for name, run in runs.items()} == {
        "no range": (RunStatus.FINISHED, ""),
        "no kernel": (RunStatus.FINISHED, ""),
        "permission": (RunStatus.FINISHED, ""),
        "crashes": (RunStatus.FINISHED, ""),
        "refuses": (
            RunStatus.FAILED,
            "ncu ended before the program did (exit code 9): "
            "Failed to prepare the application for profiling",
        ),
        "early": (RunStatus.FAILED, "nsys ended before the program did (exit code 0)"),
        "shutdown": (RunStatus.FAILED, 'ncu ended it: Failed to profile "gemm" in process 1'),
    }
    problems = {
        name: tags_of(bench, run).get(tags.PROFILER_PROBLEM, "") for name, run in runs.items()
    }
    assert problems["no range"] == problems["crashes"] == "nsys wrote no report"
    assert problems["no kernel"].endswith("no report: no kernel ran while it recorded")
    assert "NVreg_RestrictProfilingToAdminUsers=0" in problems["permission"]
    assert all(" ".join(text.split()) in " ".join(said.split()) for text in problems.values())


@pytest.mark.long
def test_a_timeout_ends_the_program_and_then_its_report_is_written(
    tools: Tools, bench: Bench
) -> None:
    bench.experiment(f"Timeout,{HEAD}10s,1,late,cpu,nsysraw,train.py,hang\n")
    bench.radt("experiment.csv", code=1)

    run = only_run(bench)
    assert (run.status, run.end_reason) == (RunStatus.TIMEOUT, "longer than 10 s")
    (report,) = Path(run.spool, "artifacts", "profiles").iterdir()
    assert "[<Signals.SIGINT" in report.read_text() or "[2]" in report.read_text()


@pytest.mark.long
def test_after_ctrl_c_the_report_is_written_before_anything_is_killed(
    tools: Tools, bench: Bench
) -> None:
    os.mkfifo(tools.state / "go")
    tools.bench.experiment(HEAD + "1,net,cpu,nsysraw,train.py,hang trouble:slow\n")
    process = bench.start("experiment.csv")
    wait_until((bench.folder / "hanging").exists, "the program runs")
    process.send_signal(signal.SIGINT)
    wait_until((tools.state / "finalising").exists, "the program has ended")
    (tools.state / "go").write_text("")
    process.wait(180)

    run = only_run(bench)
    assert (run.status, run.end_reason) == (RunStatus.KILLED, "stopped by the user")
    assert len(reports(run)) == 1


def test_what_is_not_installed_starts_nothing(tools: Tools, bench: Bench) -> None:
    bench.env |= {"PATH": os.environ["PATH"], "PYTHONPATH": str(bench.folder / "nowhere")}
    elsewhere = "from pathlib import Path\nfrom radt.listeners import nsight\n"
    bench.script("nowhere/sitecustomize.py", elsewhere + "nsight._ROOT = Path(__file__).parent\n")
    said = tools.run("1,net,cpu,nsys,train.py,\n", code=2)

    assert "nsys is neither on PATH nor in the usual folders" in " ".join(said.split())
    assert not (bench.home / "radt.db").exists()
