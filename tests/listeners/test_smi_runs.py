"""What smi says of single runs: memory, SM time, MIG instances; never what is of others."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.listeners.conftest import Run, SampledNvml
from tests.support.nvml import mig_gpu

#: A busy card, with an energy counter that grows by 300 W.
BUSY = (
    "count 1",
    "gpu 0 55 80000 500 1000 250500 7000 61 1410 1593",
    "field 0 83 ull 7000 300000",
)
IDLE = ("count 1", "gpu 0 0 80000 500 1000 60000 7000 35 210 405", BUSY[2])
OWN = os.getpid()
#: An id that no process has here: the host's, seen from a container.
STRANGE = 4194303


@pytest.fixture
def colleague() -> Iterator[int]:
    """A process that is not the run's."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.communicate()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], int]]:
    """Starts processes of a given name."""
    started = []

    def by_name(name: str) -> int:
        program = tmp_path / name
        shutil.copy(shutil.which("sleep") or "", program)
        started.append(subprocess.Popen([program, "600"]))
        return started[-1].pid

    yield by_name
    for process in started:
        process.kill()
        process.wait()


# Memory ------------------------------------------------------------------------------------------


def test_a_colleagues_process_is_not_attributed(nvml: SampledNvml, colleague: int) -> None:
    smi = nvml.open(
        "count 1", f"process 0 {OWN} 300", f"process 0 {colleague} 5000", f"mps 0 {os.getppid()} 70"
    )
    sampled = smi.sample(Run("a", pids=[OWN, os.getppid()]), Run("b"))
    assert sampled["process.gpu.memory", "a"] == 370
    assert sampled["process.gpu.memory", "b"] == 0


def test_memory_is_unknown_where_process_ids_are_the_hosts(nvml: SampledNvml) -> None:
    smi = nvml.open("count 1", f"process 0 {STRANGE} 5000")
    assert smi.sample(Run(pids=[OWN]))["process.gpu.memory", "a"] == "permission"


def test_memory_that_the_driver_does_not_tell_is_missing(nvml: SampledNvml) -> None:
    smi = nvml.open("count 1", f"process 0 {OWN} n/a")
    assert smi.sample(Run(pids=[OWN]))["process.gpu.memory", "a"] == "unsupported"


def test_a_driver_without_a_list_of_mps_clients(nvml: SampledNvml) -> None:
    smi = nvml.open(
        "count 1",
        f"process 0 {OWN} 300",
        "fail nvmlDeviceGetMPSComputeRunningProcesses_v3 13",
    )
    assert smi.sample(Run(pids=[OWN]))["process.gpu.memory", "a"] == 300


@pytest.mark.parametrize("function", ["", "MPS"])
def test_half_a_list_of_processes_is_none(nvml: SampledNvml, function: str) -> None:
    smi = nvml.open(
        "count 1",
        f"process 0 {OWN} 300",
        f"fail nvmlDeviceGet{function}ComputeRunningProcesses_v3 4",
    )
    assert smi.sample(Run(pids=[OWN]))["process.gpu.memory", "a"] == "permission"


def test_a_run_with_two_names_for_a_card_has_it_once(nvml: SampledNvml) -> None:
    smi = nvml.open(*IDLE, f"process 0 {OWN} 300")
    for _ in range(2):
        sampled = smi.sample(Run(gpus=["0", "GPU-fake-0"], pids=[OWN]))
    assert sampled["process.gpu.memory", "a"] == 300
    assert sampled["process.gpu.utilization", "a"] == 0


# SM time -----------------------------------------------------------------------------------------


def test_sm_time_is_of_the_runs_processes(nvml: SampledNvml, colleague: int) -> None:
    own = (OWN, os.getppid())
    smi = nvml.open(
        *BUSY,
        *(f"process 0 {pid} 1" for pid in (*own, colleague)),
        f"sm 0 {own[0]} 30",
        f"sm 0 {own[1]} 20",
        f"sm 0 {colleague} 40",
    )
    sampled = smi.sample(Run("a", pids=own), Run("b"))
    assert sampled["process.gpu.utilization", "a"] == pytest.approx(0.5)
    assert sampled["process.gpu.utilization", "b"] == 0


def test_samples_that_cannot_be_are_left_out(nvml: SampledNvml) -> None:
    """Drivers fill the array up with remains."""
    smi = nvml.open(
        *BUSY,
        f"process 0 {OWN} 1",
        f"sm 0 {OWN} 30",
        f"sm 0 {OWN} 3435973836",
        "sm 0 0 50",
        f"sm 0 {OWN} 90 3600000000",
    )
    assert smi.sample(Run(pids=[OWN]))["process.gpu.utilization", "a"] == pytest.approx(0.3)


def test_no_samples_on_an_idle_card_are_none(nvml: SampledNvml) -> None:
    smi = nvml.open(*IDLE, f"process 0 {OWN} 1")
    assert smi.sample(Run(pids=[OWN]))["process.gpu.utilization", "a"] == 0


def test_no_samples_on_a_busy_card_are_not_zero(nvml: SampledNvml) -> None:
    smi = nvml.open(*BUSY, f"process 0 {OWN} 1")
    values = []
    for _ in range(5):
        sampled = smi.sample(Run(pids=[OWN]))
        values += [one["value"] for one in sampled.of("process.gpu.utilization", "a")]
    assert values == ["lost", "lost"], "after three seconds of patience"


def test_a_sample_that_comes_late_counts(nvml: SampledNvml) -> None:
    smi = nvml.open(*BUSY, f"process 0 {OWN} 1")
    assert ("process.gpu.utilization", "a") not in smi.sample(Run(pids=[OWN]))
    nvml.add(f"sm 0 {OWN} 60")
    assert smi.sample()["process.gpu.utilization", "a"] == pytest.approx(0.6)


def test_samples_are_asked_for_since_the_last(nvml: SampledNvml) -> None:
    smi = nvml.open(*BUSY, f"process 0 {OWN} 1", f"sm 0 {OWN} 60")
    for _ in range(3):
        smi.sample(Run(pids=[OWN]))
    since = [int(call[3]) for call in nvml.calls("nvmlDeviceGetProcessUtilization")]
    assert len(set(since)) == 3
    assert since == sorted(since)
    assert since[0] > 0


@pytest.mark.parametrize("line", ["process 0 {} 1", "sm 0 {} 50"])
def test_sm_time_is_unknown_where_process_ids_are_the_hosts(nvml: SampledNvml, line: str) -> None:
    """The two lists may be of different namespaces."""
    lists = {f"process 0 {OWN} 1", f"sm 0 {OWN} 50"} - {line.format(OWN)}
    smi = nvml.open(*BUSY, line.format(STRANGE), *lists)
    own = [OWN] if "sm" in line else [os.getppid()]
    smi.sample(Run(pids=own))  # once, the process could have ended meanwhile
    sampled = smi.sample()
    assert sampled["process.gpu.utilization", "a"] == "permission"
    assert sampled["process.gpu.energy", "a"] in ("permission", "unattributable")


def test_a_driver_without_samples_is_asked_once(nvml: SampledNvml) -> None:
    smi = nvml.open(*BUSY, "fail nvmlDeviceGetProcessUtilization 3")
    for _ in range(3):
        assert smi.sample()["process.gpu.utilization", "a"] == "unsupported"
    assert nvml.count("nvmlDeviceGetProcessUtilization") == 1


# MPS: the driver may put clients' time down to their server --------------------------------------


def test_the_mps_servers_time_is_its_only_runs(
    nvml: SampledNvml, start: Callable[[str], int]
) -> None:
    server = start("nvidia-cuda-mps-server")
    smi = nvml.open(
        *BUSY,
        f"process 0 {server} 1",
        f"mps 0 {OWN} 300",
        f"mps 0 {os.getppid()} 300",
        f"sm 0 {server} 80",
    )
    both = Run("a", pids=[OWN, os.getppid()])
    other = Run("b", pids=[1])
    sampled = smi.sample(both, other)
    assert sampled["process.gpu.utilization", "a"] == pytest.approx(0.8)
    assert sampled["process.gpu.utilization", "b"] == 0
    sampled = smi.sample(Run("c", pids=[OWN]), Run("d", pids=[os.getppid()]))
    assert sampled["process.gpu.utilization", "c"] == "unattributable"
    assert sampled["process.gpu.utilization", "d"] == "unattributable"
    assert sampled["process.gpu.memory", "c"] == 300


def test_mps_clients_with_times_of_their_own(
    nvml: SampledNvml, start: Callable[[str], int]
) -> None:
    server = start("nvidia-cuda-mps-server")
    smi = nvml.open(
        *BUSY,
        f"process 0 {server} 1",
        f"mps 0 {OWN} 300",
        f"mps 0 {os.getppid()} 300",
        f"sm 0 {OWN} 60",
        f"sm 0 {os.getppid()} 20",
    )
    sampled = smi.sample(Run("a", pids=[OWN]), Run("b", pids=[os.getppid()]))
    assert sampled["process.gpu.utilization", "a"] == pytest.approx(0.6)
    assert sampled["process.gpu.utilization", "b"] == pytest.approx(0.2)


@pytest.mark.parametrize("ended", [("train",), ("nvidia-cuda-mps-server",), ("train", "other")])
def test_processes_that_have_ended_are_no_matter_of_permission(
    nvml: SampledNvml, start: Callable[[str], int], ended: tuple[str, ...]
) -> None:
    """They were the run's, another's or the server's while they were there."""
    pids = {name: start(name) for name in ("nvidia-cuda-mps-server", "train", "other")}
    lines = {
        "nvidia-cuda-mps-server": f"process 0 {pids['nvidia-cuda-mps-server']} 1",
        "train": f"mps 0 {pids['train']} 300",
        "other": f"process 0 {pids['other']} 300",
    }
    rest = (f"mps 0 {OWN} 300", f"sm 0 {pids['nvidia-cuda-mps-server']} 80")
    smi = nvml.open(*BUSY, *rest, *lines.values())
    smi.sample(Run("a", pids=[pids["train"]]), Run("b", pids=[OWN]))
    for name in ended:
        os.kill(pids[name], signal.SIGKILL)
        os.waitpid(pids[name], 0)
    nvml.configure(*BUSY, *rest, *(line for name, line in lines.items() if name not in ended))
    left = [] if "train" in ended else [pids["train"]]
    sampled = smi.sample(Run("a", pids=left), Run("b", pids=[OWN]))
    for run in "ab":
        assert sampled["process.gpu.utilization", run] == "unattributable"
        assert sampled["process.gpu.energy", run] == "unattributable"


def test_work_of_a_process_that_came_and_went_is_nobodys(nvml: SampledNvml) -> None:
    smi = nvml.open(*BUSY, f"process 0 {OWN} 1", f"sm 0 {OWN} 30")
    smi.sample(Run(pids=[OWN]))
    nvml.configure(*BUSY, f"process 0 {OWN} 1", f"sm 0 {STRANGE} 50")
    assert smi.sample()["process.gpu.utilization", "a"] == "unattributable"
    assert smi.sample()["process.gpu.utilization", "a"] == "permission"


# MIG ---------------------------------------------------------------------------------------------

_MIG = (
    "count 1",
    mig_gpu(0),
    "existing 0 9 0 3",
    "existing 0 19 4 1",
    "field 0 83 ull 1 300000",
    "mig_memory 2 222",
)
_ONE, _TWO = "MIG-fake-0-1-0", "MIG-fake-0-2-0"


@pytest.mark.parametrize("rights", ["", "unprivileged"])
def test_mig_instances_have_their_own_memory(nvml: SampledNvml, rights: str) -> None:
    smi = nvml.open(
        *_MIG,
        rights,
        "mig_memory 1 111",
        f"process 0 {OWN} 300 1 0",
        f"process 0 {os.getppid()} 400 2 0",
    )
    one, two = Run("a", [_ONE], [OWN]), Run("b", [_TWO], [os.getppid()])
    smi.sample(one, two)
    sampled = smi.sample(one, two)
    assert sampled["gpu.mig.memory.used", _ONE] == 111
    assert sampled["gpu.mig.memory.total", _ONE] == 19968 << 20
    assert sampled["gpu.mig.memory.used", _TWO] == 222
    assert sampled.one("gpu.mig.memory.used", _TWO)["entity"] == "gpu0/gi2/ci0"
    assert sampled["process.gpu.memory", "a"] == 300
    assert sampled["process.gpu.memory", "b"] == 400
    assert sampled.one("process.gpu.memory", "b")["entity"] == "gpu0/gi2/ci0"


def test_what_is_of_the_whole_card_says_so(nvml: SampledNvml) -> None:
    smi = nvml.open(*_MIG)
    smi.sample(Run("a", [_ONE], [OWN]))
    sampled = smi.sample()
    assert sampled["gpu.power", _ONE] == pytest.approx(300)
    assert sampled.one("gpu.power", _ONE)["entity"] == "gpu0"
    assert sampled["gpu.utilization", _ONE] == "unsupported"
    assert sampled["process.gpu.utilization", "a"] == "unsupported"
    assert sampled["process.gpu.energy", "a"] == "unattributable"
    assert nvml.count("nvmlDeviceGetProcessUtilization") == 0
    assert nvml.count("nvmlDeviceGetUtilizationRates") == 1


def test_the_whole_of_a_divided_card_is_hidden_from_users(nvml: SampledNvml) -> None:
    smi = nvml.open(*_MIG, "unprivileged")
    sampled = smi.sample(Run("a", ["0"], [OWN]))
    assert sampled["gpu.memory.used", "0"] == "permission"
    assert sampled["process.gpu.memory", "a"] == "permission"
    assert sampled["process.gpu.energy", "a"] == "unattributable"


def test_processes_of_another_instance_are_not_counted(nvml: SampledNvml) -> None:
    """Whoever asks as root may be told of more than the instance."""
    smi = nvml.open(*_MIG, f"process 0 {OWN} 300 1 0", f"mps 0 {OWN} 44 2 0")
    assert smi.sample(Run("a", [_TWO], [OWN]))["process.gpu.memory", "a"] == 44


def test_an_instance_that_was_made_anew(nvml: SampledNvml) -> None:
    smi = nvml.open(*_MIG)
    smi.sample(Run("a", [_TWO]))
    nvml.configure(*(line for line in _MIG if "existing 0 19" not in line))
    for _ in range(2):
        sampled = smi.sample()
        assert sampled["gpu.mig.memory.used", _TWO] == "lost"
    nvml.configure(*_MIG)
    smi.sample()
    assert smi.sample()["gpu.mig.memory.total", _TWO] == 4864 << 20


def test_an_instance_that_is_gone_leaves_its_card_and_its_neighbours(nvml: SampledNvml) -> None:
    smi = nvml.open(*_MIG)
    smi.sample(Run("a", [_ONE]), Run("b", [_TWO]))
    nvml.configure(*(line for line in _MIG if "existing 0 19" not in line))
    for _ in range(3):
        sampled = smi.sample()
    assert sampled["gpu.mig.memory.used", _TWO] == "lost"
    assert sampled["process.gpu.memory", "b"] == "lost"
    assert sampled["gpu.power", _ONE] == pytest.approx(300)
    assert sampled["gpu.power", _TWO] == pytest.approx(300), "the card is there"
    assert sampled["gpu.mig.memory.used", _ONE] != "lost"


def test_an_instance_that_never_was(nvml: SampledNvml) -> None:
    sampled = nvml.open(*_MIG).sample(Run("a", ["MIG-fake-0-5-0"]))
    assert sampled["gpu.mig.memory.used", "MIG-fake-0-5-0"] == "lost"
