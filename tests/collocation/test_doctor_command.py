"""``radt doctor`` finds what is wrong and what dead runners left, and removes that and no more."""

from __future__ import annotations

import io
import json
import os
import platform
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import mlflow
import pytest
from mlflow.entities import ViewType
from mlflow.tracking import MlflowClient
from sqlalchemy import make_url

from radt.cli import checks, main, recovery
from radt.cli.recovery import end_process, leftover_processes
from radt.collector.client import CollectorClient
from radt.collocation.ledger import Container, CreatedLedger, MigInstance, Thing
from radt.delivery.mlflow.variables import DESTINATION
from radt.home import Home, runtime_dir
from radt.model import RunStatus
from radt.store.admin import grant_reader
from radt.store.backend import StoreAddress
from radt.store.reader import StoreReader
from radt.store.records import RunRecord, WorkloadRecord
from radt.store.writer import StoreWriter
from tests.support.bench import RADT, stop_collectors
from tests.support.fake_mps import FakeMps
from tests.support.mlflow_server import MlflowServer
from tests.support.nvml import FakeNvml, mig_gpu
from tests.support.s3 import S3Server

_START_DAEMON = """
import os, signal
from radt.collocation.mps import MpsServer
MpsServer(["GPU-fake-0"]).start()
os.kill(os.getpid(), signal.SIGKILL)
"""
#: A command line that goes on until it is killed, SIGTERM included if it is stubborn.
_LIVE = "import signal; print(flush=True); signal.pause()"
_STUBBORN = "import signal; signal.signal(15, signal.SIG_IGN); print(flush=True); signal.pause()"
#: Keeps what it removes; fails for containers named "stuck".
_DOCKER = """#!/bin/sh
echo "$@" >> "$0.calls"
case "$*" in
    *stuck*) echo "cannot remove: device busy" >&2; exit 1 ;;
    *gone*) echo "Error: No such container: gone" >&2; exit 1 ;;
esac
"""


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "500")


def doctor(*arguments: str, code: int = 0) -> str:
    """What it prints, each line with single spaces."""
    printed = io.StringIO()
    with redirect_stdout(printed), pytest.raises(SystemExit) as ended:
        main(["doctor", *arguments])
    assert ended.value.code == code, printed.getvalue()
    return "\n".join(" ".join(line.split()) for line in printed.getvalue().splitlines())


def orphan(thing: Thing) -> None:
    """An entry of a dead runner."""
    entry = CreatedLedger().intend(thing)
    content = json.loads(entry.path.read_text())
    content["owner"]["start_ticks"] -= 1
    entry.path.write_text(json.dumps(content))


def add_run(run_id: str, *, ended_s_ago: float | None = None, host: str = "") -> Path:
    """A run in the store of this test; return its spool folder."""
    home = Home.resolve().create()
    now_ns = time.time_ns()
    spool = home.run_dir(run_id).create().path
    with StoreWriter(home.store_path) as writer:
        writer.put_workload(WorkloadRecord(f"w-{run_id}", "study", "1", now_ns, RunStatus.RUNNING))
        writer.put_run(
            RunRecord(
                *(run_id, f"w-{run_id}", "study", "1", "a", "net", now_ns, RunStatus.RUNNING),
                host=host or platform.node(),
                spool=str(spool),
                started_ns=now_ns,
            )
        )
        if ended_s_ago is not None:
            writer.end_run(run_id, RunStatus.FINISHED, now_ns - int(ended_s_ago * 1e9))
    return spool


@contextmanager
def process_of(run_id: str, spool: Path, program: str = _LIVE) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=os.environ | {"RADT_RUN_ID": run_id, "RADT_RUN_DIR": str(spool)},
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A docker that works; the file with its calls."""
    tool = tmp_path / "bin" / "docker"
    tool.parent.mkdir()
    tool.write_text(_DOCKER)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    return tool.with_name("docker.calls")


def test_a_healthy_machine_has_nothing_wrong(docker: Path, nvml_here: FakeNvml) -> None:
    nvml_here.add("fail nvmlInitWithFlags 12")  # as if NVML were not installed
    text = doctor()
    assert f"✔ runtime folder {runtime_dir()}, " in text
    assert f"✔ data folder {Home.resolve().path} (the first run creates it), " in text
    assert "– store none yet; the first run creates it" in text
    assert "– NVML no GPU: no NVIDIA driver" in text
    assert "✔ docker " in text
    assert "✔ left behind nothing\n" in text
    assert text.strip().endswith("no problems")
    assert not Home.resolve().path.exists()


@pytest.fixture
def servers(
    mlflow_server_with_auth: MlflowServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> MlflowServer:
    """All servers that a recording machine can reach; MLflow's, with the settings of a client."""
    server = mlflow_server_with_auth
    environ = {**server.client_environ, **server.bucket.environ, DESTINATION: server.bucket.uri}
    for name, value in {**environ, "RADT_STORE_URI": database}.items():
        monkeypatch.setenv(name, value)
    return server


def test_servers_are_asked_what_an_upload_needs(
    servers: MlflowServer, s3: S3Server, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reachable, credentials, version, writable; and nothing is left there."""
    address = StoreAddress.of(database)
    StoreWriter(address, upgrade=True).close()
    before = len(MlflowClient(servers.uri).search_experiments(ViewType.ALL))
    text = doctor()
    assert "✔ database postgresql://" in text
    assert f"✔ MLflow {servers.uri}, MLflow {mlflow.__version__}\n" in text
    assert f"✔ S3 {servers.bucket.uri}\n" in text
    assert len(MlflowClient(servers.uri).search_experiments(ViewType.ALL)) == before
    target = {"Bucket": servers.bucket.name, "Prefix": "radt-doctor"}
    assert not s3.client().list_multipart_uploads(**target).get("Uploads")
    assert not s3.client().list_objects_v2(**target).get("Contents")

    reader = f"reader_{secrets.token_hex(6)}"
    grant_reader(address, reader, "only-reading")
    uri = make_url(database).set(username=reader, password="only-reading")
    monkeypatch.setenv("RADT_STORE_URI", uri.render_as_string(hide_password=False))
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "wrong")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    text = doctor(code=1)
    assert "read-only: runs recorded here cannot be uploaded to it\n" in text
    assert f"✘ MLflow {servers.uri}: the server refuses user and password (401)" in text
    assert f"✘ S3 {servers.bucket.uri}: S3 refuses the secret key" in text


def test_a_missing_tool_is_no_fault_and_says_what_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    text = doctor()
    assert "– uv uv not found; needed for Environment uv:…\npip install uv" in text
    assert "– MPS nvidia-cuda-mps-control not found; needed for Collocation MPS" in text
    assert "✘" not in text


@pytest.mark.parametrize("name", ["conda", "mamba", "micromamba"])
def test_one_of_several_tools_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    tool = tmp_path / name
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert f"✔ conda {tool}\n" in doctor()


def test_a_data_folder_that_cannot_be_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    text = doctor("--home", str(tmp_path / "file" / "data"), code=1)
    assert f"✘ data folder {tmp_path / 'file'} is not a folder" in text
    assert "1 problem" in text


def test_a_runtime_folder_that_others_may_read_is_wrong() -> None:
    runtime_dir().chmod(0o755)
    text = doctor(code=1)
    assert "✘ runtime folder the runtime folder" in text
    assert "is not private to you" in text
    runtime_dir_ = Path(os.environ["RADT_RUNTIME_DIR"])
    runtime_dir_.chmod(0o700)


def test_a_store_that_is_none_is_wrong() -> None:
    Home.resolve().create().store_path.write_text("what is this?" * 100)
    assert "✘ store " in doctor(code=1)


def test_a_driver_that_does_not_work_is_wrong(nvml_here: FakeNvml) -> None:
    nvml_here.add("fail nvmlInitWithFlags 18")
    assert "✘ NVML the NVIDIA driver does not answer: " in doctor(code=1)
    nvml_here.remove("fail nvmlInitWithFlags 18")
    assert "✔ NVML driver " in doctor()


def test_the_collector_is_asked_and_never_started() -> None:
    assert "– collector not running; the next run starts it" in doctor()
    with CollectorClient().reach():
        pid = CollectorClient(start=False).reach().status().pid
        text = doctor()
    stop_collectors(runtime_dir())
    assert f"✔ collector pid {pid}, up " in text
    assert "– collector not running" in doctor()


def test_a_daemon_of_a_dead_runner_is_found_and_removed_and_no_other(
    mps: FakeMps, tmp_path: Path
) -> None:
    others = mps.start_daemon(tmp_path / "p", tmp_path / "l", "GPU-fake-0")
    subprocess.run([sys.executable, "-c", _START_DAEMON], check=False)
    (pid,) = set(mps.daemons) - {others}
    used = CreatedLedger().intend(Container("in use"))
    found = f"✘ left behind MPS daemon (pid {pid}) of GPU-fake-0 of a dead runner\n"
    assert f"{found}radt doctor --clean" in doctor(code=1)
    assert set(mps.daemons) == {others, pid}
    text = doctor("--clean")
    assert f"✔ MPS daemon (pid {pid}) of GPU-fake-0: removed" in text
    assert "✔ left behind nothing, 1 object in use" in text
    assert mps.daemons == [others]
    assert [entry.path for entry in CreatedLedger().entries()] == [used.path]
    assert "nothing to remove" in doctor("--clean")


def test_a_mig_instance_of_a_dead_runner_is_destroyed_and_no_other(nvml_here: FakeNvml) -> None:
    nvml_here.configure("count 1", mig_gpu(0), "existing 0 9 4 3", "existing 0 19 0 1")
    orphan(MigInstance("GPU-fake-0", "3g.20gb", 4, 4, (), 1))
    text = doctor("--clean")
    assert "✔ MIG instance 3g.20gb at slice 4 of GPU-fake-0: removed" in text
    assert [instance[1:4] for instance in nvml_here.gpu_instances()] == [(2, 19, 0)]
    assert CreatedLedger().entries() == []


def test_containers_of_a_dead_runner_are_removed_by_name(docker: Path) -> None:
    orphan(Container("radt-1"))
    orphan(Container("gone"))
    text = doctor("--clean")
    assert "✔ container radt-1: removed" in text
    removed = [line for line in docker.read_text().splitlines() if line.startswith("rm ")]
    assert sorted(removed) == ["rm -f gone", "rm -f radt-1"]
    assert CreatedLedger().entries() == []


def test_what_cannot_be_removed_stays_noted(docker: Path) -> None:
    orphan(Container("stuck"))
    text = doctor("--clean", code=1)
    assert "✘ container stuck was not removed: docker refused: cannot remove: device busy" in text
    assert len(CreatedLedger().entries()) == 1


def test_a_container_without_its_tool_stays_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    orphan(Container("radt-1"))
    monkeypatch.setenv("PATH", "/nowhere")
    assert "Remove it with `docker rm -f radt-1`" in doctor("--clean", code=1)


def test_a_damaged_entry_is_reported_and_stays() -> None:
    ledger = CreatedLedger()
    ledger.folder.mkdir()
    (ledger.folder / "mps-daemon-1.json").write_text('{"form')
    for arguments in ((), ("--clean",)):
        assert "mps-daemon-1.json cannot be read (incomplete)" in doctor(*arguments, code=1)
    assert len(ledger.damaged()) == 1


def test_processes_of_ended_runs_are_found_and_ended_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recovery, "SETTLE_S", 3000.0)  # however long it takes to look
    ended, settling, going = (
        add_run("ended" * 6, ended_s_ago=6000),
        add_run("settling" * 4, ended_s_ago=0),
        add_run("going" * 6),
    )
    with (
        process_of("ended" * 6, ended) as left,
        process_of("settling" * 4, settling) as quick,
        process_of("going" * 6, going) as running,
        process_of("nobody knows", ended) as unknown,
        process_of("ended" * 6, Path("/nowhere/runs/r")) as homeless,
    ):
        text = doctor(code=1)
        name = Path(sys.executable).name
        assert (
            f"✘ left behind {name} (pid {left.pid}) of run {'ended' * 6}, which has ended" in text
        )
        others = (quick, running, unknown, homeless)
        assert not any(f"pid {other.pid})" in text for other in others)
        assert f"✔ {name} (pid {left.pid}) of run {'ended' * 6}: ended" in doctor("--clean")
        assert left.wait() == -signal.SIGTERM
        assert all(other.poll() is None for other in others)


def test_a_process_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "_TERMINATE_S", 0.05)
    with process_of("r" * 32, add_run("r" * 32, ended_s_ago=60), _STUBBORN) as stubborn:
        (found,) = leftover_processes()
        assert found.process.pid == stubborn.pid
        assert end_process(found)
        assert stubborn.wait() == -signal.SIGKILL
        assert end_process(found)


def test_a_shell_that_a_run_has_left_does_not_end_itself() -> None:
    spool = add_run("r" * 32, ended_s_ago=60)
    program = (
        f"import subprocess; subprocess.run([{RADT!r}, 'doctor', '--clean'], "
        "stdout=subprocess.DEVNULL); print('still here', flush=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"RADT_RUN_ID": "r" * 32, "RADT_RUN_DIR": str(spool)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "still here\n"


def test_a_run_without_a_process_is_found_and_noted_as_killed() -> None:
    spool = add_run("living" * 5)
    add_run("lost" * 8)
    add_run("elsewhere" * 3, host="another-machine")
    with process_of("living" * 5, spool):
        lost = f"✘ run {('lost' * 8)[:12]} (study 1a) is RUNNING without a process\n"
        text = doctor(code=1)
        assert f"{lost}radt doctor --clean" in text
        assert text.count("without a process") == 1
        assert f"✔ run {'lost' * 8}: marked as KILLED" in doctor("--clean")
    with StoreReader(Home.resolve().store_path) as reader:
        statuses = {run.run_id: (run.status, run.end_reason) for run in reader.runs()}
        assert statuses["lost" * 8] == (RunStatus.KILLED, "its processes are gone")
        assert statuses["living" * 5][0] is RunStatus.RUNNING
        assert statuses["elsewhere" * 3][0] is RunStatus.RUNNING
        assert reader.workload("w-" + "lost" * 8).status is RunStatus.KILLED


def test_a_full_disk_is_wrong_and_a_filling_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for full, low, state in ((0, 0, "GOOD"), (0, 10**18, "LOW"), (10**18, 10**18, "WRONG")):
        monkeypatch.setattr(checks, "_FULL_BYTES", full)
        monkeypatch.setattr(checks, "_LOW_BYTES", low)
        (check,) = checks.data_folder(Home.resolve())
        assert check.state.name == state
        assert bool(check.remedy) == (state != "GOOD")


def test_json_has_every_check_and_nothing_else() -> None:
    checks = {check["subject"]: check for check in json.loads(doctor("--json"))["checks"]}
    assert checks["store"]["state"] == "absent"
    assert checks["store"]["text"] == "none yet; the first run creates it"
    assert set(checks["store"]) == {"subject", "state", "text", "remedy"}


def test_lines_fit_a_terminal_of_80_columns() -> None:
    orphan(Container("a-rather-long-name-of-a-container-" * 2))
    done = subprocess.run(
        [RADT, "doctor"],
        env=os.environ | {"COLUMNS": "80", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "\x1b" not in done.stdout
    assert not any(line != line.rstrip() for line in done.stdout.splitlines())
