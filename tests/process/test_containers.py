"""Runs in a container: what uploads is killed with the main process, so that one waits for it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from radt.model import RunStatus
from tests.delivery.postgres.conftest import through
from tests.support.bench import RADT, Bench, bench_in
from tests.support.containers import in_container, main_process
from tests.support.docker import DockerEngine
from tests.support.docker_images import DASHBOARD_BASE
from tests.support.links import Link
from tests.support.mlflow_server import MlflowServer
from tests.support.postgres import Postgres
from tests.support.stores import differences
from tests.support.waiting import TIMEOUT_S, alive, wait_until

ROOT = Path(__file__).parents[2]
SCRIPT = """\
import radt
with radt.Run() as run:
    run.log_metric("loss", 0.5)
    open("begun", "w").close()
    open("go").read()
"""
CSV = "Experiment,Workload,Status,Run,Devices,Collocation,File,Listeners\nx,1,,,cpu,,train.py,\n"
RUNNER = (RADT, "experiment.csv")
ALONE = (sys.executable, "train.py")
ENTRYPOINT = ("sh", "-c", f"'{sys.executable}' train.py && exit $?")


@pytest.fixture
def bench(tmp_path: Path, mlflow_server: MlflowServer, database: str) -> Iterator[Bench]:
    """A folder whose runs go to real servers, not at once: a run is delayed by no upload."""
    uris = {"RADT_TRACKING_URI": mlflow_server.uri, "RADT_STORE_URI": database}
    with bench_in(tmp_path, columns=200, RADT_UPLOAD_WAIT_S="3600") as made:
        made.env |= uris | mlflow_server.client_environ
        made.script("train.py", SCRIPT)
        made.script("go", "")
        made.experiment(CSV)
        yield made


def start(bench: Bench, command: Sequence[str], **env: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        command,
        cwd=bench.folder,
        env=bench.env | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    bench.started.append(process)
    return process


def run(bench: Bench, command: Sequence[str], code: int = 0, **env: str) -> list[str]:
    """Run to the end; return the lines it printed."""
    process = start(bench, command, **env)
    out, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == code, out
    return out.strip().splitlines()


def hold(bench: Bench) -> None:
    """Have scripts wait in their run until somebody writes to ``go``."""
    (bench.folder / "go").unlink()
    os.mkfifo(bench.folder / "go")


def wait_begun(bench: Bench) -> None:
    wait_until((bench.folder / "begun").exists, "the run has begun")
    (bench.folder / "begun").unlink()


def check_delivered(bench: Bench, status: RunStatus = RunStatus.FINISHED) -> None:
    """Check that both servers have all of it now, without any process that could go on."""
    with bench.reader as reader:
        (run,) = reader.runs()
    assert run.status is status
    assert run.mlflow_run_id is not None
    in_mlflow = MlflowClient(bench.env["RADT_TRACKING_URI"]).get_run(run.mlflow_run_id)
    assert in_mlflow.info.status == status.mlflow
    assert in_mlflow.data.metrics["loss"] == 0.5
    assert not differences(bench.home / "radt.db", bench.env["RADT_STORE_URI"])


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("command", [RUNNER, ALONE, ENTRYPOINT], ids=["radt", "script", "shell"])
def test_the_main_process_waits_until_everything_is_uploaded(
    bench: Bench, command: Sequence[str]
) -> None:
    lines = run(bench, in_container(*command))
    check_delivered(bench)
    assert [line.split()[:2] for line in lines[-2:]] == [["✔", "MLflow"], ["✔", "Postgres"]]


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("command", [ALONE, RUNNER], ids=["script", "radt"])
def test_docker_stop_uploads_what_the_run_has_until_then(
    bench: Bench, command: Sequence[str]
) -> None:
    hold(bench)
    process = start(bench, in_container(*command))
    wait_begun(bench)
    os.kill(main_process(process), signal.SIGTERM)
    out, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 128 + signal.SIGTERM, out
    check_delivered(bench, RunStatus.KILLED)


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("command", [ALONE, RUNNER], ids=["script", "radt"])
def test_what_is_left_is_named_last_and_uploaded_by_the_next_container(
    bench: Bench, command: Sequence[str], postgres: Postgres
) -> None:
    bench.env["RADT_TRACKING_URI"] = "none"
    database = bench.env["RADT_STORE_URI"]
    with Link(postgres.port, refusing=True) as link:
        bench.env["RADT_STORE_URI"] = through(database, postgres.port, link)
        lines = run(bench, in_container(*command), code=1, RADT_COLLECTOR_DELIVERY_S="3")
        assert any("✘  Postgres  1 run not uploaded" in line for line in lines[-4:-1]), lines
        assert f"some data is only in {bench.home}" in "\n".join(lines[-2:])
        assert "radt sync --home" in lines[-1]
        link.pass_through()
        run(bench, in_container(RADT, "sync"))
    assert not differences(bench.home / "radt.db", database)


@pytest.mark.long
def test_a_script_that_was_killed_with_its_container_is_ended_by_the_next(bench: Bench) -> None:
    """Another container has another hostname; only journals of other machines are left alone."""
    bench.env |= {"RADT_TRACKING_URI": "none", "RADT_COLLECTOR_PATIENCE_S": "60"}
    hold(bench)
    process = start(bench, in_container(*ALONE, hostname="first"))
    wait_begun(bench)
    sync = in_container(RADT, "sync", hostname="second")
    ended = "1 run ended that no process had ended"
    beside = {"RADT_RUNTIME_DIR": str(bench.folder / "runtime")}
    assert ended not in "\n".join(run(bench, sync, **beside)), "it runs"
    main = main_process(process)
    os.kill(main, signal.SIGKILL)
    process.communicate(timeout=TIMEOUT_S)
    assert not alive(main)
    assert ended in "\n".join(run(bench, sync, **beside))
    with bench.reader as reader:
        assert [run.status for run in reader.runs()] == [RunStatus.KILLED]
    assert not differences(bench.home / "radt.db", bench.env["RADT_STORE_URI"])


@pytest.mark.long
def test_anybody_may_wait_and_nobody_has_to(bench: Bench) -> None:
    run(bench, (*RUNNER, "--wait"))
    check_delivered(bench)
    (bench.folder / "radt.toml").write_text("wait = false\n")
    bench.experiment(CSV)
    for command in ((*RUNNER, "--rerun"), ALONE):
        assert "before it ends" not in "\n".join(run(bench, in_container(*command)))
    (bench.folder / "radt.toml").write_text("wait = true\n")
    run(bench, ALONE)
    with bench.reader as reader:
        assert len(reader.runs()) == 4
        assert not reader.runs_to_deliver(bench.env["RADT_TRACKING_URI"])
    assert not differences(bench.home / "radt.db", bench.env["RADT_STORE_URI"])


SIGNALLED = """\
import multiprocessing, os, signal
import radt
from radt.run import open_runs
leave = open_runs.leave
def stop_and_leave(*arguments, **options):  # as `docker stop` during the exit handler
    os.kill(os.getpid(), signal.SIGTERM)
    leave(*arguments, **options)
run = radt.Run().__enter__()
run.log_metric("loss", 0.5)
for _ in range(50):
    child = multiprocessing.get_context("fork").Process(target=signal.pause)
    child.start()
    child.terminate()  # often before Python is ready in it
    child.join()
    assert child.exitcode == -signal.SIGTERM, child.exitcode
open_runs.leave = stop_and_leave
"""


@pytest.mark.long
def test_sigterm_ends_forked_processes_and_skips_no_upload(bench: Bench) -> None:
    bench.script("train.py", SIGNALLED)
    run(bench, ALONE, RADT_WAIT="1")
    check_delivered(bench)


def test_a_script_that_fails_for_its_uploads_runs_the_exit_handlers_of_others_once(
    bench: Bench,
) -> None:
    handlers = "import atexit, radt.run\natexit.register(print, 'first')\n"
    bench.script("train.py", handlers + SCRIPT + "atexit.register(print, 'last')\n")
    variables = {"RADT_TRACKING_URI": "http://127.0.0.1:9", "RADT_STORE_URI": ""}
    variables |= {"RADT_WAIT": "1", "RADT_COLLECTOR_DELIVERY_S": "1"}
    lines = run(bench, ALONE, code=1, **variables)
    assert [line for line in lines if line in ("first", "last")] == ["last", "first"]


@pytest.mark.long
@pytest.mark.docker
def test_containers_of_a_real_engine(bench: Bench, docker: DockerEngine) -> None:
    """One comes to its end, the next is stopped; both are gone with all their processes."""
    hold(bench)
    (metadata,) = Path(sysconfig.get_path("purelib")).glob("radt-*.dist-info")
    paths = {ROOT: "/src", metadata: f"/installed/{metadata.name}", bench.folder: "/work"}
    passed = ("MLFLOW_TRACKING_URI", "RADT_STORE_URI", "RADT_UPLOAD_WAIT_S", "RADT_ARCHIVE_S")
    options = [
        *("--network", "host", "--workdir", "/work", "--env", "PYTHONPATH=/src:/installed"),
        *(word for here, there in paths.items() for word in ("--volume", f"{here}:{there}")),
        *(word for name in passed for word in ("--env", f"{name}={bench.env[name]}")),
        docker.have(DASHBOARD_BASE),
    ]

    with ThreadPoolExecutor() as beside:
        command = ["run", "--rm", "--init", *options, "python", "train.py"]
        printed = beside.submit(docker.run, *command)
        wait_begun(bench)
        (bench.folder / "go").write_text("")
        printed.result()
    check_delivered(bench)

    shutil.rmtree(bench.home)
    name = f"radt-{os.getpid()}"
    docker.run(
        "run", "--detach", "--name", name, *options, "python", "-m", "radt", "experiment.csv"
    )
    try:
        wait_begun(bench)
        docker.run("stop", "--time", "120", name)
        assert docker.run("wait", name) == str(128 + signal.SIGTERM)
    finally:
        docker.run("rm", "--force", "--volumes", name)
    check_delivered(bench, RunStatus.KILLED)


# Which processes end with this one -------------------------------------------------------------

ASK = "from radt.lifetime import waits_here; print(waits_here().name)"
PYTHON = sys.executable
OF_PYTHON = f"import subprocess; subprocess.run([{PYTHON!r}, '-c', {ASK!r}])"


@pytest.mark.quick_variants(5)
@pytest.mark.parametrize(
    ("command", "wait"),
    [
        ((PYTHON, "-c", ASK), "MUST"),
        (("sh", "-c", f'"{PYTHON}" -c "$0"; true', ASK), "MUST"),
        (("bash", "-c", f'exec -a docker-init sh <<< \'"{PYTHON}" -c "{ASK}"; true\''), "MUST"),
        (("timeout", "600", PYTHON, "-c", ASK), "MUST"),
        # A server of notebooks, a terminal: they go on.
        ((PYTHON, "-c", OF_PYTHON), "NO"),
        (("bash", "--norc", "-i"), "NO"),
        (("bash", "--rcfile", "/dev/null", "-O", "extglob", "-i"), "NO"),
        (("bash", "-euo", "pipefail"), "NO"),
        (("bash", "-euo", "pipefail", "-c", f'"{PYTHON}" -c "$0"; true', ASK), "MUST"),
    ],
)
def test_which_main_processes_end_with_their_child(command: Sequence[str], wait: str) -> None:
    done = subprocess.run(
        in_container(*command),
        input=f"'{PYTHON}' -c '{ASK}'\nexit\n",
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert wait in done.stdout.split(), done


def test_a_command_in_a_container_that_goes_on_does_not_end_it() -> None:
    with subprocess.Popen(in_container("sleep", "infinity"), text=True) as container:
        try:
            pid = str(main_process(container))
            user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
            asked = ["nsenter", *user, "--target", pid, "--pid", "--mount", PYTHON, "-c", ASK]
            assert subprocess.run(
                asked, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
            ).stdout.split() == ["NO"]
        finally:
            container.kill()
