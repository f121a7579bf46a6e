"""What leaves the dashboard: links, views, Python, data. Files are opened and compared."""

from __future__ import annotations

import io
import json
import tracemalloc
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pyarrow.parquet as pq
import pytest
from dash import Dash, html
from flask.testing import FlaskClient

import radt
from radt.frontend.answers import content_disposition
from radt.frontend.auth import DashboardAccess, Guard
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.run.previews import BusyError
from radt.frontend.data.spec import AxisRange, BoardSpec, ChartSpec, Level, Pick, XAxis
from radt.frontend.export import routes
from radt.frontend.export import tables as full
from radt.frontend.export.request import Turnstile
from radt.frontend.export.tables import GROUP_ROWS
from radt.frontend.selection import read_selection
from radt.frontend.view import View
from radt.model import Scope, SeriesKind
from radt.render.files import file_name
from radt.store.backend import StoreAddress
from radt.store.records import Samples, SeriesRecord
from tests.frontend.conftest import CPU, LOSS, Demo

COLUMNS = ["time", "elapsed_s", "value", "step", "metric", "unit", "entity", "wraps_at", "kind"]


@dataclass
class Exports:
    """The routes, asked without a network."""

    client: FlaskClient
    source: CachedStore

    def prepare(self, share: str, view: View | None = None, status: int = 200, **more: Any) -> Any:
        """What a menu's item is answered."""
        body = {"share": share, "view": (view or View()).to_json(), "page": "compare", **more}
        with closing(self.client.post("/export/prepare", json=body)) as answer:
            assert answer.status_code == status, answer.get_data(as_text=True)
            found = answer.json
        if "href" in found:  # as a browser resolves it
            found["href"] = urljoin("/compare", found["href"])
        return found

    def get(self, address: str, status: int = 200) -> bytes:
        """What is at an address."""
        with closing(self.client.get(address)) as answer:
            assert answer.status_code == status, answer.get_data(as_text=True)
            return answer.get_data()

    def frame(self, share: str, file_format: str, view: View | None = None, **more: Any) -> Any:
        """The file of a menu's item, read by pandas."""
        found = self.prepare(share, view, format=file_format, **more)
        content = io.BytesIO(self.get(found["href"]))
        return pd.read_csv(content) if file_format == "csv" else pd.read_parquet(content)


@pytest.fixture
def exports(source: CachedStore) -> Exports:
    """Over the demo's store."""
    app = Dash("exports", add_log_handler=False)
    app.layout = html.Div()
    Guard(DashboardAccess()).install(app)
    routes.install(app.server, source)
    return Exports(app.server.test_client(), source)


def whole_load(exports: Exports, view: View, metrics: list[str], store: Path) -> pd.DataFrame:
    """The same by `radt.load`."""
    selection = read_selection(exports.source, view)
    return radt.load(list(selection.runs), home=store.parent, metrics=metrics)


def assert_same(found: pd.DataFrame, loaded: pd.DataFrame) -> None:
    """Row by row, every bit of every number."""
    assert len(found) == len(loaded)
    assert list(found["run_id"].astype(str)) == list(loaded["run_id"].astype(str))
    for name in COLUMNS:
        ours, theirs = found[name], loaded[name]
        if name == "time":
            ours = pd.to_datetime(ours, utc=True).dt.as_unit("ns")
        if name in ("elapsed_s", "value", "step", "wraps_at"):
            one = ours.to_numpy(dtype="float64", na_value=np.nan)
            other = theirs.to_numpy(dtype="float64", na_value=np.nan)
            assert one.tobytes() == other.tobytes(), name
        else:
            assert list(ours.fillna("").astype(str)) == list(theirs.astype(str)), name


# -- data ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_every_sample_is_as_loaded_to_the_bit(
    demo: Demo, exports: Exports, store_path: Path, file_format: str
) -> None:
    demo.quickstart()
    view = View(charts=(ChartSpec("loss", 0), ChartSpec("process.cpu.utilization", 1)))
    found = exports.frame("full", file_format, view)
    assert_same(found, whole_load(exports, view, ["loss", "process.cpu.utilization"], store_path))
    assert set(found["name"].astype(str)) == {"cnn-small", "cnn-large"}
    assert set(found["workload"].astype(str)) == {"solo", "three", "mix"}


def test_values_that_are_none_and_those_at_the_edge_survive(
    demo: Demo, exports: Exports, store_path: Path
) -> None:
    """NaN, infinities, the smallest number, a step and none: in both formats as loaded."""
    run = demo.run("a", "cnn", 4.0)
    demo.workload("edges", "solo", [run])
    origin_ns = demo.origin_ns(run.run_id)
    odd = [np.nan, np.inf, -np.inf, 5e-324, 0.1 + 0.2, -0.0, 1e308]
    demo.append(run.run_id, origin_ns, LOSS, np.arange(7) / 7 + 100, odd, np.arange(7))
    view = View(charts=(ChartSpec("loss", 0),))
    loaded = whole_load(exports, view, ["loss"], store_path)
    for file_format in ("csv", "parquet"):
        assert_same(exports.frame("full", file_format, view), loaded)


def test_one_chart_is_one_chart(demo: Demo, exports: Exports) -> None:
    demo.quickstart()
    view = View(charts=(ChartSpec("loss", 7), ChartSpec("accuracy", 3)))
    found = exports.frame("full", "parquet", view, slot=3)
    assert set(found["metric"]) == {"accuracy"}
    shown = exports.frame("shown", "csv", view, slot=3)
    assert set(shown["metric"]) == {"accuracy"}
    assert set(shown["chart"]) == {2}
    assert "was removed" in exports.prepare("full", view, 400, slot=5, format="csv")["cause"]


def test_what_is_shown_is_what_is_drawn(demo: Demo, exports: Exports) -> None:
    """Zoomed, hidden lines left out, in the stored unit; few points are the samples themselves."""
    demo.quickstart()
    run_id = demo.run_ids["three b"]
    view = View(
        picks=(Pick.run("quickstart", run_id), Pick.run("quickstart", demo.run_ids["three a"])),
        charts=(ChartSpec("process.memory.rss", 0, hidden=(f"r{demo.run_ids['three a'][:12]}",)),),
        windows={XAxis.BARRIER: AxisRange(20.0, 40.0)},
    )
    found = exports.frame("shown", "parquet", view)
    assert set(found["line"]) == {"three b  cnn-small"}
    assert set(found["unit"]) == {"By"}
    loaded = radt.load(run_id, home=Path(exports.source.address.path or "").parent)
    rss = loaded[loaded["metric"] == "process.memory.rss"]
    zero_ns = demo.origin_ns(run_id)
    x = (rss["time"].astype("int64") - zero_ns) / 1e9
    seen = (x >= 20.0) & (x <= 40.0)
    drawn = found[found["value"].notna()]
    assert list(drawn["x"]) == list(x[seen])
    assert list(drawn["value"]) == list(rss["value"][seen])
    # The gap from 24 to 33 s is one in the file, too.
    gaps = found[found["value"].isna()]["x"]
    assert len(gaps) == 1
    assert 24 < gaps.iloc[0] < 33


def test_two_metrics_over_a_third_are_in_every_file(
    demo: Demo, exports: Exports, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo.quickstart()
    rss, accuracy = "process.memory.rss", "accuracy"
    view = View(charts=(ChartSpec("loss", 0, over=rss, second=accuracy),))
    view = replace(view, windows={f"over.{rss}": AxisRange(1.9e8, 2.1e8)})
    shown = exports.frame("shown", "parquet", view)
    assert set(shown["metric"]) == {"loss", accuracy}
    assert set(shown["x_axis"]) == {rss}
    assert shown["x"].between(1.9e8, 2.1e8).all()
    loaded = exports.frame("full", "parquet", view)
    assert set(loaded["metric"]) == {"loss", accuracy, rss}
    assert set(shown["x"]) <= set(loaded[loaded["metric"] == rss]["value"])
    code = exports.prepare("python", view)["text"]
    assert set(executed(code, monkeypatch)["frame"]["metric"]) == {"loss", accuracy, rss}
    assert f"# A chart draws 'loss' over '{rss}'." in code


def test_what_is_hidden_in_all_charts_is_left_out(demo: Demo, exports: Exports) -> None:
    demo.quickstart()
    hidden = f"r{demo.run_ids['three a'][:12]}"
    view = View(
        picks=tuple(Pick.run("quickstart", demo.run_ids[f"three {letter}"]) for letter in "ab"),
        charts=(ChartSpec("loss", 0), ChartSpec("process.memory.rss", 1)),
        options={"compare.hidden": hidden},
    )
    found = exports.frame("shown", "parquet", view)
    assert set(found["metric"]) == {"loss", "process.memory.rss"}
    assert set(found["line"]) == {"three b  cnn-small"}


def test_a_spike_is_in_what_is_shown(demo: Demo, exports: Exports) -> None:
    run = demo.run("a", "cnn", 4.0)
    demo.workload("spiky", "solo", [run])
    values = np.ones(120_000)
    values[77_777] = 42.0
    at_s = 30 + np.arange(len(values)) * 0.5
    demo.append(run.run_id, demo.origin_ns(run.run_id), CPU, at_s, values)
    view = View(charts=(ChartSpec("process.cpu.utilization", 0),))
    found = exports.frame("shown", "csv", view)
    assert len(found) < 10_000
    assert found["value"].max() == 42.0 or found["high"].max() == 42.0


def test_workloads_are_given_as_one_line_with_its_band(demo: Demo, exports: Exports) -> None:
    demo.quickstart()
    view = View.from_query("level=workload&c=process.memory.rss")
    found = exports.frame("shown", "parquet", view)
    three = found[found["line"].astype(str).str.startswith("three")]
    assert set(three["aggregate"]) == {"sum"}
    assert set(three["level"]) == {"workload"}
    values = three[three["value"].notna()]
    assert (values["low"] <= values["value"]).all()
    assert (values["high"] >= values["value"]).all()


def test_smoothed_groups_say_so(demo: Demo, exports: Exports) -> None:
    demo.quickstart()
    charts = (ChartSpec("loss", 0), ChartSpec("accuracy", 1, smoothing_pct=5.0))
    view = View(charts=charts, board=BoardSpec(level=Level.GROUP, ema=0.6))
    found = exports.frame("shown", "parquet", view)
    assert set(found["level"]) == {"group"}
    exponential = found["metric"] == "loss"
    assert set(found["ema"][exponential]) == {0.6}
    assert set(found["smoothed_over"][exponential]) == {0.0}
    assert set(found["ema"][~exponential]) == {0.0}
    assert (found["smoothed_over"][~exponential] > 0).all()
    code = exports.prepare("python", view, slot=0)["text"]
    assert "# Charts draw several runs as one line; these are the runs." in code
    assert "# Charts smooth them; these are the samples." in code


def test_texts_do_nothing_in_spreadsheets(demo: Demo, exports: Exports) -> None:
    """Names may begin like formulas; numbers below zero are numbers."""
    run = demo.run("a", '=HYPERLINK("http://evil/","x")', 4.0)
    demo.workload("@SUM(1+1)", "+solo,\n", [run])
    demo.append(run.run_id, demo.origin_ns(run.run_id), LOSS, [50.0], [-3.5], [1])
    view = View(charts=(ChartSpec("loss", 0),))
    found = exports.prepare("full", view, format="csv")
    text = exports.get(found["href"]).decode()
    frame = pd.read_csv(io.StringIO(text))
    assert set(frame["name"]) == {'\'=HYPERLINK("http://evil/","x")'}
    assert set(frame["experiment"]) == {"'@SUM(1+1)"}
    assert set(frame["workload"]) == {"'+solo,\n"}
    assert frame["value"].min() == -3.5
    shown = exports.frame("shown", "csv", view)
    assert shown["line"].iloc[0].startswith("'+solo")
    # In Parquet nothing is run, and nothing is altered.
    exact = exports.frame("full", "parquet", view)
    assert set(exact["name"]) == {'=HYPERLINK("http://evil/","x")'}
    # The name of the file has none of it.
    assert found["name"] == "radt-SUM-1+1-samples.csv"


def test_a_long_series_is_sent_in_bounded_memory(
    demo: Demo, exports: Exports, store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million points: in slices, in order, exact; one slice at a time in memory."""
    run = demo.run("a", "cnn", 4.0)
    demo.workload("long", "solo", [run])
    count = 1_000_000
    times_s = 30 + np.arange(count) * 1e-3
    values = np.random.default_rng(5).standard_normal(count)
    origin_ns = demo.origin_ns(run.run_id)
    for start in range(0, count, 200_000):
        part = slice(start, start + 200_000)
        demo.append(run.run_id, origin_ns, CPU, times_s[part], values[part])
    sizes: list[int] = []
    samples_of = exports.source.reader.samples

    def counted(*args: Any, **options: Any) -> Samples:
        samples = samples_of(*args, **options)
        sizes.append(len(samples))
        return samples

    monkeypatch.setattr(exports.source.reader, "samples", counted)
    view = View(charts=(ChartSpec("process.cpu.utilization", 0),))
    href = exports.prepare("full", view, format="parquet")["href"]
    content = io.BytesIO()
    tracemalloc.start()
    answer = exports.client.get(href, buffered=False)
    for part in answer.iter_encoded():
        content.write(part)
        content.seek(0)  # what was sent is no longer held by the server
        content.truncate()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    answer.close()
    assert max(sizes) <= 2 * full.SLICE_POINTS
    assert peak < 60e6  # all at once would be 24 MB of samples and 150 MB of columns
    table = pq.read_table(io.BytesIO(exports.get(href)))
    assert table.num_rows == sum(sizes) // 2
    assert pq.ParquetFile(io.BytesIO(exports.get(href))).num_row_groups > count // (4 * GROUP_ROWS)
    exact = table["value"].to_numpy()[-count:]
    assert exact.tobytes() == values.tobytes()


def test_slices_have_all_points_however_they_lie() -> None:
    """Dense and rare stretches, equal times, one point alone."""
    random = np.random.default_rng(1)
    dense = random.integers(10**9, 10**9 + 10**6, 300_000)
    rare = random.integers(0, 10**12, 700)
    times = np.sort(np.concatenate([dense, rare, np.full(5, 10**12), [0]]))
    asked: list[tuple[int, int]] = []

    def read(start_ns: int, end_ns: int) -> Samples:
        asked.append((start_ns, end_ns))
        seen = times[(times >= start_ns) & (times <= end_ns)]
        return Samples(seen.astype(np.int64), seen.astype(np.float64))

    parts = list(full.slices(read, int(times[0]), int(times[-1]), len(times)))
    assert np.array_equal(np.concatenate([part.times_ns for part in parts]), times)
    assert len(asked) < 200


def test_nothing_to_export_is_said(demo: Demo, exports: Exports) -> None:
    demo.quickstart()
    nothing = View(charts=(ChartSpec("no.such.metric", 0),))
    for share in ("full", "python"):
        found = exports.prepare(share, nothing, 400, format="csv")
        assert found["cause"]
        assert found["remedy"]
    text = exports.get("/export/data?c=no.such.metric&of=shown", 400).decode()
    assert "show no data" in text
    assert "not a format" in exports.get("/export/data?format=exe", 400).decode()
    assert "chart=x" in exports.get("/export/data?chart=x", 400).decode()
    assert "chart does not exist" in exports.get("/export/data?c=loss&chart=7", 400).decode()


def test_an_empty_store_says_the_command_that_fills_it(exports: Exports) -> None:
    found = exports.prepare("link", status=503)
    assert "radt train.py" in found["remedy"]


# -- bounds --------------------------------------------------------------------------------------


def test_two_downloads_at_once_a_visitor(demo: Demo, exports: Exports) -> None:
    """Those on their way count until they are taken, or the browser goes away."""
    demo.quickstart()
    href = exports.prepare("full", format="csv")["href"]
    open_ones = [exports.client.get(href, buffered=False) for _ in range(2)]
    refused = json.loads(exports.get(href, 429))
    assert "being downloaded by you" in refused["cause"]
    elsewhere = exports.client.get(href, environ_overrides={"REMOTE_ADDR": "192.0.2.7"})
    assert elsewhere.status_code == 200
    elsewhere.close()
    open_ones[0].close()  # never taken
    exports.get(href)
    assert len(b"".join(open_ones[1].iter_encoded())) > 1000
    open_ones[1].close()
    exports.get(href)


def test_a_failed_download_makes_room(demo: Demo, exports: Exports) -> None:
    demo.quickstart()
    for _ in range(6):
        exports.get("/export/data?c=no.such.metric", 400)
    exports.get("/export/data?c=loss")


def test_the_turnstile_counts_everybody() -> None:
    turnstile = Turnstile(most=3, most_each=2)
    visits = [turnstile.enter("a"), turnstile.enter("a"), turnstile.enter("b")]
    with pytest.raises(BusyError, match="by you"):
        turnstile.enter("a")
    with pytest.raises(BusyError, match="for others"):
        turnstile.enter("c")
    visits[0].close()
    visits[0].close()  # counts once
    turnstile.enter("c")
    with pytest.raises(BusyError):
        turnstile.enter("d")


def test_strangers_get_nothing(demo: Demo, exports: Exports) -> None:
    demo.quickstart()
    foreign = {"Host": "evil.example"}
    for path in ("/export/data?c=loss", "/export/view"):
        assert exports.client.get(path, headers=foreign).status_code == 403


# -- links and files -----------------------------------------------------------------------------


def test_a_link_names_what_the_dashboard_chose(demo: Demo, exports: Exports) -> None:
    """New runs do not change what it shows; a token would not be in it."""
    demo.quickstart()
    link = exports.prepare("link", page="compare")["text"]
    assert urlsplit(link).path == "./compare"
    view = View.from_query(urlsplit(link).query)
    before = list(read_selection(exports.source, view).runs)
    demo.workload("quickstart", "later", [demo.run("a", "cnn-new", 3.0)])
    exports.source.revision()
    assert list(read_selection(exports.source, view).runs) == before
    assert view.charts
    assert exports.prepare("link", page="//evil.example/")["text"].startswith("./compare?")


def test_a_saved_view_opens_as_it_was(demo: Demo, exports: Exports) -> None:
    demo.quickstart()
    view = View.from_query(
        "s=quickstart&c=loss;log=1&c=accuracy;x=step&level=workload&t.barrier=3,9"
    )
    href = exports.prepare("view", view)["href"]
    with closing(exports.client.get(href)) as answer:
        assert 'filename="radt-quickstart-view.json"' in answer.headers["Content-Disposition"]
        text = answer.get_data(as_text=True)
    assert View.from_file(text) == view
    with closing(exports.client.post("/export/open", data=text.encode())) as answer:
        assert answer.json is not None
        assert View.from_query(answer.json["query"]) == view
        assert answer.json["missing"] == []


def test_picks_of_another_store_are_said(demo: Demo, exports: Exports) -> None:
    demo.quickstart()
    view = View(picks=(Pick.run("quickstart", "0" * 32), Pick("elsewhere")))
    with closing(exports.client.post("/export/open", data=view.to_file().encode())) as answer:
        assert answer.json is not None
        assert len(answer.json["missing"]) == 2


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"{}", "not a saved view"),
        (b"\xff\xfe\x00", "not text"),
        (b"x" * 300_000, "larger"),
        (b'{"format": "radt-view", "version": 99}', "later radt wrote it"),
        (b"[" * 100_000, "not a saved view"),
    ],
)
def test_other_files_are_refused_with_a_remedy(
    exports: Exports, content: bytes, cause: str
) -> None:
    with closing(exports.client.post("/export/open", data=content)) as answer:
        assert answer.status_code == 400
        assert answer.json is not None
        assert cause in answer.json["cause"]
        assert answer.json["remedy"]


def test_names_of_files_are_harmless() -> None:
    assert file_name(["../../etc/passwd", "a b\r\nSet-Cookie: x"], "csv") == (
        "radt-etc-passwd-a-b-Set-Cookie-x.csv"
    )
    assert file_name(["", "…"], "csv") == "radt.csv"
    assert len(file_name(["n" * 500], "parquet")) < 100
    assert content_disposition('radt-größe".csv') == (
        "attachment; filename=\"radt-groe-.csv\"; filename*=UTF-8''radt-gr%C3%B6%C3%9Fe%22.csv"
    )


# -- Python --------------------------------------------------------------------------------------


def executed(code: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the lines leave behind; their figure is not shown, but made."""
    monkeypatch.setattr(go.Figure, "show", lambda self: None)
    names: dict[str, Any] = {}
    exec(compile(code, "copied", "exec"), names)
    assert names["figure"].data
    return names


@pytest.mark.parametrize("axis", [XAxis.BARRIER, XAxis.START, XAxis.WALL, XAxis.STEP])
def test_copied_lines_load_what_is_shown(
    demo: Demo, exports: Exports, monkeypatch: pytest.MonkeyPatch, axis: XAxis
) -> None:
    """They are executed, and give the numbers of the chart."""
    demo.quickstart()
    view = View.from_query(f"c=loss&x={axis}")
    chart = exports.frame("shown", "parquet", view)
    frame = executed(exports.prepare("python", view)["text"], monkeypatch)["frame"]
    x = frame["x"].astype("int64") / 1e9 if axis is XAxis.WALL else frame["x"].astype("float64")
    copied = pd.DataFrame({"line": frame["line"].astype(str), "x": x, "value": frame["value"]})
    for line, points in copied.groupby("line"):
        drawn = chart[chart["line"].astype(str) == line]
        assert np.allclose(drawn["x"], points["x"], rtol=0, atol=2e-6)
        assert list(drawn["value"]) == list(points["value"])
    assert copied["line"].nunique() == 6


def test_copied_lines_are_zoomed_and_have_rates(
    demo: Demo, exports: Exports, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = demo.run("a", 'it\'s "quoted"\n', 4.0)
    demo.workload("counting", "solo", [run])
    counter = SeriesRecord(
        run.run_id, 9, "ps", "process.io.read", "By", Scope.PROCESS, SeriesKind.COUNTER, "", 0.5
    )
    demo.writer.add_series([counter])
    at_s = np.arange(0, 20, 0.5)
    demo.append(run.run_id, demo.origin_ns(run.run_id), 9, at_s, at_s * 100)
    view = View.from_query("c=process.io.read&t.barrier=5,10")
    code = exports.prepare("python", view)["text"]
    frame = executed(code, monkeypatch)["frame"]
    assert set(frame["unit"]) == {"By/s"}
    assert frame["value"].to_numpy() == pytest.approx(100)
    assert frame["x"].min() == 5.0
    assert frame["x"].max() == 10.0


def test_copied_lines_have_no_password(demo: Demo, exports: Exports) -> None:
    demo.quickstart()
    secret = StoreAddress.of("postgresql://me:s3cret@db.example.org/radt?password=s3cret")
    exports.source.remember(("x",), lambda reader: None)
    exports.source.address = secret
    code = exports.prepare("python")["text"]
    assert "s3cret" not in code
    assert 'store_uri=os.environ["RADT_STORE_URI"]' in code
    compile(code, "copied", "exec")


def test_addresses_say_all_that_is_asked(demo: Demo, exports: Exports) -> None:
    demo.quickstart()
    href = exports.prepare("shown", format="parquet", slot=1)["href"]
    query = parse_qs(urlsplit(href).query)
    assert query["format"] == ["parquet"]
    assert query["chart"] == ["1"]
    assert exports.prepare("shown", format="exe", status=400)["remedy"]
    assert exports.prepare("nonsense", status=400)["remedy"]
    with closing(exports.client.post("/export/prepare", data=b"[1]")) as answer:
        assert answer.status_code == 400
