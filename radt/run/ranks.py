"""Detect the launcher of this process: its rank, and whether all ranks are one training.

Processes that torchrun, mpirun, mpiexec and srun start differ only in environment variables. Ranks
of one distributed training are one run; tasks that only share a launcher are separate runs. Imports
only the standard library.
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

#: Identifies the process whose rank the variables state. Its children inherit them but are not
#: ranks.
TAKEN_VARIABLE = "RADT_RANK_OF"
#: Slurm's regular steps have lower ids; batch scripts and salloc's shells have higher ones.
_MAX_STEP = 0xFFFF_FF00


class Ranks(StrEnum):
    """How the processes of a launcher are recorded; the values of ``RADT_RANKS``."""

    AUTO = "auto"
    JOIN = "join"
    SEPARATE = "separate"

    @classmethod
    def choose(cls, given: str | None, environ: Mapping[str, str]) -> Ranks:
        """Return the script's choice, or else that of the variable.

        Raises:
            UsageError: The script's choice is not a value of `Ranks`.
        """
        if given is not None:
            return cls(settings.RANKS.kind.parse(given, Path()))
        found = settings.variable(settings.RANKS, environ)
        if found.problem is not None:
            warn_once(f"{found.problem}. The default is used")
        return cls(found.value)


class _Launcher(NamedTuple):
    """The environment variables of a launcher.

    ``own`` differs from rank to rank. The values of ``shared`` are the same for all ranks on one
    machine and differ from those of any other launch. If they are unset, the parent process
    identifies the launch.
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
#: Innermost first: torchrun may run inside tasks of the others, and MPI starts its daemons with
#: srun. PMIX_RANK is left out: without a size, a single process looks like the first of many.
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
class RankLaunch:
    """This process as one of several that a launcher started.

    ``key`` is the same for all ranks on this machine and differs from that of any other launch.
    ``local_rank`` counts the ranks on this machine. ``ordinal`` counts the runs that each rank
    begins one after the other.
    """

    launcher: _Launcher
    rank: int
    size: int
    local_rank: int
    key: tuple[object, ...]
    label: str
    ordinal: int = 0

    def digest(self, *more: object) -> str:
        """Return an id that all ranks on this machine compute alike."""
        return hashlib.blake2b(
            repr((self.key, self.ordinal, more)).encode(), digest_size=16
        ).hexdigest()

    @property
    def workload(self) -> str:
        """Label of the workload of ranks that are separate runs."""
        number = f" #{self.ordinal + 1}" if self.ordinal else ""
        return f"{self.launcher.name} {self.label or self.digest()[:6]}{number}"

    def takes_part(self, home: Home, run_dir: RunDir) -> bool:
        """Claim this rank of a run. Return False if another program has claimed it.

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
            pass  # the run reports why it is not recorded
        return True

    def is_one_training(self, environ: Mapping[str, str]) -> bool:
        """Return True if all processes of the launch train together, according to them.

        Accelerate and Lightning show this by initialising ``torch.distributed``, or by MASTER_ADDR.
        """
        if world_size := _initialised_size():
            return world_size == self.size
        stated = number(environ, "WORLD_SIZE")
        if stated is not None and stated != self.size:
            return False
        return bool(environ.get("MASTER_ADDR")) or (stated is not None and "RANK" in environ)


def find_launch(environ: MutableMapping[str, str]) -> RankLaunch | None:
    """Return the launch that this process is a rank of; None without one.

    Processes started by a rank are not ranks.
    """
    launches = [launch for of in _LAUNCHERS if (launch := _read(of, environ)) is not None]
    if not launches:
        return None
    launch = launches[0]
    if launch.launcher is _TORCH and _TORCH.own not in environ:
        # RANK may be copied from another launcher's variables, which have more details.
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
    """Return the value of a variable if it is a non-negative integer."""
    text = environ.get(name, "").strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _read(of: _Launcher, environ: Mapping[str, str]) -> RankLaunch | None:
    rank, size, local_rank = (number(environ, name) for name in (of.rank, of.size, of.local_rank))
    if rank is None or size is None or size < 2 or (of is _SLURM and not _in_a_step(environ)):
        return None
    local_rank = rank if local_rank is None else local_rank
    shared = [environ.get(name, "") for name in of.shared]
    where = shared if any(shared) else _above(of, environ)
    key = (procfs.boot_id(), of.name, size, environ.get("TORCHELASTIC_RESTART_COUNT"), where)
    return RankLaunch(
        of, rank, size, local_rank, key, ".".join(shared[1:3]) if of is _SLURM else ""
    )


def _in_a_step(environ: Mapping[str, str]) -> bool:
    """Return True if srun started this process. sbatch passes on similar variables."""
    step, task = number(environ, "SLURM_STEP_ID"), number(environ, "SLURM_TASK_PID")
    is_batch = procfs.read(f"/proc/{task}/comm").strip() == b"slurm_script"
    return step is not None and step < _MAX_STEP and "SLURM_JOB_ID" in environ and not is_batch


def _above(of: _Launcher, environ: Mapping[str, str]) -> tuple[object, ...]:
    """Return the launcher's process: the nearest ancestor without this rank's variables."""
    mark, pid = f"{of.own}={environ.get(of.own)}".encode(), os.getppid()
    while mark in procfs.environment(pid) and (stat := procfs.process_stat(pid)) is not None:
        pid = stat.parent
    address = [environ.get(f"MASTER_{name}") for name in ("ADDR", "PORT") if of is _TORCH]
    return pid, procfs.start_ticks(pid), *address


def _initialised_size() -> int:
    """Return the world size of `torch.distributed`; 0 unless it is initialised."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0
    return int(distributed.get_world_size())
