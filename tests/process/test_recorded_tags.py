"""What a real experiment records is what its readers expect."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from radt.units import parse_duration_s
from tests.support.bench import Bench


@pytest.mark.long
@pytest.mark.mlflow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_cpus_timeout_and_columns_of_a_real_experiment(bench: Bench) -> None:
    """CPUs are shared out; columns fill in the command; tags and params are in store and MLflow."""
    cpus = sorted(os.sched_getaffinity(0))
    bench.script("pkg/__init__.py", "")
    bench.script(
        "pkg/fit.py", "import os, sys; print(sorted(os.sched_getaffinity(0)), sys.argv[1:])"
    )
    command = "-m pkg.fit,--model {Model} --opt={optimizer} {Letter} {{other}}"
    path = bench.experiment(
        "Workload,Name,Cpus,Timeout,Model,Data,Optimizer,File,Params\n"
        f"1,counted,1,14d,resnet 18,/data/x,adam,{command}\n"
        f"1,counted too,1,,resnet 18,/data/x,adam,{command}\n"
        f"2,listed,#{cpus[-1]},,resnet 18,/data/x,adam,{command}\n"
        f"2,free,,,resnet 18,/data/x,adam,{command}\n"
    )
    bench.radt(path.name)
    bench.wait_delivered()
    reader = bench.reader
    given = {}
    for run in reader.runs():
        log = Path(run.spool, "output.log").read_text()
        delivered = bench.mlflow.get_run(str(run.mlflow_run_id)).data
        for tags in (reader.tags(run.run_id), delivered.tags):
            assert tags["radt.cpu_count"] == str(len(cpus))
            given[run.name] = tags.get("radt.cpus")
        own = [int(given[run.name])] if run.name != "free" else cpus
        assert log.strip() == (
            f"{own} ['--model', 'resnet 18', '--opt=adam', '{run.letter}', '{{other}}']"
        )
        for params in (reader.params(run.run_id), delivered.params):
            columns = [params[name] for name in ("Model", "Data", "Optimizer", "opt")]
            assert columns == ["resnet 18", "/data/x", "adam", "adam"]
            if run.name == "counted":
                assert params["Cpus"] == "1"
                assert parse_duration_s(params["Timeout"]) == 14 * 86400
    assert given["counted"] != given["counted too"]
    assert given["listed"] == str(cpus[-1])
    assert given["free"] is None


@pytest.mark.long
def test_what_the_inventory_does_not_find_out_is_a_warning_once(bench: Bench) -> None:
    (bench.folder / ".git" / "objects").mkdir(parents=True)
    (bench.folder / ".git" / "refs").mkdir()
    (bench.folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (bench.folder / ".git" / "config").write_text("[core]\n\trepositoryformatversion = 99\n")
    script = bench.script("train.py", "import radt\nwith radt.Run(): pass\n")
    path = bench.experiment(f"Workload,File\n1,{script.name}\n1,{script.name}\n2,{script.name}\n")
    run = bench.radt(path.name)
    alone = subprocess.run(
        [sys.executable, script],
        env=bench.env | {"RADT_QUIET": "1"},
        cwd=bench.folder,
        capture_output=True,
        text=True,
        check=True,
    )
    for output in (run.stdout + run.stderr, alone.stderr):
        (line,) = [line for line in output.splitlines() if "the git commit is unknown" in line]
        assert "99" in line
