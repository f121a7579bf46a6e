"""The devices of a node that belong to a job.

With ``ConstrainDevices`` the driver shows a job only its own GPUs, numbered from 0, and Slurm
numbers ``CUDA_VISIBLE_DEVICES`` likewise. Without it, the driver shows all GPUs of the node;
``SLURM_STEP_GPUS`` and ``SLURM_JOB_GPUS`` have the numbers of the device files (``/dev/nvidia3``),
whose order may differ from NVML's. https://slurm.schedmd.com/gres.html
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from radt.devices.gpus import Device, Gpus
from radt.devices.machine import Machine
from radt.devices.visible import VISIBLE_VARIABLE, Visible, entries_of
from radt.errors import DeviceError
from radt.units import plural

_NUMBER_VARIABLES = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
#: Set by a prolog that starts an MPS daemon for the job, or by gres/mps.
_MPS_VARIABLES = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")


def allocated_machine(asked: int, environ: Mapping[str, str] = os.environ) -> Machine:
    """Return the devices that runs of this job can use; Devices cells index the job's GPUs.

    Args:
        asked: Number of GPUs that the job requested on this node. With 0 it uses none, and the
            driver is not queried: a job with an exclusive node is given its GPUs in any case.
        environ: The job's environment.

    Raises:
        DeviceError: The job was given fewer GPUs, the driver does not show them, or the site has
            set up MPS for the job.
    """
    if asked == 0:
        return Machine.of(Gpus(), Visible(reason="the job has asked for none"), by_place=True)
    _refuse_mps(environ)
    present = Gpus.read()
    devices = _allocated(present, environ)
    if not devices:
        raise DeviceError(
            f"the job has asked for {plural(asked, 'GPU')}, and Slurm has given it none",
            "Tell the cluster's administrators: gres.conf has no device files",
        )
    return Machine.of(present, Visible(tuple(devices)), by_place=True)


def _allocated(present: Gpus, environ: Mapping[str, str]) -> Sequence[Device]:
    visible = entries_of(environ.get(VISIBLE_VARIABLE, ""))
    if visible and not visible[0].isdigit():
        return _chosen({uuid: present.find(uuid) for uuid in visible}, present)
    numbers = next(filter(None, (_numbers(environ, name) for name in _NUMBER_VARIABLES)), visible)
    if len(numbers) > len(present.every):
        why = f" ({present.reason})" if present.reason else ""
        raise DeviceError(
            f"the job was given {plural(len(numbers), 'GPU')}, and the node's driver shows "
            f"{len(present.every)}{why}",
            "Tell the cluster's administrators; avoid the node with "
            'sbatch = ["--exclude=NODE"] in [cluster]',
        )
    if len(numbers) == len(present.every):
        devices = {str(gpu.index): None if gpu.problem else Device(gpu) for gpu in present.every}
        return _chosen(devices, present)
    by_minor = {str(gpu.minor): Device(gpu) for gpu in present.working}
    return _chosen({number: by_minor.get(number) for number in numbers}, present)


def _chosen(given: Mapping[str, Device | None], present: Gpus) -> Sequence[Device]:
    """Return the devices of a job.

    Raises:
        DeviceError: One of them does not answer, or the driver does not show it.
    """
    missing = [name for name, device in given.items() if device is None]
    if missing and present.failure:
        raise DeviceError(
            f"the job was given GPU {', '.join(missing)}, and {present.failure}",
            "Run nvidia-smi on the node for details; avoid the node with "
            'sbatch = ["--exclude=NODE"] in [cluster]',
        )
    if missing:
        raise DeviceError(
            f"the node's driver does not show GPU {', '.join(missing)}, which the job was given",
            "Tell the cluster's administrators: gres.conf and the driver disagree",
        )
    return [device for device in given.values() if device is not None]


def _numbers(environ: Mapping[str, str], name: str) -> Sequence[str]:
    parts = [part.strip() for part in environ.get(name, "").split(",")]
    return [part for part in parts if part.isdigit()]  # skips values such as NoDevFiles


def _refuse_mps(environ: Mapping[str, str]) -> None:
    variable = next((name for name in _MPS_VARIABLES if environ.get(name)), None)
    if variable is not None:
        raise DeviceError(
            f"the site has set up MPS for this job ({variable}={environ[variable]}): its daemon "
            "shares a GPU between jobs, and divides none between the runs of one",
            "Ask for whole GPUs (gres gpu, not mps), for which radt starts daemons of its own; "
            f"or, if a shell has set it, write setup = ['unset {variable}'] in [cluster]",
        )
