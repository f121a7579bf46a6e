"""Servers behind bad links, and killed: nothing lost, nothing doubled in MLflow and in S3."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import ViewType

from radt.delivery import s3
from radt.delivery.backlog import mlflow_backlogs
from radt.delivery.mlflow.points import SUMMARY_FILE
from radt.delivery.mlflow.target import MlflowTarget
from radt.home import Home, RunDir
from radt.model import SOFTWARE, RunStatus
from radt.processes import Backoff
from radt.store.records import RunRecord
from tests.delivery.mlflow.lab import Lab, Threads, closing, make_lab, wait_until
from tests.support import http_links, servers
from tests.support.http_links import HttpLink
from tests.support.links import Link
from tests.support.mlflow_server import MlflowServer
from tests.support.s3 import S3Server

POINTS = 2500
LOG_BATCH = "runs/log-batch"
LONGEST_PAUSE_S = 0.5


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures are retried soon; how pauses grow is tested in ``test_delivery_threads.py``."""
    grown_s = Backoff.next_s
    monkeypatch.setattr(Backoff, "next_s", lambda backoff: min(grown_s(backoff), LONGEST_PAUSE_S))


@contextmanager
def delivering(uri: str, folder: Path) -> Iterator[tuple[Lab, Threads]]:
    """A data folder whose runs go to ``uri``, with the deliverer's threads in this process."""
    home = Home(folder / "radt-data").create()
    with closing(make_lab(home, uri)) as lab:
        threads = Threads(lab, live_interval_s=0.05)
        yield lab, threads
        threads.finish()


def begin(lab: Lab, threads: Threads, runs: int = 2) -> list[RunRecord]:
    """Rows that have begun."""
    made = lab.add_workload(runs, experiment=uuid.uuid4().hex)
    for run in made:
        lab.start(run)
        lab.writer.put_params(run.run_id, {"lr": "0.1", "Params": "--lr 0.1", "long": "x" * 900})
        lab.writer.put_tags(run.run_id, {"team": run.letter})
    threads.notify()
    return made


def train(lab: Lab, run: RunRecord, first: int, count: int) -> None:
    """A stretch of what a script logs, with the hardware beside it."""
    ns = 1_000_000
    lab.log(
        run,
        "loss",
        [1.0 / (1 + i) for i in range(first, first + count)],
        interval_ns=ns,
        first_ns=1_750_000_000_000_000_000 + first * ns,
    )
    if first == 0:
        lab.log(run, "cpu", [float(i % 7) for i in range(200)], series_no=1, listener="top")


def end(lab: Lab, threads: Threads, run: RunRecord, size: int = 3000) -> None:
    """The run prints something, leaves a file, and ends."""
    spool = RunDir(Path(run.spool))
    spool.output_log.write_text(f"{run.letter}\n" * 100)
    (spool.artifacts / "model.bin").write_bytes(content(run, size))
    lab.end(run, RunStatus.FINISHED)
    threads.notify()


def content(run: RunRecord, size: int) -> bytes:
    return (run.run_id.encode() * (size // 32 + 1))[:size]


def delivered(lab: Lab) -> Callable[[], bool]:
    return lambda: (
        not lab.reader.runs_to_deliver(lab.tracking_uri)
        and not lab.reader.workloads_to_deliver(lab.tracking_uri)
    )


def check_same(lab: Lab, runs: list[RunRecord], server: MlflowServer) -> None:
    """What MLflow has, asked directly, is what the store has: all of it, in order, once."""
    with closing(make_lab(Home(lab.home.path), server.uri)) as direct:
        experiment = direct.mlflow_run(runs[0]).info.experiment_id
        # Also those in the bin: none was created twice and deleted then.
        everything = direct.client.search_runs([experiment], run_view_type=ViewType.ALL)
        ids = [run.data.tags.get("radt.run_id", "the workload's") for run in everything]
        assert sorted(ids) == sorted([*(run.run_id for run in runs), "the workload's"])
        assert {run.info.status for run in everything} == {"FINISHED"}
        for run in runs:
            check_run(direct, run)


def check_run(lab: Lab, run: RunRecord) -> None:
    found = lab.mlflow_run(run)
    for series in lab.reader.series([run.run_id]):
        if series.listener != SOFTWARE:
            continue
        stored = lab.reader.samples(run.run_id, series.series_no)
        expected = list(enumerate(stored.values.tolist()))
        assert [(step, value) for step, value, _ in lab.history(run, series.metric)] == expected
    assert len(lab.history(run, "system/cpu")) == 20
    assert len(lab.history(run, "summary/cpu/mean")) == 1
    for key, value in lab.reader.params(run.run_id).items():
        assert found.data.params[key] == value
    assert found.data.tags["team"] == run.letter
    assert found.data.tags["radt.status"] == "FINISHED"


def artifacts(lab: Lab, run: RunRecord, folder: Path) -> dict[str, bytes]:
    """What MLflow's own client gets."""
    target = folder / run.run_id
    target.mkdir()
    lab.client.download_artifacts(lab.mlflow_id(run), "", str(target))
    return {file.name: file.read_bytes() for file in target.rglob("*") if file.is_file()}


def trouble_500(link: HttpLink) -> None:
    link.answer(http_links.SERVER_ERROR, times=2, path="runs/create")
    link.answer(http_links.SERVER_ERROR, times=6, path=LOG_BATCH)
    link.answer(http_links.SERVER_ERROR, times=2, path="artifacts", method="PUT")


def trouble_429(link: HttpLink) -> None:
    link.answer(http_links.too_many(0.1), times=2, path="runs/create")
    link.answer(http_links.too_many(0.2), times=3, path=LOG_BATCH)


def trouble_413(link: HttpLink) -> None:
    link.answer(http_links.TOO_LARGE, times=None, path=LOG_BATCH, above_bytes=20_000)


def trouble_garbage(link: HttpLink) -> None:
    link.answer(http_links.GARBAGE, path="runs/create")
    link.answer(http_links.EMPTY, times=2, path=LOG_BATCH)
    link.answer(http_links.WELCOME, path="runs/update")
    link.answer(http_links.BAD_GATEWAY, path="artifacts", method="PUT")


def trouble_lost_answers(link: HttpLink) -> None:
    link.lose_answer(times=2, path="runs/create")
    link.lose_answer(times=5, path=LOG_BATCH)
    link.lose_answer(times=2, path="runs/update")


@pytest.mark.quick_variants(2)
@pytest.mark.parametrize(
    "trouble", [trouble_500, trouble_429, trouble_413, trouble_garbage, trouble_lost_answers]
)
def test_answers_that_are_none(
    mlflow_server: MlflowServer, tmp_path: Path, trouble: Callable[[HttpLink], None]
) -> None:
    with HttpLink(mlflow_server.port) as link, delivering(link.uri, tmp_path) as (lab, threads):
        trouble(link)
        runs = begin(lab, threads)
        wait_until(lambda: all(lab.record(run).mlflow_run_id for run in runs), "created")
        for run in runs:
            train(lab, run, 0, POINTS)
        threads.notify()
        for run in runs:
            end(lab, threads, run)
        wait_until(delivered(lab), "delivered")
        wait_until(lambda: not mlflow_backlogs(lab.reader), "no problem is left")
        check_same(lab, runs, mlflow_server)
        for run in runs:
            assert artifacts(lab, run, tmp_path)["model.bin"] == content(run, 3000)
        refused = [one for one in link.requests(LOG_BATCH) if one.status == 413]
        # Halved once or twice by whoever was under way, then known.
        assert len(refused) <= 16
        assert bool(refused) == (trouble is trouble_413)


def test_a_proxy_that_refuses_everything_for_its_size_drops_nothing(
    mlflow_server: MlflowServer, tmp_path: Path
) -> None:
    with HttpLink(mlflow_server.port) as link, delivering(link.uri, tmp_path) as (lab, threads):
        (run,) = begin(lab, threads, 1)
        wait_until(lambda: lab.record(run).mlflow_run_id, "created")
        link.answer(http_links.TOO_LARGE, times=None, path=LOG_BATCH)
        train(lab, run, 0, POINTS)
        threads.notify()
        wait_until(lambda: mlflow_backlogs(lab.reader)[0].problem, "noticed")
        problem = mlflow_backlogs(lab.reader)[0].problem
        assert problem.endswith(": the server refuses requests of any size as too large (413)")
        link.pass_through()
        end(lab, threads, run)
        wait_until(delivered(lab), "delivered")
        check_same(lab, [run], mlflow_server)
        batches = [one for one in link.requests(LOG_BATCH) if one.status == 200]
        assert len(batches) < 20, "they are as large again as before"


@pytest.mark.long
def test_a_link_that_drops_every_third_connection_and_cuts(
    mlflow_server: MlflowServer, tmp_path: Path
) -> None:
    with Link(mlflow_server.port) as link, delivering(link.uri, tmp_path) as (lab, threads):
        link.drop_every(3)
        link.cut_after(150_000)  # no connection lives long
        runs = begin(lab, threads, 3)
        for run in runs:
            train(lab, run, 0, POINTS)
        threads.notify()
        for run in runs:
            end(lab, threads, run)
        wait_until(delivered(lab), "delivered")
        assert link.traffic.dropped > 0
        check_same(lab, runs, mlflow_server)


@pytest.mark.long
def test_a_link_that_stalls(
    mlflow_server: MlflowServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # For what is under way when the link stalls: MLflow itself waits for two minutes.
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    with Link(mlflow_server.port) as link, delivering(link.uri, tmp_path) as (lab, threads):
        (first,) = begin(lab, threads, 1)
        wait_until(lambda: lab.record(first).mlflow_run_id, "created")
        link.stall()
        with monkeypatch.context() as impatient:  # a busy server takes longer
            impatient.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
            train(lab, first, 0, POINTS)
            threads.notify()
            wait_until(lambda: mlflow_backlogs(lab.reader)[0].problem, "noticed")
        assert lab.reader.delivered(first.run_id).get(0, 0) == 0
        link.pass_through()
        end(lab, threads, first)
        wait_until(delivered(lab), "delivered")
        check_same(lab, [first], mlflow_server)


def test_a_run_that_was_created_twice_is_deleted(
    mlflow_server: MlflowServer, tmp_path: Path
) -> None:
    """A request that was held up on the way arrives after another one was answered."""
    with delivering(mlflow_server.uri, tmp_path) as (lab, threads):
        (run,) = begin(lab, threads, 1)
        wait_until(lambda: lab.record(run).mlflow_run_id, "created")
        info = lab.mlflow_run(run).info
        tags = {
            key: value
            for key, value in lab.mlflow_run(run).data.tags.items()
            if key.startswith("radt.")
        }
        late = lab.client.create_run(info.experiment_id, info.start_time, tags, info.run_name)
        copy = lab.client.create_run(info.experiment_id, info.start_time, tags, "somebody's copy")
        lab.client.log_metric(copy.info.run_id, "mine", 1.0)
        train(lab, run, 0, 10)
        end(lab, threads, run)
        wait_until(delivered(lab), "delivered")
        assert lab.client.get_run(late.info.run_id).info.lifecycle_stage == "deleted"
        assert lab.client.get_run(copy.info.run_id).info.lifecycle_stage == "active"
        assert lab.mlflow_run(run).info.lifecycle_stage == "active"


# -- files, to S3 directly ------------------------------------------------------------------------


@pytest.fixture
def own_s3() -> Iterator[S3Server]:
    """One that may be killed."""
    with servers.s3_store() as made:
        yield made


@pytest.fixture
def s3_link(own_s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Link]:
    """The way to it, for this process; parts are small."""
    with Link(own_s3.port) as link:
        for name, value in bucket_environ(own_s3).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", link.uri)
        monkeypatch.setattr(s3, "PART_BYTES", 5 * 2**20)
        yield link


def bucket_environ(server: S3Server) -> Mapping[str, str]:
    return servers.bucket_of(server, "artifacts").environ


def s3_target(lab: Lab) -> None:
    """New experiments have their artifacts in S3."""
    lab.target = MlflowTarget(lab.tracking_uri, "s3://artifacts/runs")


@contextmanager
def delivering_to_s3(uri: str, folder: Path) -> Iterator[tuple[Lab, Threads]]:
    home = Home(folder / "radt-data").create()
    with ExitStack() as stack:
        lab = stack.enter_context(closing(make_lab(home, uri)))
        s3_target(lab)
        threads = Threads(lab, live_interval_s=0.05)
        yield lab, threads
        threads.finish()


def objects(server: S3Server, run_id: str) -> dict[str, Any]:
    """Whole objects of a run by the end of their names, and uploads that were never completed."""
    client = server.client()
    found = client.list_objects_v2(Bucket="artifacts", Prefix=f"runs/{run_id}/").get("Contents", ())
    uploading = client.list_multipart_uploads(Bucket="artifacts").get("Uploads", ())
    names = {one["Key"].rsplit("/", 1)[1]: one["Size"] for one in found}
    return names | ({"uploading": len(uploading)} if uploading else {})


def test_s3_is_killed_in_mid_upload_and_comes_back(
    mlflow_server: MlflowServer, own_s3: S3Server, s3_link: Link, tmp_path: Path
) -> None:
    size = 12 * 2**20 + 5
    with delivering_to_s3(mlflow_server.uri, tmp_path) as (lab, threads):
        (run,) = lab.add_workload(experiment="in S3")
        lab.start(run)
        threads.notify()
        wait_until(lambda: lab.record(run).mlflow_run_id, "created")
        s3_link.cut_after(6 * 2**20)
        end(lab, threads, run, size)
        wait_until(lambda: s3_link.traffic.bytes_up > 6 * 2**20, "in the middle")
        own_s3.kill()
        s3_link.cut_after(None)
        mlflow_id = lab.mlflow_id(run)
        # Files that wait are no reason to leave a run RUNNING.
        wait_until(lambda: lab.mlflow_run(run).info.status == "FINISHED", "ended in MLflow")
        wait_until(lambda: mlflow_backlogs(lab.reader)[0].problem, "noticed")
        problem = mlflow_backlogs(lab.reader)[0].problem
        assert ": S3: " in problem
        own_s3.start()
        wait_until(delivered(lab), "delivered")
        there = objects(own_s3, mlflow_id)
        assert there.pop(SUMMARY_FILE) > 0
        assert there == {"model.bin": size, "output.log": 200}
        stored = own_s3.client().get_object(
            Bucket="artifacts", Key=f"runs/{mlflow_id}/artifacts/model.bin"
        )
        assert stored["Body"].read() == content(run, size)


def test_s3_gets_content_with_type_and_any_name(
    mlflow_server: MlflowServer,
    own_s3: S3Server,
    s3_link: Link,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_S3_UPLOAD_EXTRA_ARGS", json.dumps({"Metadata": {"made-by": "me"}}))
    folder = s3.S3Folder.of("s3://artifacts/x")
    for name, body in {"a b+ü.json": b"{}", "empty": b"", "log.txt": b"x" * 70_000}.items():
        file = tmp_path / name
        file.write_bytes(body)
        folder.put(f"sub/{name}", file)
        folder.put(f"sub/{name}", file)  # over what is there
        got = own_s3.client().get_object(Bucket="artifacts", Key=f"x/sub/{name}")
        assert got["Body"].read() == body
        assert got["Metadata"] == {"made-by": "me"}
    head = own_s3.client().head_object(Bucket="artifacts", Key="x/sub/a b+ü.json")
    assert head["ContentType"] == "application/json"
