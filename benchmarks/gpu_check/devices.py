"""Check devices and ordinals: what radt says that CUDA offers, against what PyTorch has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from benchmarks.gpu_check.model import Result, Setting
from radt.devices.gpus import Gpus
from radt.devices.ordinals import offered_uuids
from radt.devices.visible import VISIBLE_VARIABLE, offered_devices

_ORDER = "CUDA_DEVICE_ORDER"
_TORCH = """
import json, torch
count = torch.cuda.device_count()
print(json.dumps([str(torch.cuda.get_device_properties(i).uuid) for i in range(count)]))
"""


def devices(setting: Setting) -> Result:
    """Compare the devices of a process for each form of the variables."""
    uuid = setting.the_gpu().uuid
    gpus = Gpus.read()
    forms: list[dict[str, str]] = [{}, {_ORDER: "PCI_BUS_ID"}]
    values = ("0", uuid, uuid[: len("GPU-") + 8], "0,99", "99,0", "0,0", "")
    forms += [{VISIBLE_VARIABLE: value} for value in values]
    rest = {name: os.environ[name] for name in os.environ.keys() - {VISIBLE_VARIABLE, _ORDER}}
    environments = [rest | form for form in forms]
    problems = []
    ask, whose = (_torchs, "PyTorch") if setting.has_cuda else (_drivers, "the CUDA driver")
    for form, environ, theirs in zip(forms, environments, ask(environments), strict=True):
        visible = offered_devices(gpus, environ)
        # PyTorch's UUIDs do not say whether they are of a GPU or of a MIG device.
        radts = [device.uuid.partition("-")[2] for device in visible.devices]
        if radts != theirs:
            name = " ".join(f"{key}={value}" for key, value in form.items()) or "no variable"
            problems.append(f"{name}: radt has {radts} {visible.reason}, {whose} {theirs}")
    names = ", ".join(gpu.name for gpu in gpus.working)
    return Result.of(f"{len(forms)} forms compared with {whose}; {names}", problems)


def _torchs(environments: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """Return the devices of PyTorch, asked in all environments at the same time."""
    processes = [
        subprocess.Popen([sys.executable, "-c", _TORCH], env=environ, stdout=subprocess.PIPE)
        for environ in environments
    ]
    answers = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError("PyTorch failed to name its devices")
    return [json.loads(answer) for answer in answers]


def _drivers(environments: Sequence[Mapping[str, str]]) -> list[list[str]]:
    answers = [offered_uuids(environ) or () for environ in environments]
    return [[uuid.partition("-")[2] for uuid in answer] for answer in answers]
