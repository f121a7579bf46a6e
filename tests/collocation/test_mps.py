"""MPS daemons are radt's own: found by their clients only, ended exactly, also after a crash."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from radt.collocation import mps as mps_module
from radt.collocation.ledger import CreatedLedger, MpsDaemon
from radt.collocation.mps import MpsServer, no_mps_environment
from radt.collocation.setup import clean_up
from radt.errors import DeviceError
from radt.home import runtime_dir
from radt.procfs import start_ticks
from tests.support.bench import alive, wait_until
from tests.support.fake_mps import FakeMps, running

GPU_0, GPU_1 = "GPU-fake-0", "GPU-fake-1"

_RUNNER = """
import sys
from radt.collocation.mps import MpsServer
server = MpsServer(sys.argv[1:], run_id="r1")
print("starting", flush=True)
server.start()
print("started", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Daemons that do not answer are given up soon; the others have the time of a busy machine."""
    monkeypatch.setattr(mps_module, "START_TIMEOUT_S", 3.0)
    monkeypatch.setattr(mps_module, "ANSWER_TIMEOUT_S", 3.0)
    monkeypatch.setattr(mps_module, "STOP_TIMEOUT_S", 1.0)


@contextmanager
def runner(*devices: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that has begun to start a daemon."""
    with subprocess.Popen(
        [sys.executable, "-c", _RUNNER, *devices],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "starting\n"
        yield process
        process.kill()


def noted() -> list[MpsDaemon]:
    things = [entry.thing for entry in CreatedLedger().entries()]
    assert all(isinstance(thing, MpsDaemon) for thing in things)
    return [thing for thing in things if isinstance(thing, MpsDaemon)]


def folders() -> list[Path]:
    """Folders of daemons in the runtime folder."""
    parent = runtime_dir() / "mps"
    return sorted(parent.iterdir()) if parent.exists() else []


def assert_nothing_left(mps: FakeMps) -> None:
    assert (mps.daemons, noted(), folders()) == ([], [], [])


def others_daemon(mps: FakeMps, folder: Path, devices: str = GPU_0) -> int:
    return mps.start_daemon(folder / "pipes", folder / "logs", devices)


def test_daemon_gets_its_gpus_and_directories_and_nothing_of_a_run(
    mps: FakeMps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RADT_RUN_ID", "r1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "10")
    with running([GPU_0, GPU_1]) as server:
        (call,) = mps.calls("-d")
        clients = server.client_environment()
        assert call["env"] == {"CUDA_VISIBLE_DEVICES": f"{GPU_0},{GPU_1}", **clients}
        pipes, logs = (Path(clients[f"CUDA_MPS_{name}_DIRECTORY"]) for name in ("PIPE", "LOG"))
        for folder in (pipes, logs, pipes.parent):
            assert folder.is_relative_to(runtime_dir())
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert [server.thing.pid] == mps.daemons
        assert mps.calls("get_default_active_thread_percentage")
    assert_nothing_left(mps)


@pytest.mark.parametrize(("percentage", "text"), [(40.0, "40"), (12.5, "12.5"), (None, None)])
def test_a_thread_percentage_is_for_the_client(
    mps: FakeMps, percentage: float | None, text: str | None
) -> None:
    variables = MpsServer([GPU_0]).client_environment(percentage)
    assert variables.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") == text


def test_a_daemon_without_a_pid_file_is_found(mps: FakeMps) -> None:
    mps.be("no pid file")
    with running([GPU_0]) as server:
        assert [server.thing.pid] == mps.daemons


def test_two_gpus_have_two_daemons_that_end_apart(mps: FakeMps) -> None:
    first, second = MpsServer([GPU_0], workload_id="w1"), MpsServer([GPU_1])
    first.start()
    second.start()
    assert {first.thing.pid, second.thing.pid} == set(mps.daemons)
    assert {call["env"]["CUDA_VISIBLE_DEVICES"] for call in mps.calls("-d")} == {GPU_0, GPU_1}
    assert {entry.workload_id for entry in CreatedLedger().entries()} == {"w1", ""}
    assert sorted((thing.devices, thing.pid) for thing in noted()) == [
        ((GPU_0,), first.thing.pid),
        ((GPU_1,), second.thing.pid),
    ]
    first.stop()
    assert mps.daemons == [second.thing.pid]
    second.stop()
    first.stop()
    assert_nothing_left(mps)


def test_daemon_is_noted_before_it_is_started(
    mps: FakeMps, monkeypatch: pytest.MonkeyPatch
) -> None:
    (Path(os.environ["RADT_RUNTIME_DIR"]) / "created").write_text("in the way")
    with pytest.raises(DeviceError, match="cannot be written"):
        MpsServer([GPU_0]).start()
    assert mps.calls() == []


def test_a_missing_tool_says_where_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(DeviceError, match="control, which is not installed") as caught:
        MpsServer([GPU_0]).start()
    assert "NVIDIA's driver" in str(caught.value.remedy)
    assert (noted(), folders()) == ([], [])


@pytest.mark.parametrize(
    ("mood", "message"),
    [
        ("fail -d", "exit code 1: Failed to start.*log ends: .*out of luck"),
        ("die", "ended right after its start.*log ends: .*Cannot allocate"),
        ("hang -d", "did not start within"),
        ("slow -d", "did not start within"),
        ("hang get_default_active_thread_percentage", "does not answer within"),
    ],
)
def test_of_a_daemon_that_does_not_come_up_nothing_is_left(
    mps: FakeMps, impatient: None, mood: str, message: str
) -> None:
    mps.be(mood)
    with pytest.raises(DeviceError, match=message):
        MpsServer([GPU_0]).start()
    assert mps.calls("-d")
    assert_nothing_left(mps)


def test_a_runtime_folder_with_a_long_path_is_refused(
    mps: FakeMps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RADT_RUNTIME_DIR", str(tmp_path / ("x" * 100)))
    with pytest.raises(DeviceError, match="too long") as caught:
        MpsServer([GPU_0]).start()
    assert "RADT_RUNTIME_DIR" in str(caught.value.remedy)
    assert (mps.calls(), noted()) == ([], [])


def test_the_server_ends_with_its_daemon(mps: FakeMps) -> None:
    with running([GPU_0]) as server:
        assert server.clients() == {}
        pid = mps.connect(server.client_environment(), client=4711)
        assert server.clients() == {4711: pid}
        server.terminate_clients([4711])
    assert not alive(pid)
    assert [call["command"] for call in mps.calls("quit")] == ["quit -t 5"]


@pytest.mark.parametrize("mood", ["ignore quit", "hang quit"])
def test_a_daemon_that_does_not_quit_is_killed_with_its_server_and_no_other(
    mps: FakeMps, impatient: None, tmp_path: Path, mood: str
) -> None:
    others = others_daemon(mps, tmp_path / "theirs")
    server = MpsServer([GPU_0])
    server.start()
    pid = mps.connect(server.client_environment(), client=1)
    mps.be(mood)
    server.stop()
    wait_until(lambda: not alive(pid), "the end of the server")
    assert mps.daemons == [others]
    assert (noted(), folders()) == ([], [])


def test_a_daemon_that_somebody_has_killed_leaves_nothing(mps: FakeMps) -> None:
    server = MpsServer([GPU_0])
    server.start()
    assert server.thing.pid is not None
    os.kill(server.thing.pid, signal.SIGKILL)
    with pytest.raises(DeviceError, match="refuses get_server_list: Cannot find MPS"):
        server.clients()
    server.stop()
    assert_nothing_left(mps)


def test_clients_are_taken_off_the_server_and_nobody_else_is(mps: FakeMps) -> None:
    with running([GPU_0]) as server:
        server.terminate_clients([11])
        for client in (11, 12):
            pid = mps.connect(server.client_environment(), client)
        server.terminate_clients([11, 99])
        server.terminate_clients([11, 12])
    assert [call["command"] for call in mps.calls("terminate_client")] == [
        f"terminate_client {pid} 11",
        f"terminate_client {pid} 12",
    ]


def test_what_a_killed_runner_has_started_is_ended_and_anybody_elses_not(
    mps: FakeMps, tmp_path: Path
) -> None:
    others = others_daemon(mps, tmp_path / "theirs")
    with runner(GPU_0) as process, running([GPU_1]) as mine:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        said: list[str] = []
        assert clean_up(CreatedLedger(), say=said.append) == []
        assert (said, len(mps.daemons)) == ([], 3)
        (orphan,) = set(mps.daemons) - {others, mine.thing.pid}
        process.kill()
        process.wait()
        assert clean_up(CreatedLedger(), say=said.append) == []
        assert set(mps.daemons) == {others, mine.thing.pid}
        assert said == [f"MPS daemon (pid {orphan}) of {GPU_0}: removed"]
        assert [thing.pid for thing in noted()] == [mine.thing.pid]
        assert len(folders()) == 1


def test_a_runner_killed_before_it_knew_its_daemon_leaves_it_to_be_found(
    mps: FakeMps, impatient: None, tmp_path: Path
) -> None:
    others = others_daemon(mps, tmp_path / "theirs")
    mps.be("slow -d")
    with runner(GPU_0) as process:
        wait_until(lambda: len(mps.daemons) == 2, "the daemon")
        process.kill()
        process.wait()
        assert [thing.pid for thing in noted()] == [None]
        assert clean_up(CreatedLedger(), say=lambda _: None) == []
        assert (mps.daemons, noted(), folders()) == ([others], [], [])


def test_after_a_restart_of_the_machine_only_the_folder_goes(mps: FakeMps, tmp_path: Path) -> None:
    """The noted number and start may be those of a daemon of somebody else's by then."""
    others = others_daemon(mps, tmp_path / "theirs")
    ticks = start_ticks(others)
    (tmp_path / "ours").mkdir()
    entry = CreatedLedger().intend(MpsDaemon((GPU_0,), str(tmp_path / "ours"), others, ticks))
    entry.path.write_text(entry.path.read_text().replace(entry.owner.boot_id, "the one before"))
    said: list[str] = []
    assert clean_up(CreatedLedger(), say=said.append) == []
    assert said == [f"MPS daemon (pid {others}) of {GPU_0}: gone after the machine's restart"]
    assert (mps.daemons, noted()) == ([others], [])
    assert not (tmp_path / "ours").exists()


def test_a_later_daemon_with_the_noted_number_is_left_alone(mps: FakeMps, tmp_path: Path) -> None:
    others = others_daemon(mps, tmp_path / "theirs")
    thing = MpsDaemon((GPU_0,), str(tmp_path / "gone"), others, start_ticks=1)
    mps_module.remove_daemon(thing)
    assert mps.daemons == [others]


def test_a_row_without_mps_finds_no_daemon_at_the_usual_place() -> None:
    variables = no_mps_environment()
    folder = Path(variables["CUDA_MPS_PIPE_DIRECTORY"])
    assert folder.is_relative_to(runtime_dir())
    assert not folder.exists()
