"""The devices of a node that are a job's.

With ``ConstrainDevices`` the driver shows a job its GPUs only, numbered from 0, and Slurm numbers
``CUDA_VISIBLE_DEVICES`` likewise. Without, the driver shows all of the node; ``SLURM_STEP_GPUS``
and ``SLURM_JOB_GPUS`` have the numbers of the device files (``/dev/nvidia3``), which NVML's order
need not follow. https://slurm.schedmd.com/gres.html
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from radt.devices.machine import Machine
from radt.devices.visible import VISIBLE_VARIABLE
from radt.errors import DeviceError
from radt.nvml import Gpu, list_gpus, minor_numbers, parent_gpus
from radt.units import plural

_NUMBER_VARIABLES = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", VISIBLE_VARIABLE)
_UUIDS = ("GPU-", "MIG-")
#: Set by a prolog that starts an MPS daemon for the job, or by gres/mps.
_MPS_VARIABLES = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")


def allocated_machine(asked: int, environ: Mapping[str, str] = os.environ) -> Machine:
    """Return what runs of this job can use; Devices cells name places among its GPUs.

    Args:
        asked: GPUs that the job has asked for on this node. With 0 it uses none, and the driver is
            not asked: a job that has a node for itself is given its GPUs, too.
        environ: Of the job.

    Raises:
        DeviceError: The job was given fewer GPUs, or the driver does not show them, or the site has
            set up MPS for the job.
    """
    cpus = frozenset(os.sched_getaffinity(0))
    if asked == 0:
        reason = "the job has asked for none"
        return Machine(len(cpus), no_gpu_reason=reason, cpus=cpus, by_place=True)
    _refuse_mps(environ)
    listed = list_gpus()
    gpus = _allocated(listed.gpus, listed.reason, environ)
    if not gpus:
        raise DeviceError(
            f"the job has asked for {plural(asked, 'GPU')}, and Slurm has given it none",
            "Tell the cluster's administrators: gres.conf has no device files",
        )
    hidden = tuple(gpu for gpu in listed.gpus if gpu not in gpus)
    return Machine(len(cpus), gpus, hidden, cpus=cpus, by_place=True)


def _allocated(gpus: Sequence[Gpu], reason: str, environ: Mapping[str, str]) -> tuple[Gpu, ...]:
    uuids = [name for name in _entries(environ, VISIBLE_VARIABLE) if name.startswith(_UUIDS)]
    if uuids:
        parents = parent_gpus(uuids)
        return _chosen({uuid: parents.get(uuid) for uuid in uuids}, {gpu.uuid: gpu for gpu in gpus})
    numbers = next(filter(None, (_entries(environ, name) for name in _NUMBER_VARIABLES)), [])
    numbers = [number for number in numbers if number.isdigit()]  # not NoDevFiles
    if len(numbers) > len(gpus):
        why = f" ({reason})" if reason else ""
        raise DeviceError(
            f"the job was given {plural(len(numbers), 'GPU')}, and the node's driver shows "
            f"{len(gpus)}{why}",
            "Tell the cluster's administrators; avoid the node with "
            'sbatch = ["--exclude=NODE"] in [cluster]',
        )
    if len(numbers) == len(gpus):
        return tuple(gpus)
    uuid_of = {str(number): uuid for uuid, number in minor_numbers().items()}
    return _chosen(
        {number: uuid_of.get(number) for number in numbers}, {gpu.uuid: gpu for gpu in gpus}
    )


def _chosen(given: Mapping[str, str | None], gpus: Mapping[str, Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs with these UUIDs, one as often as the job has MIG instances of it."""
    missing = [name for name, uuid in given.items() if uuid not in gpus]
    if missing:
        raise DeviceError(
            f"the node's driver does not show GPU {', '.join(missing)}, which the job was given",
            "Tell the cluster's administrators: gres.conf and the driver disagree",
        )
    return tuple(gpus[uuid] for uuid in given.values() if uuid is not None)


def _entries(environ: Mapping[str, str], name: str) -> list[str]:
    return [part.strip() for part in environ.get(name, "").split(",") if part.strip()]


def _refuse_mps(environ: Mapping[str, str]) -> None:
    variable = next((name for name in _MPS_VARIABLES if environ.get(name)), None)
    if variable is not None:
        raise DeviceError(
            f"the site has set up MPS for this job ({variable}={environ[variable]}): its daemon "
            "shares a GPU between jobs, and divides none between the runs of one",
            "Ask for whole GPUs (gres gpu, not mps), for which radt starts daemons of its own; "
            f"or, if a shell has set it, write setup = ['unset {variable}'] in [cluster]",
        )
