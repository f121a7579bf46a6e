"""MLflow's own UI with as many points: from a click on its chart view to the painted chart.

MLflow's client creates experiments and runs; the points are inserted into its table as
``log_batch`` does, because the client would take hours.
"""

from __future__ import annotations

import math
import os
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from playwright.sync_api import Browser, Page

from benchmarks.dashboard.stores import SPIKE, START_NS, Size
from benchmarks.dashboard.visiting import (
    Served,
    chromium,
    has_chromium,
    median_and_worst,
    new_page,
    painted_s,
    watch,
)
from benchmarks.results import Findings, Table

WIDE, LONG, TENTH = "wide", "long", "a tenth"
_CHARTS = "label:has(input[value=CHART])"
_DRAWN = 'document.querySelector(".js-plotly-plot .scatterlayer path.js-line[d]")'
_START_MS, _SECOND_MS = START_NS // 1_000_000, 1000
_ROWS_A_TIME = 100_000
_REPEAT, _PATIENCE_S, _START_S = 3, 45.0, 120.0


def database(path: Path, size: Size) -> Path:
    """Create runs with a metric each, a long run with one spike, and one a tenth as long."""
    if find_spec("mlflow") is None:
        return path
    from mlflow import MlflowClient

    file = path.with_name("mlflow.db")
    file.unlink(missing_ok=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    client = MlflowClient(f"sqlite:///{file}")
    plan = [(WIDE, size.points, 10)] * size.wide_runs
    plan += [(LONG, size.long_points, 1000), (TENTH, size.long_points // 10, 1000)]
    experiments = {name: client.create_experiment(name) for name in (WIDE, LONG, TENTH)}
    rng = np.random.default_rng(13)
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        for number, (name, count, rate_hz) in enumerate(plan):
            run = client.create_run(experiments[name], run_name=f"run {number}").info.run_id
            values = 1 + 0.05 * rng.normal(size=count)
            if name != WIDE:
                values[round(count * 0.7654321)] = SPIKE
            _insert(connection, run, values, rate_hz)
            client.set_terminated(run)
    return file


def _insert(connection: sqlite3.Connection, run: str, values: np.ndarray, rate_hz: int) -> None:
    times = _START_MS + np.arange(len(values)) * _SECOND_MS // rate_hz
    connection.execute("BEGIN")
    for first in range(0, len(values), _ROWS_A_TIME):
        part = slice(first, first + _ROWS_A_TIME)
        rows = zip(values[part].tolist(), times[part].tolist(), strict=True)
        connection.executemany(
            "INSERT INTO metrics (key, value, timestamp, run_uuid, step, is_nan) "
            "VALUES ('metric', ?, ?, ?, ?, 0)",
            ((value, at_ms, run, first + place) for place, (value, at_ms) in enumerate(rows)),
        )
    connection.execute(
        "INSERT INTO latest_metrics (key, value, timestamp, step, is_nan, run_uuid) "
        "VALUES ('metric', ?, ?, ?, 0, ?)",
        (float(values[-1]), int(times[-1]), len(values) - 1, run),
    )
    connection.execute("COMMIT")


def measure(folder: Path, size: Size) -> Findings:
    """Time MLflow's chart view, opened by a click in the list of an experiment's runs."""
    found = Findings()
    file = folder / "mlflow" / "mlflow.db"
    if not has_chromium() or not file.exists():
        found.tables.append(
            Table("MLflow's UI: not measured, Chromium or MLflow is missing", ("",))
        )
        return found
    table = Table(
        "MLflow's UI, ms from a click on its chart view to the painted chart",
        ("", "median", "worst", "lines", "points of a line", "spike"),
    )
    with closing(sqlite3.connect(file)) as connection:
        numbers = dict(connection.execute("SELECT name, experiment_id FROM experiments").fetchall())
    for name, count, runs in (
        (WIDE, size.points, size.wide_runs),
        (TENTH, size.long_points // 10, 1),
        (LONG, size.long_points, 1),
    ):
        title = f"{runs} run{'s' * (runs > 1)} × {count:,} points"
        # One server each: a server that still computes an earlier answer would delay the next one.
        with served_mlflow(file) as server, chromium() as browser:
            address = f"{server.url}/#/experiments/{numbers[name]}/runs"
            table.rows.append((title, *_row(browser, address)))
    found.tables.append(table)
    return found


def _row(browser: Browser, address: str) -> tuple[str, ...]:
    times: list[float] = []
    drawn: list[list[float]] = []
    for _ in range(_REPEAT):
        with new_page(browser) as page:
            duration_s = _opened_s(page, address)
            if duration_s is None:
                return (f"> {_PATIENCE_S * 1e3:,.0f}", "", "", "", "not drawn")
            times.append(duration_s)
            drawn = page.evaluate(
                """() => [...document.querySelectorAll(".js-plotly-plot")]
                    .filter((one) => one.querySelector("path.js-line")).slice(0, 1)
                    .flatMap((one) => one._fullData.map((trace) => Array.from(trace.y || [])))
                    .map((y) => [y.length, Math.max(...y)])"""
            )
    points = max((count for count, _ in drawn), default=0)
    most = max((value for _, value in drawn), default=-math.inf)
    return (
        *median_and_worst(times),
        str(len(drawn)),
        f"{points:,.0f}",
        "drawn" if most == SPIKE else "not drawn",
    )


def _opened_s(page: Page, address: str) -> float | None:
    page.goto(address)
    page.wait_for_selector(_CHARTS, timeout=_START_S * 1e3)
    page.wait_for_selector("text=run ", timeout=_START_S * 1e3)
    watch(page)
    page.locator(_CHARTS).first.click()
    return painted_s(page, _DRAWN, _PATIENCE_S)


@contextmanager
def served_mlflow(file: Path) -> Iterator[Served]:
    """Run MLflow's server over a database, in its own process."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    log = file.with_name("server.log")
    with (
        log.open("w") as output,
        subprocess.Popen(
            [*command, "--workers", "1", "--backend-store-uri", f"sqlite:///{file}"],
            cwd=file.parent,
            env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            _wait_for(url)
            yield Served(url, process.pid)
        finally:
            os.killpg(process.pid, 9)  # it may keep computing an abandoned answer for minutes


def _wait_for(url: str) -> None:
    end_s = time.monotonic() + _START_S
    while True:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            if time.monotonic() > end_s:
                raise
            time.sleep(0.2)
