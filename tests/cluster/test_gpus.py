"""Which GPUs of a node a job has, as Slurm and the driver say."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from radt.cluster.gpus import allocated_machine
from radt.collocation.inventory import read_inventory
from radt.devices.machine import Devices
from radt.errors import DeviceError, UsageError
from tests.support.nvml import FakeNvml, mig_gpu, nvml, nvml_here, nvml_library, plain_gpu

__all__ = ["nvml", "nvml_here", "nvml_library"]

#: Four GPUs whose device files are numbered otherwise than NVML's indices.
SHUFFLED = (
    "count 4",
    *(plain_gpu(index) for index in range(4)),
    *(f"minor {index} {minor}" for index, minor in enumerate((2, 3, 0, 1))),
)


def test_a_job_that_is_shown_its_gpus_only_has_all_of_them(nvml_here: FakeNvml) -> None:
    nvml_here.configure("count 1", plain_gpu(0), "minor 0 3")
    machine = allocated_machine(1, {"SLURM_JOB_GPUS": "3", "CUDA_VISIBLE_DEVICES": "0"})
    assert [gpu.uuid for gpu in machine.gpus] == ["GPU-fake-0"]


@pytest.mark.parametrize(
    ("environ", "uuids"),
    [
        ({"SLURM_JOB_GPUS": "1,3"}, ["GPU-fake-3", "GPU-fake-1"]),
        ({"SLURM_STEP_GPUS": "0", "SLURM_JOB_GPUS": "0,1"}, ["GPU-fake-2"]),
        ({"CUDA_VISIBLE_DEVICES": "2"}, ["GPU-fake-0"]),
        ({"SLURM_JOB_GPUS": "0,1,2,3"}, [f"GPU-fake-{index}" for index in range(4)]),
        ({"CUDA_VISIBLE_DEVICES": "gpu-fake-2,GPU-fake-0"}, ["GPU-fake-2", "GPU-fake-0"]),
    ],
)
def test_where_all_gpus_are_shown_slurms_numbers_say_which(
    nvml_here: FakeNvml, environ: Mapping[str, str], uuids: list[str]
) -> None:
    nvml_here.configure(*SHUFFLED)
    machine = allocated_machine(1, environ)
    assert [gpu.uuid for gpu in machine.gpus] == uuids
    assert len(machine.gpus) + len(machine.hidden) == 4


@pytest.mark.parametrize("environ", [{"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, {}])
def test_a_job_without_the_gpus_that_it_asked_for_does_not_run(
    nvml_here: FakeNvml, environ: Mapping[str, str]
) -> None:
    with pytest.raises(DeviceError, match="asked for 2 GPUs, and Slurm has given it none"):
        allocated_machine(2, environ)


def test_a_job_that_asked_for_no_gpu_uses_none(nvml_here: FakeNvml) -> None:
    nvml_here.configure("count 0")
    machine = allocated_machine(0, {"SLURM_JOB_GPUS": "0,1", "CUDA_MPS_PIPE_DIRECTORY": "/x"})
    assert machine.gpus == () and machine.no_gpu_reason
    assert Devices.parse("", machine).is_cpu
    assert nvml_here.calls() == []


def test_devices_are_places_among_the_jobs_gpus(nvml_here: FakeNvml) -> None:
    nvml_here.configure(*SHUFFLED)
    machine = allocated_machine(1, {"SLURM_JOB_GPUS": "1,3"})
    assert Devices.parse("", machine) == Devices((3,))
    assert Devices.parse("1", machine) == Devices((1,))
    both = Devices.parse("0+1", machine)
    assert both.cuda_visible_devices(machine) == "GPU-fake-3,GPU-fake-1"
    with pytest.raises(UsageError, match="GPU 2: the job has 2 GPUs"):
        Devices.parse("2", machine)


@pytest.mark.parametrize(
    ("numbers", "cause"),
    [("0,1,2,3,4", "given 5 GPUs, and the node's driver shows 4"), ("0,9", "not show GPU 9")],
)
def test_what_the_driver_does_not_show_is_an_error(
    nvml_here: FakeNvml, numbers: str, cause: str
) -> None:
    nvml_here.configure(*SHUFFLED)
    with pytest.raises(DeviceError, match=cause):
        allocated_machine(1, {"SLURM_JOB_GPUS": numbers})


@pytest.mark.parametrize(
    "variable", ["CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]
)
def test_a_daemon_of_the_site_is_refused(nvml_here: FakeNvml, variable: str) -> None:
    with pytest.raises(DeviceError, match=f"{variable}=50.*whole GPUs"):
        allocated_machine(1, {variable: "50", "SLURM_JOB_GPUS": "0"})


def test_mig_devices_of_the_job_are_used_as_they_are(
    nvml_here: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml_here.configure(
        "count 2", plain_gpu(0), mig_gpu(1), "existing 1 9 4 3", "existing 1 19 0 1"
    )
    uuids = {
        instance.profile: instance.computes[0].uuid
        for gpu in read_inventory().gpus
        if gpu.mig is not None
        for instance in gpu.mig.instances
    }
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", uuids["3g.20gb"])
    machine = allocated_machine(1)
    assert [gpu.index for gpu in machine.gpus] == [1]
    gpu = read_inventory().gpu(1)
    assert gpu is not None and gpu.mig is not None
    assert [instance.profile for instance in gpu.mig.instances] == ["3g.20gb"]
    assert not gpu.mig.may_create
