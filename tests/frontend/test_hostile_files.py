"""Files that were made to exhaust whoever looks at them: previews, images, figures."""

from __future__ import annotations

import base64
import functools
import io
import json
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from plotly import express as px
from plotly import graph_objects as go

from radt.frontend.app import create_app
from radt.frontend.auth import DashboardAccess
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.run import previews
from radt.frontend.data.run.figure import figure_of
from radt.frontend.data.run.images import too_large
from radt.frontend.data.run.kinds import MEDIA_TYPES, suffix_of
from radt.frontend.data.run.previews import BusyError, Helper, Previews
from tests.frontend.conftest import Demo

#: Of a helper with all its libraries.
MEMORY_KB = 500_000


@pytest.fixture(scope="module")
def reader() -> Iterator[Previews]:
    made = Previews()
    yield made
    made.close()


@pytest.fixture
def read(reader: Previews, tmp_path: Path) -> Callable[[str, bytes], dict[str, Any]]:
    """Read a preview in a helper, and see how much memory that took."""

    def read(name: str, content: bytes) -> dict[str, Any]:
        path = tmp_path / name
        path.write_bytes(content)
        with path.open("rb") as file:
            answer = reader.read(file, name)
        assert len(answer) < 2**23
        for helper in reader.helpers:
            if helper.running is not None:
                status = Path(f"/proc/{helper.running.process.pid}/status").read_text()
                (peak_kb,) = (line.split()[1] for line in status.splitlines() if "VmHWM" in line)
                assert int(peak_kb) < MEMORY_KB
        found: dict[str, Any] = json.loads(answer)
        return found

    return read


def parquet(table: pa.Table, **options: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", **options)
    return buffer.getvalue()


def one_string_in_a_dictionary() -> bytes:
    values = pa.DictionaryArray.from_arrays(pa.array([0] * 1000), pa.array(["x" * 20_000_000]))
    return parquet(pa.table({"s": values}))


def a_long_list() -> bytes:
    values = pa.ListArray.from_arrays([0, 60_000_000], pa.array(np.zeros(60_000_000, np.int8)))
    return parquet(pa.table({"s": values}))


def large_groups_after_a_small_one() -> bytes:
    return parquet(pa.table({"s": ["x", *["y" * 5_000_000] * 20]}), row_group_size=1)


@pytest.mark.parametrize(
    ("name", "make", "note", "rows"),
    [
        (
            "a.parquet",
            one_string_in_a_dictionary,
            "The first 32 of 1,000 rows: the rows are large",
            32,
        ),
        (
            "a.parquet",
            large_groups_after_a_small_one,
            "The first 15 of 21 rows: the rows are large",
            15,
        ),
        ("a.parquet", a_long_list, "Not shown: reading it takes more than 419 MB of memory", 0),
        (
            "a.json",
            lambda: b"[" * 500 + b"1," * 5000 + b"1" + b"]" * 500,
            "Values nested deeper than 50 levels are shown as {…}",
            0,
        ),
        ("a.json", lambda: b"[" + b"[]," * 5_000_000 + b"1]", "Cut after 262 KB", 0),
        (
            "a.json",
            lambda: json.dumps({"columns": [], "data": [["x" * 900] * 200] * 60}).encode(),
            "",
            60,
        ),
        (
            "a.json",
            lambda: json.dumps({"columns": ["a"] * 200, "data": [["x" * 900] * 200] * 60}).encode(),
            "The first 20 of 60 rows: the rows are large",
            20,
        ),
        ("a.csv", lambda: b"a,b\n" + b"," * 7_000_000, "", 1),
    ],
)
def test_what_a_preview_decodes_and_answers_is_limited(
    read: Callable[[str, bytes], dict[str, Any]],
    name: str,
    make: Callable[[], bytes],
    note: str,
    rows: int,
) -> None:
    found = read(name, make())
    assert (found["note"], len(found["rows"])) == (note, rows)
    assert len(found["text"]) <= 256 * 1024
    assert read("a.csv", b"x\n1\n")["rows"] == [["1"]]  # the next file is read


def test_json_is_written_like_json(read: Callable[[str, bytes], dict[str, Any]]) -> None:
    content = {"ü": [1, {"b": None, "…": "{…}"}, [], {}], "c": {"d": [[True]], "e": 1e99}}
    found = read("a.json", json.dumps(content).encode())
    assert found["text"] == json.dumps(content, indent=2, ensure_ascii=False)
    assert found["note"] == ""


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("[" * 1000, "text"),
        ("**a _b " * 300, "text"),
        (">" * 60 + " a", "text"),
        ("* " * 60 + "a", "text"),
        ("http://a" * 30_000, "text"),
        ("* [a](b) `c`\n" * 100 + "\n" + "-" * 80, "markdown"),
    ],
)
def test_markdown_that_hangs_a_browser_is_shown_as_text(
    read: Callable[[str, bytes], dict[str, Any]], text: str, kind: str
) -> None:
    found = read("a.md", text.encode())
    assert (found["kind"], found["text"]) == (kind, text)
    assert bool(found["note"]) == (kind == "text")


def test_markdown_has_neither_html_nor_scripts(
    read: Callable[[str, bytes], dict[str, Any]],
) -> None:
    text = '<img src=x> [a](javascript:alert(1)) [b](https://x.org "<b>")\n\n<script>'
    html = read("a.md", text.encode())["html"]
    assert html.count("<a ") == 1
    assert 'href="https://x.org"' in html
    assert "noopener" in html
    assert not any(tag in html for tag in ("<img", "<script", "<b>", 'href="javascript'))


def test_markdown_has_links_of_bare_addresses_and_task_lists(
    read: Callable[[str, bytes], dict[str, Any]],
) -> None:
    text = (
        "see https://x.org/a?b=1&c=2<b>, main.py, javascript:alert(1), file:///etc, ftp://x.org\n"
    )
    tasks = "- [ ] first\n- [x] *second*\n- [x](https://y.org)\n\n[x] no item\n"
    html = read("a.md", f"{text}\n{tasks}".encode())["html"]
    assert re.findall('href="([^"]*)"', html) == ["https://x.org/a?b=1&amp;c=2", "https://y.org"]
    assert html.count('rel="noreferrer noopener"') == 2
    assert "<b>" not in html
    assert "<li>☐ first</li>\n<li>☑ <em>second</em></li>" in html
    assert "<p>[x] no item</p>" in html


def test_helpers_start_when_needed_are_used_again_and_are_busy_rather_than_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x\n1\n")
    made = Previews()

    def pids() -> list[int]:
        return [one.running.process.pid for one in made.helpers if one.running is not None]

    def rows() -> Any:
        with path.open("rb") as file:
            return json.loads(made.read(file, path.name))["rows"]

    assert pids() == []
    assert rows() == rows() == [["1"]]
    (first,) = pids()
    os.kill(first, 9)
    made.helpers[-1].running.process.wait()  # type: ignore[union-attr]
    assert rows() == [["1"]]
    assert first not in pids()

    began, go_on = threading.Semaphore(0), threading.Event()
    ask = Helper.ask

    def slowly(helper: Helper, *given: Any) -> bytes:
        began.release()
        assert go_on.wait(180)
        return ask(helper, *given)

    monkeypatch.setattr(Helper, "ask", slowly)
    threads = [threading.Thread(target=rows) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert began.acquire(timeout=180)
    with pytest.raises(BusyError, match="Other files are being read"):
        rows()
    go_on.set()
    for thread in threads:
        thread.join()
    assert rows() == [["1"]]
    made.close()
    assert pids() == []


def test_a_preview_that_takes_too_long_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Previews(limit_s=0.001)  # before it can start
    path = tmp_path / "a.csv"
    path.write_text("x\n1\n")
    with path.open("rb") as file:
        found = json.loads(made.read(file, path.name))
    assert found["note"] == f"Not shown: reading it takes longer than {previews.LIMIT_S} s"
    assert all(helper.running is None for helper in made.helpers)


def test_a_helper_that_crashes_is_not_said_to_need_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = previews._exchange

    def crash(running: previews._Running, *given: Any) -> bytes | None:
        running.process.send_signal(signal.SIGSEGV)
        return exchange(running, *given)

    monkeypatch.setattr(previews, "_exchange", crash)
    made = Previews()
    path = tmp_path / "a.csv"
    path.write_text("x\n1\n")
    with path.open("rb") as file:
        found = json.loads(made.read(file, path.name))
    note = f"Not shown: the process that reads it ended (exit code {-signal.SIGSEGV})"
    assert found["note"] == note


def test_an_idle_helper_is_ended(
    tmp_path: Path, wait_until: Callable[[Callable[[], object], str], None]
) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    made = Previews(idle_s=0.1)
    with (tmp_path / "a.csv").open("rb") as file:
        assert json.loads(made.read(file, "a.csv"))["rows"] == [["1"]]
    wait_until(lambda: not any(one.running for one in made.helpers), "it has ended")


def test_a_helper_ends_with_its_dashboard(
    tmp_path: Path, wait_until: Callable[[Callable[[], object], str], None]
) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    script = (
        "import sys, time\n"
        "from radt.frontend.data.run.previews import BusyError, Helper, Previews\n"
        "made = Previews()\n"
        "made.read(open(sys.argv[1], 'rb'), 'a.csv')\n"
        "print(*(one.running.process.pid for one in made.helpers if one.running), flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "a.csv")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as dashboard:
        assert dashboard.stdout is not None
        pid = int(dashboard.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        dashboard.kill()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the helper has ended")


# -- images --------------------------------------------------------------------------------------


def png_of(width: int, height: int) -> bytes:
    """A PNG whose header says this size."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I", 13)
        + header
        + struct.pack(">I", zlib.crc32(header))
        + bytes(1000)
    )


def encoded(**options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (53, 37)).save(buffer, **options)
    return buffer.getvalue()


def svg(content: str) -> bytes:
    return f"<svg xmlns='http://www.w3.org/2000/svg'>{content}</svg>".encode()


def laughs(count: int) -> bytes:
    """An SVG in which each group repeats the one before ten times."""
    groups = (f"<g id='a{n}'>" + f"<use href='#a{n - 1}'/>" * 10 + "</g>" for n in range(1, count))
    return svg(f"<g id='a0'><rect/></g>{''.join(groups)}<use href='#a{count - 1}'/>")


def embedded(content: bytes, media_type: str = "image/png") -> bytes:
    data = base64.b64encode(content).decode()
    return svg(f"<image href='data:{media_type};base64,\n{data}'/>")


BOMB = png_of(60_000, 60_000)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        *((encoded(format=kind), "") for kind in ("PNG", "JPEG", "GIF", "WEBP")),
        (encoded(format="JPEG", progressive=True, exif=b"Exif\0\0" + bytes(60_000)), ""),
        (encoded(format="WEBP", lossless=True), ""),
        (encoded(format="WEBP", exif=b"Exif\0\0x"), ""),
        (BOMB, "the image has 60,000 × 60,000 pixels, more than 50 million"),
        (b"GIF89a" + struct.pack("<HH", 60_000, 60_000), "the image has 60,000 × 60,000"),
        (b"\xff\xd8\xff\xc2\0\x11\x08\xff\xff\xff\xff\x03", "the image has 65,535 × 65,535"),
        (b"RIFF....WEBPVP8X" + b"\xff" * 14, "the image has 16,777,216 × 16,777,216"),
        *((b, "it does not begin as a PNG") for b in (b"", b"GIF89a", b"\xff\xd8", b"<svg/>")),
        (encoded(format="BMP"), "it does not begin as a PNG"),
    ],
)
def test_images_are_not_sent_to_be_shown_if_they_decode_to_too_much(
    content: bytes, reason: str
) -> None:
    _check(content, "image/png", reason)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (svg("<rect fill='url(#a)'/>"), ""),
        (laughs(4), ""),
        (laughs(12), "the SVG draws more than 200,000 elements"),
        (svg("<g id='a'><use href='#a'/></g>"), "the SVG draws more than 200,000 elements"),
        (b"<!DOCTYPE svg [<!ENTITY a 'b'>]>" + svg("&a;"), "the SVG defines entities"),
        (svg("x").decode().encode("utf-16"), ""),
        (embedded(png_of(100, 100)), ""),
        (embedded(BOMB), "the images in the SVG have an unknown size"),
        (embedded(BOMB).replace(b"data:", b"&#100;ata:"), "the images in the SVG have an unknown"),
        (embedded(svg(""), "image/svg+xml"), "the images in the SVG have an unknown size"),
        (svg("x" * 9_000_000), "the SVG has 9.0 MB, more than 8.4 MB"),
        (b"\0\xff", ""),
    ],
)
def test_drawings_are_not_sent_to_be_shown_if_they_draw_too_much(
    content: bytes, reason: str
) -> None:
    _check(content, "image/svg+xml", reason)


def _check(content: bytes, media_type: str, reason: str) -> None:
    file = Path("/proc/self/fd") / str(os.memfd_create("image"))
    file.write_bytes(content)
    with file.open("rb") as opened:
        found = too_large(opened, media_type)
        assert opened.tell() == 0
    os.close(int(file.name))
    assert found.startswith(f"Not shown: {reason}") if reason else found == ""


# -- figures -------------------------------------------------------------------------------------


def drawn(data: list[dict[str, Any]], layout: dict[str, Any]) -> Any:
    """What reaches the browser of a figure; its note if it is not drawn."""
    html = f'<div class="plotly-graph-div"></div>Plotly.newPlot("a", {json.dumps(data)}, '
    found = figure_of(f"{html}{json.dumps(layout)})")
    assert found is not None
    return json.loads(found.json) if found.json else found.note


def typical_figures() -> Iterator[go.Figure]:
    frame = px.data.tips()
    yield px.scatter(frame, x="total_bill", y="tip", color="sex", facet_col="day", trendline=None)
    yield px.bar(frame, x="day", y="tip", pattern_shape="sex", text_auto=True)
    yield px.histogram(frame, x="tip", marginal="box", nbins=30)
    yield px.violin(frame, y="tip", box=True, points="all")
    yield px.density_heatmap(frame, x="tip", y="total_bill", nbinsx=20)
    yield px.imshow(np.zeros((4, 6, 3), np.uint8))
    yield px.imshow(np.arange(12.0).reshape(3, 4), text_auto=True)
    yield px.pie(frame, values="tip", names="day", hole=0.3)
    yield px.line(px.data.stocks(), x="date", y=["GOOG", "AAPL"], log_y=True).update_xaxes(
        dtick="M1", tickformat="%b\n%Y", rangeslider_visible=True
    )
    steps = [{"method": "restyle", "label": "a", "args": ["visible", [True]]}]
    contour = go.Contour(z=[[1, 2], [3, 4]], contours={"start": 1, "end": 4, "size": 0.5})
    yield go.Figure(
        contour,
        {
            "sliders": [{"steps": steps}],
            "updatemenus": [{"buttons": [{"method": "relayout", "args": [{"yaxis.type": "log"}]}]}],
            "xaxis": {"dtick": 1, "title": {"text": "<b>x</b><br>y", "font": {"size": 20}}},
            "shapes": [{"type": "line", "x0": 0, "x1": 1, "line": {"dash": "dot"}}],
            "annotations": [{"text": "here", "x": 1, "y": 1, "arrowhead": 2}],
        },
    )


def test_figures_that_people_draw_keep_all_that_they_have() -> None:
    for figure in typical_figures():
        content = json.loads(figure.to_json())
        layout = {
            name: value
            for name, value in content["layout"].items()
            if name not in ("template", "font", "width", "height")
        }
        found = drawn(content["data"], layout)
        for part in layout.get("sliders", ()):
            part["steps"][0]["args"] = [{"visible": [True]}]
        assert found == {"data": content["data"], "layout": layout}


LINE = [{"type": "scatter", "y": [0, 1]}]
PNG = "data:image/png;base64," + base64.b64encode(png_of(8, 8)).decode()


@pytest.mark.parametrize(
    ("trace", "layout"),
    [
        ({}, {"grid": {"rows": 20_000, "columns": 20_000}}),
        ({}, {"xaxis": {"dtick": 1e-9}}),
        ({"y": [5]}, {"yaxis": {"dtick": 1e-9}}),
        ({}, {"xaxis2": {"minor": {"dtick": 1e-9}}}),
        ({}, {"xaxis": {"dtick": "L1e-9", "nticks": 1e9}}),
        ({"x": ["1001-01-01", "8001-01-01"]}, {"xaxis": {"dtick": 1.007}}),
        ({"x": ["2024-01-01", "2024-01-09"]}, {"xaxis": {"dtick": 1.007}}),
        ({"x": [" 20-1-01"]}, {"xaxis": {"dtick": 1.007}}),
        ({"x": ["0", "9e5"]}, {"xaxis": {"dtick": 1.007}}),
        ({"type": "histogram", "y": None, "x": [1] * 900}, {"yaxis": {"dtick": 1.007}}),
        ({"x": ["a"] * 900}, {"xaxis": {"dtick": 1.007}}),
        ({"x0": 0, "dx": 9}, {"xaxis": {"dtick": 1.007}}),
        ({"colorbar": {"dtick": 1e-9, "nticks": 1e9}}, {}),
        ({"type": "contour", "contours": {"size": 1e-7}}, {}),
        ({"type": "contour", "contours": {"size": 1e-7, "start": 0, "end": 5}}, {}),
        ({"type": "contour", "ncontours": 1e7}, {}),
        ({"type": "histogram", "xbins": {"size": 1e-7, "start": 0, "end": 5}, "nbinsx": 1e9}, {}),
        ({"type": "violin", "bandwidth": 1e-9}, {}),
        ({"type": "bar", "marker": {"pattern": {"size": 1e-4}}}, {}),
        ({"line": {"dash": "0.0001px"}}, {}),
        ({}, {"images": [{"source": "https://evil.example/a.png"}]}),
        ({"type": "image", "source": PNG.replace("image/png", "image/svg+xml")}, {}),
        ({}, {"xaxis": {"rangebreaks": [{"values": [1], "dvalue": 1e-9}]}}),
        ({}, {"updatemenus": [{"buttons": [{"args": ["xaxis.dtick", 1e-9]}]}]}),
        ({}, {"updatemenus": [{"buttons": [{"args": [{"contours.size": 1e-9}]}]}]}),
        ({}, {"sliders": [{"steps": [{"method": "animate"}]}], "__proto__": {"polluted": 1}}),
        ({}, {"xaxis99999999": {}, "template": {}, "transition": {"duration": 1}}),
    ],
)
def test_what_makes_plotly_create_or_fetch_things_is_left_out(
    trace: dict[str, Any], layout: dict[str, Any]
) -> None:
    found = drawn([LINE[0] | trace], layout)
    text = json.dumps(found)
    assert not re.search(
        r"e-|000|007|L1|evil|svg|break|polluted|99|animate|duration|template|px", text
    ), text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<b>a</b><br>b<extra></extra>", "<b>a</b><br>b<extra></extra>"),
        ('<span style="background:url(https://evil.example)">a</span>', "<span>a</span>"),
        ("<a href='https://evil.example'>a</a>", "a"),
        ("<A\nHREF=x>a", "a"),
        ("1 < 2 > 1", "1 &lt; 2 > 1"),
        ("<%{customdata[0]}>", "&lt;%{customdata[0]}>"),
        ("<a <b>", "&lt;a <b>"),
        ("<b<a href=x>", "&lt;b"),
    ],
)
def test_texts_of_figures_have_neither_links_nor_styles(text: str, shown: str) -> None:
    found = drawn([{"type": "scatter", "y": [1], "text": [text]}], {"title": {"text": text}})
    assert found["layout"]["title"]["text"] == found["data"][0]["text"][0] == shown


@pytest.mark.parametrize(
    ("data", "layout", "note"),
    [
        ([{"type": "scatter", "mode": "markers", "y": [1] * 60_000}], {}, "with 60,00"),
        (
            [
                {
                    "type": "bar",
                    "y": {"dtype": "i1", "bdata": base64.b64encode(bytes(60_000)).decode()},
                }
            ],
            {},
            "with 60,00",
        ),
        ([{"type": "bar", "y": {"dtype": "O", "bdata": "AAAA"}}], {}, "with numbers of type O"),
        (LINE * 3000, {}, "of 3,001 parts"),
        (LINE, {f"xaxis{n}": {} for n in range(2, 300)}, "of 300 parts"),
        (LINE, {"annotations": [{}] * 3000}, "of 3,002 parts"),
        (
            [
                {
                    "type": "image",
                    "source": "data:image/png;base64," + base64.b64encode(BOMB).decode(),
                }
            ],
            {},
            "with images beyond 50 million pixels",
        ),
        (LINE, {"meta": 1, "title": json.loads("[" * 100 + "]" * 100)}, "nested deeper than 20"),
    ],
)
def test_figures_with_too_much_are_not_drawn(
    data: list[dict[str, Any]], layout: dict[str, Any], note: str
) -> None:
    assert drawn(data, layout).startswith(f"A figure {note}")


# -- mutated files -------------------------------------------------------------------------------


@functools.cache
def real_files() -> list[tuple[str, bytes]]:
    table = pa.table({"n": range(50), "s": [f"name {n}" for n in range(50)], "l": [[[1], []]] * 50})
    figure = next(typical_figures())
    logged = {"columns": ["a", "b"], "data": [[1, "x"], [None, "ü"]]}
    return [
        ("a.parquet", parquet(table)),
        ("a.csv", b"a,b\n" + b'1,"x"\n' * 20),
        ("a.json", json.dumps(logged).encode()),
        ("b.json", json.dumps({"a": [1.5, {"b": [None, "x"]}]}).encode()),
        ("a.html", figure.to_html(include_plotlyjs=False).encode()),
        ("a.md", b"# a\n\n* b\n"),
        ("a.svg", laughs(3)),
        *((f"a.{kind}", encoded(format=kind.upper())) for kind in ("png", "jpeg", "gif", "webp")),
    ]


@st.composite
def mutated(draw: st.DrawFn) -> tuple[str, bytes]:
    """A real file of which parts are replaced, repeated, or missing."""
    name, content = draw(st.sampled_from(real_files()))
    tokens = [b"[" * 3000, b"]", b"{", b"9" * 400, b"\xff" * 8, b"\0", b"<", b",", b"e999", b'"']
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.sampled_from([0, 1, 4, 200])))
        repeated = content[start:end] * draw(st.sampled_from([0, 2, 2000]))
        put = draw(st.one_of(st.just(repeated), st.sampled_from(tokens), st.binary(max_size=8)))
        content = content[:start] + put + content[end:]
    return name, content


@given(file=mutated())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_mutated_file_is_more_than_a_preview_or_a_reason(
    read: Callable[[str, bytes], dict[str, Any]], file: tuple[str, bytes]
) -> None:
    """In time: a helper that takes too long says so, which is a failure here."""
    name, content = file
    media_type = MEDIA_TYPES.get(suffix_of(name))
    if media_type is not None:
        with tempfile.TemporaryFile() as image:
            image.write(content)
            image.seek(0)
            too_large(image, media_type)
        return
    found = read(name, content)
    assert "It cannot be read" not in found["note"], found["note"]
    assert "longer than" not in found["note"]
    if found["figure"]:
        _check_figure(json.loads(found["figure"]))


def _check_figure(value: Any) -> None:
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, dict | list):
            _check_figure(item)
        elif isinstance(item, str):
            assert not re.search(r"<\S+\s|<a|https?:", item), item
    if isinstance(value, dict):
        assert not {"template", "__proto__", "frames", "bandwidth"} & set(value)


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=8,
)


@given(
    body=st.one_of(
        VALUES,
        st.fixed_dictionaries(
            {},
            optional={
                "runs": st.one_of(st.lists(st.text(max_size=5)), VALUES),
                "tags": VALUES,
                "text": VALUES,
                "name": VALUES,
                "address": VALUES,
                "starred": VALUES,
            },
        ),
    ),
    broken=st.sampled_from(["", "[" * 2000, "\\ud800", "\0"]),
    path=st.sampled_from(["/notes", "/views", "/export/prepare", "/export/open"]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_request_to_change_notes_or_views_fails_here(
    demo: Demo, source: CachedStore, body: Any, broken: str, path: str
) -> None:
    client = create_app(source, DashboardAccess()).server.test_client()
    text = json.dumps(body)
    middle = len(text) // 2
    for data in (text, text[:middle] + broken + text[middle:]):
        answer = client.post(
            path, data=data, content_type="application/json", headers={"Host": "127.0.0.1"}
        )
        assert answer.status_code in (200, 400, 404, 413), answer.text
