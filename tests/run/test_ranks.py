"""Processes of mpirun, mpiexec and srun: one run if they train together, else a run each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import radt
from radt.errors import UsageError
from radt.model import RunStatus
from radt.run.target import ProcessPart, find_target
from radt.store.records import RunRecord
from radt.tags import LETTER, WORKLOAD
from tests.run.conftest import TIMEOUT_S, Alone
from tests.support.waiting import alive, wait_until


def srun(rank: int, size: int) -> dict[str, str]:
    """Slurm 22.05; SLURM_TASK_PID is a process that Slurm started."""
    variables = {
        "CLUSTER_NAME": "lab",
        "JOB_ID": "1234",
        "LOCALID": rank,
        "NODEID": 0,
        "NTASKS": size,
        "PROCID": rank,
        "STEP_ID": 0,
        "STEP_NUM_TASKS": size,
        "TASK_PID": os.getpid(),
    }
    return {f"SLURM_{name}": str(value) for name, value in variables.items()}


def mpirun(rank: int, size: int) -> dict[str, str]:
    """Open MPI 4.1."""
    own = {"WORLD_RANK": rank, "WORLD_SIZE": size, "WORLD_LOCAL_RANK": rank}
    return {f"OMPI_COMM_{name}": str(value) for name, value in own.items()} | {
        "OMPI_MCA_ess_base_jobid": "1495400449",
        "PMIX_NAMESPACE": "1495400449",
        "PMIX_RANK": str(rank),
    }


def mpiexec(rank: int, size: int) -> dict[str, str]:
    """MPICH 4.0; nothing names the launch."""
    return {
        "MPI_LOCALNRANKS": str(size),
        "MPI_LOCALRANKID": str(rank),
        "PMI_FD": str(6 + rank),
        "PMI_RANK": str(rank),
        "PMI_SIZE": str(size),
    }


Launcher = Callable[[int, int], dict[str, str]]
LAUNCHERS = [srun, mpirun, mpiexec]
TOGETHER = {"MASTER_ADDR": "localhost"}

#: Ranks are there at the same time.
_SCRIPT = """\
import os, radt, sys
name, rank = sys.argv[1:]
with radt.Run(name, listeners="none") as run:
    run.log_metric("loss", float(rank))
    open(f"{name}.pipe", "r" if int(rank) else "w").close()
"""


def run_tasks(alone: Alone, launcher: Launcher, **env: str) -> list[RunRecord]:
    """Run two programs in each of two tasks, one after the other."""
    (alone.folder / "train.py").write_text(_SCRIPT, encoding="utf-8")
    for name in ("one", "two"):
        os.mkfifo(alone.folder / f"{name}.pipe")
    python = f"{sys.executable} train.py"
    tasks = [
        subprocess.Popen(
            ["sh", "-c", f"{python} one {rank} && {python} two {rank}"],
            cwd=alone.folder,
            env=alone.env | launcher(rank, 2) | env,
        )
        for rank in range(2)
    ]
    assert [task.wait(TIMEOUT_S) for task in tasks] == [0, 0]
    return sorted(alone.reader.runs(), key=lambda run: run.name)


@pytest.mark.shared_collector
@pytest.mark.quick_variants(2)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_of_a_training_are_one_run_for_each_program(alone: Alone, launcher: Launcher) -> None:
    runs = run_tasks(alone, launcher, **TOGETHER)
    assert [run.name for run in runs] == ["one", "two"]
    for run in runs:
        frame = radt.load(run.run_id, home=alone.home)
        losses = frame[frame.metric == "loss"]
        assert dict(zip(losses.entity, losses.value, strict=True)) == {"": 0, "rank 1": 1}
    folders = [alone.home / "runs", *(alone.home / "runs").iterdir()]
    assert {folder.stat().st_mode & 0o777 for folder in folders} == {0o700}


@pytest.mark.shared_collector
@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_tasks_that_share_a_launcher_are_a_workload_for_each_program(
    alone: Alone, launcher: Launcher
) -> None:
    runs = run_tasks(alone, launcher)
    assert [(run.name, run.letter) for run in runs] == [
        ("one rank 0", "a"),
        ("one rank 1", "b"),
        ("two rank 0", "a"),
        ("two rank 1", "b"),
    ]
    ids = [run.workload_id for run in runs]
    assert ids == [ids[0], ids[0], ids[2], ids[2]] and len({*ids}) == 2
    assert len({run.workload for run in runs}) == 2
    prefix = {srun: "srun 1234.0", mpirun: "mpirun ", mpiexec: "mpiexec "}[launcher]
    assert all(run.workload.startswith(prefix) for run in runs)
    tags = alone.reader.tags(runs[1].run_id)
    assert (tags[WORKLOAD], tags[LETTER]) == (runs[1].workload, "b")


@pytest.mark.shared_collector
def test_a_workload_ends_with_its_last_task(alone: Alone) -> None:
    source = "import radt, sys\nwith radt.Run(listeners='none'): sys.exit(int(sys.argv[1]))\n"
    for rank, code in enumerate((0, 1, 0)):  # each has ended before the next begins
        alone.run(source, str(code), code=code, **srun(rank, 3))
        alone.started.clear()  # the next has the same name
    runs = sorted(alone.reader.runs(), key=lambda run: run.letter)
    assert [(run.name, run.status) for run in runs] == [
        ("script0 0 rank 0", RunStatus.FINISHED),
        ("script0 1 rank 1", RunStatus.FAILED),
        ("script0 0 rank 2", RunStatus.FINISHED),
    ]
    (workload,) = alone.reader.workloads()
    assert (workload.status, workload.ended_ns) == (RunStatus.FAILED, runs[-1].ended_ns)


def part_of(
    home: Path, variables: Mapping[str, str], ranks: str | None = None
) -> ProcessPart | None:
    """What rank 1 of a launch is; None for a run of its own within a workload."""
    target = find_target(home, 0, ranks, dict(variables))
    return None if target.launch is not None else target.part


TORCH = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}


@pytest.mark.parametrize(
    ("variables", "ranks", "part"),
    [
        (srun(1, 2), None, None),
        (srun(1, 2) | TOGETHER, None, ProcessPart.RANK),
        (srun(1, 2) | TOGETHER, "separate", None),
        (srun(1, 2) | TOGETHER | {"RADT_RANKS": "separate"}, None, None),
        (srun(1, 2) | {"RADT_RANKS": "separate"}, "join", ProcessPart.RANK),
        (srun(1, 2), "auto", None),
        (mpirun(1, 2) | {"RADT_RANKS": "join"}, None, ProcessPart.RANK),
        (mpiexec(1, 2) | TOGETHER | {"WORLD_SIZE": "2"}, None, ProcessPart.RANK),
        # Each task is a training of one process.
        (srun(1, 8) | TOGETHER | {"WORLD_SIZE": "1", "RANK": "0"}, None, None),
        (TORCH, None, ProcessPart.RANK),
        (TORCH, "separate", None),
        # The first of another node.
        (srun(1, 2) | TOGETHER | {"SLURM_LOCALID": "0"}, None, ProcessPart.OWNER),
        # Each is alone, whatever is asked for.
        (srun(0, 1), None, ProcessPart.OWNER),
        ({"PMIX_RANK": "1"}, None, ProcessPart.OWNER),
        (srun(0, 2) | {"SLURM_STEP_ID": "4294967290"}, None, ProcessPart.OWNER),
        (srun(0, 2) | {"SLURM_STEP_ID": ""}, None, ProcessPart.OWNER),
    ],
)
def test_ranks_are_joined_if_they_say_that_they_train_together(
    tmp_path: Path, variables: dict[str, str], ranks: str | None, part: ProcessPart | None
) -> None:
    assert part_of(tmp_path, variables, ranks) is part


def torchrun(rank: int, size: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "TORCHELASTIC_ERROR_FILE": f"/tmp/torchelastic_x/none_y/attempt_0/{rank}/error.json",
    }


@pytest.mark.parametrize("launcher", [torchrun, mpirun, mpiexec])
def test_the_innermost_launcher_counts(tmp_path: Path, launcher: Launcher) -> None:
    """Both ranks are in the first of two tasks of srun."""
    targets = [
        find_target(tmp_path, 0, None, srun(0, 2) | launcher(rank, 2) | TOGETHER)
        for rank in range(2)
    ]
    assert [target.part for target in targets] == [ProcessPart.OWNER, ProcessPart.RANK]
    assert len({target.run_id for target in targets}) == 1


def test_a_rank_that_a_wrapper_takes_from_slurm_is_slurms(tmp_path: Path) -> None:
    wrapped = {"RANK": "1", "WORLD_SIZE": "2"}
    ids = [
        find_target(tmp_path / str(len(more)), 0, "join", srun(1, 2) | more).run_id
        for more in ({}, wrapped)
    ]
    assert ids[0] == ids[1]


def test_what_ranks_may_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="'joined' is not one of auto, join, separate"):
        find_target(tmp_path, 0, "joined", srun(0, 2))
    assert part_of(tmp_path, srun(1, 2) | {"RADT_RANKS": "joined"}) is None
    assert "RADT_RANKS: 'joined' is not one of auto, join, separate" in capsys.readouterr().err


def test_runs_of_one_launch_have_ids_of_their_own(tmp_path: Path) -> None:
    first, second, node = (
        find_target(tmp_path, ordinal, None, srun(0, 2) | TOGETHER | more)
        for ordinal, more in ((0, {}), (1, {}), (0, {"SLURM_NODEID": "1", "SLURM_PROCID": "1"}))
    )
    assert len({first.run_id, second.run_id, node.run_id}) == 3
    assert (first.name_suffix, node.name_suffix) == ("", " rank 1")
    apart = [find_target(tmp_path, ordinal, None, srun(1, 2)).launch for ordinal in (0, 1)]
    assert [launch and launch.workload for launch in apart] == ["srun 1234.0", "srun 1234.0 #2"]


def test_the_batch_script_of_a_step_is_not_in_the_step(tmp_path: Path) -> None:
    script = tmp_path / "slurm_script"  # as Slurm calls it
    script.write_text("#!/bin/sh\nread end\n", encoding="utf-8")
    script.chmod(0o700)
    with subprocess.Popen([script], stdin=subprocess.PIPE) as job:
        inherited = srun(0, 2) | {"SLURM_TASK_PID": str(job.pid)}
        wait_until(
            lambda: Path(f"/proc/{job.pid}/comm").read_text() == "slurm_script\n", "it has begun"
        )
        assert part_of(tmp_path, inherited) is ProcessPart.OWNER
    assert not alive(job.pid)


@pytest.mark.shared_collector
@pytest.mark.long
def test_what_a_rank_starts_is_not_that_rank(alone: Alone) -> None:
    (alone.folder / "other.py").write_text(
        "import radt\nwith radt.Run('other', listeners='none') as run: run.log_metric('x', 1)\n"
    )
    alone.run(
        "import radt, subprocess, sys\n"
        "with radt.Run(listeners='none'): pass\n"
        "subprocess.run([sys.executable, 'other.py'], check=True)\n",
        **mpirun(1, 2),
        **TOGETHER,
    )
    (run,) = alone.reader.runs()
    assert run.name == "other"


@pytest.mark.shared_collector
@pytest.mark.long
def test_torch_says_how_many_train_together(alone: Alone) -> None:
    source = (
        "import os, radt, torch.distributed as dist\n"
        "rank = int(os.environ['SLURM_PROCID'])\n"
        "dist.init_process_group('gloo', f'file://{os.getcwd()}/meet', rank=rank, world_size=2)\n"
        "with radt.Run(listeners='none'): dist.barrier()\n"
        "dist.destroy_process_group()\n"
    )
    tasks = [alone.start(source, **srun(rank, 2)) for rank in range(2)]
    assert [task.wait(TIMEOUT_S) for task in tasks] == [0, 0]
    assert len(alone.reader.runs()) == 1
