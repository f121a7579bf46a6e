"""The smi listener against a fake libnvidia-ml.so.1, through pynvml's real structures."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from radt.listeners.smi import SmiListener

GPU0 = {"run_id": "a", "gpus": ["0"], "pids": []}


def test_values_arrive_in_si_units(nvml) -> None:
    (values,) = nvml.read([GPU0])
    assert {metric: value for (metric, gpu), value in values.items() if gpu == "0"} == {
        "gpu.utilization": 0.55,
        "gpu.memory.used": 1000,
        "gpu.memory.total": 80000,
        "gpu.power": 250.5,
        "gpu.energy": 7.0,
        "gpu.temperature": 61,
        "gpu.clock.sm": 1.41e9,
        "gpu.clock.memory": 1.593e9,
    }


def test_a_card_is_read_once_however_many_runs_share_it(nvml) -> None:
    shared = [
        {"run_id": "a", "gpus": ["0"], "pids": []},
        {"run_id": "b", "gpus": ["GPU-fake-0"], "pids": []},
        {"run_id": "c", "gpus": ["0"], "pids": []},
    ]
    first, second = nvml.read(shared, shared)
    assert first["gpu.power", "0"] == first["gpu.power", "GPU-fake-0"] == 250.5
    assert second == first
    calls = [call[0] for call in nvml.calls()]
    assert calls.count("nvmlDeviceGetPowerUsage") == 2, "once at each of two instants"
    assert calls.count("nvmlDeviceGetComputeRunningProcesses_v3") == 2
    assert calls.count("nvmlInitWithFlags") == 1
    assert calls.count("nvmlShutdown") == 1


def test_other_cards_are_left_alone(nvml) -> None:
    (values,) = nvml.read([{"run_id": "a", "gpus": ["1"], "pids": []}])
    assert values["gpu.memory.used", "1"] == 2000
    asked = {call[1] for call in nvml.calls() if call[0] == "nvmlDeviceGetPowerUsage"}
    assert asked == {"1"}


@pytest.fixture
def colleague() -> Iterator[int]:
    """A process that is not the run's."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.communicate()


def test_a_colleagues_process_is_not_attributed(nvml, colleague: int) -> None:
    own = os.getpid()
    nvml.configure(
        "count 1",
        f"process 0 {own} 300",
        f"process 0 {colleague} 5000",
        f"mps 0 {os.getppid()} 70",
    )
    with_mps = {"run_id": "a", "gpus": ["0"], "pids": [own, os.getppid()]}
    without = {"run_id": "b", "gpus": ["0"], "pids": []}
    (values,) = nvml.read([with_mps, without])
    assert values["process.gpu.memory", "a"] == 370
    assert values["process.gpu.memory", "b"] == 0


def test_memory_is_unknown_where_process_ids_are_the_hosts(nvml) -> None:
    """In a container, NVML names processes that /proc does not have."""
    nvml.configure("count 1", "process 0 4194303 5000")
    (values,) = nvml.read([{"run_id": "a", "gpus": ["0"], "pids": [os.getpid()]}])
    assert values["process.gpu.memory", "a"] == "permission"


def test_memory_that_the_driver_does_not_tell_is_missing(nvml) -> None:
    nvml.configure("count 1", f"process 0 {os.getpid()} n/a")
    (values,) = nvml.read([{"run_id": "a", "gpus": ["0"], "pids": [os.getpid()]}])
    assert values["process.gpu.memory", "a"] == "unsupported"


@pytest.mark.parametrize(
    ("code", "reason"),
    [(3, "unsupported"), (13, "unsupported"), (4, "permission"), (15, "lost"), (999, "lost")],
)
def test_a_value_that_cannot_be_read_is_missing_with_its_reason(
    nvml, code: int, reason: str
) -> None:
    nvml.configure(
        "count 1",
        "gpu 0 55 80000 500 1000 250500 7000 61 1410 1593",
        f"fail nvmlDeviceGetUtilizationRates {code}",
    )
    (values,) = nvml.read([GPU0])
    assert values["gpu.utilization", "0"] == reason
    assert values["gpu.power", "0"] == 250.5, "the others are read all the same"


def test_an_unknown_card_does_not_disturb_the_others(nvml) -> None:
    (values,) = nvml.read([{"run_id": "a", "gpus": ["7"], "pids": []}, GPU0])
    assert values["gpu.power", "7"] == "lost"
    assert values["gpu.power", "0"] == 250.5


def _probe(nvml) -> str:
    code = "from radt.listeners.smi import SmiListener as S; print(S.probe())"
    return subprocess.run(
        [sys.executable, "-c", code],
        env=nvml.environment(),
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_probe_finds_the_cards_and_lets_go(nvml) -> None:
    assert "available=True" in _probe(nvml)
    calls = [call[0] for call in nvml.calls()]
    assert calls.count("nvmlInitWithFlags") == calls.count("nvmlShutdown") == 1


def test_probe_says_why_there_are_none(nvml) -> None:
    nvml.configure("count 0")
    assert "no NVIDIA GPU" in _probe(nvml)
    nvml.configure("fail nvmlInitWithFlags 9")
    assert "Driver Not Loaded" in _probe(nvml)


def test_probe_without_the_library(nvml) -> None:
    nvml.library.parent.joinpath("empty").mkdir(exist_ok=True)
    answer = SmiListener.probe()
    if answer.available:
        pytest.skip("this machine has a GPU")
    assert answer.reason
    assert "smi" in answer.remedy
