"""``radt devices`` shows what is here and who uses it, also without any GPU and on 80 columns."""

from __future__ import annotations

import getpass
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from radt.cli import main
from radt.cli.checks import CheckState
from radt.cli.checks import nvml as nvml_check
from radt.devices.host import Host, cpu_numbers
from tests.support.bench import wait_until
from tests.support.fake_mps import FakeMps, running
from tests.support.nvml import FakeNvml, mig_gpu

GB = 1_000_000_000
COLUMNS = 80
#: As if NVML were not installed.
NO_DRIVER = "fail nvmlInitWithFlags 12"

_START_DAEMON = """
import os, signal
from radt.collocation.mps import MpsServer
server = MpsServer(["GPU-fake-0"])
server.start()
print(server.thing.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))


def devices(*arguments: str) -> str:
    printed = io.StringIO()
    with redirect_stdout(printed), pytest.raises(SystemExit) as ended:
        main(["devices", *arguments])
    assert ended.value.code == 0
    text = printed.getvalue()
    assert arguments or max(map(len, text.splitlines())) <= COLUMNS
    return text


def spaced(text: str) -> str:
    """Without the widths of columns."""
    return "\n".join(" ".join(line.split()) for line in text.splitlines())


@pytest.fixture
def sleeper() -> Iterator[int]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        comm = Path(f"/proc/{process.pid}/comm")
        wait_until(lambda: comm.read_text() == "sleep\n", "it is what it will be")
        yield process.pid
        process.kill()


def test_a_machine_without_gpu_is_described(nvml_here: FakeNvml) -> None:
    nvml_here.add(NO_DRIVER)
    text = spaced(devices())
    host = Host.detect()
    assert "GPUs none: no NVIDIA driver" in text
    assert re.search(rf"^CPUs {len(host.usable_cpus)}\b", text, re.MULTILINE)
    assert re.search(r"^memory [\d.]+ GB of [\d.]+ GB free$", text, re.MULTILINE)
    assert "MIG" not in text


def test_a_driver_that_does_not_work_is_said(nvml_here: FakeNvml) -> None:
    nvml_here.add("fail nvmlInitWithFlags 18")
    assert "GPUs the NVIDIA driver does not answer" in spaced(devices())


def test_gpus_have_memory_load_and_their_processes(nvml_here: FakeNvml, sleeper: int) -> None:
    nvml_here.configure(
        "count 2",
        "driver 580.65",
        f"gpu 0 55 {80 * GB} {GB} {4 * GB} 1 1 1 1 1",
        f"gpu 1 0 {80 * GB} {GB} 0 1 1 1 1 1",
        f"process 0 {sleeper} {3 * GB}",
        f"mps 0 {os.getpid()} n/a",
    )
    text = spaced(devices())
    gpu_0, gpu_1 = text[text.index("GPU 0") :].split("GPU 1")
    assert "driver NVIDIA 580.65" in text
    assert "memory 75.0 GB of 80.0 GB free" in gpu_0
    assert "busy 55 % of the time" in gpu_0
    assert f"{sleeper} {getpass.getuser()} sleep 3.00 GB" in gpu_0
    assert re.search(rf"^{os.getpid()} .* – MPS$", gpu_0, re.MULTILINE)
    assert "no process\n" in gpu_1
    assert "UUID GPU-fake-1" in gpu_1


def test_mig_instances_free_slices_and_whats_on_them_are_shown(
    nvml_here: FakeNvml, sleeper: int
) -> None:
    nvml_here.configure(
        "count 1",
        mig_gpu(0),
        "existing 0 9 4 3",
        "existing 0 19 0 1",
        f"mig_memory 1 {GB}",
        f"process 0 {sleeper} {GB} 1 0",
    )
    text = spaced(devices())
    assert "MIG on · memory slices 1-3 of 0-7 free" in text
    assert "room for 3× 1g.5gb, " in text
    large = "3g.20gb slice 4-7 id 1 19.9 GB of 20.9 GB free MIG-fake-0-1"
    assert text.index("1g.5gb slice 0 id 2 ") < text.index(large)
    assert re.search(rf"^{sleeper} .* 1.00 GB 3g.20gb, id 1$", text, re.MULTILINE)
    assert "busy" not in text  # a divided GPU has no load of its own
    nvml_here.add("unprivileged")
    text = spaced(devices())
    assert "memory in its instances" in text
    assert "19.9 GB of 20.9 GB free" in text, "a normal user sees an instance's own memory"


def test_mig_that_is_off_is_said(nvml_here: FakeNvml) -> None:
    nvml_here.configure("count 1", mig_gpu(0, mode=0, pending=1))
    text = spaced(devices())
    assert "MIG off, on after the GPU's next reset" in text
    assert "room for" not in text


def test_processes_that_the_driver_does_not_list_are_not_called_none(nvml_here: FakeNvml) -> None:
    nvml_here.add("fail nvmlDeviceGetComputeRunningProcesses_v3 3")
    text = devices()
    assert text.count("processes cannot be listed: ") == 2
    assert "no process" not in text


@pytest.mark.parametrize("trouble", ["lost 0", "broken 0 999"])
def test_a_broken_gpu_is_shown_with_its_reason_beside_the_others(
    nvml_here: FakeNvml, trouble: str
) -> None:
    nvml_here.add(trouble)
    gpu_0, gpu_1 = spaced(devices())[1:].split("GPU 1", 1)
    assert re.search(r"GPU 0\nproblem does not answer: \S+", gpu_0)
    assert "no process\n" in gpu_1
    assert [(check.state, check.text.partition(" (")[0]) for check in nvml_check()] == [
        (CheckState.GOOD, "driver 570.00, 1 GPU"),
        (
            CheckState.WRONG,
            f"GPU 0 does not answer: {json.loads(devices('--json'))['gpus'][0]['unknown']}",
        ),
    ]


def test_own_mps_daemons_and_others_are_told_apart(
    nvml_here: FakeNvml, mps: FakeMps, tmp_path: Path
) -> None:
    others = mps.start_daemon(tmp_path / "p", tmp_path / "l", "GPU-fake-1")
    elsewhere = mps.start_daemon(tmp_path / "p2", tmp_path / "l2", "GPU-gone")
    orphan = int(
        subprocess.run(
            [sys.executable, "-c", _START_DAEMON], capture_output=True, text=True, check=False
        ).stdout
    )
    with running(["GPU-fake-0"]) as server:
        text = spaced(devices())
        gpu_0, rest = text[text.index("GPU 0") :].split("GPU 1")
        assert f"MPS daemon pid {server.thing.pid}, started by radt\n" in gpu_0
        dead = "started by radt, runner is dead: run radt doctor --clean"
        assert f"daemon pid {orphan}, {dead}" in gpu_0.replace("\n", " ")
        assert f"MPS daemon pid {others}, of {getpass.getuser()}" in rest
        assert f"\ndaemon daemon pid {elsewhere}, of " in rest
    os.kill(orphan, signal.SIGKILL)


def test_json_has_all_of_it(nvml_here: FakeNvml, sleeper: int) -> None:
    nvml_here.configure("count 1", mig_gpu(0), "existing 0 9 4 3", f"process 0 {sleeper} {GB} 1 0")
    found: dict[str, Any] = json.loads(devices("--json"))
    (gpu,) = found["gpus"]
    assert found["host"]["memory_bytes"] == Host.detect().memory_bytes
    assert gpu["gpu"]["uuid"] == "GPU-fake-0"
    assert gpu["gpu"]["mig"]["instances"][0]["profile"] == "3g.20gb"
    (occupant,) = gpu["occupants"]
    assert occupant["device"] == "MIG-fake-0-1-0"
    assert (occupant["pid"], occupant["memory_bytes"]) == (sleeper, GB)
    assert occupant["who"]["command"] == "sleep"


def test_json_without_a_gpu_says_why(nvml_here: FakeNvml) -> None:
    nvml_here.add(NO_DRIVER)
    found = json.loads(devices("--json"))
    assert (found["gpus"], found["no_gpu_reason"]) == ([], "no NVIDIA driver")


def test_cpus_that_may_not_be_used_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        host = Host.detect()
        assert host.usable_cpus == (min(allowed),)
        assert set(host.cpus) >= allowed
        if len(host.cpus) > 1:
            assert f"CPUs 1 of {len(host.cpus)} usable · numbers {min(allowed)}" in spaced(
                devices()
            )
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize(
    ("text", "numbers"), [("0-2,5", (0, 1, 2, 5)), ("7\n", (7,)), ("", ()), ("\n", ())]
)
def test_the_kernels_lists_are_understood(text: str, numbers: tuple[int, ...]) -> None:
    assert cpu_numbers(text) == numbers
