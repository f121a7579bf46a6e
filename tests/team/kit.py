"""A team's set-up: servers that can be killed, machines that record, and all places compared."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psutil
from mlflow.entities import FileInfo, Run
from mlflow.tracking import MlflowClient

from radt.delivery.backlog import backlogs
from radt.delivery.mlflow.limits import deliverable_params, deliverable_tags, unique_keys
from radt.delivery.mlflow.points import hardware_means, series_names, software_points
from radt.errors import StoreError
from radt.home import RunDir
from radt.model import SOFTWARE
from radt.store import bundle
from radt.store.reader import StoreReader
from radt.store.records import RunRecord
from radt.usage import KERNEL
from tests.support.bench import Bench, wait_until
from tests.support.links import Link
from tests.support.mlflow_server import MlflowServer
from tests.support.postgres import Postgres
from tests.support.s3 import S3Server
from tests.support.stores import differences

#: A stretch of steps behind each gate; gates are files, which a test makes.
SCRIPT = """\
import os, sys, time
from pathlib import Path
import radt

here, steps, slowest = Path(__file__).parent, int(sys.argv[1]), 0.0
with radt.Run() as run:
    run.log_params({"lr": 0.1, "who": "Zoë's 100 %"})
    for part, gate in enumerate(("first", "second", "third")):
        with run.span(gate):
            for step in range(part * steps, (part + 1) * steps):
                before = time.monotonic()
                run.log_metric("loss", 1.0 / (step + 1), step=step)
                slowest = max(slowest, time.monotonic() - before)
                if step % 50 == 0:
                    time.sleep(0.01)
            for odd in (-0.0, float("nan"), float("inf"), float("-inf")):
                run.log_metric("odd", odd, step=(0, 1 - 2**63, 2**63 - 1)[part])
        (here / f"{gate}-{os.getpid()}.through").touch()
        while not (here / f"{gate}.gate").exists():
            time.sleep(0.02)
    (here / f"model-{os.getpid()}.txt").write_text("weights " * 1000)
    run.log_artifact(here / f"model-{os.getpid()}.txt", "models")
    print(f"trained, slowest call {slowest:.6f} s", flush=True)
"""


@dataclass
class Team:
    """The servers, and a link in front of the database that the test has."""

    postgres: Postgres
    s3: S3Server
    mlflow: MlflowServer
    link: Link

    def kill(self) -> None:
        """SIGKILL to all."""
        for server in (self.postgres, self.s3, self.mlflow):
            server.kill()

    def up(self) -> None:
        """All of it runs, on the ports it had."""
        for server in (self.postgres, self.s3, self.mlflow):
            port = server.port
            server.start()
            assert server.port == port

    @property
    def client(self) -> MlflowClient:
        return MlflowClient(self.mlflow.uri)

    def by_link(self, database: str) -> str:
        return database.replace(f":{self.postgres.port}/", f":{self.link.port}/")


@dataclass
class Machine(Bench):
    """A user's folder on a machine of its own, set up for the team's servers."""

    @property
    def store(self) -> Path:
        return self.home / "radt.db"

    def prepare(self, experiment: str, runs: int = 2, steps: int = 200) -> None:
        self.script("train.py", SCRIPT)
        row = f"{experiment},1,,,cpu,,train.py,top@100ms+iostat@200ms,{steps}\n"
        header = "Experiment,Workload,Status,Run,Devices,Collocation,File,Listeners,Params\n"
        self.experiment(header + row * runs)

    def open(self, *gates: str) -> None:
        for gate in gates:
            (self.folder / f"{gate}.gate").touch()

    def through(self, gate: str, runs: int = 2) -> bool:
        """Whether all scripts have logged all in front of a gate."""
        return len(list(self.folder.glob(f"{gate}-*.through"))) == runs

    def waiting(self) -> dict[str, str]:
        """What has not been brought, and the problem, by place; as ``radt status`` says it."""
        found = backlogs(self.store, self.env["RADT_STORE_URI"])
        return {one.address: one.problem for one in found if one.waiting}

    def wait_brought(self) -> None:
        seen: dict[str, str] = {}

        def all_there() -> bool:
            seen.clear()
            seen.update(self.waiting())
            return not seen

        try:
            wait_until(all_there, "nothing waits")
        except AssertionError:
            raise AssertionError(f"{seen} {self.logs()}") from None

    def logs(self) -> str:
        """The ends of what processes in the background have logged."""
        folder = Path(self.env["RADT_RUNTIME_DIR"])
        return "\n".join(
            f"{path.name}: {path.read_text(errors='replace')[-2000:]}"
            for path in sorted(folder.glob("*.log"))
        )

    def processes(self, *modules: str) -> list[psutil.Process]:
        """Those of this machine that run one of these modules."""
        mine = self.env["RADT_RUNTIME_DIR"]
        found = []
        for process in psutil.process_iter(["cmdline"]):
            try:
                if not set(modules) & set(process.info["cmdline"] or ()):
                    continue
                if process.environ().get("RADT_RUNTIME_DIR") == mine:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def statuses(self) -> set[str]:
        """What the experiment file says of its rows."""
        return {row["Status"] for row in self.rows(self.folder / "experiment.csv")}


def points_at(uri: str | Path) -> int:
    """How many points a store has; 0 while there is none, or none that can be read."""
    try:
        with StoreReader(uri) as reader:
            return sum(sum(reader.point_counts(run.run_id).values()) for run in reader.runs())
    except StoreError:
        return 0


# All places compared -----------------------------------------------------------------------------


def disagreements(machine: Machine, team: Team, database: str, imported: Path) -> list[str]:
    """What is not the same in the store, in Postgres, in the archives and in MLflow.

    Args:
        database: Postgres.
        imported: Data folder that archives are imported into, new.
    """
    store = machine.store
    found = [f"Postgres: {one}" for one in differences(store, database)]
    with closing(StoreReader(store)) as reader:
        runs = reader.runs()
        workloads = [one for one in reader.workloads() if one.label]
        for run in runs:
            found += [f"MLflow: {one}" for one in _mlflow_differences(team.client, reader, run)]
    for workload in workloads:
        assert workload.mlflow_run_id is not None
        parent = team.client.get_run(workload.mlflow_run_id)
        if parent.info.status != "FINISHED":
            found.append(f"MLflow: the workload is {parent.info.status}")
    experiment_id = parent.info.experiment_id  # the bucket may have archives of other tests
    bucket = team.mlflow.bucket.uri
    machine.radt("import", f"{bucket}/{experiment_id}", "--home", str(imported))
    ids = [run.run_id for run in runs]
    # MLflow's ids of a workload come after its runs' archives; all else is the same.
    found += [
        f"archive: {one}"
        for one in differences(store, imported / "radt.db", ids)
        if not one.startswith("workload")
    ]
    return found


def runs_in_mlflow(client: MlflowClient, experiment: str) -> list[Run]:
    """All runs of an experiment, workloads among them; there is one experiment of this name."""
    named = [one for one in client.search_experiments() if one.name == experiment]
    assert len(named) == 1, named
    return list(client.search_runs([named[0].experiment_id], max_results=1000))


def _mlflow_differences(client: MlflowClient, reader: StoreReader, run: RunRecord) -> list[str]:
    assert run.mlflow_run_id is not None
    there = client.get_run(run.mlflow_run_id)
    found = []
    if there.info.status != run.status.mlflow:
        found.append(f"status {there.info.status}")
    params = deliverable_params(reader.params(run.run_id), ended=True)
    if there.data.params != params:
        found.append(f"params {there.data.params} instead of {params}")
    # What the kernel counted is among the summaries there.
    series = [one for one in reader.series([run.run_id]) if one.listener != KERNEL]
    names = series_names(series)
    keys = unique_keys(names.values())
    tags = deliverable_tags(run, reader.tags(run.run_id), keys)
    found += [f"tag {key}" for key, text in tags.items() if there.data.tags.get(key) != text]
    for one in series:
        key = keys[names[one.series_no]]
        samples = reader.points_after(run.run_id, one.series_no, 0, 2**40)
        if one.listener == SOFTWARE:
            wanted = software_points(key, samples, 0)
        else:
            origin_ns = run.started_ns or run.created_ns
            means = hardware_means(key, one, samples, origin_ns=origin_ns, since_ns=0, final=True)
            wanted = means.points
        have = client.get_metric_history(run.mlflow_run_id, key)
        mine = sorted((point.step, _as_mlflow(point.value)) for point in wanted)
        if sorted((point.step, _as_mlflow(point.value)) for point in have) != mine:
            found.append(f"metric {key}: {len(have)} points, {len(mine)} in the store")
    path = client.download_artifacts(run.mlflow_run_id, "radt-summary.json")
    summaries = {key for key in json.loads(Path(path).read_text()) if key.startswith("samples/")}
    if len(summaries) != 2 * len(reader.ledger([run.run_id])):
        found.append(f"summaries {summaries}")
    return found + _artifact_differences(client, run)


def _as_mlflow(value: float) -> str:
    """A value with all its bits, as text; MLflow has no infinities, and one NaN."""
    if math.isinf(value):
        value = math.copysign(1.7976931348623157e308, value)
    return "nan" if math.isnan(value) else (value + 0.0).hex()


def _artifact_differences(client: MlflowClient, run: RunRecord) -> list[str]:
    assert run.mlflow_run_id is not None
    folder = RunDir(Path(run.spool))
    there = {one.path: one for one in _files(client, run.mlflow_run_id, "")}
    found = []
    if there["output.log"].file_size != folder.output_log.stat().st_size:
        found.append(f"output.log of {there['output.log'].file_size} bytes")
    models = [path for path in there if path.startswith("models/")]
    texts = {Path(client.download_artifacts(run.mlflow_run_id, one)).read_text() for one in models}
    if len(models) != 1 or texts != {"weights " * 1000}:
        found.append(f"models {models}")
    archive = Path(client.download_artifacts(run.mlflow_run_id, "radt"))
    bundles = sorted(archive.glob("*.radt"), key=lambda one: bundle.number_of(one.name) or 0)
    expected = [bundle.name_of(run.run_id, number) for number in range(1, len(bundles) + 1)]
    names = [one.name for one in bundles]
    others = {one.name for one in archive.iterdir()} - set(names)
    if not names or names != expected or others != {"run.json", "samples.parquet"}:
        found.append(f"archive's files {names + sorted(others)}")
    return found


def _files(client: MlflowClient, run_id: str, folder: str) -> Sequence[FileInfo]:
    found: list[FileInfo] = []
    for one in client.list_artifacts(run_id, folder or None):
        found += _files(client, run_id, one.path) if one.is_dir else [one]
    return found
