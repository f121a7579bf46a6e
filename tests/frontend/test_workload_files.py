"""Files of runs: only those of the run are given, as what they are, however hostile the names."""

from __future__ import annotations

import gzip
import json
import os
import platform
import urllib.request
from pathlib import Path
from urllib.parse import quote, urljoin

import pytest
from flask.testing import FlaskClient

from radt.errors import RunNotFoundError
from radt.frontend import app
from radt.frontend.answers import content_disposition
from radt.frontend.auth import DashboardAccess
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.run_files import (
    MAX_LISTED,
    list_artifacts,
    open_below,
    opened,
    spool_of,
    tail_of,
)
from radt.frontend.files import artifact_address, trace_address
from radt.model import RunStatus
from radt.store.backend import StoreAddress
from radt.store.records import RunRecord
from tests.frontend.conftest import served
from tests.frontend.workload_support import EVIL, Bench, Planted

SECRET = "of others"


@pytest.fixture
def run(bench: Bench, store_path: Path) -> Planted:
    """A run with a spool beside the store, and a secret outside of it."""
    planted = Planted("a")
    folder = store_path.parent / "runs" / planted.run_id
    (folder / "artifacts" / "plots").mkdir(parents=True)
    (folder / "output.log").write_text("epoch 1\nepoch 2\n")
    (folder / "artifacts" / "plots" / "loss.csv").write_text("1,2\n")
    (store_path.parent / "secret.txt").write_text(SECRET)
    planted.spool = str(folder)
    bench.workload("solo", [planted])
    return planted


@pytest.fixture
def client(run: Planted, source: CachedStore) -> FlaskClient:
    return app.create_app(source, DashboardAccess()).server.test_client()


def log_address(run_id: str) -> str:
    return f"./files/{quote(run_id, safe='')}/log"


def get(client: FlaskClient, address: str, **headers: str):
    return client.get(urljoin("/", address), headers={"Host": "127.0.0.1", **headers})


def test_log_and_artifacts_come_as_downloads_that_no_browser_shows(
    client: FlaskClient, run: Planted
) -> None:
    log = get(client, log_address(run.run_id))
    plot = get(client, artifact_address(run.run_id, "plots/loss.csv"))

    assert (log.status_code, log.data) == (200, b"epoch 1\nepoch 2\n")
    assert log.mimetype == "text/plain"
    assert (plot.status_code, plot.data) == (200, b"1,2\n")
    assert plot.mimetype == "application/octet-stream"
    for answer in (log, plot):
        assert answer.headers["Content-Disposition"].startswith("attachment; ")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Content-Length"] == str(len(answer.data))
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"


@pytest.mark.parametrize("kind", ["svg", "html"])
def test_markup_among_artifacts_runs_nowhere(run: Planted, source: CachedStore, kind: str) -> None:
    """Over HTTP, as the server sends it, behind all that adds headers: one policy, its own."""
    file = Path(run.spool) / "artifacts" / f"evil.{kind}"
    file.write_text("<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>")
    with served(source, DashboardAccess()) as url:
        address = urljoin(url, artifact_address(run.run_id, file.name))
        with urllib.request.urlopen(address, timeout=180) as answer:
            headers = answer.headers
            assert answer.read() == file.read_bytes()
    assert headers.get_all("Content-Security-Policy") == ["default-src 'none'; sandbox"]
    assert headers.get_content_type() == "application/octet-stream"
    assert headers["Content-Disposition"].startswith("attachment;")
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "../../secret.txt",
        "../../../secret.txt",
        "plots/../../../../secret.txt",
        "/etc/passwd",
        "//etc/passwd",
        "plots//loss.csv",
        "./plots/loss.csv",
        "plots",
        "",
        ".",
        "..",
        "out/secret.txt",
        "secret.txt",
        "plots/loss.csv\0.png",
        "pipe",
        "a" * 5000,
    ],
)
def test_nothing_outside_of_a_run_is_given(
    client: FlaskClient, run: Planted, store_path: Path, path: str
) -> None:
    artifacts = Path(run.spool) / "artifacts"
    (artifacts / "out").symlink_to(store_path.parent)
    (artifacts / "secret.txt").symlink_to(store_path.parent / "secret.txt")
    os.mkfifo(artifacts / "pipe")

    answer = get(client, artifact_address(run.run_id, path))

    assert answer.status_code == 404
    assert SECRET.encode() not in answer.data


@pytest.mark.parametrize("folder", ["/etc", "{home}", "{home}/runs", "{home}/other/{run_id}"])
def test_a_store_cannot_name_any_folder_as_a_run_s(store_path: Path, folder: str) -> None:
    run_id = "0123456789abcdef0123456789abcdef"
    home = store_path.parent / "elsewhere"
    named = folder.format(home=home, run_id=run_id)
    if named.startswith(str(home)):
        Path(named).mkdir(parents=True)
    record = RunRecord(
        run_id,
        "w",
        "e",
        "w",
        "a",
        "n",
        1,
        spool=named,
        host=platform.node(),
        status=RunStatus.FINISHED,
    )

    assert spool_of(record, StoreAddress.of(store_path)) is None


def test_a_run_of_another_machine_or_with_a_strange_id_has_no_files_here(
    store_path: Path, tmp_path: Path
) -> None:
    spool = tmp_path / "runs" / "0123456789abcdef"
    spool.mkdir(parents=True)
    store = StoreAddress.of(store_path)

    def record(run_id: str, host: str) -> RunRecord:
        return RunRecord(run_id, "w", "e", "w", "a", "n", 1, spool=str(spool), host=host)

    assert spool_of(record("0123456789abcdef", "another"), store) is None
    assert spool_of(record("../runs", platform.node()), store) is None
    assert spool_of(record("0123456789abcdef", platform.node()), store) is not None


def test_names_of_all_kinds_are_listed_and_come_back(
    client: FlaskClient, run: Planted, source: CachedStore
) -> None:
    artifacts = Path(run.spool) / "artifacts"
    names = [
        "a b.txt",
        "100 %.txt",
        "a#b?c&d=e.txt",
        "q\"uote'.txt",
        "ümlaut.txt",
        "\r\nX: y",
        EVIL.replace("/", "_"),
    ]
    for name in names:
        (artifacts / name).write_text(name)
    raw = b"bytes\xff.bin"
    (Path(os.fsdecode(os.fsencode(artifacts) + b"/" + raw))).write_bytes(b"raw")
    record = source.reader.run(run.run_id)

    listed = {one.path: one for one in list_artifacts(record, source.address).files}

    assert set(listed) == {*names, os.fsdecode(raw), "plots/loss.csv"}
    for name in names:
        answer = get(client, artifact_address(run.run_id, name))
        assert answer.get_data(as_text=True) == name
        assert "\n" not in answer.headers["Content-Disposition"]
    assert get(client, artifact_address(run.run_id, os.fsdecode(raw))).data == b"raw"


def test_links_and_pipes_are_not_listed_and_many_files_are_counted(
    run: Planted, source: CachedStore
) -> None:
    artifacts = Path(run.spool) / "artifacts"
    (artifacts / "link").symlink_to("/etc/passwd")
    (artifacts / "around").symlink_to(artifacts)
    os.mkfifo(artifacts / "pipe")
    many = artifacts / "many"
    many.mkdir()
    for number in range(MAX_LISTED + 20):
        (many / f"{number:05}").touch()

    listing = list_artifacts(source.reader.run(run.run_id), source.address)

    assert len(listing.files) == MAX_LISTED
    assert listing.left_out == 21
    assert not {"link", "pipe"} & {one.path for one in listing.files}


def test_of_a_log_of_a_gigabyte_only_the_end_is_read(run: Planted, client: FlaskClient) -> None:
    log = Path(run.spool) / "output.log"
    with log.open("wb") as file:
        file.truncate(1_000_000_000)
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + b"".join(b"line %d\n" % number for number in range(500)))

    with opened(Path(run.spool), "output.log") as file:
        tail = tail_of(file, 100)
    answer = client.head(urljoin("/", log_address(run.run_id)), headers={"Host": "127.0.0.1"})

    assert tail == [f"line {number}" for number in range(400, 500)]
    assert log.stat().st_size > 1_000_000_000
    assert answer.headers["Content-Length"] == str(log.stat().st_size)


def test_a_log_is_shown_as_a_terminal_would_without_colours(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(
        b"\x1b[31mred\x1b[0m\n10%\r20%\r100%\nwindows\r\n"
        + b"x" * 5000
        + b"\n\x00\xff\x1b]0;title\x07end"
    )

    with opened(tmp_path, "output.log") as file:
        tail = tail_of(file, 100)

    assert tail[:3] == ["red", "100%", "windows"]
    assert len(tail[3]) == 2001
    assert tail[4] == "��end"


def test_a_log_that_is_a_link_is_no_log(run: Planted, client: FlaskClient) -> None:
    log = Path(run.spool) / "output.log"
    log.unlink()
    log.symlink_to("/etc/passwd")

    answer = get(client, log_address(run.run_id))

    assert answer.status_code == 404
    assert b"not on this machine" in answer.data
    with pytest.raises(RunNotFoundError):
        open_below(Path(run.spool), "output.log")


def test_a_trace_is_made_on_request(client: FlaskClient, run: Planted) -> None:
    answer = get(client, trace_address(run.run_id))

    assert answer.status_code == 200
    assert answer.headers["Content-Disposition"].endswith(".trace.json.gz")
    trace = json.loads(gzip.decompress(answer.data))
    assert {"validate", "process.cpu.utilization (cores)"} & {
        event.get("name") for event in trace["traceEvents"]
    }


def torch_trace(spool: Path, event: str) -> Path:
    """A PyTorch trace among the files of a run."""
    path = spool / "artifacts" / "profiles" / f"torch-{event}.json"
    path.parent.mkdir(parents=True)
    told = {"ph": "X", "cat": "cpu_op", "name": event, "pid": 1, "tid": 1, "ts": 1.0, "dur": 2.0}
    path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": [told]}))
    return path


def test_a_trace_reads_only_folders_that_are_of_the_runs(
    bench: Bench, source: CachedStore, store_path: Path, tmp_path: Path
) -> None:
    """Neighbours' folders are named by the store, too, and a link leads anywhere."""
    runs = store_path.parent / "runs"
    asked, linked, named = (
        Planted("a"),
        Planted("b"),
        Planted("c", spool=str(tmp_path / "of others")),
    )
    torch_trace(runs / asked.run_id, "own event")
    outside = torch_trace(tmp_path / "of others", "foreign event")
    profiles = runs / linked.run_id / "artifacts" / "profiles"
    profiles.mkdir(parents=True)
    (profiles / outside.name).symlink_to(outside)
    bench.workload("three", [asked, linked, named])
    client = app.create_app(source, DashboardAccess()).server.test_client()

    answer = get(client, trace_address(asked.run_id))

    assert answer.status_code == 200
    names = {event["name"] for event in json.loads(gzip.decompress(answer.data))["traceEvents"]}
    assert "own event" in names
    assert "foreign event" not in names


@pytest.mark.parametrize(
    "address", [log_address, trace_address, lambda r: artifact_address(r, "x")]
)
def test_unknown_runs_other_sites_and_strangers_get_nothing(
    client: FlaskClient, run: Planted, source: CachedStore, address
) -> None:
    assert get(client, address("0" * 32)).status_code == 404
    assert get(client, address("' OR 1=1 --")).status_code == 404
    from_elsewhere = {
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": "navigate",
        "Sec-Fetch-Dest": "document",
    }
    assert get(client, address(run.run_id), **from_elsewhere).status_code == 403
    guarded = app.create_app(
        source, DashboardAccess(token="a-token-of-16-characters")
    ).server.test_client()
    assert get(guarded, address(run.run_id)).status_code in (401, 403)
    assert (
        client.get(urljoin("/", address(run.run_id)), headers={"Host": "evil.example"}).status_code
        == 403
    )


def test_a_name_cannot_break_out_of_its_header() -> None:
    header = content_disposition('a"; filename=evil.html\r\nX: y')

    assert "\r" not in header
    assert header.count('"') == 2
    assert quote('a"; filename=evil.html', safe="") in header
