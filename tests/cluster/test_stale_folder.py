"""A shared folder whose listings are old, as with the caches of a network file system."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree

import pytest

from radt.model import RunStatus
from tests.cluster.node_kit import JOB, TRAIN, collect, nodes_in, texts, view
from tests.cluster.test_on_slurm import study_on
from tests.support.bench import bench_in
from tests.support.servers import slurm_cluster
from tests.support.waiting import wait_until

_SOURCE = Path(__file__).parents[1] / "support" / "stale_listings.c"


@dataclass(frozen=True)
class Machine:
    """One that has cached listings of a shared folder; they last until the test drops them."""

    shared: Path
    cache: Path
    library: Path

    @property
    def environ(self) -> dict[str, str]:
        names = ("STALE_FOLDER", "STALE_CACHE", "LD_PRELOAD")
        return dict(zip(names, map(str, (self.shared, self.cache, self.library)), strict=True))

    def remembers_empty(self, folder: Path) -> None:
        """It has listed a folder when nothing was in it."""
        path = str(folder).removeprefix(str(self.shared))
        (self.cache / path.replace("/", "%")).mkdir(parents=True)

    def forgets(self) -> None:
        """Its listings are too old to be used."""
        rmtree(self.cache)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("library") / "stale_listings.so"
    flags = ("-shared", "-fPIC", "-Wall", "-Wextra", "-Werror")
    subprocess.run(["cc", *flags, "-o", library, _SOURCE, "-ldl"], check=True)
    return library


def test_a_node_that_does_not_see_earlier_attempts_repeats_nothing(
    tmp_path: Path, library: Path
) -> None:
    with bench_in(tmp_path, columns=100, with_mlflow=False) as bench:
        bench.script("train.py", TRAIN)
        file = bench.experiment(
            "Experiment,Workload,Status,Run,Devices,File\nstudy,1,,,cpu,train.py\n"
        )
        with nodes_in(bench, tmp_path) as nodes:
            spool = nodes.submit(file, ["1"])
            nodes.run(spool)
            other = Machine(nodes.folder, tmp_path / "cache of node2", library)
            other.remembers_empty(spool.path / "jobs" / str(JOB) / "attempts")
            again = nodes.start(spool, node="node2", **other.environ)
            assert again.wait() == 0, nodes.log(spool)
            assert [attempt.number for attempt in spool.attempts(JOB)] == [1, 2]
            assert texts(spool) == ["FINISHED"]
            assert view(spool).ended
            assert view(spool).kept == view(spool, number=1).kept
            assert not collect(spool, nodes.home).late
            with nodes.reader as reader:
                assert [run.status for run in reader.runs()] == [RunStatus.FINISHED]


def test_a_login_node_that_does_not_see_the_last_part_waits_for_it(
    tmp_path: Path, library: Path
) -> None:
    with slurm_cluster(1, 0) as slurm, study_on(slurm, tmp_path) as study:
        toml = study.folder / "radt.toml"
        toml.write_text(toml.read_text() + 'setup = ["unset LD_PRELOAD"]\n')
        login = Machine(tmp_path / "shared", tmp_path / "cache of login", library)
        study.environ = {**study.environ, **login.environ}
        study.write({"solo": 1})
        follower = study.start("study.csv")
        wait_until(lambda: study.started() == 1, "the row to run")
        (attempt,) = login.shared.glob("submissions/*/jobs/*/attempts/1")
        login.remembers_empty(
            attempt / "runs"
        )  # the first part comes after a minute, or at the end
        study.go()
        assert follower.stdout is not None
        seen = []
        for line in iter(follower.stdout.readline, ""):
            seen.append(line)
            if "waiting for the last files of 1 run" in line:
                break
        assert "waiting for the last files of 1 run" in seen[-1], seen
        assert study.statuses() == ["FINISHED"]
        login.forgets()
        output, _ = follower.communicate()
        assert follower.returncode == 0, output
        study.finished_once({"solo": 1})
