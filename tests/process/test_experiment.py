"""`radt experiment.csv` from beginning to end, seen from outside: file, store, MLflow, console."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import radt
from radt.model import MarkerKind, RunStatus
from tests.support.bench import Bench

TRAIN = """\
import argparse, radt
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--fail", action="store_true")
args = parser.parse_args()
with radt.Run() as run:
    run.log_param("device", "cpu")
    run.set_tag("flavour", "plain")
    for epoch in run.epochs(3):
        for step in range(100):
            run.log_metric("loss", args.lr / (1 + step), epoch * 100 + step)
        with run.span("validate"):
            run.log_metric("accuracy", epoch / 3, epoch)
    run.log_text("kept", "notes.txt")
    if args.fail:
        raise SystemExit(5)
print("done with lr", args.lr)
"""

EXPERIMENT = """\
# a comment stays
Experiment,Workload,Name,Status,Run,Devices,Collocation,Listeners,    File,Params
study,1,alone,,,cpu,-,top@50ms,train.py,--lr 0.5
study,2,left,,,cpu,-,top@50ms,train.py,--lr 0.25
study,2,right,,,cpu,-,top@50ms,train.py,"--lr 0.125"
"""


@pytest.fixture
def study(bench: Bench) -> Path:
    bench.script("train.py", TRAIN)
    return bench.experiment(EXPERIMENT)


@pytest.mark.mlflow
def test_a_whole_experiment(bench: Bench, study: Path) -> None:
    done = bench.radt("experiment.csv")
    statuses_and_ids_are_written_back_and_all_else_is_kept(bench, study, done.stdout + done.stderr)
    every_value_is_in_the_store(bench, study)
    mlflow_has_runs_params_tags_metrics_and_artifacts(bench, study)


@pytest.mark.long
def test_without_mlflow_everything_is_in_the_store(bench: Bench, study: Path) -> None:
    bench.script("train.py", TRAIN.replace("run.log_param", "run.log_figure; run.log_param"))
    done = bench.radt("experiment.csv")
    assert "no MLflow" in done.stdout
    assert "MLflow at" not in done.stdout, "nobody waits for it"
    assert "it is recorded without MLflow (tracking-uri is none)" in done.stdout
    every_value_is_in_the_store(bench, study)
    runs = bench.reader.runs()
    assert sorted(row["Run"] for row in bench.rows(study)) == sorted(run.run_id for run in runs)
    assert not (bench.home / "mlflow.db").exists()
    for run in runs:
        assert Path(run.spool, "artifacts", "notes.txt").read_text(encoding="utf-8") == "kept"
    assert "tracking-uri is none" in bench.radt("sync").stdout
    assert "Expected" not in bench.radt("report", "study").stderr
    assert "tracking-uri is none" in bench.radt("db", "check", "--mlflow", code=2).stderr


def statuses_and_ids_are_written_back_and_all_else_is_kept(
    bench: Bench, study: Path, output: str
) -> None:
    rows = bench.rows(study)
    assert [row["Status"] for row in rows] == ["FINISHED"] * 3
    assert len({row["Run"] for row in rows}) == 3
    text = study.read_text(encoding="utf-8")
    assert text.startswith("# a comment stays\nExperiment,Workload,")
    assert text.count('"--lr 0.125"') == 1
    assert "done with lr 0.5" in output
    assert "3 runs FINISHED" in output
    assert "Traceback" not in output
    lines = output.splitlines()
    header = next(n for n, line in enumerate(lines) if line.split()[:2] == ["workload", "runs"])
    assert [line.split()[0] for line in lines[header + 1 : header + 4]] == ["1", "2", "right"], (
        lines
    )


def every_value_is_in_the_store(bench: Bench, study: Path) -> None:
    run_id = bench.rows(study)[1]["Run"]
    frame = radt.load(run_id, home=bench.home)
    loss = frame[frame["metric"] == "loss"]
    assert loss["value"].tolist() == [0.25 / (1 + n) for _ in range(3) for n in range(100)]
    assert loss["step"].tolist() == [epoch * 100 + n for epoch in (1, 2, 3) for n in range(100)]
    assert loss["time"].is_monotonic_increasing
    assert set(frame["listener"]) == {"run", "top"}
    record = bench.reader.find_run(run_id)
    assert (record.status, record.exit_code, record.letter) == (RunStatus.FINISHED, 0, "a")
    epochs = [m for m in bench.reader.markers([record.run_id]) if m.kind is MarkerKind.EPOCH]
    assert [epoch.step for epoch in epochs] == [1, 2, 3]
    assert all(epoch.end_ns is not None and epoch.end_ns > epoch.start_ns for epoch in epochs)
    left = [path.name for path in Path(record.spool, "journal").rglob("*.bin")]
    assert left == [], "what is in the store needs no journal"
    workload = bench.reader.workload(record.workload_id)
    assert workload.start_skew_ns is not None
    assert workload.start_skew_ns > 0
    (alone,) = (one for one in bench.reader.workloads("study") if one.label == "1")
    assert alone.start_skew_ns is None, "one run has none"
    assert workload.status is RunStatus.FINISHED


def mlflow_has_runs_params_tags_metrics_and_artifacts(bench: Bench, study: Path) -> None:
    bench.wait_delivered()
    runs = bench.mlflow_runs("study")
    assert set(runs) == {"workload 1", "workload 2", "(1 a) alone", "(2 a) left", "(2 b) right"}
    right = runs["(2 b) right"]
    assert right.info.status == "FINISHED"
    assert right.data.params["lr"] == "0.125"
    assert right.data.params["File"] == "train.py"
    assert right.data.params["device"] == "cpu"
    assert right.data.tags["mlflow.parentRunId"] == runs["workload 2"].info.run_id
    assert right.data.tags["radt.workload"] == "2"
    assert right.data.tags["flavour"] == "plain"
    history = bench.mlflow.get_metric_history(right.info.run_id, "loss")
    assert len(history) == 300
    assert any(name.startswith("system/") for name in right.data.metrics)
    artifacts = {item.path for item in bench.mlflow.list_artifacts(right.info.run_id)}
    assert {"notes.txt", "output.log", "environment"} <= artifacts
    log = bench.mlflow.download_artifacts(right.info.run_id, "output.log")
    assert Path(log).read_text(encoding="utf-8") == "done with lr 0.125\n"
    ids = {run.data.tags["radt.run_id"] for run in runs.values() if "radt.run_id" in run.data.tags}
    assert {row["Run"] for row in bench.rows(study)} == ids


@pytest.mark.shared_collector
def test_second_start_runs_nothing_and_rerun_only_what_failed(bench: Bench) -> None:
    bench.script("train.py", TRAIN)
    path = bench.experiment(
        "Experiment,Workload,Devices,Listeners,File,Params,Status,Run\n"
        "study,1,cpu,none,train.py,,,\n"
        "study,2,cpu,none,train.py,--fail,,\n"
        "study,2,cpu,none,train.py,--lr 2,,\n"
    )
    first = bench.radt("experiment.csv", code=1)
    before = bench.rows(path)
    assert [row["Status"] for row in before] == ["FINISHED", "FAILED: exit code 5", "FINISHED"]
    assert "FAILED: exit code 5" in first.stdout
    bench.radt("experiment.csv", code=1)
    assert bench.rows(path) == before
    bench.radt("experiment.csv", "--rerun", code=1)
    after = bench.rows(path)
    again = [a["Run"] != b["Run"] for a, b in zip(after, before, strict=True)]
    assert again == [False, True, True], "what ran together runs together"


@pytest.mark.shared_collector
def test_one_script_runs_by_itself_and_gets_all_its_arguments(bench: Bench) -> None:
    bench.script(
        "args.py",
        "import json, os, sys\nprint(json.dumps([sys.argv[1:], os.environ['RADT_LETTER']]))",
    )
    arguments = ["--rerun", "--name", "x y", "", "it's", "--", "-q"]
    done = bench.radt("-l", "none", "-n", "mine", "args.py", *arguments)
    line = next(line for line in done.stdout.splitlines() if "[[" in line)
    assert json.loads(line[line.index("[[") :]) == [arguments, "a"]
    (run,) = bench.reader.runs()
    assert (run.name, run.status) == ("mine", RunStatus.FINISHED)


@pytest.mark.mlflow
def test_hostile_names_work(bench: Bench) -> None:
    name = "ünï \"quoted\" 'name' 🚀"
    bench.script(
        "dir with 'quote'/tr ain.py",
        "import sys, radt\n"
        "with radt.Run() as run: run.log_metric('löss \"x\"', 1.5)\n"
        "open('args.txt', 'w').write(repr(sys.argv[1:]))\n",
    )
    quoted = name.replace('"', '""')
    path = bench.experiment(
        "Experiment,Workload,Name,File,Params,Listeners\n"
        f'"{quoted}","w\n1","{quoted}","dir with \'quote\'/tr ain.py",'
        '"\'a b\' ""c\nd"" ;rm $HOME",none\n'
    )
    bench.radt("experiment.csv")
    args = (bench.folder / "dir with 'quote'" / "args.txt").read_text(encoding="utf-8")
    assert args == repr(["a b", "c\nd", ";rm", "$HOME"])
    (run,) = bench.reader.runs()
    assert (run.experiment, run.workload, run.name) == (name, "w\n1", name)
    frame = radt.load(run.run_id, home=bench.home)
    assert frame["metric"].tolist() == ['löss "x"']
    bench.wait_delivered()
    assert bench.reader.run(run.run_id).mlflow_run_id is not None
    assert path.read_text(encoding="utf-8").count("FINISHED") == 1


@pytest.mark.shared_collector
@pytest.mark.long
def test_a_row_that_becomes_another_program_ends_by_that_ones_exit_code(bench: Bench) -> None:
    bench.script(
        "become.py",
        "import os, radt, sys\n"
        "with radt.Run() as run:\n"
        "    run.log_metric('loss', 1)\n"
        "    if sys.argv[1] == 'inside': os.execv('/bin/sh', ['sh', '-c', f'exit {sys.argv[2]}'])\n"
        "os.execv('/bin/sh', ['sh', '-c', f'exit {sys.argv[2]}'])\n",
    )
    ends = [(where, code) for where in ("inside", "after") for code in (0, 3)]
    rows = "".join(f"1,become.py,{where} {code},none\n" for where, code in ends)
    path = bench.experiment(f"Workload,File,Params,Listeners\n{rows}")
    bench.radt(path.name, code=1)
    runs = sorted(bench.reader.runs(), key=lambda run: run.letter)
    expected = {0: (RunStatus.FINISHED, 0, ""), 3: (RunStatus.FAILED, 3, "exit code 3")}
    found = [(run.status, run.exit_code, run.end_reason or "") for run in runs]
    assert found == [expected[code] for _, code in ends]


def test_a_bad_file_starts_nothing_and_stays_as_it_is(bench: Bench) -> None:
    bench.script("train.py", TRAIN)
    text = "Experiment,Workload,File,Listeners\nx,1,train.py,topp\nx,1,absent.py,top\n"
    path = bench.experiment(text)
    done = bench.radt("experiment.csv", code=2)
    assert "2 problems, nothing was started" in done.stderr + done.stdout
    assert path.read_text(encoding="utf-8") == text
    assert not (bench.home / "radt.db").exists()


def test_dry_run_shows_the_plan_and_starts_nothing(bench: Bench, study: Path) -> None:
    before = study.read_bytes()
    done = bench.radt("experiment.csv", "--dry-run")
    assert "right" in done.stdout
    assert study.read_bytes() == before
    assert not (bench.home / "radt.db").exists()
