"""A store like the one the quickstart leaves behind, a served dashboard, and a real browser."""

from __future__ import annotations

import platform
import shlex
import socket
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    FloatRect,
    Locator,
    Page,
    Playwright,
    ViewportSize,
    expect,
)
from waitress import wasyncore

from radt.frontend import app
from radt.frontend.auth import MAX_BODY_BYTES, DashboardAccess
from radt.frontend.data import connections
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.connections import DatabaseConnection
from radt.frontend.pages import system
from radt.frontend.serve import listen, patient_server
from radt.model import SOFTWARE, MarkerKind, MissingReason, RunStatus, Scope, SeriesKind
from radt.store.reader import StoreReader
from radt.store.records import (
    GapRecord,
    LedgerRecord,
    MarkerRecord,
    RunRecord,
    Samples,
    SeriesBatch,
    SeriesRecord,
    WorkloadRecord,
)
from radt.store.writer import StoreWriter
from tests.frontend.workload_support import Bench
from tests.support import waiting

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

BEGAN_NS = 1_780_000_000_000_000_000
SECOND_NS = 1_000_000_000
LOSS, ACCURACY, CPU, RSS, HOST_CPU = range(5)


@dataclass
class DemoRun:
    """A run of the demo: how long an epoch takes, and how its training goes."""

    letter: str
    name: str
    epoch_s: float
    status: RunStatus = RunStatus.FINISHED
    epochs: int = 5
    has_gap: bool = False
    params: dict[str, str] = field(default_factory=dict)
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)


class Demo:
    """Writes experiments as the runner and the collector would."""

    def __init__(self, store: Path | str, host: str = "bench-1") -> None:
        if isinstance(store, Path):
            store.parent.mkdir(parents=True, exist_ok=True)
        self.store = store
        self.host = host
        self.writer = StoreWriter(store)
        self.noise = np.random.default_rng(7)
        self.now_ns = BEGAN_NS
        self.run_ids: dict[str, str] = {}

    def quickstart(self, experiment: str = "quickstart") -> Demo:
        """Three workloads: a solo run, three collocated ones, a mix of two sizes."""
        small, large = "cnn-small", "cnn-large"
        self.workload(experiment, "solo", [DemoRun("a", small, 4.2)])
        self.workload(
            experiment,
            "three",
            [
                DemoRun("a", small, 11.6),
                DemoRun("b", small, 11.9, has_gap=True),
                DemoRun("c", small, 12.3),
            ],
        )
        self.workload(
            experiment,
            "mix",
            [DemoRun("a", small, 7.4), DemoRun("b", large, 16.1, RunStatus.FAILED, epochs=3)],
        )
        return self

    def sweep(self, experiment: str = "sweep") -> Demo:
        """Six learning rates, two at a time in numbered workloads, as a sweep writes them."""
        rates = iter(("0.001", "0.003", "0.01", "0.03", "0.1", "0.3"))
        for number in range(3):
            rows = [DemoRun(letter, "train", 4.0, params={"lr": next(rates)}) for letter in "ab"]
            self.workload(experiment, f"{number:03}", rows)
        return self

    def workload(self, experiment: str, label: str, runs: list[DemoRun]) -> str:
        """A workload from its barrier to its end."""
        workload_id = uuid.uuid4().hex
        origin_ns = self.now_ns
        with self.writer.transaction():
            self.writer.put_workload(
                WorkloadRecord(
                    workload_id,
                    experiment,
                    label,
                    origin_ns - 2 * SECOND_NS,
                    status=RunStatus.FINISHED,
                    barrier_ns=origin_ns,
                    start_skew_ns=4_000_000,
                )
            )
            ends_s = [self._run(experiment, label, workload_id, run, len(runs)) for run in runs]
        for run in runs:
            if run.status.ended:
                self.writer.seal(run.run_id)
        self.now_ns += round((max(ends_s) + 8) * SECOND_NS)
        return workload_id

    def run(self, letter: str, name: str, epoch_s: float, **options: Any) -> DemoRun:
        """A run to give to `workload`."""
        return DemoRun(letter, name, epoch_s, **options)

    def origin_ns(self, run_id: str) -> int:
        """Zero of a run's elapsed time."""
        with StoreReader(self.store) as reader:
            barrier_ns = reader.workload(reader.run(run_id).workload_id).barrier_ns
        assert barrier_ns is not None
        return barrier_ns

    def add_series(self, run_id: str) -> None:
        """Declare the demo's series for a run."""
        self.writer.add_series(series_of_run(run_id))

    def append(
        self,
        run_id: str,
        origin_ns: int,
        series_no: int,
        elapsed_s: Any,
        values: Any,
        steps: Any = None,
    ) -> None:
        """More points of a run."""
        self.writer.append(run_id, [batch(series_no, origin_ns, elapsed_s, values, steps)])

    def _run(
        self, experiment: str, label: str, workload_id: str, run: DemoRun, sharing: int
    ) -> float:
        origin_ns, setup_s = self.now_ns, 1.8
        end_s = setup_s + run.epochs * run.epoch_s + 0.6
        ended = run.status.ended
        record = RunRecord(
            run.run_id,
            workload_id,
            experiment,
            label,
            run.letter,
            run.name,
            origin_ns - 2 * SECOND_NS,
            status=run.status,
            listeners="top",
            command=shlex.join(
                ["train.py", "--model", run.name, *(f"--{k}={v}" for k, v in run.params.items())]
            ),
            host=self.host,
            started_ns=origin_ns + round(self.noise.uniform(0, 4e6)),
            ended_ns=origin_ns + round(end_s * SECOND_NS) if ended else None,
            exit_code=0 if run.status is RunStatus.FINISHED else 1 if ended else None,
            end_reason="exit code 1" if run.status is RunStatus.FAILED else "",
        )
        self.writer.put_run(record)
        self.run_ids[f"{label} {run.letter}"] = run.run_id
        self.writer.put_params(run.run_id, {"model": run.name, "batch-size": "64", **run.params})
        self.writer.add_series(series_of_run(run.run_id))
        self._epochs(run, origin_ns, setup_s)
        self._samples(run, origin_ns, setup_s, end_s, sharing)
        return end_s

    def _epochs(self, run: DemoRun, origin_ns: int, setup_s: float) -> None:
        self.writer.put_markers(
            [
                MarkerRecord(
                    run.run_id,
                    epoch,
                    MarkerKind.EPOCH,
                    f"epoch {epoch + 1}",
                    origin_ns + round((setup_s + epoch * run.epoch_s) * SECOND_NS),
                    origin_ns + round((setup_s + (epoch + 1) * run.epoch_s) * SECOND_NS),
                    step=epoch + 1,
                )
                for epoch in range(run.epochs)
            ]
        )

    def _samples(
        self, run: DemoRun, origin_ns: int, setup_s: float, end_s: float, sharing: int
    ) -> None:
        steps = np.arange(1, run.epochs * 24 + 1)
        at_s = setup_s + steps * run.epoch_s / 24
        best = 0.08 if "large" in run.name else 0.14
        decay = np.exp(-steps / (30 if "large" in run.name else 38))
        loss = best + 2.2 * decay + 0.05 * self.noise.standard_normal(len(steps)) * (0.2 + decay)
        epochs = np.arange(1, run.epochs + 1)
        accuracy = (
            0.985 - 0.55 * np.exp(-epochs / 1.1) + 0.004 * self.noise.standard_normal(len(epochs))
        )
        batches = [
            batch(LOSS, origin_ns, at_s, loss, steps),
            batch(ACCURACY, origin_ns, setup_s + epochs * run.epoch_s, accuracy, epochs),
        ]
        ticks_s = np.arange(0.5, end_s, 0.5)
        if run.has_gap:
            hole = (ticks_s > 24) & (ticks_s < 33)
            ticks_s = ticks_s[~hole]
            self.writer.put_gaps(
                [
                    GapRecord(
                        run.run_id,
                        "top",
                        -1,
                        origin_ns + 24 * SECOND_NS,
                        origin_ns + 33 * SECOND_NS,
                        MissingReason.LOST,
                        "the collector was restarted",
                    )
                ]
            )
        training = np.clip((ticks_s - 0.8) / 1.6, 0, 1)
        cores = min(1.0, 2.0 / sharing) * 0.97
        at_seam = np.abs((ticks_s - setup_s) % run.epoch_s) < 0.6
        cpu = training * cores * (1 + 0.04 * self.noise.standard_normal(len(ticks_s)))
        cpu = np.where(at_seam, cpu * 0.72, cpu)
        top = 2.4e8 if "large" in run.name else 2.05e8
        rss = (
            6e7
            + (top - 6e7) * training
            + 2e6 * np.cumsum(self.noise.standard_normal(len(ticks_s))) / 12
        )
        host = np.clip(0.04 + 0.93 * training * min(1.0, sharing / 2), 0, 1)
        for number, values in ((CPU, cpu), (RSS, rss), (HOST_CPU, host)):
            batches.append(batch(number, origin_ns, ticks_s, values))
        self.writer.append(run.run_id, batches)
        count = len(ticks_s)
        missed = 18 if run.has_gap else 0
        self.writer.put_ledger(
            LedgerRecord(
                run.run_id, "top", 0.5, count + missed, count, missed, count * 400_000, "ended"
            )
        )


def series_of_run(run_id: str) -> list[SeriesRecord]:
    """What the demo's runs record."""
    gauge = SeriesKind.GAUGE
    return [
        SeriesRecord(run_id, LOSS, SOFTWARE, "loss", "", Scope.RUN, gauge),
        SeriesRecord(run_id, ACCURACY, SOFTWARE, "accuracy", "", Scope.RUN, gauge),
        SeriesRecord(
            run_id, CPU, "top", "process.cpu.utilization", "cores", Scope.PROCESS, gauge, "", 0.5
        ),
        SeriesRecord(run_id, RSS, "top", "process.memory.rss", "By", Scope.PROCESS, gauge, "", 0.5),
        SeriesRecord(
            run_id, HOST_CPU, "top", "system.cpu.utilization", "1", Scope.HOST, gauge, "", 0.5
        ),
    ]


def batch(
    series_no: int,
    origin_ns: int,
    elapsed_s: np.ndarray,
    values: np.ndarray,
    steps: np.ndarray | None = None,
) -> SeriesBatch:
    """Points at seconds since ``origin_ns``."""
    times_ns = origin_ns + np.round(np.asarray(elapsed_s) * SECOND_NS).astype(np.int64)
    return SeriesBatch(
        series_no,
        Samples(
            times_ns,
            np.asarray(values, dtype=np.float64),
            None if steps is None else np.asarray(steps, dtype=np.int64),
        ),
    )


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    """Where the dashboard under test looks."""
    return tmp_path / "home" / "radt.db"


@pytest.fixture
def demo(store_path: Path) -> Iterator[Demo]:
    """An empty store to fill."""
    made = Demo(store_path)
    yield made
    made.writer.close()


@pytest.fixture
def bench(store_path: Path) -> Iterator[Bench]:
    """The same, for workloads of this machine."""
    made = Bench(store_path, host=platform.node())
    yield made
    made.close()


@pytest.fixture
def source(store_path: Path) -> Iterator[CachedStore]:
    """The store as the dashboard reads it."""
    opened = CachedStore(store_path)
    yield opened
    opened.close()


Serve = Callable[..., str]


def end_server(web: Any, thread: threading.Thread) -> None:
    """End a server that runs in a thread."""
    # In its own thread: another would close what that one waits on. If that was awake anyway, it
    # has closed the trigger before it is pulled.
    with suppress(OSError):
        web.trigger.pull_trigger(lambda: wasyncore.close_all(web._map))
    thread.join()
    web.task_dispatcher.shutdown()


@contextmanager
def running(application: WSGIApplication, listener: socket.socket) -> Iterator[None]:
    """Serve from a thread."""
    # Its sockets are its own: those of other servers in this process go on.
    sockets: dict[int, Any] = {}
    web = patient_server(application, listener, MAX_BODY_BYTES, sockets)
    thread = threading.Thread(target=web.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end_server(web, thread)


@contextmanager
def served(source: CachedStore, access: DashboardAccess) -> Iterator[str]:
    """Serve the dashboard over a source at an address of its own; yields it."""
    listener = listen(access.host, 0)
    with running(app.create_app(source, access).server, listener):
        yield f"http://{access.host}:{listener.getsockname()[1]}"


@pytest.fixture(scope="session", autouse=True)
def _frequent_pulse() -> Iterator[None]:
    """Let open pages ask for news often, and databases be asked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "LIVE_INTERVAL_MS", 200)
        patch.setattr(app, "IDLE_INTERVAL_MS", 600)
        patch.setattr(DatabaseConnection, "ask_interval_s", 0.1)
        patch.setattr(connections, "RETRY_S", 0.5)
        yield


#: Answered by `Front` itself.
EMPTY = "/empty"
VIEWPORT = ViewportSize(width=1440, height=900)


class Front:
    """One address for the dashboards of a worker's tests, one after the other.

    A browser keeps what it has compiled of a script only for the address that it came from.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.dashboard: WSGIApplication | None = None
        self._inside = 0
        self._lock = threading.Lock()

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        with self._lock:
            dashboard = None if environ["PATH_INFO"] == EMPTY else self.dashboard
            self._inside += dashboard is not None
        if dashboard is None:
            start("200 OK", [("Content-Type", "text/html")])
            return [b"<!doctype html><link rel=icon href=data:,>"]
        try:
            return dashboard(environ, start)
        finally:
            with self._lock:
                self._inside -= 1

    @contextmanager
    def showing(self, dashboard: WSGIApplication) -> Iterator[str]:
        """Serve this dashboard; yields its address. No thread is in it afterwards."""
        assert self.dashboard is None
        self.dashboard = dashboard
        try:
            yield self.url
        finally:
            with self._lock:
                self.dashboard = None
            waiting.wait_until(lambda: not self._inside, "the last answers")


@pytest.fixture(scope="session")
def front() -> Iterator[Front]:
    """The address of this worker's dashboards."""
    listener = listen("127.0.0.1", 0)
    made = Front(f"http://127.0.0.1:{listener.getsockname()[1]}")
    with running(made, listener):
        yield made


@pytest.fixture
def serve(store_path: Path, front: Front) -> Iterator[Serve]:
    """Serve the dashboard; returns its address.

    Of a store; or a ``source`` that the test opened itself, and closes.
    """
    with ExitStack() as stack:

        def start(
            access: DashboardAccess | None = None,
            store: Path | str | None = None,
            source: CachedStore | None = None,
        ) -> str:
            access = access or DashboardAccess()
            opened = source or stack.enter_context(closing(CachedStore(store or store_path)))
            if front.dashboard is None and access.host == "127.0.0.1":
                made = app.create_app(opened, access).server
                return stack.enter_context(front.showing(made))
            return stack.enter_context(served(opened, access))

        yield start


@pytest.fixture
def no_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """The System page starts none of the commands that it shows the answers of."""
    answers: dict[str, Any] = {"doctor": {"checks": []}, "status": {"files": []}}
    monkeypatch.setattr(system, "ask_radt", lambda command, *_: answers[command])


@dataclass(frozen=True)
class Site:
    """A dashboard that all tests of a worker share. Its store is read only."""

    url: str
    demo: Demo
    source: CachedStore


@pytest.fixture(scope="session")
def _site(
    tmp_path_factory: pytest.TempPathFactory, front: Front
) -> Iterator[tuple[Site, WSGIApplication]]:
    demo = Demo(tmp_path_factory.mktemp("site") / "radt.db").quickstart()
    demo.writer.close()
    with closing(CachedStore(demo.store)) as source:
        yield Site(front.url, demo, source), app.create_app(source, DashboardAccess()).server


@pytest.fixture
def site(_site: tuple[Site, WSGIApplication], front: Front) -> Iterator[Site]:
    """The dashboard over the quickstart, for tests that write nothing."""
    made, dashboard = _site
    with front.showing(dashboard):
        yield made


#: On a busy machine, a page may take this long.
PATIENCE_MS = 120_000


@pytest.fixture(scope="session")
def browser(playwright: Playwright) -> Iterator[Browser]:
    """Debian's chromium, without a window."""
    expect.set_options(timeout=PATIENCE_MS)
    launched = playwright.chromium.launch(
        executable_path="/usr/bin/chromium",
        # Pages live for seconds: code that V8 optimises for them is hardly used.
        args=["--no-sandbox", "--disable-gpu", "--js-flags=--no-opt --no-maglev"],
    )
    yield launched
    launched.close()


class Watched:
    """A browser page, the requests it made and the errors it met."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.requests: list[str] = []
        self.errors: list[str] = []
        self._handlers: list[tuple[Any, Any]] = []
        self.on("request", lambda request: self.requests.append(request.url))
        self.on("pageerror", lambda error: self.errors.append(str(error)))
        self.on("console", self._note)

    def on(self, event: str, handler: Callable[[Any], object]) -> None:
        """Handle an event of the page until the end of the test."""
        self.page.on(event, handler)  # type: ignore[call-overload]
        self._handlers.append((event, handler))

    def end(self) -> None:
        """Watch no longer."""
        for event, handler in self._handlers:
            self.page.remove_listener(event, handler)

    def _note(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(message.text)


def patient(page: Page) -> Page:
    """Have a page wait as long as `expect` does: by itself it gives up after half a minute."""
    page.set_default_timeout(PATIENCE_MS)
    return page


class Tab:
    """The browser page of a worker's tests, one after the other.

    A new process of the browser compiles Plotly, React and the rest anew, which takes more than
    half of the time until a page is drawn. Documents, storage and cookies are new in every test.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._page: Page | None = None

    @property
    def page(self) -> Page:
        if self._page is None:
            self._page = patient(self._browser.new_context(viewport=VIEWPORT).new_page())
        return self._page

    def clear(self, front: Front) -> None:
        """Leave nothing to the next test."""
        page, context = self.page, self.page.context
        for other in context.pages:
            if other is not page:
                other.close()
        context.set_offline(False)
        page.unroute_all()
        page.goto(front.url + EMPTY)
        page.evaluate("localStorage.clear(); sessionStorage.clear()")
        context.clear_cookies()
        context.clear_permissions()
        page.emulate_media(color_scheme="light", media="screen")
        page.set_viewport_size(VIEWPORT)
        page.mouse.move(0, 0)

    def close(self) -> None:
        """The next test gets a new one."""
        if self._page is not None:
            self._page.context.close()
        self._page = None


@pytest.fixture(scope="session")
def tab(browser: Browser) -> Iterator[Tab]:
    """The page that tests have in turn."""
    made = Tab(browser)
    yield made
    made.close()


@pytest.fixture
def watched(tab: Tab, front: Front, request: pytest.FixtureRequest) -> Iterator[Watched]:
    """A page that records its requests and errors; nothing of other tests is left on it."""
    failed = request.session.testsfailed
    seen = Watched(tab.page)
    yield seen
    seen.end()
    if request.session.testsfailed > failed:
        tab.close()  # who knows what it was left in
    else:
        tab.clear(front)


def shown(page: Page, selector: str) -> None:
    """Wait until an element is visible, without the pauses of up to a second of `expect`."""
    page.wait_for_function(
        """selector => [...document.querySelectorAll(selector)].some(e => e.checkVisibility())""",
        arg=selector,
    )


def bounds(locator: Locator) -> FloatRect:
    """Where an element is, once it is drawn: one that was just replaced is nowhere for a moment."""
    return waiting.wait_until(locator.bounding_box, f"{locator} drawn")


@pytest.fixture
def wait_until() -> Callable[..., Any]:
    """`tests.support.waiting.wait_until`."""
    return waiting.wait_until
