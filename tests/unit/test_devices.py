"""Which devices exist, which a process or a runner has, on drivers good and bad."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from radt.analysis.baselines import place_of
from radt.cli import checks
from radt.collocation.overview import MachineOverview
from radt.collocation.processes import ProcessLists
from radt.devices import gpus as gpus_module
from radt.devices import ordinals
from radt.devices.gpus import Gpus
from radt.devices.machine import Devices, Machine
from radt.devices.nvml import Nvml
from radt.devices.visible import Visible, entries_of, given_devices, offered_devices
from radt.errors import DeviceError, UsageError
from radt.frontend.data.lines import placed
from radt.listeners.nvidia import DeviceHandles
from radt.model import RunStatus
from radt.run import standalone
from radt.store.records import RunRecord
from tests.support.nvml import (
    SINCE_450,
    SINCE_470,
    FakeNvml,
    build_library,
    load,
    mig_gpu,
    nvml,
    nvml_here,
    nvml_library,
    plain_gpu,
)

__all__ = ["nvml", "nvml_here", "nvml_library"]

HEX = [f"{index:x}" * 32 for index in range(4)]
MIG_HEX = "f" * 32


def uuid_of(digits: str, kind: str = "GPU") -> str:
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return "-".join((kind, *parts))


#: Two kinds of cards; CUDA's order is the reverse of NVML's.
MIXED = (
    "count 2",
    plain_gpu(0, "NVIDIA T400"),
    plain_gpu(1, "NVIDIA RTX A6000"),
    f"uuid 0 {uuid_of(HEX[0])}",
    f"uuid 1 {uuid_of(HEX[1])}",
)
FASTEST_FIRST = (HEX[1], HEX[0])
#: Three equal cards, whose UUIDs have common beginnings.
EQUAL = (
    "count 3",
    *(plain_gpu(index) for index in range(3)),
    "uuid 0 GPU-1a00",
    "uuid 1 GPU-1b00",
    "uuid 2 GPU-2c00",
)
#: One divided card with two instances, of which the second has a small compute instance.
DIVIDED = ("count 2", plain_gpu(0), mig_gpu(1), "existing 1 9 4 3", "existing 1 9 0 1")


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ordinals, "_answers", {})


@pytest.mark.parametrize("trouble", ["lost 0", "broken 0 999", "broken 0 15"])
def test_a_broken_gpu_is_one_broken_gpu(nvml_here: FakeNvml, trouble: str) -> None:
    nvml_here.configure(*EQUAL, trouble)
    found = Gpus.read()
    assert [gpu.index for gpu in found.working] == [1, 2]
    assert found.failure.startswith("GPU 0 does not answer: ") and not found.failed
    machine = Machine.detect()
    assert Devices.parse("1", machine).cuda_visible_devices(machine) == "GPU-1b00"
    assert Devices.parse("", machine) == Devices((1,))
    with pytest.raises(UsageError, match=r"^GPU 0 does not answer: .*choose GPU 1"):
        Devices.parse("0", machine)


def test_a_lost_gpu_does_not_hide_the_others_from_those_who_name_them_by_uuid(
    nvml_here: FakeNvml,
) -> None:
    nvml_here.configure(*DIVIDED, "process 1 71 5 1 0", "lost 0")
    _, divided = MachineOverview.read().gpus
    assert [occupant.pid for occupant in divided.occupants] == [71]
    assert divided.gpu.mig is not None
    assert [instance.computes[0].sm_count for instance in divided.gpu.mig.instances] == [42, 14]
    with ProcessLists() as lists:
        assert [process.pid for process in lists.of("MIG-fake-1-1-0").processes] == [71]
        with pytest.raises(DeviceError, match="GPU-fake-0 not found: GPU is lost"):
            lists.of("GPU-fake-0")
    handles = DeviceHandles()
    handles.open()
    found = handles.find(["GPU-fake-0", "GPU-fake-1", "MIG-fake-1-2-0"])
    handles.close()
    entities = [named and (named.mig or named.card).entity for named in found.values()]
    assert entities == [None, "gpu1", "gpu1/gi2/ci0"]


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (["lost 0", "lost 1", "broken 2 999"], "GPU 0 does not answer: .*; GPU 2 does not answer"),
        (["fail nvmlInitWithFlags 18"], "the NVIDIA driver does not answer"),
        (["fail nvmlDeviceGetCount_v2 999"], "the NVIDIA driver does not answer"),
    ],
)
def test_no_row_uses_the_cpu_because_gpus_have_failed(
    nvml_here: FakeNvml, trouble: list[str], reason: str
) -> None:
    nvml_here.configure(*EQUAL, *trouble)
    machine = Machine.detect()
    with pytest.raises(UsageError, match=f"no GPU can be used: {reason}.*write cpu"):
        Devices.parse("", machine)
    assert Devices.parse("cpu", machine).is_cpu


@pytest.mark.parametrize(("files", "fails"), [((), False), (("nvidia0", "nvidiactl"), True)])
@pytest.mark.parametrize(("code", "what"), [(9, "not loaded"), (12, "no NVIDIA driver")])
def test_without_a_driver_rows_use_the_cpu_unless_there_are_files_of_gpus(
    nvml_here: FakeNvml,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    files: tuple[str, ...],
    fails: bool,
    code: int,
    what: str,
) -> None:
    for name in files:
        (tmp_path / name).touch()
    monkeypatch.setattr(gpus_module, "_DEV", str(tmp_path))
    nvml_here.configure(f"fail nvmlInitWithFlags {code}")
    machine = Machine.detect()
    assert machine.has_failed is fails
    if fails:
        with pytest.raises(UsageError, match=rf"{what}.*, although .*nvidia0 exists"):
            Devices.parse("", machine)
    else:
        assert Devices.parse("", machine).is_cpu
        with pytest.raises(UsageError, match=f"this machine has no GPU .*{what}"):
            Devices.parse("0", machine)


def test_the_gpus_of_wsl_have_no_files_and_no_numbers_of_files(
    nvml_here: FakeNvml, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "dxg").touch()
    monkeypatch.setattr(gpus_module, "_DEV", str(tmp_path))
    monkeypatch.setattr(gpus_module, "_WSL_FILE", str(tmp_path / "dxg"))
    absent = [f"fail nvmlDeviceGet{name} 999" for name in ("MinorNumber", "ComputeMode")]
    nvml_here.configure(*EQUAL, *absent)
    machine = Machine.detect()
    assert [gpu.index for gpu in machine.gpus] == [0, 1, 2] and not machine.broken
    nvml_here.configure("fail nvmlInitWithFlags 12")
    assert not Gpus.read().failed, "the host's GPU may be another vendor's"

    monkeypatch.setitem(sys.modules, "pynvml", None)  # radt in an environment without it
    monkeypatch.setattr(standalone, "warn_once", lambda text: warned.append(text))
    warned: list[str] = []
    for offer, devices in (("fail 999", "unknown"), (HEX[2], uuid_of(HEX[2])), ("fail 100", "cpu")):
        nvml_here.offer(offer)
        ordinals._answers.clear()
        assert standalone._devices()[1] == devices
    assert warned == ["the run's GPUs are not recorded: nvidia-ml-py is not installed here"]


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("0,2", ("0", "2")),
        (" 1 , 0,-1,2", ("1", "0")),
        ("1gpu,2x", ("1", "2")),
        ("00,0", ()),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("1,,0", ("1",)),
        ("GPU-5f,GPU-6a,0", ("GPU-5f", "GPU-6a")),
        ("GPU-5f,MIG-6a", ("GPU-5f",)),
        ("MIG-GPU-5f/1/0", ("MIG-GPU-5f/1/0",)),
        ("0,GPU-5f", ("0",)),
        ("9" * 5000, ("9" * 5000,)),
    ],
)
def test_the_variable_is_read_as_cuda_reads_it(text: str, entries: tuple[str, ...]) -> None:
    assert entries_of(text) == entries


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        ("2,0", [2, 0]),
        ("GPU-2", [2]),
        ("gpu-1b00,1", [1]),
        ("GPU-1b,GPU-1", [1]),  # the second could be two
        ("GPU-2c00,GPU-2", []),  # one device twice
        ("1,7,0", [1]),
        ("1,1", []),
        ("", []),
        ("-1", []),
    ],
)
def test_hidden_gpus_are_not_used(
    nvml_here: FakeNvml, monkeypatch: pytest.MonkeyPatch, text: str, indices: list[int]
) -> None:
    nvml_here.configure(*EQUAL)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    machine = Machine.detect()
    assert [gpu.index for gpu in machine.gpus] == indices
    assert sorted(gpu.index for gpu in machine.gpus + machine.hidden) == [0, 1, 2]
    assert bool(machine.no_gpu_reason) == (not indices)
    if indices:
        assert Devices.parse("", machine).gpus == (indices[0],)
    with pytest.raises(UsageError, match="is hidden by CUDA_VISIBLE_DEVICES"):
        Devices.parse(str(machine.hidden[0].index), machine)


@pytest.mark.parametrize(
    ("text", "fails"), [("", False), ("-1", False), ("9", True), ("GPU-9", True)]
)
def test_a_variable_that_names_what_is_not_there_does_not_mean_the_cpu(
    nvml_here: FakeNvml, monkeypatch: pytest.MonkeyPatch, text: str, fails: bool
) -> None:
    nvml_here.configure(*EQUAL)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    machine = Machine.detect()
    if not fails:
        assert Devices.parse("", machine).is_cpu
        return
    with pytest.raises(UsageError, match=f"CUDA_VISIBLE_DEVICES={text} names no GPU that works"):
        Devices.parse("", machine)


@pytest.mark.parametrize(
    ("text", "uuids"),
    [
        ("MIG-fake-1-2-0", ["MIG-fake-1-2-0"]),
        ("MIG-fake-1-2,MIG-fake-1-1-0", ["MIG-fake-1-2-0", "MIG-fake-1-1-0"]),
        ("MIG-GPU-fake-1/1/0", ["MIG-fake-1-1-0"]),
        ("MIG-fake-1-9-0", []),
    ],
)
def test_rows_use_the_mig_devices_that_a_scheduler_gave(
    nvml_here: FakeNvml, monkeypatch: pytest.MonkeyPatch, text: str, uuids: list[str]
) -> None:
    nvml_here.configure(*DIVIDED)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    machine = Machine.detect()
    assert [mig.uuid for mig in machine.mig_devices] == uuids
    if not uuids:
        with pytest.raises(UsageError, match="names no GPU that works here"):
            Devices.parse("", machine)
        return
    devices = Devices.parse("", machine)
    assert devices.gpus == (1,)
    assert devices.cuda_visible_devices(machine) == uuids[0]
    offered = offered_devices(Gpus.read())
    assert [device.uuid for device in offered.devices] == uuids[:1], "CUDA uses the first alone"


@pytest.mark.parametrize(
    ("environ", "indices", "asks"),
    [
        ({}, [0, 1], False),
        ({"CUDA_VISIBLE_DEVICES": "0"}, [1], True),
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, [0, 1], True),
        ({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [0], False),
        ({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, [1], True),
        ({"CUDA_VISIBLE_DEVICES": uuid_of(HEX[0])}, [0], False),
    ],
)
def test_ordinals_of_unequal_gpus_are_cudas(
    nvml_here: FakeNvml, environ: Mapping[str, str], indices: list[int], asks: bool
) -> None:
    nvml_here.configure(*MIXED)
    gpus, variables = Gpus.read(), nvml_here.variables()
    without = given_devices(gpus, variables | environ)
    assert without.failed is asks
    if asks:
        assert "the machine's GPUs differ, and the CUDA driver" in without.reason
    nvml_here.offer(*FASTEST_FIRST)
    for read in (given_devices, offered_devices):
        assert [device.gpu.index for device in read(gpus, variables | environ).devices] == indices


def test_a_script_that_has_initialised_cuda_has_the_devices_of_then(
    nvml_here: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml_here.configure(*MIXED)
    nvml_here.offer(*FASTEST_FIRST)
    monkeypatch.setattr(ordinals, "_LIBRARY", str(nvml_here.library.with_name("libcuda.so.1")))
    monkeypatch.setitem(sys.modules, "torch.cuda", SimpleNamespace(is_initialized=lambda: True))
    changed_since = nvml_here.variables() | {"CUDA_VISIBLE_DEVICES": "1"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    (device,) = offered_devices(Gpus.read(), changed_since).devices
    assert device.gpu.name == "NVIDIA RTX A6000"


def test_cuda_is_asked_again_when_gpus_or_variables_have_changed(
    nvml_here: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standalone, "warn_once", pytest.fail)
    asked = []
    monkeypatch.setattr(ordinals, "_ask_in_child", lambda env: asked.append(env) or answers.pop(0))
    answers: list[tuple[str, ...] | None] = [("GPU-fake-1",), ("GPU-fake-1",), ("MIG-fake-1-1-0",)]
    nvml_here.configure(*DIVIDED[:3])
    for text in ("0", "0", "1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
        assert standalone._devices()[1] == "1"
    assert len(asked) == 2
    nvml_here.configure(*DIVIDED)
    assert standalone._devices() == (("MIG-fake-1-1-0",), "MIG-fake-1-1-0")


def test_a_child_that_cannot_be_killed_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (stuck := tmp_path / "python").write_text("#!/bin/sh\nexec sleep 600\n")
    stuck.chmod(0o755)
    children: list[subprocess.Popen[bytes]] = []
    kill = subprocess.Popen.kill
    monkeypatch.setattr(subprocess.Popen, "kill", lambda child: children.append(child))
    monkeypatch.setattr(ordinals.sys, "executable", str(stuck))
    monkeypatch.setattr(ordinals, "_TIMEOUT_S", 0.01)
    assert ordinals.offered_uuids({}) is None
    (child,) = children
    assert child.poll() is None, "it still runs"
    kill(child)
    child.communicate()


@pytest.mark.parametrize(
    ("lines", "offer", "text", "devices"),
    [
        (EQUAL, "", "7", ([], "cpu")),  # named nothing, and nothing has failed
        ((*MIXED, "fail nvmlDeviceGetName 999"), HEX[1], "0", ([uuid_of(HEX[1])], uuid_of(HEX[1]))),
        ((*MIXED, "lost 0"), f"{HEX[0]}\n{HEX[1]}", "0,1", (HEX[1::-1], f"1+{uuid_of(HEX[0])}")),
        ((*MIXED, "lost 0"), f"{HEX[0]}\n{HEX[1]}", None, (HEX[1::-1], f"1+{uuid_of(HEX[0])}")),
        ((*MIXED, "lost 0"), "fail 999", None, (HEX[1:2], "1")),
        ((*MIXED, "lost 0"), "fail 100", "0", ([], "cpu")),
        ((*MIXED, "lost 0"), "fail 999", "0", ([], "unknown")),
    ],
)
def test_a_script_is_recorded_with_all_devices_that_cuda_offers_it(
    nvml_here: FakeNvml,
    monkeypatch: pytest.MonkeyPatch,
    lines: tuple[str, ...],
    offer: str,
    text: str | None,
    devices: tuple[list[str], str],
) -> None:
    nvml_here.configure(*lines)
    nvml_here.offer(offer)
    monkeypatch.setattr(standalone, "warn_once", lambda text: None)
    if text is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    uuids = [uuid if "-" in uuid else uuid_of(uuid) for uuid in devices[0]]
    assert standalone._devices() == (tuple(uuids), devices[1])


def test_cuda_that_offers_nothing_is_believed(nvml_here: FakeNvml) -> None:
    nvml_here.configure("count 1", mig_gpu(0))
    nvml_here.offer("fail 100")
    visible = offered_devices(Gpus.read(), nvml_here.variables())
    assert visible == Visible(reason="CUDA offers no GPU")


def test_beside_a_broken_gpu_cuda_is_asked_what_its_ordinals_mean(nvml_here: FakeNvml) -> None:
    nvml_here.configure(*MIXED, "lost 0")
    environ = nvml_here.variables() | {"CUDA_VISIBLE_DEVICES": "0"}
    environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    unknown = given_devices(Gpus.read(), environ)
    assert unknown.failed and "GPU 0" in unknown.reason
    environ["CUDA_VISIBLE_DEVICES"] = f"{uuid_of(HEX[0])},{uuid_of(HEX[1])}"
    assert [device.gpu.index for device in given_devices(Gpus.read(), environ).devices] == [1]
    environ["CUDA_VISIBLE_DEVICES"] = "0,1"
    assert [device.gpu.index for device in given_devices(Gpus.read(), environ).devices] == [1]
    environ["CUDA_VISIBLE_DEVICES"] = "0"
    nvml_here.offer(HEX[1])
    assert [device.gpu.index for device in given_devices(Gpus.read(), environ).devices] == [1]


@pytest.mark.parametrize("text", [None, "0", "GPU-fake-1"])
def test_a_process_that_sees_a_divided_gpu_has_one_mig_device(
    nvml_here: FakeNvml, text: str | None
) -> None:
    nvml_here.configure(*DIVIDED, f"mig_uuid 1 2 0 {uuid_of(MIG_HEX, 'MIG')}")
    environ = nvml_here.variables() | ({} if text is None else {"CUDA_VISIBLE_DEVICES": text})
    assert offered_devices(Gpus.read(), environ).failed, "it may be any"
    whole = offered_devices(Gpus.read(), environ | {"CUDA_VISIBLE_DEVICES": "GPU-fake-0"})
    assert [str(device) for device in whole.devices] == ["0"]
    nvml_here.offer(f"{HEX[1]} {MIG_HEX}")
    if text == "GPU-fake-1":
        return  # the stand-in knows numbers only
    (device,) = offered_devices(Gpus.read(), environ).devices
    assert (device.gpu.index, device.mig and device.mig.gpu_instance) == (1, 2)
    assert str(device) == uuid_of(MIG_HEX, "MIG")


@pytest.mark.parametrize(
    ("devices", "place", "text"),
    [
        ("0+1", "2 GPUs", "GPU 0+1"),
        ("unknown", "unknown", "unknown"),
        ("MIG-1", "1 GPU", "MIG-1"),
        ("cpu", "cpu", "cpu"),
    ],
)
def test_devices_without_a_number_are_not_called_so(devices: str, place: str, text: str) -> None:
    run = RunRecord(*"rwelan", 0, RunStatus.FINISHED, devices=devices, host="h")
    assert place_of(run, {"r": "hardware"})[0] == place
    assert placed(SimpleNamespace(record=run)) == text  # type: ignore[arg-type]


def test_a_gpu_beside_a_broken_one_is_not_called_hidden(
    nvml_here: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA does not answer, so nobody knows what the numbers mean."""
    nvml_here.configure(*EQUAL, "lost 0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(UsageError, match="GPU 1 cannot be used: the GPUs named by") as refused:
        Devices.parse("1", Machine.detect())
    assert "are unknown: GPU 0" in refused.value.message


def test_a_gpu_that_this_user_may_not_use_has_not_failed(nvml_here: FakeNvml) -> None:
    nvml_here.configure(*EQUAL, "broken 0 4")
    found, machine = Gpus.read(), Machine.detect()
    assert ([gpu.index for gpu in found.working], found.failure) == ([1, 2], "")
    assert [check.state for check in checks.nvml()] == [checks.CheckState.GOOD]
    assert Devices.parse("", machine) == Devices((1,))
    with pytest.raises(UsageError, match=r"^GPU 0 does not answer: Insufficient Permissions"):
        Devices.parse("0", machine)
    given = given_devices(found, {"CUDA_VISIBLE_DEVICES": "1"})
    assert [device.gpu.index for device in given.devices] == [2], "CUDA does not number it"
    nvml_here.add("broken 1 4", "broken 2 4")
    assert "GPU 2 does not answer" in Gpus.read().failure, "else rows would run on the CPU"


@pytest.mark.parametrize("without", [SINCE_470, SINCE_450], ids=["470", "450"])
def test_old_drivers_without_the_newer_functions(
    nvml_here: FakeNvml,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    without: tuple[str, ...],
) -> None:
    nvml_here.configure(*DIVIDED, "process 1 71 5 1 0", "reasons 0 4", "process 0 72 6")
    load(build_library(tmp_path, without), monkeypatch)
    plain, divided = Gpus.read().every
    assert (plain.problem, divided.problem, plain.memory_bytes) == ("", "", 80_000)
    assert [mig.profile for mig in divided.mig_devices] == ["3g.20gb", "1c.3g.20gb"]
    with Nvml() as library:
        whole = library.nvmlDeviceGetHandleByIndex(0)
        (process,) = library.nvmlDeviceGetComputeRunningProcesses(whole)
        assert (process.pid, process.usedGpuMemory) == (72, 6)
        assert process.gpuInstanceId == 2**32 - 1
        assert library.nvmlDeviceGetCurrentClocksEventReasons(whole) == 4
        device = library.nvmlDeviceGetHandleByUUID("MIG-fake-1-1-0")
        assert library.nvmlDeviceGetAttributes(device).multiprocessorCount == 42
