"""GPUs of a real Slurm, without their hardware: MIG instances by their gres types, daemons of MPS.

One node has two whole GPUs and three MIG instances on two others. Where a site has Slurm find GPUs
by NVML, a step gets UUIDs of instances; here the site's task prolog does that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from radt import procfs
from radt.collocation.inventory import read_inventory
from radt.home import Home
from radt.model import RunStatus
from radt.store.reader import StoreReader
from radt.tags import MIG_CREATED, MIG_UUID
from tests.cluster.study import Study, study_on
from tests.support.fake_mps import FakeMps, mps
from tests.support.nvml import FakeNvml, mig_gpu, nvml, nvml_here, nvml_library, plain_gpu
from tests.support.servers import slurm_cluster
from tests.support.slurm import Slurm
from tests.support.waiting import wait_until

__all__ = ["mps", "nvml", "nvml_here", "nvml_library"]

#: Whole GPUs have the numbers 0 and 1, and NVML has them the other way round.
_GPUS = {"a100": 2, "a100_3g.20gb": 3}
_PROLOG = """\
#!/bin/sh
case $SLURM_STEP_GPUS in *[234]*)
    uuids=
    for number in $(echo "$SLURM_STEP_GPUS" | tr , ' '); do
        uuids=$uuids,$(sed -n "$((number - 1))p" {uuids})
    done
    echo "export CUDA_VISIBLE_DEVICES=${{uuids#,}}"
esac
"""
#: Says what it was given, and goes on until it may end.
_CLIENT = """\
import json, os, time
from pathlib import Path
names = ("RADT_WORKLOAD", "RADT_LETTER", "CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY")
names = (*names, "SLURM_JOB_GPUS", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID")
said = Path(__file__).with_name("said." + os.environ["RADT_RUN_ID"])
new = said.with_name(said.name + ".new")  # each has its own
new.write_text(json.dumps([os.environ.get(name, "") for name in names]))
new.rename(said)
while not Path(__file__).with_name("go").exists():
    time.sleep(0.05)
"""
_FILE = """\
Workload,Status,Run,Devices,Gpus,Collocation,Listeners,File
pair,,,0,a100,MPS,none,train.py
pair,,,0,a100,MPS:40,none,train.py
one,,,0,a100,MPS,none,train.py
mig,,,0,,3g.20gb,none,train.py
mig,,,0,,3g.20gb,none,train.py
mig,,,0,,3g.20gb,none,train.py
"""


@pytest.fixture
def slurm(nvml_here: FakeNvml, tmp_path: Path) -> Iterator[Slurm]:
    nvml_here.configure(
        "count 4",
        *(plain_gpu(index) for index in (0, 1)),
        *(mig_gpu(index) for index in (2, 3)),
        *(f"existing {gpu} 9 {start} 3" for gpu, start in ((2, 0), (2, 4), (3, 0))),
        *(f"minor {index} {minor}" for index, minor in enumerate((1, 0, 2, 3))),
    )
    uuids = [
        instance.computes[0].uuid
        for gpu in read_inventory().gpus
        if gpu.mig is not None
        for instance in gpu.mig.instances
    ]
    (tmp_path / "uuids").write_text("".join(f"{uuid}\n" for uuid in uuids))
    prolog = tmp_path / "prolog"
    prolog.write_text(_PROLOG.format(uuids=tmp_path / "uuids"))
    prolog.chmod(0o755)
    with slurm_cluster(1, _GPUS, settings={"TaskProlog": str(prolog)}) as cluster:
        yield cluster


@pytest.fixture
def study(slurm: Slurm, mps: FakeMps, tmp_path: Path) -> Iterator[Study]:
    with study_on(slurm, tmp_path) as study:
        (study.folder / "train.py").write_text(_CLIENT)
        study.file.write_text(_FILE)
        toml = study.folder / "radt.toml"
        toml.write_text(toml.read_text() + '[cluster.gpus]\n"3g.20gb" = "gpu:a100_3g.20gb"\n')
        yield study


@pytest.mark.long
def test_instances_and_daemons_are_the_jobs(study: Study, mps: FakeMps, tmp_path: Path) -> None:
    follower = study.start("study.csv")

    def said() -> dict[str, list[list[str]]]:
        """By workload, in the order of their letters."""
        found: dict[str, dict[str, list[str]]] = {}
        for path in study.folder.glob("said.*[!w]"):
            workload, letter, *given = json.loads(path.read_text())
            found.setdefault(workload, {})[letter] = given
        return {name: [given for _, given in sorted(rows.items())] for name, rows in found.items()}

    def all_train() -> bool:
        assert follower.poll() is None, follower.communicate()
        return sum(map(len, said().values())) == 6

    wait_until(all_train, "all rows")
    given = said()
    jobs = {name: "_".join(rows[0][-2:]) for name, rows in given.items()}
    asked = {
        name: re.search(r"TresPerNode=(\S+)", study.slurm.run("scontrol", "show", "job", job))
        for name, job in jobs.items()
    }
    assert {name: found and found[1] for name, found in asked.items()} == {
        "pair": "gres:gpu:a100:1",
        "one": "gres:gpu:a100:1",
        "mig": "gres:gpu:a100_3g.20gb:3",
    }
    uuids = (tmp_path / "uuids").read_text().split()
    assert [devices for devices, *_ in given["mig"]] == uuids
    daemons = {pid: procfs.environment(pid) for pid in mps.daemons}
    assert given["pair"][0] == given["pair"][1]
    (one, pipes, number, *_), (pair, other_pipes, other_number, *_) = (
        given[name][0] for name in ("one", "pair")
    )
    assert {number: one, other_number: pair} == {"0": "GPU-fake-1", "1": "GPU-fake-0"}
    assert pipes != other_pipes
    owned = {
        name: [pid for pid, has in daemons.items() if f"SLURM_ARRAY_TASK_ID={task}".encode() in has]
        for name, task in (("pair", given["pair"][0][-1]), ("one", given["one"][0][-1]))
    }
    assert {name: len(pids) for name, pids in owned.items()} == {"pair": 1, "one": 1}
    study.slurm.run("scancel", jobs["pair"])
    wait_until(lambda: mps.daemons == owned["one"], "the end of the cancelled job's daemon")
    study.slurm.run("scancel", "--signal=KILL", f"{jobs['one']}.0")
    wait_until(lambda: mps.daemons == [], "the end of the killed job's daemon")
    study.go()
    cancelled, trained = ["KILLED: the job was cancelled"] * 2, ["FINISHED"] * 3
    # Of the one that was killed nobody has said anything yet.
    wait_until(
        lambda: (study.statuses()[:2], study.statuses()[3:]) == (cancelled, trained), "the ends"
    )
    with StoreReader(Home(Path(study.environ["RADT_HOME"])).store_path) as reader:
        tags = [
            reader.tags(run.run_id)
            for run in sorted(reader.runs(), key=lambda run: run.letter)
            if run.status is RunStatus.FINISHED
        ]
    assert [found[MIG_UUID] for found in tags] == uuids
    assert {found[MIG_CREATED] for found in tags} == {"false"}
    wait_until(lambda: not study.slurm.job_processes("node1"), "no process")
