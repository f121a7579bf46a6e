"""Processes that begin after the end of the run that started them: they have a run of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from radt.collector.manifest import Manifest, RunnersEnd, forget, has_ended, mark_ended
from radt.home import Home
from radt.model import RunStatus
from radt.store.records import RunRecord
from radt.tags import LAUNCHED_BY
from tests.run.conftest import TIMEOUT_S, Alone, Joined
from tests.support.bench import wait_until
from tests.support.users import as_ordinary_user

#: What a job does, and a process that the job starts.
JOB = """\
import os, radt, subprocess, sys
with radt.Run("job", listeners="none") as run:
    run.log_metric("job", 1.0)
    inner = "import radt\\nwith radt.Run() as run: run.log_metric('inner', 1.0)"
    subprocess.run([sys.executable, "-c", inner], check=True)
print(sorted(name for name in os.environ if name.startswith("RADT_") or "RUN_ID" in name))
"""
#: Starts the job in the background; the job waits until the pipe is opened.
LAUNCHER = """\
import radt, subprocess, sys
with radt.Run("launcher", listeners="none") as run:
    run.log_metric("launcher", 1.0)
    command = f"read gate < gate.pipe; exec {sys.executable} job.py >job.out 2>&1"
    subprocess.Popen(["sh", "-c", command], start_new_session=True, stdout=subprocess.DEVNULL,
                     stderr=subprocess.DEVNULL)
"""


def metrics(home: Path, run: RunRecord) -> set[str]:
    from radt import load

    return set(load(run.run_id, home=home).metric)


def runs_of(alone: Alone) -> dict[str, RunRecord]:
    return {run.name: run for run in alone.reader.runs()}


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize(
    "source", [LAUNCHER, LAUNCHER + "    import os; os.kill(os.getpid(), 9)\n"]
)
def test_a_background_process_that_begins_late_has_a_run(alone: Alone, source: str) -> None:
    os.mkfifo(alone.folder / "gate.pipe")
    (alone.folder / "job.py").write_text(JOB, encoding="utf-8")
    alone.run(source, code=-9 if "kill" in source else 0)
    (alone.folder / "gate.pipe").write_text("go\n", encoding="utf-8")
    wait_until(
        lambda: "job" in runs_of(alone) and runs_of(alone)["job"].ended_ns is not None,
        "the job has ended",
    )
    runs = runs_of(alone)
    assert runs.keys() == {"launcher", "job"}
    assert metrics(alone.home, runs["launcher"]) == {"launcher"}
    assert metrics(alone.home, runs["job"]) == {"job", "inner"}
    assert alone.reader.tags(runs["job"].run_id)[LAUNCHED_BY] == runs["launcher"].run_id
    assert LAUNCHED_BY not in alone.reader.tags(runs["launcher"].run_id)


def test_a_job_that_a_row_has_submitted_has_a_run(alone: Alone) -> None:
    (alone.folder / "row.py").write_text(
        "import json, os, radt\n"
        "with radt.Run() as run: json.dump(dict(os.environ), open('environ.json', 'w'))\n"
    )
    (alone.folder / "job.py").write_text(JOB, encoding="utf-8")

    def run(*command: str, env: dict[str, str]) -> str:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=alone.folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("-m", "radt", "row.py", env=alone.env)
    inherited = json.loads((alone.folder / "environ.json").read_text())
    left = run("job.py", env=inherited)
    row, job = sorted(alone.reader.runs(), key=lambda run: run.created_ns)
    assert (job.name, job.status) == ("job", RunStatus.FINISHED)
    assert metrics(alone.home, job) == {"job", "inner"}
    assert alone.reader.tags(job.run_id)[LAUNCHED_BY] == row.run_id
    assert "RADT_HOME" in left and "RUN_ID" not in left and "RADT_LETTER" not in left


def test_a_folder_that_nobody_may_look_into_does_not_say_that_its_run_has_ended(
    tmp_path: Path,
) -> None:
    (tmp_path / "runs" / "r").mkdir(parents=True)
    (tmp_path / "runs").chmod(0o000)
    try:
        with as_ordinary_user():
            assert not has_ended(tmp_path / "runs" / "r")
    finally:
        (tmp_path / "runs").chmod(0o700)


def test_a_process_that_has_begun_goes_on_in_its_run(joined: Joined) -> None:
    joined.run(
        "import os, pathlib, radt\n"
        "with radt.Run() as run:\n"
        "    pathlib.Path(os.environ['RADT_RUN_DIR'], 'ended').touch()\n"
        "    run.log_metric('loss', 1)\n"
        "with radt.Run() as run: run.log_metric('loss', 2)\n"
    )
    assert joined.found().values("loss") == [1, 2]


def describing(tmp_path: Path) -> Manifest:
    """A run whose process has ended."""
    home = Home(tmp_path / "data")
    source = (
        "import sys\n"
        "from pathlib import Path\n"
        "from radt.collector.manifest import Manifest\n"
        "from radt.collector.protocol import Registration, RunRequest\n"
        "folder = Path(sys.argv[1])\n"
        "run = Registration('r', str(folder / 'radt.db'), str(folder))\n"
        "import os\n"
        "Manifest.of_this_process(RunRequest(run, 'w', 'e', os.getpid(), 1)).write()\n"
    )
    folder = home.run_dir("r").create().path
    subprocess.run([sys.executable, "-c", source, str(folder)], check=True)
    manifest = Manifest.read(folder)
    assert manifest is not None
    return manifest


def test_what_says_that_a_run_has_ended(tmp_path: Path) -> None:
    manifest = describing(tmp_path)
    folder = Path(manifest.run.registration.spool)
    assert has_ended(folder), "its process has ended, and is seen here"
    for elsewhere in (
        replace(manifest, pid_namespace="pid:[1]"),  # a container: it sees none of the others
        replace(manifest, pid_namespace=""),
        replace(manifest, boot="another machine"),
    ):
        elsewhere.write()
        assert not has_ended(folder), elsewhere
    mark_ended(folder)
    assert has_ended(folder), "as its process, its runner or the collector says"
    (folder / "ended").unlink()
    RunnersEnd(RunStatus.FINISHED, 1).write(folder)
    assert has_ended(folder), "as its runner says without a collector"
    forget(folder)
    assert [path.name for path in folder.iterdir() if path.is_file()] == ["ended"]
    assert has_ended(folder), "all of it is in the store"
    assert has_ended(folder / "gone"), "it was deleted, or is on another machine"
    assert not has_ended(tmp_path), "nothing is known of it"
    mark_ended(folder / "gone")
    assert not (folder / "gone").exists()
