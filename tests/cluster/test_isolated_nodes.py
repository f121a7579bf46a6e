"""An experiment on nodes that share a folder with the submit host, and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from radt.analysis.quantities import Quantity
from radt.analysis.report import read_report
from radt.experiment.source import ExperimentFile
from radt.home import Home
from radt.model import RunStatus
from radt.store.reader import StoreReader
from tests.support.privileges import needs_mounts
from tests.support.servers import isolated_slurm_cluster
from tests.support.slurm_isolated import IsolatedSlurm
from tests.support.waiting import wait_until

pytestmark = needs_mounts

_TRAIN = """\
import socket, time
from pathlib import Path
import radt

folder = Path(__file__).parent
with radt.Run() as run:
    for epoch in run.epochs(2):
        run.log_metrics({"loss": 1.0 / (epoch + 1)}, step=epoch)
    (folder / f"started.{run.id}").write_text(socket.gethostname())
    while not (folder / "go").exists():
        time.sleep(0.05)
"""


def _cut_off_first(slurm: IsolatedSlurm, folder: Path) -> tuple[str, str]:
    """Cut off the node of the first row, whose job Slurm starts anew; return its run and node."""
    run_id = wait_until(
        lambda: ExperimentFile.read(folder / "study.csv").table.rows[0].cells[2].value,
        "its run in the file",
    )
    node = (folder / f"started.{run_id}").read_text()
    sent = slurm.shared / "radt" / "submissions"
    wait_until(
        lambda: any(map(_has_loss, sent.glob(f"**/{run_id}/*.radt"))),
        "a bundle with what it has logged",
    )
    (job,) = slurm.run("squeue", "--noheader", f"--nodelist={node}", "--format=%A").split()
    slurm.cut_off(node)
    slurm.declare_down(node)
    state = ("squeue", "--noheader", f"--jobs={job}", "--format=%T")
    wait_until(lambda: slurm.run(*state).split() == ["PENDING"], "the job in the queue again")
    slurm.start_now(job)
    return run_id, node


def _has_loss(bundle: Path) -> bool:
    try:
        return b"loss" in bundle.read_bytes()
    except FileNotFoundError:
        return False  # the head has just taken it; the next one comes in a second


def test_all_arrives_through_the_folder() -> None:
    with isolated_slurm_cluster(4, 1) as slurm:
        folder = slurm.shared / "study"
        folder.mkdir()
        (folder / "train.py").write_text(_TRAIN)
        rows = "".join(f"{label},,,cpu,,train.py\n" for label in ("one", "two", "pair", "pair"))
        (folder / "study.csv").write_text("Workload,Status,Run,Devices,Listeners,File\n" + rows)
        (folder / "radt.toml").write_text(
            f'[cluster]\nfolder = "{slurm.shared}/radt"\ntime = "20min"\nexclusive = true\n'
        )
        home = Path.home() / "radt"  # of the head, which nodes do not see
        private = slurm.folder / "head" / "home" / "radt"
        follower = subprocess.Popen(
            [
                *(*slurm.entrance("head"), sys.executable, "-m", "radt"),
                *(f"{folder}/study.csv", "--on", "slurm"),
            ],
            env={
                **{n: v for n, v in os.environ.items() if not n.startswith("RADT_")},
                **slurm.environ,
                "RADT_HOME": str(home),
                "RADT_TRACKING_URI": "none",
                "RADT_CLUSTER_POLL_S": "2",
                "RADT_CLUSTER_PART_S": "1",
                "RADT_CLUSTER_BEAT_S": "1",
                "RADT_CLUSTER_LATE_S": "3",
                "COLUMNS": "80",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            wait_until(
                lambda: len(list(folder.glob("started.*"))) == 4 or follower.poll() is not None,
                "all rows to run",
            )
            lost, node = _cut_off_first(slurm, folder)
            wait_until(lambda: len(list(folder.glob("started.*"))) == 5, "the next attempt")
            late = set(slurm.job_processes(node))
            slurm.connect(node)
            wait_until(
                lambda: late.isdisjoint(slurm.job_processes(node)), "the end of the late attempt"
            )
            assert follower.poll() is None
            (folder / "go").touch()
            output, _ = follower.communicate()
        finally:
            follower.kill()
            follower.wait()
        assert follower.returncode == 0, output
        table = ExperimentFile.read(folder / "study.csv").table
        assert [record.cells[1].value for record in table.rows] == ["FINISHED"] * 4
        hosts = {path.name[8:]: path.read_text() for path in folder.glob("started.*")}
        with StoreReader(Home(private).store_path) as reader:
            runs = {run.run_id: run for run in reader.runs()}
            assert set(runs) <= set(hosts)
            finished = {record.cells[2].value for record in table.rows}
            assert {runs[run_id].status for run_id in finished} == {RunStatus.FINISHED}
            assert all(len(reader.ledger([run_id])) > 0 for run_id in (lost, *finished))
            # The late attempt, and the next one if the late one's srun ended its step.
            killed = [runs[run_id] for run_id in set(runs) - finished]
            assert lost in {run.run_id for run in killed}
            assert all(run.status is RunStatus.KILLED and run.end_reason for run in killed)
            assert "loss" in {one.metric for one in reader.series([lost])}
            assert set(hosts.values()) == set(slurm.nodes)
            report = read_report(reader, "study")
        # No node is said to be the pair's own: it is compared with both that ran one row alone.
        (pair,) = (one for one in report.workloads if one.label == "pair")
        slowdown = pair.groups[0].values[Quantity.SLOWDOWN]
        assert len(slowdown.reference) == 2
        (note,) = (note for note in report.footnotes if "same hardware" in note)
        assert re.fullmatch(
            r"Compared with runs alone on node\d, a node with the.*: pair\b.*", note
        )
        wait_until(lambda: not any(map(slurm.job_processes, slurm.nodes)), "no process of a job")
