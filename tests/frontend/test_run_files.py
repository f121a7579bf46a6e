"""What the Run page reads of files: parts of logs, beginnings of files, names with steps."""

from __future__ import annotations

import io
import json
import platform
import shutil
import socket
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

import pandas as pd
import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st
from mlflow.tracking import MlflowClient

from radt.delivery.archive.locations import MlflowLocation
from radt.errors import ArchiveError
from radt.frontend import app
from radt.frontend.auth import DashboardAccess
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.remote_files import RemoteFiles
from radt.frontend.data.run import log
from radt.frontend.data.run.kinds import MEDIA_TYPES, FileKind
from radt.frontend.data.run.media import is_copy, sequences_of
from radt.frontend.data.run.preview import MAX_ROWS, Preview, preview
from radt.frontend.data.run_files import shown_line
from radt.store.reader import StoreReader
from tests.frontend.workload_support import Bench, Planted
from tests.support.bench import mlflow_database
from tests.support.waiting import TIMEOUT_S

LINE = st.binary(max_size=60).map(lambda line: line.replace(b"\n", b""))


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "output.log"


def _view_address(run_id: str, path: str) -> str:
    """The address at which a browser shows a picture, a sound or a film."""
    return f"/files/{run_id}/view?{urlencode({'path': path})}"


# -- logs ----------------------------------------------------------------------------------------


@given(lines=st.lists(LINE, max_size=40), rest=LINE, part_bytes=st.integers(100, 300))
def test_parts_of_a_log_are_its_lines_forwards_backwards_and_in_a_search(
    scratch: Path, lines: list[bytes], rest: bytes, part_bytes: int
) -> None:
    wanted = [shown_line(line.decode("utf-8", "replace")) for line in lines]
    last = shown_line(rest.decode("utf-8", "replace"))
    scratch.write_bytes(b"".join(line + b"\n" for line in lines) + rest)
    size = scratch.stat().st_size
    with pytest.MonkeyPatch.context() as patch, scratch.open("rb") as file:
        patch.setattr(log, "PART_BYTES", part_bytes)
        patch.setattr(log, "_BLOCK_BYTES", part_bytes)
        forwards = [log.part_after(file, 0)]
        while forwards[-1].end < size - len(rest):
            forwards.append(log.part_after(file, forwards[-1].end))
        backwards = [log.part_before(file, None)]
        while backwards[-1].start:
            backwards.append(log.part_before(file, backwards[-1].start))
            assert backwards[-1].end == backwards[-2].start
        found = [log.search(file, "A")]
        while found[-1].scanned < size:
            found.append(log.search(file, "A", found[-1].scanned, found[-1].lines))
    assert [line for part in forwards for line in part.lines] == wanted
    assert [line for part in reversed(backwards) for line in part.lines] == wanted
    assert backwards[0].rest == last
    assert log.part_after(scratch.open("rb"), size - len(rest)).rest == last
    assert [(match.number, match.line) for part in found for match in part.matches] == [
        (number, shown)
        for number, (line, shown) in enumerate(
            zip([*lines, rest], [*wanted, last], strict=True), start=1
        )
        if b"a" in line.lower()
    ]


def test_a_line_longer_than_a_part_and_many_matches(scratch: Path) -> None:
    scratch.write_bytes(b"x" * 3 * log.PART_BYTES + b"\n" + b"needle\n" * 500)
    with scratch.open("rb") as file:
        assert log.part_after(file, 0).end == log.PART_BYTES
        found = log.search(file, "needle")
        assert len(found.matches) == log.MAX_MATCHES
        rest = log.search(file, "needle", found.scanned, found.lines)
        assert rest.matches[0].number == log.MAX_MATCHES + 2
        assert log.search(file, "").matches == ()


@pytest.mark.parametrize("end", [b"\nshort\n" * 100, b""], ids=["whole", "incomplete"])
def test_a_line_longer_than_a_part_is_read_backwards_up_to_its_beginning(
    scratch: Path, end: bytes
) -> None:
    scratch.write_bytes(b"short\nHEAD" + b"x" * 100_000 + b"TAIL" + end)
    with scratch.open("rb") as file:
        parts = [log.part_before(file, None)]
        while parts[-1].start:
            parts.append(log.part_before(file, parts[-1].start))
            assert parts[-1].end == parts[-2].start
    assert parts[-1].lines[0] == "short"
    assert parts[-1].lines[1].startswith("HEADxxx")


# -- names with steps ----------------------------------------------------------------------------


def test_files_are_sequences_by_their_names() -> None:
    mlflow = "images/a~b+step+{}+timestamp+17{}+0a-1f"
    paths = [
        *("images/val/x/step-2.png", "images/val/x/step-10.png", "images/val/x/step--1.png"),
        *("images/val/x/step-2.jpg", "images/one.png", "plots/step-3.svg"),
        *(mlflow.format(3, 5) + ".png", mlflow.format(3, 6) + ".png"),
        mlflow.format(3, 6) + "+compressed.webp",
        *("tables/t/step-1.json", "answers.json", "other.json", "story/step-7.txt", "note.txt"),
        *("a.html", "other.html"),
        *("profiles/step-1.json", "radt/picture.png", "step-1.png"),
    ]
    found = {
        (each.name, each.kind, tuple(item.step for item in each.items)): each.items[-1].path
        for each in sequences_of(paths, lambda path: path in ("answers.json", "a.html"))
    }
    assert found == {
        ("val/x", FileKind.IMAGE, (-1, 2, 10)): "images/val/x/step-10.png",
        ("val/x", FileKind.IMAGE, (2,)): "images/val/x/step-2.jpg",
        ("a/b", FileKind.IMAGE, (3,)): mlflow.format(3, 6) + ".png",
        ("plots", FileKind.IMAGE, (3,)): "plots/step-3.svg",
        ("t", FileKind.TABLE, (1,)): "tables/t/step-1.json",
        ("story", FileKind.TEXT, (7,)): "story/step-7.txt",
        ("one", FileKind.IMAGE, (None,)): "images/one.png",
        ("step-1", FileKind.IMAGE, (None,)): "step-1.png",
        ("answers", FileKind.JSON, (None,)): "answers.json",
        ("a", FileKind.FIGURE, (None,)): "a.html",
    }
    assert [path for path in paths if is_copy(path)] == [mlflow.format(3, 6) + "+compressed.webp"]


# -- beginnings of files -------------------------------------------------------------------------


def read(tmp_path: Path, name: str, content: bytes) -> Preview:
    path = tmp_path / name
    path.write_bytes(content)
    with path.open("rb") as file:
        return preview(file, name)


def test_what_a_file_cannot_be_is_shown_as_text_or_not_at_all(tmp_path: Path) -> None:
    deep = b"[" * 100_000
    assert read(tmp_path, "a.json", deep).text.startswith("[[[")
    assert read(tmp_path, "a.json", b'{"columns": 3, "data": [[1]]}').kind is FileKind.JSON
    assert read(tmp_path, "a.json", b'{"columns": ["x"], "data": [[NaN], [1e400]]}').rows == (
        *((None,), ("inf",)),
    )
    assert read(tmp_path, "a.parquet", b"PAR1 and more PAR1").note.startswith("Not a Parquet file")
    figure = '<div class="plotly-graph-div"></div> Plotly.newPlot( "a", [{"y": %s}], {"x": NaN} )'
    assert json.loads(read(tmp_path, "a.html", (figure % "[NaN]").encode()).figure) == {
        "data": [{"type": "scatter", "y": [None]}],
        "layout": {"x": None},
    }
    for broken in ("[1e999]", f"[{'9' * 400}]", "[" * 100_000, "alert(1)", '1, "type": []', ""):
        assert read(tmp_path, "a.html", (figure % broken).encode()).kind is FileKind.TEXT
    large = read(tmp_path, "a.html", (figure % f'"{"x" * 3_000_000}"').encode())
    assert large.note == "A figure of 3.0 MB is not drawn here"
    assert read(tmp_path, "a.csv", b"").text == ""
    assert read(tmp_path, "a.csv", b'x,y\n"' + b"z" * 200_000).kind is FileKind.TEXT
    assert read(tmp_path, "a.txt", "ünï".encode()).text == "ünï"
    assert read(tmp_path, "a.txt", b"\xff\xfe" * 9).kind is None
    cut = read(tmp_path, "a", b"x" * 1_000_000)
    assert (len(cut.text), cut.note) == (256 * 1024, "The first 262 KB of 1.00 MB")


def test_tables_are_shown_as_they_are_written(tmp_path: Path) -> None:
    semicolons = read(tmp_path, "a.csv", '\ufeffx;name;z\n1,50;"a;b";\n2;c\n'.encode())
    assert semicolons.columns == ("x", "name", "z")
    assert semicolons.rows == (("1,50", "a;b", ""), ("2", "c", None))
    frame = pd.DataFrame({f"c{n}": range(MAX_ROWS + 1) for n in range(300)})
    buffer = io.BytesIO()
    frame.to_parquet(buffer, row_group_size=400)
    wide = read(tmp_path, "a.parquet", buffer.getvalue())
    assert wide.rows[-1] == (str(MAX_ROWS - 1),) * 200
    assert wide.numeric == (True,) * 200
    assert wide.note == "The first 1,000 of 1,001 rows, the first 200 of 300 columns"


# -- routes --------------------------------------------------------------------------------------


@pytest.fixture
def client(store_path: Path, source: CachedStore) -> FlaskClient:
    bench = Bench(store_path, host=platform.node())
    run = Planted("a", run_id="0123456789abcdef")
    artifacts = store_path.parent / "runs" / run.run_id / "artifacts"
    artifacts.mkdir(parents=True)
    (artifacts / "a.svg").write_text("<svg/>")
    (artifacts / "a.html").write_text("<script>1</script>")
    (artifacts / "a.mp4").write_bytes(bytes(range(100)))
    (artifacts / "link.png").symlink_to("/etc/passwd")
    (store_path.parent / "secret.png").write_text("of others")
    bench.workload("solo", [run])
    bench.close()
    return app.create_app(source, DashboardAccess()).server.test_client()


RUN = "0123456789abcdef"


def get(client: FlaskClient, address: str, **headers: str):
    return client.get(address, headers={"Host": "127.0.0.1", **headers})


def test_pictures_are_shown_in_a_sandbox_and_nothing_else_is(client: FlaskClient) -> None:
    for name, media_type in (("a.svg", "image/svg+xml"), ("a.mp4", "video/mp4")):
        answer = get(client, _view_address(RUN, name))
        assert (answer.status_code, answer.mimetype) == (200, media_type)
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert policy.endswith("sandbox")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        etag = answer.headers["ETag"]
        assert get(client, _view_address(RUN, name), **{"If-None-Match": etag}).status_code == 304
    part = get(client, _view_address(RUN, "a.mp4"), Range="bytes=10-19")
    assert (part.status_code, part.data) == (206, bytes(range(10, 20)))
    for name in ("a.html", "", "missing.png", "link.png", "../secret.png", "../../secret.png"):
        assert get(client, _view_address(RUN, name)).status_code == 404, name
    assert not {kind for kind in MEDIA_TYPES.values() if "html" in kind or "pdf" in kind}
    html = get(client, f"/run/{RUN}/preview?path=a.html")
    assert html.mimetype == "application/json"
    assert json.loads(html.data)["text"] == "<script>1</script>"


@pytest.mark.parametrize(
    "address",
    [
        *("/files/{}/view?path=a.svg", "/run/{}/files", "/run/{}/log", "/run/{}/search?text=a"),
        "/run/{}/preview?path=a.svg",
    ],
)
def test_unknown_runs_other_sites_and_strangers_get_nothing(
    client: FlaskClient, source: CachedStore, address: str
) -> None:
    assert get(client, address.format("0" * 32)).status_code == 404
    embedded = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    assert get(client, address.format(RUN), **embedded).status_code == 403
    guarded = app.create_app(
        source, DashboardAccess(token="a-token-of-16-characters")
    ).server.test_client()
    assert get(guarded, address.format(RUN)).status_code in (401, 403)
    elsewhere = client.get(address.format(RUN), headers={"Host": "evil.example"})
    assert elsewhere.status_code == 403
    for path in ("../secret.png", "/etc/passwd", "link.png", "a.svg/../a.svg"):
        answer = get(client, f"/run/{RUN}/preview?path={path}")
        assert answer.status_code == 404, path


# -- files that only MLflow has -------------------------------------------------------------------


def test_mlflow_is_asked_for_files_only_if_the_settings_name_it(
    tmp_path: Path, store_path: Path, source: CachedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(mlflow_database(), tmp_path / "far.db")
    uri = f"sqlite:///{tmp_path / 'far.db'}"
    mlflow = MlflowClient(uri)
    mlflow_id = mlflow.create_run(
        mlflow.create_experiment("far", (tmp_path / "far").as_uri())
    ).info.run_id
    mlflow.log_text(mlflow_id, "printed\n", "output.log")
    mlflow.log_text(mlflow_id, '{"columns": ["x"], "data": [[1]]}', "tables/t/step-3.json")
    mlflow.log_text(mlflow_id, "<svg/>", "images/odd name+/step-3.svg")
    (tmp_path / "secret.txt").write_text("of others")
    (tmp_path / "far" / mlflow_id / "artifacts" / "link.txt").symlink_to(tmp_path / "secret.txt")
    bench = Bench(store_path, host="another-machine")
    run = Planted("a")
    bench.workload("solo", [run])
    with bench.writer.transaction(), StoreReader(store_path) as reader:
        record = reader.run(run.run_id)
        bench.writer.put_run(replace(record, tracking_uri=uri, mlflow_run_id=mlflow_id))
    bench.close()
    client = app.create_app(source, DashboardAccess()).server.test_client()
    base = f"/run/{run.run_id}"
    monkeypatch.setenv("RADT_TRACKING_URI", "https://ours.example")
    listing = get(client, f"{base}/files").json
    assert listing["files"] == []
    assert "missing" in get(client, f"{base}/log").json

    monkeypatch.setenv("RADT_TRACKING_URI", uri)
    assert "RADT_DASHBOARD_ARTIFACT_ROOT" in get(client, f"{base}/log").json["missing"]
    monkeypatch.setenv("RADT_DASHBOARD_ARTIFACT_ROOT", str(tmp_path / "far"))
    source.remote = RemoteFiles()  # which has not asked yet
    listing = get(client, f"{base}/files").json
    assert [path for path, *_ in listing["files"]] == [
        *("images/odd%20name%2B/step-3.svg", "output.log", "tables/t/step-3.json")
    ]
    assert [each["name"] for each in listing["sequences"]] == ["odd name+", "t"]
    assert listing["place"] == f"from MLflow at {uri}"
    assert get(client, f"{base}/log").json["lines"] == ["printed"]

    # A long download keeps nobody else waiting, and a file that was replaced is fetched again.
    mlflow.log_text(mlflow_id, "printed more\n", "output.log")
    record = source.reader.run(run.run_id)
    begun, go_on, fetch = threading.Event(), threading.Event(), MlflowLocation.fetch

    def slow(location: MlflowLocation, path: str, target: Path) -> None:
        begun.set()
        assert go_on.wait(TIMEOUT_S)
        fetch(location, path, target)

    monkeypatch.setattr(MlflowLocation, "fetch", slow)
    source.remote._runs[run.run_id].listed_at = 0.0
    with ThreadPoolExecutor() as pool:
        log = pool.submit(lambda: source.remote.open(record, "output.log").read())
        assert begun.wait(TIMEOUT_S)
        meanwhile = get(client, f"{base}/files").json
        go_on.set()
        assert [path for path, *_ in meanwhile["files"]] == [path for path, *_ in listing["files"]]
        assert log.result() == b"printed more\n"
    table = get(client, f"{base}/preview?path=tables/t/step-3.json").json
    assert table["rows"] == [["1"]]
    for _ in range(2):
        image = get(client, _view_address(run.run_id, "images/odd name+/step-3.svg"))
        assert (image.status_code, image.data) == (200, b"<svg/>")
    for path in ("../secret.txt", "link.txt", "missing.txt", "", "tables/../output.log"):
        assert get(client, f"{base}/preview?path={path}").status_code == 404, path
    mlflow.delete_run(mlflow_id)
    (tmp_path / "far.db").unlink()
    assert get(client, f"{base}/log").json["lines"] == ["printed more"]  # the copy


@pytest.mark.parametrize(
    "location",
    [
        *("file://{home}", "file:{home}", "{home}", "file://{allowed}/../home", "runs:/{other}"),
        *("file://{allowed}", "models:/a/1", "http://127.0.0.1:{port}", "ftp://127.0.0.1:{port}"),
        "mlflow-artifacts://127.0.0.1:{port}/a",
    ],
)
def test_a_run_in_mlflow_cannot_name_what_this_machine_serves(
    tmp_path: Path, store_path: Path, monkeypatch: pytest.MonkeyPatch, location: str
) -> None:
    """Its folder is a link to a secret, in a place that MLflow or the settings name."""
    shutil.copy(mlflow_database(), tmp_path / "far.db")
    uri = f"sqlite:///{tmp_path / 'far.db'}"
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "id_rsa").write_text("secret")
    mlflow = MlflowClient(uri)
    other = mlflow.create_run(mlflow.create_experiment("x", (tmp_path / "secrets").as_uri()))
    (tmp_path / "secrets" / other.info.run_id / "artifacts").mkdir(parents=True)
    (tmp_path / "secrets" / other.info.run_id / "artifacts" / "id_rsa").write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        named = location.format(
            home=tmp_path / "home",
            allowed=tmp_path / "allowed",
            other=other.info.run_id,
            port=server.getsockname()[1],
        )
        experiment = mlflow.create_experiment("far", "s3://replaced")
        mlflow_id = mlflow.create_run(experiment).info.run_id
        with closing(sqlite3.connect(tmp_path / "far.db")) as database, database:
            where = f"{named}/{mlflow_id}/artifacts" if "/{other}" not in location else named
            database.execute(
                "UPDATE runs SET artifact_uri = ? WHERE run_uuid = ?", (where, mlflow_id)
            )
        for folder in ("home", "allowed"):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / mlflow_id).mkdir()
            (tmp_path / folder / mlflow_id / "artifacts").symlink_to(tmp_path / "secrets")
        monkeypatch.setenv("RADT_TRACKING_URI", uri)
        monkeypatch.setenv("RADT_DASHBOARD_ARTIFACT_ROOT", str(tmp_path / "allowed"))
        place = MlflowLocation(uri, mlflow_id, "")
        with pytest.raises(ArchiveError):
            place.files(10)
        with pytest.raises(ArchiveError):
            place.fetch("id_rsa", tmp_path / "copy")
        assert not (tmp_path / "copy").exists()
        with pytest.raises(BlockingIOError):
            server.accept()
