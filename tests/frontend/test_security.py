"""What visitors and names cannot do: run scripts, write, send SQL, hold the server up."""

from __future__ import annotations

import ast
import socket
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import expect
from sqlalchemy import Engine, event, text

from radt.errors import RadtError, StoreError
from radt.frontend import app
from radt.frontend import serve as serving
from radt.frontend.app import PAGES, create_app
from radt.frontend.auth import MAX_BODY_BYTES, DashboardAccess
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.spec import Pick, PickKind
from radt.frontend.selection import read_selection
from radt.frontend.serve import listen, patient_server
from radt.frontend.view import View
from radt.model import MarkerKind, RunStatus, Scope, SeriesKind
from radt.store.records import MarkerRecord, SeriesRecord
from tests.frontend.conftest import Demo, Watched, batch, end_server, patient

PATHS = [f"/{page.path}" for page in PAGES]

#: Each would show a dialogue, or leave an element behind, where it is taken for HTML.
EVIL = '<img src=x onerror="alert(1)"><b class=evil>x</b>'
EVIL_SCRIPT = "</script><script>alert(2)</script><b class=evil>"
EVIL_QUOTES = "'\"`;${alert(3)}{{alert(4)}} <svg onload=alert(5) class=evil>"


# Names are text ------------------------------------------------------------------------------


@pytest.fixture
def hostile(demo):
    """Runs of which everything that anybody can name has HTML and scripts in it."""
    demo.host = EVIL_QUOTES
    runs = [
        demo.run("a", EVIL, 2.0, status=RunStatus.RUNNING, epochs=3, has_gap=True),
        demo.run("b", EVIL_SCRIPT, 3.0, status=RunStatus.FAILED, epochs=3),
    ]
    workload_id = demo.workload(EVIL, EVIL_SCRIPT, runs)
    demo.workload(EVIL, EVIL_QUOTES, [demo.run("a", EVIL_QUOTES, 2.0, epochs=3)])
    for run in runs:
        demo.writer.put_params(run.run_id, {EVIL: EVIL_SCRIPT, "model": EVIL})
        demo.writer.put_tags(run.run_id, {EVIL: EVIL_QUOTES})
        demo.writer.add_series(
            [
                SeriesRecord(
                    run.run_id, 40, EVIL, EVIL, EVIL, Scope.GPU, SeriesKind.GAUGE, EVIL, 1.0, EVIL
                )
            ]
        )
        origin_ns = demo.origin_ns(run.run_id)
        demo.writer.append(run.run_id, [batch(40, origin_ns, np.arange(5.0), np.arange(5.0), None)])
        demo.writer.put_markers(
            [
                MarkerRecord(
                    run.run_id,
                    90,
                    MarkerKind.PHASE,
                    EVIL,
                    origin_ns,
                    origin_ns + 10**9,
                    detail=EVIL,
                )
            ]
        )
        demo.writer.update_run(run.run_id, end_reason=EVIL, command=EVIL, devices=EVIL)
    return workload_id


def test_names_with_html_and_scripts_are_text_on_every_page(hostile, serve, watched):
    seen = Watched(patient(watched.page.context.new_page()))
    page, dialogs = seen.page, []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.add_init_script(
        "window.broken = []; document.addEventListener('securitypolicyviolation', "
        "e => window.broken.push(`${e.violatedDirective} ${e.blockedURI} ${e.sample}`))"
    )
    url = serve()
    for path in PATHS:
        view = View(
            picks=(Pick(EVIL),),
            search=EVIL_QUOTES if path == "/system" else "",
            experiment=EVIL,
            workload=hostile[:12],
            options={EVIL: EVIL},
        )
        page.goto(f"{url}{path}?{view.to_query()}")
        expect(page.locator("main#content > *").first).to_be_visible()
        if path == "/system":  # shows nothing of runs
            expect(page.locator("main .system")).to_be_visible()
        else:  # shown, and as text; where it is too long for its place, the beginning
            name = "<svg onload" if path == "/advice" else "<img src=x"  # of the run that ended
            expect(page.locator("body"), path).to_contain_text(name)
        page.mouse.move(700, 450)  # tooltips, too
        evil = "document.querySelectorAll('.evil, img[src=\"x\"]').length"
        assert page.evaluate(evil) == 0, path
        scripts = "[...document.scripts].filter(s => /alert/.test(s.text)).length"
        assert page.evaluate(scripts) == 0, path
        assert page.evaluate("window.broken") == [], path  # of the content security policy
    assert dialogs == []
    assert seen.errors == []


# What browsers may run -----------------------------------------------------------------------


def test_a_script_that_got_into_a_page_would_not_run(demo, serve, watched):
    demo.quickstart()
    watched.page.goto(f"{serve()}/system")
    expect(watched.page.locator(".system")).to_be_visible()
    ran = watched.page.evaluate(
        """() => { window.ran = [];
            const script = document.createElement('script');
            script.textContent = "window.ran.push('inline')";
            document.body.append(script);
            const holder = document.createElement('div');
            holder.setAttribute('onclick', "window.ran.push('handler')");
            document.body.append(holder);
            holder.click();
            return window.ran; }"""
    )
    assert ran == []
    assert any("Content Security Policy" in error for error in watched.errors)


# SQL -----------------------------------------------------------------------------------------

#: In the text of a statement this cannot come from us.
MARK = "zz_hostile"
INJECTIONS = (
    f"{MARK}'; DROP TABLE run; --",
    f'{MARK}" OR "1"="1',
    f"{MARK}%' UNION SELECT sql FROM sqlite_master --",
    f"{MARK}\\x27) OR 1=1 /*",
)


@pytest.fixture
def statements():
    """The texts of all statements that are executed."""
    seen = []

    def note(_connection, _cursor, statement, *_):
        seen.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    yield seen
    event.remove(Engine, "before_cursor_execute", note)


@pytest.mark.parametrize("evil", INJECTIONS)
def test_what_visitors_write_is_never_part_of_sql(demo, source, statements, evil):
    demo.quickstart()
    client = create_app(source, DashboardAccess()).server.test_client()
    view = View(
        picks=(
            Pick(evil),
            Pick("quickstart", PickKind.RUN, evil),
            Pick("quickstart", PickKind.WORKLOAD, evil),
        ),
        search=f"{evil} model:{evil} {evil}>=1",
        experiment=evil,
        workload=evil,
        options={"report.sort": evil, "report.baseline": evil},
    )
    with client.application.test_request_context():
        for one in (view, View(search=view.search, workload=evil, options=view.options)):
            for page in PAGES:
                try:
                    page.layout(source, View.from_query(one.to_query()))
                except RadtError:  # there is no such run
                    continue
            try:
                read_selection(source, one)
            except RadtError:
                continue
    reader = source.reader
    assert reader.params_of([evil]) == {}
    assert reader.tagged(evil, evil) == {}
    assert reader.matching_runs(evil) == []
    assert reader.runs(experiment=evil, workload_id=evil) == []
    assert [one for one in statements if MARK in one] == []
    assert len(statements) > 5
    assert len(reader.runs()) == 6


def test_statements_are_made_when_the_dashboard_is_loaded_when_no_visitor_is_there():
    """Within functions, which visitors cause to run, statements of pages are constants."""
    root = Path(app.__file__).parent
    wrong = []
    for path in root.rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(function, (ast.FunctionDef, ast.Lambda)):
                wrong += [f"{path.name}:{line}" for line in _composed(function)]
    assert set(wrong) <= KNOWN


#: Of our own names: the column of a run's id.
KNOWN = {"statements.py:points_between"}


def _composed(function):
    """Where a function composes SQL."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in ("text", "exec_driver_sql") and isinstance(
                node.args[0], (ast.JoinedStr, ast.BinOp)
            ):
                yield getattr(function, "name", node.lineno)


# Reading only --------------------------------------------------------------------------------

WRITES = (
    "DELETE FROM run",
    "UPDATE run SET name = 'x'",
    "INSERT INTO experiment VALUES ('x', 0)",
    "CREATE TABLE x (y INTEGER)",
    "DROP TABLE run",
)


def assert_cannot_write(source):
    reader = source.reader
    for statement in WRITES:
        with pytest.raises(StoreError), reader.snapshot() as connection:
            connection.execute(text(statement))
    assert len(reader.runs()) == 6


def test_the_dashboard_cannot_write_into_a_file(demo, source):
    demo.quickstart()
    assert_cannot_write(source)


def test_the_dashboard_cannot_write_into_postgres_even_as_its_owner(database):
    demo = Demo(database)
    demo.quickstart()
    demo.writer.close()
    source = CachedStore(database)
    try:
        assert_cannot_write(source)
        with source.reader.snapshot() as connection:
            assert connection.execute(text("SHOW transaction_read_only")).scalar_one() == "on"
    finally:
        source.close()


# Holding the server up -----------------------------------------------------------------------


@pytest.fixture
def serve_patiently(monkeypatch):
    """The server of `radt dashboard`; tests that are about its patience leave it less of it."""
    monkeypatch.setattr(serving, "_LOOK_INTERVAL_S", 0)
    stops = []

    def start(application):
        listener = listen("127.0.0.1", 0)
        server = patient_server(application, listener, MAX_BODY_BYTES)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()

        stops.append(lambda: end_server(server, thread))
        return listener.getsockname()[1]

    yield start
    for stop in stops:
        stop()


def exchange(port, sent, wait_s=180.0):
    """What the server answers, until it closes the connection or says all."""
    with socket.create_connection(("127.0.0.1", port), timeout=wait_s) as peer:
        answer = b""
        with suppress(ConnectionResetError, BrokenPipeError):  # it may close before all is sent
            peer.sendall(sent)
        with suppress(ConnectionResetError):  # it closed before it had read all
            while piece := peer.recv(65536):
                answer += piece
        return answer


TOO_LARGE_HEADER = b"HTTP/1.0 431 Request Header Fields Too Large"


def small(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [environ.get("HTTP_X_FORWARDED_USER", "nobody").encode()]


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc",
    ],
)
def test_a_request_that_does_not_end_is_given_up(serve_patiently, monkeypatch, sent):
    monkeypatch.setattr(serving, "REQUEST_S", 0.5)
    assert exchange(serve_patiently(small), sent) == b""


def test_one_who_does_not_take_the_answer_holds_no_worker(serve_patiently, monkeypatch, wait_until):
    monkeypatch.setattr(serving, "STALLED_S", 0.5)
    # Both stay: the worker may be free again before anybody looks.
    began, ended = threading.Event(), threading.Event()

    def endless(_environ, start_response):
        start_response("200 OK", [("Content-Type", "text/plain")])
        began.set()
        try:
            while True:
                yield b"x" * 2**20
        finally:
            ended.set()

    port = serve_patiently(endless)
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(began.is_set, "the beginning of the answer")
        wait_until(ended.is_set, "its end")


def test_requests_that_are_too_large_are_refused_as_they_come(serve_patiently):
    port = serve_patiently(small)
    large = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    assert b" 413 " in exchange(port, large % (MAX_BODY_BYTES + 1)).split(b"\r\n")[0]
    header = b"GET / HTTP/1.0\r\nHost: x\r\nX: " + b"y" * 200_000 + b"\r\n\r\n"
    assert exchange(port, header).split(b"\r\n")[0] in (b"", TOO_LARGE_HEADER)
    assert exchange(port, header.replace(b"y" * 200_000, b"y")).endswith(b"nobody")


def test_a_header_with_another_spelling_is_not_that_of_the_proxy(serve_patiently):
    port = serve_patiently(small)
    told = b"GET / HTTP/1.0\r\nHost: x\r\nX_Forwarded_User: ada\r\n\r\n"
    assert exchange(port, told).endswith(b"nobody")
    assert exchange(port, told.replace(b"_", b"-")).endswith(b"ada")


@pytest.mark.long
def test_two_dashboards_of_one_machine_do_not_log_each_other_out(demo, serve, watched):
    demo.quickstart()
    tokens = ("a-token-of-enough-letters", "another-token-long-enough")
    urls = [serve(DashboardAccess(token=token)) for token in tokens]
    for url, token in zip(urls, tokens, strict=True):
        watched.page.goto(f"{url}/system?token={token}")
        expect(watched.page.locator(".system")).to_be_visible()
    watched.page.goto(f"{urls[0]}/system")
    expect(watched.page.locator(".system")).to_be_visible()
