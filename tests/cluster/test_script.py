"""The batch script, run by real shells beside a srun that checks what it is asked."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from radt.cluster.engine import Shape
from radt.cluster.script import array_request, batch_script, check_setup
from radt.cluster.settings import ClusterSettings
from radt.cluster.spool import Spool
from radt.cluster.submission import JobArray, JobKey, Submission
from radt.errors import UsageError
from radt.experiment.plan import WorkloadKey
from tests.support.waiting import wait_until

SHELLS = [shell for shell in ("/bin/sh", "/bin/bash") if Path(shell).exists()]
JOBS = 4
#: Notes its arguments and signals; ends when it is told to, with a code of its own.
SRUN = """\
#!{python}
import json, os, signal, sys, time
from pathlib import Path
notes = Path(os.environ["NOTES"])
told = []
def note(number, frame):
    told.append(signal.Signals(number).name)
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, note)
(notes / "asked.new").write_text(json.dumps(sys.argv[1:]))
(notes / "asked.new").rename(notes / "asked")
if os.environ.get("SRUN_WAITS"):
    while not told and not (notes / "go").exists():
        time.sleep(0.02)
(notes / "told").write_text(" ".join(told))
sys.exit(int(os.environ.get("SRUN_CODE", "0")))
"""


@dataclass
class Bench:
    """A submission's folder and programs that stand in for Slurm's."""

    spool: Spool
    notes: Path
    programs: Path
    shell: str
    settings: ClusterSettings = field(default_factory=ClusterSettings)
    python: str = sys.executable

    def start(self, index: int = 0, **variables: str) -> subprocess.Popen[str]:
        script = batch_script(self.spool.path, 0, self.settings, python=self.python)
        path = self.notes / f"script.{index}.sh"
        path.write_text(script, encoding="utf-8")
        return subprocess.Popen(
            [self.shell, path],
            env=os.environ
            | {
                "PATH": f"{self.programs}:{os.environ['PATH']}",
                "NOTES": str(self.notes),
                "SLURM_ARRAY_JOB_ID": "12",
                "SLURM_ARRAY_TASK_ID": str(index),
                "SLURM_RESTART_COUNT": "1",
                "SLURM_CPUS_ON_NODE": "4",
                "SLURMD_NODENAME": 'gpu-"7"',
            }
            | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @contextmanager
    def started(self, index: int = 0, **variables: str) -> Iterator[subprocess.Popen[str]]:
        process = self.start(index, **variables)
        try:
            yield process
        finally:
            (self.notes / "go").touch()  # srun ends, too
            process.kill()
            process.communicate(timeout=180)

    def run(self, index: int = 0, **variables: str) -> tuple[int, str]:
        process = self.start(index, **variables)
        output, _ = process.communicate(timeout=180)
        return process.returncode, output

    @property
    def asked(self) -> list[str] | None:
        """What srun was asked; None if it was not called."""
        path = self.notes / "asked"
        return json.loads(path.read_text()) if path.exists() else None

    def reasons(self, index: int) -> list[str]:
        """Why the attempts of a job ended, of which none has any row."""
        views = [attempt.view() for attempt in self.spool.attempts(JobKey(0, index))]
        for view in views:
            assert view.ended and not view.statuses and view.start is not None
            start = (view.start.host, view.start.job_id, view.start.restarts)
            assert start == ('gpu-"7"', f"12_{index}", 1)
        return [view.reason for view in views]


@pytest.fixture(params=SHELLS)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    keys = tuple((WorkloadKey("e", str(number)),) for number in range(JOBS))
    submission = Submission(
        *("20261125-203000-1a2b", "slurm", "e.csv", "login", "me", "1.0", sys.executable),
        arrays=(JobArray(Shape(), keys),),
    )
    spool = Spool.create(tmp_path / "it's $HOME ä", submission, b"File\ntrain.py\n")
    notes, programs = tmp_path / "notes", tmp_path / "bin"
    notes.mkdir()
    programs.mkdir()
    srun = programs / "srun"
    srun.write_text(SRUN.format(python=sys.executable), encoding="utf-8")
    srun.chmod(0o755)
    yield Bench(spool, notes, programs, request.param)


def test_the_runner_is_a_step(bench: Bench) -> None:
    code, output = bench.run(3)

    assert (code, output) == (0, "")
    assert bench.asked == [
        *("--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "--export=ALL", "--input=none"),
        *("--kill-on-bad-exit=0", "--wait=0"),
        *("--cpus-per-task=4", sys.executable, "-P", "-m", "radt.cluster.noderunner"),
        *(str(bench.spool.path), "0", "3"),
    ]
    assert bench.reasons(3) == []  # the runner's own to make


def test_steps_get_the_cpus_of_the_job(bench: Bench) -> None:
    bench.run(SLURM_CPUS_PER_TASK="8")

    assert bench.asked is not None and "--cpus-per-task=8" in bench.asked


@pytest.mark.parametrize("code", [0, 1, 130, 143])
def test_its_code_is_the_runners(bench: Bench, code: int) -> None:
    assert bench.run(SRUN_CODE=str(code)) == (code, "")


def test_the_signal_before_the_time_limit_is_handed_on(bench: Bench) -> None:
    with bench.started(SRUN_WAITS="1", SRUN_CODE="7") as process:
        wait_until(lambda: bench.asked is not None, "srun is called")
        process.send_signal(signal.SIGUSR1)
        output, _ = process.communicate(timeout=180)

    assert (process.returncode, output) == (7, "")
    assert (bench.notes / "told").read_text() == "SIGUSR1"


def test_the_script_outlives_sigterm(bench: Bench) -> None:
    """It is for the step, which Slurm tells; srun would kill it."""
    with bench.started(SRUN_WAITS="1", SRUN_CODE="7") as process:
        wait_until(lambda: bench.asked is not None, "srun is called")
        process.send_signal(signal.SIGTERM)
        (bench.notes / "go").touch()
        output, _ = process.communicate(timeout=180)

    assert (process.returncode, output) == (7, "")
    assert (bench.notes / "told").read_text() == ""


def test_a_signal_while_the_node_is_set_up(bench: Bench) -> None:
    bench.settings = replace(bench.settings, setup=("kill -s TERM $$",))

    assert bench.run() == (1, "")
    assert bench.asked is None and bench.reasons(0) == []


def test_lines_of_the_site_come_first(bench: Bench) -> None:
    seen = bench.notes / "seen"
    lines = ("MINE='a b'; export MINE", f"echo \"$MINE\" >'{seen}'  # noted", '[ -n "${NO-x}" ]')
    bench.settings = replace(bench.settings, setup=lines)

    assert bench.run() == (0, "")
    assert seen.read_text() == "a b\n" and bench.asked is not None


def test_a_line_that_fails_ends_the_job(bench: Bench) -> None:
    bench.settings = replace(bench.settings, setup=('cd "/no such\\folder"', "exit 9"))

    code, output = bench.run()

    assert code == 1 and bench.asked is None
    (reason,) = bench.reasons(0)
    assert reason == 'setup failed (cd "/no such\\folder") on gpu-"7"'
    assert f"radt: {reason}" in output


def test_a_missing_interpreter_fails_two_jobs_and_holds_the_rest(bench: Bench) -> None:
    bench.python = "/no/such/python"
    why = '/no/such/python is missing on gpu-"7"'

    codes = [bench.run(index)[0] for index in range(JOBS)]

    assert codes == [1] * JOBS and bench.asked is None
    assert bench.reasons(0) == bench.reasons(1) == [why]
    assert bench.spool.held == f"two jobs could not begin: {why}"
    assert bench.reasons(2) == bench.reasons(3) == [bench.spool.held]


def test_jobs_that_start_at_once(bench: Bench) -> None:
    """None of them knows of the others before it fails."""
    bench.python = "/no/such/python"

    jobs = [bench.start(index) for index in range(JOBS)]
    for job in jobs:
        job.communicate(timeout=180)

    held = [bench.reasons(index) for index in range(JOBS)].count([bench.spool.held])
    assert held == JOBS - 2


def test_an_interpreter_without_radt(bench: Bench, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho \"No module named 'radt'\" >&2\nexit 1\n")
    python.chmod(0o755)
    bench.python = str(python)

    code, output = bench.run()

    assert code == 1 and "No module named 'radt'" in output
    assert bench.reasons(0) == [f'{python} cannot import radt on gpu-"7"']


def test_a_held_submission_starts_nothing(bench: Bench) -> None:
    bench.spool.hold('node "7"\tis\n \x1b[31mbroken')
    bench.run()

    assert bench.asked is None
    assert bench.reasons(0) == [bench.spool.held] == ['node "7" is [31mbroken']


def test_released_jobs_may_fail_again(bench: Bench) -> None:
    bench.python = "/no/such/python"
    for index in range(2):
        bench.run(index)
    assert bench.spool.held

    bench.spool.release()
    bench.run(0)

    assert bench.spool.held == ""
    assert len(bench.reasons(0)) == 2  # the second attempt is the next one


def test_a_folder_that_is_not_there(bench: Bench) -> None:
    shutil.rmtree(bench.spool.path)
    bench.spool.path.touch()  # nothing can be made in it
    bench.python = "/no/such/python"

    code, output = bench.run()

    assert code == 1 and bench.asked is None and output


def test_what_is_left_is_private(bench: Bench) -> None:
    bench.python = "/no/such/python"
    bench.run()

    made = [*bench.spool.path.rglob("attempts/*"), *bench.spool.path.rglob("statuses*")]
    assert made and all(path.stat().st_mode & 0o077 == 0 for path in made)


@pytest.mark.parametrize(
    ("line", "why"),
    [("if true", "unexpected token"), ("echo 'x", "matching"), ("done", "near"), ("}", "")],
)
def test_lines_that_no_shell_can_read_are_not_submitted(line: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"setup: bash cannot read .*{why}"):
        check_setup(ClusterSettings(setup=("module load cuda", line)))
    check_setup(ClusterSettings(setup=("if true\nthen echo 'x'  # so\nfi", "module load cuda")))


def test_the_request_of_an_array(tmp_path: Path) -> None:
    keys = tuple((WorkloadKey("e", str(number)),) for number in range(3))
    array = JobArray(Shape(gpus=1), keys)
    settings = ClusterSettings(account="thesis", sbatch=("--mail-type=END",))

    whole = array_request(tmp_path, 2, array, settings, name="e", intent="radt:1:2:1")
    some = array_request(tmp_path, 2, array, settings, name="e", intent="x", indices=[1])

    assert list(whole.indices) == [0, 1, 2] and list(some.indices) == [1]
    assert (whole.shape, whole.intent) == (array.shape, "radt:1:2:1")
    assert whole.options == ("--account=thesis", "--mail-type=END")
    assert whole.output == f"{tmp_path}/arrays/2/output.%A_%a.log"
    assert whole.script == batch_script(tmp_path, 2, settings)
