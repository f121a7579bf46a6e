"""At each step of a workload the runner is killed, or the step fails: nothing stays, work goes on.

The steps: set-up, environment build, before the barrier, at it, running, clean-up.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from radt import procfs
from radt.collocation.ledger import CreatedLedger
from radt.experiment.lock import ExperimentLock
from radt.model import RunStatus
from tests.support.bench import Bench, alive, stop_collectors, wait_until
from tests.support.environments import Tools
from tests.support.fake_mps import FakeMps, mps
from tests.support.nvml import TWO_GPUS, FakeNvml, mig_gpu, nvml, nvml_library

__all__ = ["mps", "nvml", "nvml_library"]

CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"
#: What the last of NVML's errors is called by its number: nothing that radt knows how to take.
NVML_UNKNOWN_ERROR = 999
HEADER = "Workload,Status,Run,Devices,Collocation,Environment,Listeners,File,Params\n"

#: Says that it runs, and waits at a gate if the test has put one there.
SAY = """
import os, sys
open(f"{sys.argv[1]}.new", "w").write(str(os.getpid()))
os.rename(f"{sys.argv[1]}.new", f"{sys.argv[1]}.pid")
gate = f"{sys.argv[1]}.gate"
if os.path.exists(gate):
    open(gate).read()
"""


@dataclass
class Scene:
    """A user's folder on a machine with GPUs, MPS, micromamba and docker, and what happened."""

    bench: Bench
    mps: FakeMps
    nvml: FakeNvml
    tools: Tools
    cache: Path
    as_written: list[str] = field(default_factory=list)

    @property
    def runtime(self) -> Path:
        return Path(self.bench.env["RADT_RUNTIME_DIR"])

    def experiment(self, *rows: str) -> Path:
        """A file with rows of workload, devices, collocation, environment, file and params."""
        lines = []
        for row in rows:
            workload, devices, collocation, environment, file, params = row.split(",")
            lines.append(
                f"{workload},,,{devices},{collocation},{environment},none,{file},{params}\n"
            )
        self.as_written = lines
        return self.bench.experiment(HEADER + "".join(lines))

    def pid_of(self, name: str) -> int:
        """The process of a row that has said so."""
        path = self.bench.folder / f"{name}.pid"
        wait_until(path.exists, f"{name} runs")
        return int(path.read_text())

    def kill(self, runner: subprocess.Popen[str]) -> None:
        runner.send_signal(signal.SIGKILL)
        runner.wait()

    def processes(self) -> dict[int, str]:
        """Command lines of all live processes that came from a start of radt here, but for those
        of the collector: by what is in their environment, or by a run's id on their command line.
        """
        marks = (f"RADT_RUNTIME_DIR={self.runtime}", f"FAKE_MPS={self.mps.folder}")
        run_ids = [run.run_id for run in self.bench.reader.runs()]
        found = {}
        for pid in procfs.all_pids() - {os.getpid()}:
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
                if not words:
                    continue  # it is a zombie, or just being executed: nobody can tell what it is
                command = words.replace("\0", " ")
                variables = os.fsdecode(Path(f"/proc/{pid}/environ").read_bytes()).split("\0")
                if any(mark in variables for mark in marks) or any(
                    run_id in command for run_id in run_ids
                ):
                    found[pid] = command
        return {
            pid: command
            for pid, command in found.items()
            if alive(pid)
            and "radt.collector" not in command
            and "radt.delivery.mlflow" not in command
        }

    def statuses(self, path: Path) -> list[str]:
        """The Status cells of a file, of which nothing but these and the Run cells has changed."""
        rows = self.bench.rows(path)
        blank = [row | {"Status": "", "Run": ""} for row in rows]
        assert path.read_text(encoding="utf-8").startswith(HEADER)
        assert [",".join(row.values()) + "\n" for row in blank] == self.as_written
        return [row["Status"] for row in rows]

    def everything_ended(self) -> None:
        """No process is left, and neither the store nor MLflow says that anything goes on."""
        wait_until(lambda: not self.processes(), "no process of the start is left")
        reader = self.bench.reader

        def ended() -> bool:
            return all(one.status.ended for one in (*reader.runs(), *reader.workloads()))

        wait_until(ended, "the store has ended all")
        if self.bench.with_mlflow:
            self.delivered()

    def delivered(self) -> None:
        """MLflow says of all runs that it got what the store says of them."""
        client = self.bench.mlflow
        here = f"sqlite:///{self.bench.home / 'mlflow.db'}"

        def same() -> bool:
            rows = (*self.bench.reader.runs(), *self.bench.reader.workloads())
            return all(
                row.mlflow_run_id is not None
                and client.get_run(row.mlflow_run_id).info.status == row.status.mlflow
                for row in rows
                if row.tracking_uri == here
            )

        wait_until(same, "MLflow has all")
        experiments = [one.experiment_id for one in client.search_experiments()]
        states = {run.info.status for run in client.search_runs(experiments)}
        assert not states & {"RUNNING", "SCHEDULED"}

    def nothing_is_set_up(self, path: Path) -> None:
        """Nothing that radt has made is left on the machine or beside the file."""
        assert self.processes() == {}
        assert self.mps.daemons == []
        assert self.nvml.gpu_instances() == []
        assert list((self.tools.state / "containers").glob("*.json")) == []
        assert CreatedLedger(self.runtime / "created").entries() == []
        assert list((self.runtime / "mps").glob("*")) == []
        assert list(self.runtime.glob("barrier-*")) == []
        assert sorted(one.name for one in path.parent.glob(f".{path.name}*")) == []
        for built in (one for one in self.cache.glob("*") if one.is_dir()):
            assert (built / "complete").exists() or len(built.name) != 32, built

    def goes_on(self, path: Path, *options: str) -> None:
        """The next start finishes all rows, and leaves nothing."""
        done = self.bench.radt(path.name, "--yes", *options, code=None)
        assert set(self.statuses(path)) == {"FINISHED"}, done.stdout + done.stderr
        assert done.returncode == 0
        self.everything_ended()
        self.nothing_is_set_up(path)


@pytest.fixture
def scene(
    bench: Bench,
    nvml: FakeNvml,
    mps: FakeMps,
    tmp_path: Path,
) -> Iterator[Scene]:
    tools = Tools(tmp_path / "bin", tmp_path / "state")
    for folder in (tools.folder, tools.state):
        folder.mkdir()
    bench.env |= nvml.variables() | mps.variables()
    bench.env |= {
        "FAKE_STATE": str(tools.state),
        "RADT_ENVIRONMENTS": str(tmp_path / "cache"),
        "RADT_FLUSH_S": "0.1",
        "PATH": f"{tools.folder}:{mps.folder}:{bench.env['PATH']}",
    }
    nvml.configure("count 1", mig_gpu(0))
    bench.script("say.py", SAY)
    yield Scene(bench, mps, nvml, tools, tmp_path / "cache")
    # What only a test that failed has left.
    for file in (tools.state / "containers").glob("*.json"):
        with suppress(ProcessLookupError):
            os.killpg(json.loads(file.read_text())["pid"], signal.SIGKILL)
    for file in bench.folder.glob("*.pid"):
        with suppress(OSError):
            if Path(f"/proc/{file.read_text()}/cwd").samefile(bench.folder):
                os.kill(int(file.read_text()), signal.SIGKILL)


# Set-up ------------------------------------------------------------------------------------------


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("collocation", ["MPS", "3g.20gb"])
def test_runner_killed_while_devices_are_set_up(scene: Scene, collocation: str) -> None:
    path = scene.experiment(f"1,0,{collocation},,say.py,a", "1,cpu,,,say.py,b", "2,cpu,,,say.py,c")
    if collocation == "MPS":
        scene.nvml.configure(*TWO_GPUS)
        scene.mps.be("hang -d")
    else:
        scene.nvml.add(f"crash_after {CREATE}")
    runner = scene.bench.start(path.name, "--yes")
    if collocation == "MPS":
        wait_until(lambda: scene.mps.calls("-d"), "the daemon is being started")
        scene.kill(runner)
        (starting,) = (call["pid"] for call in scene.mps.calls("-d"))
        assert list(scene.processes()) == [starting]
        scene.mps.be()
    else:
        assert runner.wait(180) == -signal.SIGKILL
        assert len(scene.nvml.gpu_instances()) == 1
        scene.nvml.remove(f"crash_after {CREATE}")
    assert len(CreatedLedger(scene.runtime / "created").entries()) == 1
    assert scene.statuses(path) == ["", "", ""]
    wait_until(
        lambda: {run.status for run in scene.bench.reader.runs()} == {RunStatus.KILLED},
        "the collector ends the runs",
    )
    scene.goes_on(path)
    assert len(scene.bench.reader.runs()) == 5


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("collocation", ["MPS", "3g.20gb"])
def test_devices_that_cannot_be_set_up(scene: Scene, collocation: str) -> None:
    path = scene.experiment(f"1,0,{collocation},,say.py,a", "1,cpu,,,say.py,b", "2,cpu,,,say.py,c")
    if collocation == "MPS":
        scene.nvml.configure(*TWO_GPUS)
        scene.mps.be("fail -d")
        reason = "out of luck"
    else:
        scene.nvml.add(f"fail {CREATE} {NVML_UNKNOWN_ERROR}")
        reason = "MIG instance 3g.20gb"
    done = scene.bench.radt(path.name, "--yes", code=1)
    failed, skipped, finished = scene.statuses(path)
    assert failed.startswith("FAILED: ")
    assert reason in done.stdout
    assert (skipped, finished) == ("SKIPPED: a could not be set up", "FINISHED")
    assert not (scene.bench.folder / "b.pid").exists()
    scene.everything_ended()
    scene.nothing_is_set_up(path)
    if collocation == "MPS":
        scene.mps.be()
    else:
        scene.nvml.remove(f"fail {CREATE} {NVML_UNKNOWN_ERROR}")
    scene.goes_on(path, "--rerun")


# Environment build -------------------------------------------------------------------------------


@pytest.mark.long
def test_runner_killed_while_an_environment_is_built(scene: Scene) -> None:
    scene.tools.install("conda", "micromamba")
    scene.bench.script("conda.yaml", "dependencies: [python]\n# wait-for-the-test\n")
    path = scene.experiment("1,cpu,,conda,say.py,a", "1,cpu,,,say.py,b")
    runner = scene.bench.start(path.name)
    wait_until((scene.tools.state / "building").exists, "it is being built")
    scene.kill(runner)
    (half,) = (one for one in scene.cache.glob("*") if one.is_dir())
    (half / "env" / "of-the-killed-build").touch()
    assert scene.statuses(path) == ["", ""]
    (scene.tools.state / "go").touch()  # the tool, an orphan now, comes to its end
    scene.everything_ended()
    assert {run.status for run in scene.bench.reader.runs()} == {RunStatus.KILLED}
    scene.goes_on(path)
    assert len(scene.tools.calls()) == 2
    assert (half / "complete").exists()
    assert not (half / "env" / "of-the-killed-build").exists()


def test_environment_that_cannot_be_built(scene: Scene) -> None:
    scene.tools.install("conda", "micromamba")
    scene.bench.script("conda.yaml", "dependencies: [python, no-such-package]\n")
    path = scene.experiment(
        "1,cpu,,,say.py,a", "1,cpu,,conda,say.py,b", "2,cpu,,,say.py,c", "2,0,3g.20gb,,say.py,d"
    )
    scene.bench.radt(path.name, "--yes", code=1)
    skipped, failed, *finished = scene.statuses(path)
    assert skipped == "SKIPPED: b could not be set up"
    assert failed.startswith("FAILED: micromamba could not build")
    assert finished == ["FINISHED", "FINISHED"]
    assert not (scene.bench.folder / "a.pid").exists()
    scene.everything_ended()
    scene.nothing_is_set_up(path)
    scene.bench.script("conda.yaml", "dependencies: [python]\n")
    scene.goes_on(path, "--rerun")


# Before the barrier ------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.mlflow
def test_runner_killed_while_mlflow_does_not_answer(scene: Scene) -> None:
    # Only rows whose MLflow need not know radt wait for it before they start.
    scene.bench.script("say.sh", f"#!/bin/sh\nexec {sys.executable} say.py $@\n").chmod(0o755)
    path = scene.experiment("1,0,3g.20gb,,say.py,a", "1,cpu,,,say.sh,b")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(180)
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        runner = scene.bench.start(path.name, "--yes", "--tracking-uri", uri)
        asking, _ = silent.accept()
        with asking:
            wait_until(scene.nvml.gpu_instances, "set-up is done")
            scene.kill(runner)
            assert scene.statuses(path) == ["", ""]
            assert list(scene.bench.folder.glob("*.pid")) == []
            scene.everything_ended()
            scene.goes_on(path)
    statuses = [run.status for run in scene.bench.reader.runs()]
    assert statuses == [RunStatus.KILLED] * 2 + [RunStatus.FINISHED] * 2


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("what", ["rubbish", "folder", "no folder"])
def test_store_that_cannot_be_used(scene: Scene, what: str) -> None:
    path = scene.experiment("1,0,3g.20gb,,say.py,a")
    before = path.read_bytes()
    store = scene.bench.home / "radt.db"
    match what:
        case "rubbish":
            store.write_bytes(b"this is no database" * 1000)
        case "folder":
            store.mkdir()
        case "no folder":
            shutil.rmtree(scene.bench.home)
            scene.bench.home.write_text("a file")
    done = scene.bench.radt(path.name, "--yes", code=None)
    assert done.returncode != 0, done.stdout
    assert "radt-data" in done.stderr
    assert "Traceback" not in done.stderr
    assert path.read_bytes() == before
    assert not (scene.bench.folder / "a.pid").exists()
    assert scene.nvml.calls(CREATE) == []
    assert list(path.parent.glob(f".{path.name}*")) == []
    if what == "rubbish":
        assert store.read_bytes() == b"this is no database" * 1000


# At the barrier ----------------------------------------------------------------------------------

ENTERS = """
import os, sys, radt
name = sys.argv[1]
open(f"{name}.new", "w").write(str(os.getpid()))
os.rename(f"{name}.new", f"{name}.pid")
if os.path.exists(f"{name}.gate"):
    open(f"{name}.gate").read()
with radt.Run() as run:
    open(f"{name}.in", "w").close()
"""


def pipes(pid: int, *, beyond: int = 2) -> set[str]:
    """The pipes that a process has open, standard streams left out."""
    folder = Path(f"/proc/{pid}/fd")
    found = set()
    for fd in folder.iterdir():
        with suppress(OSError):
            target = str(fd.readlink())
            if int(fd.name) > beyond and target.startswith("pipe:"):
                found.add(target)
    return found


@pytest.mark.long
def test_runner_killed_while_one_row_waits_for_another(scene: Scene) -> None:
    scene.bench.script("enters.py", ENTERS)
    scene.bench.signal_ready("b.gate")
    path = scene.experiment("1,cpu,,,enters.py,a", "1,cpu,,,enters.py,b")
    runner = scene.bench.start(path.name, "--sync", "context")
    first, second = scene.pid_of("a"), scene.pid_of("b")
    wait_until(lambda: pipes(first) & pipes(runner.pid), "the first row has the barrier's pipe")
    scene.kill(runner)
    assert scene.statuses(path) == ["RUNNING", "RUNNING"]
    scene.everything_ended()
    assert not alive(first)
    assert not alive(second)
    (scene.bench.folder / "b.gate").unlink()
    scene.goes_on(path, "--sync", "context")
    assert all((scene.bench.folder / f"{name}.in").exists() for name in "ab")


@pytest.mark.long
def test_row_that_cannot_be_executed(scene: Scene) -> None:
    scene.bench.script("broken", "#!/no/such/interpreter\n").chmod(0o755)
    path = scene.experiment("1,cpu,,,broken,x", "1,cpu,,,say.py,b", "2,cpu,,,say.py,c")
    done = scene.bench.radt(path.name, code=1)
    failed, *finished = scene.statuses(path)
    assert failed.startswith("FAILED: ")
    assert "cannot be executed" in " ".join(done.stdout.split())
    assert finished == ["FINISHED", "FINISHED"]
    scene.everything_ended()
    scene.nothing_is_set_up(path)
    scene.bench.script("broken", "#!/bin/sh\n")
    scene.goes_on(path, "--rerun")


# Running -----------------------------------------------------------------------------------------

#: Leaves a process that is nobody's child, has a session of its own and knows of no run.
LEAVES = """
import os, subprocess, sys
if os.path.exists("a.gate"):
    daemon = ("import os; open('d.new', 'w').write(str(os.getpid()));"
              "os.rename('d.new', 'd.pid'); os.read(os.pipe()[0], 1)")
    middle = ("import subprocess, sys;"
              f"subprocess.Popen([sys.executable, '-c', {daemon!r}], env={{}},"
              " start_new_session=True)")
    subprocess.run([sys.executable, "-c", middle], check=True, env={}, start_new_session=True)
    open("a.gate").read()
"""


@pytest.mark.long
@pytest.mark.mlflow
def test_runner_killed_while_rows_run(scene: Scene) -> None:
    scene.tools.install("docker")
    python = Path(sys.executable).resolve()
    image = {"id": "sha256:1", "env": [f"PATH={python.parent}:/usr/bin:/bin"]}
    images = {"images": {"python:3.12": image}, "registry": {}}
    (scene.tools.state / "docker.json").write_text(json.dumps(images))
    scene.bench.script("leaves.py", LEAVES)
    for name in "ab":
        scene.bench.signal_ready(f"{name}.gate")
    path = scene.experiment(
        "1,cpu,,,leaves.py,a",
        "1,cpu,,docker:python:3.12,say.py,b",
        "1,0,3g.20gb+MPS,,say.py,c",
    )
    scene.bench.signal_ready("c.gate")
    runner = scene.bench.start(path.name, "--yes")
    pids = [scene.pid_of(name) for name in "dbc"]
    assert all(alive(pid) for pid in pids)
    # The stand-in starts a container first, and writes down then that there is one.
    containers = scene.tools.state / "containers"
    wait_until(lambda: len(list(containers.glob("*.json"))) == 1, "docker knows of the container")
    scene.kill(runner)
    wait_until(lambda: not any(alive(pid) for pid in pids), "all of the runs are gone")
    assert scene.statuses(path) == ["RUNNING"] * 3
    for name in "abc":
        (scene.bench.folder / f"{name}.gate").unlink()
    scene.goes_on(path)


# Clean-up ----------------------------------------------------------------------------------------

#: radt with less patience for MPS daemons; enough for one to hear what it is told, and to be gone
#: when it is killed.
IMPATIENT = """
import sys
from radt.collocation import mps
mps.STOP_TIMEOUT_S = 5.0
from radt.cli import main
sys.exit(main())
"""


def impatient(scene: Scene, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", IMPATIENT, path.name],
        cwd=scene.bench.folder,
        env=scene.bench.env,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@pytest.mark.long
def test_runner_killed_while_a_daemon_does_not_quit(scene: Scene) -> None:
    scene.nvml.configure(*TWO_GPUS)
    scene.mps.be("hang quit")
    path = scene.experiment("1,0,MPS,,say.py,a", "1,cpu,,,say.py,b")
    runner = scene.bench.start(path.name)
    wait_until(lambda: scene.mps.calls("quit"), "the daemon was told to quit")
    scene.kill(runner)
    assert scene.statuses(path) == ["FINISHED", "FINISHED"]
    assert len(scene.mps.daemons) == 1
    done = impatient(scene, path)  # nothing is left to run, but to clean up
    assert done.returncode == 0, done.stdout + done.stderr
    scene.everything_ended()
    scene.nothing_is_set_up(path)
    assert scene.statuses(path) == ["FINISHED", "FINISHED"]
    assert len(scene.bench.reader.runs()) == 2


#: Ends, and leaves a child that hears SIGTERM, kills the runner, says so, and goes on. The test
#: itself might be too late to kill it: the keeper's patience with the child is two seconds.
STUBBORN = """
import os, subprocess, sys
if not os.path.exists("asked"):
    runner = int(open("runner").read())
    child = ("import os, signal; signal.pthread_sigmask(signal.SIG_BLOCK, [15]);"
             "open('c.new', 'w').write(str(os.getpid())); os.rename('c.new', 'c.pid');"
             "print(flush=True); signal.sigwait([15]);"
             f"os.kill({runner}, 9); open('asked', 'w').close(); signal.pause()")
    # Only the keeper finds it: it knows of no run.
    left = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, env={})
    left.stdout.readline()
"""


@pytest.mark.long
def test_runner_killed_while_a_leftover_is_waited_for(scene: Scene) -> None:
    scene.bench.script("stubborn.py", STUBBORN)
    who_runs = scene.bench.signal_ready("runner")
    path = scene.experiment("1,0,3g.20gb,,stubborn.py,a", "2,cpu,,,say.py,b")
    runner = scene.bench.start(path.name, "--yes")
    who_runs.write_text(str(runner.pid))
    left = scene.pid_of("c")
    wait_until((scene.bench.folder / "asked").exists, "the leftover was asked to end")
    assert runner.wait(180) == -signal.SIGKILL
    wait_until(lambda: not alive(left), "the leftover is gone")
    assert scene.statuses(path) == ["RUNNING", ""]
    scene.everything_ended()
    with ExperimentLock(path):  # nobody has it
        pass
    scene.goes_on(path)


# Restart of the machine --------------------------------------------------------------------------


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("runtime_survives", [False, pytest.param(True, marks=pytest.mark.mlflow)])
def test_machine_that_restarts_while_rows_run(scene: Scene, runtime_survives: bool) -> None:
    for name in "bc":
        scene.bench.signal_ready(f"{name}.gate")
    path = scene.experiment(
        "1,cpu,,,say.py,a", "2,0,3g.20gb+MPS,,say.py,b", "2,cpu,,,say.py,c", "3,cpu,,,say.py,d"
    )
    runner = scene.bench.start(path.name, "--yes")
    for name in "bc":
        scene.pid_of(name)
    first = scene.bench.rows(path)[0]["Run"]
    # All at once: no collector sees the others die.
    stop_collectors(scene.runtime)
    scene.kill(runner)
    scene.mps.stop()
    wait_until(lambda: not scene.processes(), "everybody is gone")
    scene.nvml.state.unlink()
    for name in "bc":
        (scene.bench.folder / f"{name}.gate").unlink()
    if runtime_survives:
        entries = list((scene.runtime / "created").glob("*.json"))
        assert len(entries) == 2
        for entry in entries:
            noted = json.loads(entry.read_text())
            noted["owner"]["boot_id"] = "00000000-0000-0000-0000-000000000000"
            entry.write_text(json.dumps(noted))
    else:
        for one in scene.runtime.iterdir():
            shutil.rmtree(one) if one.is_dir() else one.unlink()
    long_ago_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) + 60 * 10**9
    with sqlite3.connect(scene.bench.home / "radt.db") as store:
        store.execute("UPDATE run SET created_ns = created_ns - ?", [long_ago_ns])
    store.close()
    assert scene.statuses(path) == ["FINISHED", "RUNNING", "RUNNING", ""]
    scene.goes_on(path)
    rows = scene.bench.rows(path)
    assert rows[0]["Run"] == first, "what had finished is not run again"
    wait_until(
        lambda: (
            sorted(run.status for run in scene.bench.reader.runs())
            == [RunStatus.FINISHED] * 4 + [RunStatus.KILLED] * 2
        ),
        "the cut-off runs are ended",
    )
