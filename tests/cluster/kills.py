"""``python -m tests.cluster.kills``: submitters killed at random moments on a real Slurm, by hand.

A round is a file of twelve workloads in two shapes on three nodes: radt is started on it, gets
SIGKILL, and is started again, until one comes to the end. The first round goes undisturbed, which
tells how long a submission takes, and all of it.
"""

from __future__ import annotations

import argparse
import random
import secrets
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from radt import procfs
from radt.cluster.spool import Spool
from radt.experiment.source import ExperimentFile
from radt.home import Home
from radt.model import RunStatus
from radt.store.reader import StoreReader
from tests.cluster.study import Study, study_on
from tests.support.servers import slurm_cluster
from tests.support.slurm import Slurm
from tests.support.waiting import alive, wait_until

WORKLOADS = {f"w{number}": 1 + number % 3 for number in range(12)}
MEMORY = dict.fromkeys(list(WORKLOADS)[::4], "2G")
#: Kills of a round, at most.
MOST = 4


def main() -> None:
    """Print each kill and each round; end with an error at the first round that is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.kills", description=main.__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31))
    given = parser.parse_args()
    chance, kills, rounds = random.Random(given.seed), 0, 0
    with tempfile.TemporaryDirectory(prefix="radt-kills-") as folder, slurm_cluster(3, 2) as slurm:
        with _round(slurm, Path(folder) / "undisturbed") as study:
            began_s = time.monotonic()
            follower = study.start("study.csv", "--on", "slurm")
            wait_until(lambda: _spools(study), "the submission's folder")
            begun_s = time.monotonic() - began_s
            wait_until(lambda: _requests(study).count(True) == 2, "the submission")
            submitted_s = time.monotonic() - began_s
            output, _ = follower.communicate()
            assert follower.returncode == 0, output
            ended_s = time.monotonic() - began_s
        print(f"seed {given.seed}: submitted in {submitted_s:.1f} s, all done in {ended_s:.1f} s")
        while kills < given.kills:
            rounds += 1
            with _round(slurm, Path(folder) / f"round{rounds}") as study:
                for _ in range(min(MOST, given.kills - kills)):
                    submits = not _spools(study) and chance.random() < 0.6
                    longest_s = chance.choice((begun_s, ended_s))
                    after_s = chance.uniform(0, submitted_s - begun_s if submits else longest_s)
                    kills += _is_killed(study, after_s, submits=submits)
                study.radt("study.csv", "--on", "slurm")
    print(f"seed {given.seed}: {kills} kills in {rounds} rounds, and all was as it should be")


def _is_killed(study: Study, after_s: float, *, submits: bool) -> bool:
    """Kill a start so long after it began, or after it began to submit, unless it ends before."""
    follower = study.start("study.csv", "--on", "slurm")
    if submits:
        wait_until(lambda: _spools(study) or follower.poll() is not None, "a submission")
    try:
        output, _ = follower.communicate(timeout=after_s)
    except subprocess.TimeoutExpired:
        follower.kill()
        follower.wait()
        requests, ended = _requests(study), len(list(study.folder.glob("ended.*")))
        answered, rows = requests.count(True), sum(WORKLOADS.values())
        print(
            f"  killed {after_s:.2f} s after {'a submission' if submits else 'its start'}: "
            f"{len(requests)} arrays asked for, {answered} answered, "
            f"{study.started()} of {rows} rows begun, {ended} ended",
            flush=True,
        )
        return True
    assert follower.returncode == 0, output
    return False


def _requests(study: Study) -> list[bool]:
    """For each array that was asked for whether its number is known."""
    return [bool(request.job_id) for spool in _spools(study) for request in spool.requests()]


def _spools(study: Study) -> list[Spool]:
    found = (study.folder.parent / "shared" / "submissions").glob("*/submission.json")
    return [Spool(file.parent) for file in found]


@contextmanager
def _round(slurm: Slurm, place: Path) -> Iterator[Study]:
    """A file that is to be run to its end, and all that must hold then."""
    place.mkdir()
    jobs = len(slurm.ended())
    with study_on(slurm, place) as study:
        own = {"RADT_HOME": f"{place}/home", "RADT_RUNTIME_DIR": f"{place}/runtime"}
        own["RADT_COLLECTOR_IDLE_S"] = "2"
        study.environ = {**study.environ, **own}
        study.write(WORKLOADS, MEMORY)
        study.go()
        yield study
        study.finished_once(WORKLOADS)
        assert len(list(study.folder.glob("ended.*"))) == sum(WORKLOADS.values())
        with StoreReader(Home(place / "home").store_path) as reader:
            finished = {run.run_id for run in reader.runs() if run.status is RunStatus.FINISHED}
        rows = ExperimentFile.read(study.file).table.rows
        assert {record.cells[2].value for record in rows} == finished
        asked = [
            n for spool in _spools(study) for request in spool.requests() for n in request.indices
        ]
        assert len(asked) == len(WORKLOADS), f"{len(asked)} jobs were asked for"
        wait_until(lambda: len(slurm.ended()) - jobs >= len(asked), "the end of each job")
        ended = slurm.ended()[jobs:]
        assert [job["JobState"] for job in ended] == ["COMPLETED"] * len(WORKLOADS), ended
        assert "no open submissions" in study.radt("status")
        mine = f"RADT_HOME={place}/home".encode()
        wait_until(
            lambda: (
                not any(alive(pid) and mine in procfs.environment(pid) for pid in procfs.all_pids())
            ),
            "the end of radt's processes",
        )


if __name__ == "__main__":
    main()
