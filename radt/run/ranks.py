"""What a launcher says of this process: which of several it is, and whether they are one training.

torchrun, mpirun, mpiexec and srun start processes that only variables tell apart. Ranks of one
distributed training are one run; tasks that only share a launcher are runs of their own. Imports
the standard library only.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from radt import procfs, settings
from radt.errors import UsageError
from radt.home import Home, RunDir
from radt.journal.format import LABELS_FOLDER
from radt.run.notices import warn_once

#: The process whose rank the variables name. What it starts inherits them, but is not a rank.
TAKEN_VARIABLE = "RADT_RANK_OF"
#: Slurm's steps have lower numbers, apart from those without srun: batch scripts, salloc's shells.
_MAX_STEP = 0xFFFF_FF00


class Ranks(StrEnum):
    """How the processes of a launcher are recorded; the values of ``RADT_RANKS``."""

    AUTO = "auto"
    JOIN = "join"
    SEPARATE = "separate"

    @classmethod
    def choose(cls, given: str | None, environ: Mapping[str, str]) -> Ranks:
        """Return what the script says, else the variable.

        Raises:
            UsageError: The script says something else.
        """
        if given is not None:
            return cls(settings.RANKS.kind.parse(given, Path()))
        found = settings.variable(settings.RANKS, environ)
        if found.problem is not None:
            warn_once(f"{found.problem}. The default is used")
        return cls(found.value)


class _Launcher(NamedTuple):
    """The variables of a launcher.

    ``own`` differs from rank to rank. All ranks of one machine, and no others, share the values of
    ``shared``; without any, they have the process above them in common.
    """

    name: str
    rank: str
    size: str
    local_rank: str
    own: str
    shared: tuple[str, ...] = ()


_MPI = "OMPI_COMM_WORLD_"
_STEP = ("CLUSTER_NAME", "JOB_ID", "STEP_ID", "RESTART_COUNT", "NODEID")
_TORCH = _Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_ERROR_FILE")
_SLURM = _Launcher(
    *("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_PROCID"),
    tuple(f"SLURM_{name}" for name in _STEP),
)
#: The innermost first: torchrun may run in tasks of the others, and MPI starts its daemons by srun.
#: PMIX_RANK is left out: without a size, a process alone looks like the first of many.
_LAUNCHERS = (
    _TORCH,
    _Launcher(
        *("mpirun", f"{_MPI}RANK", f"{_MPI}SIZE", f"{_MPI}LOCAL_RANK", f"{_MPI}RANK"),
        ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    ),
    _Launcher("mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "PMI_RANK"),  # MPICH, Intel
    _SLURM,
)


@dataclass(frozen=True, slots=True)
class Launch:
    """This process as one of several that a launcher started.

    ``key`` is the same in all of them on this machine, where ``local_rank`` counts, and differs
    from that of any other launch. ``ordinal`` counts the runs that each begins one after the other.
    """

    launcher: _Launcher
    rank: int
    size: int
    local_rank: int
    key: tuple[object, ...]
    label: str
    ordinal: int = 0

    def digest(self, *more: object) -> str:
        """Return an id that all ranks of this machine derive alike."""
        return hashlib.blake2b(
            repr((self.key, self.ordinal, more)).encode(), digest_size=16
        ).hexdigest()

    @property
    def workload(self) -> str:
        """What people call the workload of ranks that are runs of their own."""
        number = f" #{self.ordinal + 1}" if self.ordinal else ""
        return f"{self.launcher.name} {self.label or self.digest()[:6]}{number}"

    def takes_part(self, home: Home, run_dir: RunDir) -> bool:
        """Claim this rank of a run; return False if another program has it.

        Programs that a task runs one after the other are different runs.
        """
        labels = run_dir.journal / LABELS_FOLDER
        try:
            home.create()
            run_dir.create()
            labels.mkdir(exist_ok=True)
            (labels / f"rank {self.rank}").touch(exist_ok=False)
        except FileExistsError:
            return False
        except (OSError, UsageError):
            pass  # the run says why it is not recorded
        return True

    def is_one_training(self, environ: Mapping[str, str]) -> bool:
        """Return whether its processes say that they train together, all of them.

        Accelerate and Lightning say so by initialising ``torch.distributed``, or by MASTER_ADDR.
        """
        if world_size := _initialised_size():
            return world_size == self.size
        stated = number(environ, "WORLD_SIZE")
        if stated is not None and stated != self.size:
            return False
        return bool(environ.get("MASTER_ADDR")) or (stated is not None and "RANK" in environ)


def find_launch(environ: MutableMapping[str, str]) -> Launch | None:
    """Return what started this process as one of several; None if nothing did.

    Processes that a rank starts are no longer ranks.
    """
    launches = [launch for of in _LAUNCHERS if (launch := _read(of, environ)) is not None]
    if not launches:
        return None
    launch = launches[0]
    if launch.launcher is _TORCH and _TORCH.own not in environ:
        # RANK may be set from the variables of another, which say more of the launch.
        same = (launch.rank, launch.size)
        launch = next((of for of in launches[1:] if (of.rank, of.size) == same), launch)
    of = launch.launcher
    values = [environ.get(name) for name in (of.rank, of.size, of.own, *of.shared)]
    mine = f"{os.getpid()} {procfs.own_start_ticks()} {values}"
    taken = environ.get(TAKEN_VARIABLE, "")
    if taken != mine and taken.endswith(f" {values}"):
        return None
    environ[TAKEN_VARIABLE] = mine
    return launch


def number(environ: Mapping[str, str], name: str) -> int | None:
    """Return the value of a variable if it is a number from 0 on."""
    text = environ.get(name, "").strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _read(of: _Launcher, environ: Mapping[str, str]) -> Launch | None:
    rank, size, local_rank = (number(environ, name) for name in (of.rank, of.size, of.local_rank))
    if rank is None or size is None or size < 2 or (of is _SLURM and not _in_a_step(environ)):
        return None
    local_rank = rank if local_rank is None else local_rank
    shared = [environ.get(name, "") for name in of.shared]
    where = shared if any(shared) else _above(of, environ)
    key = (procfs.boot_id(), of.name, size, environ.get("TORCHELASTIC_RESTART_COUNT"), where)
    return Launch(of, rank, size, local_rank, key, ".".join(shared[1:3]) if of is _SLURM else "")


def _in_a_step(environ: Mapping[str, str]) -> bool:
    """Return whether srun started this process; sbatch hands on the variables of a step."""
    step, task = number(environ, "SLURM_STEP_ID"), number(environ, "SLURM_TASK_PID")
    is_batch = procfs.read(f"/proc/{task}/comm").strip() == b"slurm_script"
    return step is not None and step < _MAX_STEP and "SLURM_JOB_ID" in environ and not is_batch


def _above(of: _Launcher, environ: Mapping[str, str]) -> tuple[object, ...]:
    """Return the launcher's process: the nearest one above that does not have this rank."""
    mark, pid = f"{of.own}={environ.get(of.own)}".encode(), os.getppid()
    while mark in procfs.environment(pid) and (stat := procfs.process_stat(pid)) is not None:
        pid = stat.parent
    address = [environ.get(f"MASTER_{name}") for name in ("ADDR", "PORT") if of is _TORCH]
    return pid, procfs.start_ticks(pid), *address


def _initialised_size() -> int:
    """Return the size of torch's group of processes; 0 unless it is initialised."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0
    return int(distributed.get_world_size())
