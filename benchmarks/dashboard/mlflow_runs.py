"""MLflow's table of runs with the runs of `stores.many`: their params, and last values of metrics.

MLflow lists 100 runs and reads 100 more at a click.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from playwright.sync_api import Page

from benchmarks.dashboard.mlflow_ui import served_mlflow
from benchmarks.dashboard.stores import EXPERIMENT, Size
from benchmarks.dashboard.tables import FIRST, PATIENCE_S, SEARCH, SORT, Steps
from benchmarks.dashboard.visiting import (
    chromium,
    has_chromium,
    new_page,
    opened_s,
    painted_s,
    watch,
    watch_opening,
)
from benchmarks.results import Findings, Table

MORE = "100 more runs"
_FIRST_ROW = ".ag-row[row-index='0'] a"
_COUNT = """document.body.innerText.match(/([0-9,]+) matching runs/)?.[1]"""
_COPY = (
    "INSERT INTO runs SELECT run_id, 'run ' || workload || letter, 'LOCAL', '', '', 'radt', "
    "status, started_ns / 1000000, ended_ns / 1000000, '', 'active', '', :experiment, NULL "
    "FROM radt.run",
    "INSERT INTO tags SELECT 'mlflow.runName', 'run ' || workload || letter, run_id FROM radt.run",
    "INSERT INTO params (key, value, run_uuid) SELECT key, value, run_id FROM radt.param",
    "INSERT INTO latest_metrics (key, value, timestamp, step, is_nan, run_uuid) "
    "SELECT metric, last_value, last_ns / 1000000, 0, 0, run_id "
    "FROM radt.series JOIN radt.chunk USING (run_id, series_no)",
    "INSERT INTO metrics (key, value, timestamp, step, is_nan, run_uuid) "
    "SELECT key, value, timestamp, step, is_nan, run_uuid FROM latest_metrics",
)


def database(path: Path, _: Size) -> Path:
    """Copy the runs of the store `many`, which is beside it, into a database of MLflow."""
    if find_spec("mlflow") is None:
        return path
    from mlflow import MlflowClient

    file = path.with_name("mlflow.db")
    file.unlink(missing_ok=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    experiment = MlflowClient(f"sqlite:///{file}").create_experiment(EXPERIMENT)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(
            "ATTACH DATABASE ? AS radt", (str(path.parent.parent / "many" / "radt.db"),)
        )
        for statement in _COPY:
            connection.execute(statement, {"experiment": experiment} if ":" in statement else {})
        connection.commit()
    return file


def measure(folder: Path, size: Size) -> Findings:
    """Time MLflow's list of runs; `tables` does the same with radt's."""
    found = Findings()
    file = folder / "mlflow_runs" / "mlflow.db"
    if not has_chromium() or not file.exists():
        missing = "MLflow's table of runs: not measured, Chromium or MLflow is missing"
        found.tables.append(Table(missing, ("",)))
        return found
    with served_mlflow(file) as server, chromium() as browser, new_page(browser) as page:
        steps = Steps(server)
        watch_opening(page, _FIRST_ROW)
        steps.take(FIRST, lambda: opened_s(page, f"{server.url}/#/experiments/1/runs"))
        for metric in ("accuracy", "loss"):
            steps.take(SORT, partial(_sorted_s, page, metric))
        for depth in (8, 16):
            steps.take(SEARCH, partial(_found_s, page, depth))
            steps.take(MORE, partial(_more_s, page))
    found.tables.append(
        Table(
            f"MLflow's list of the same {size.runs:,} runs, of which it shows 100",
            ("", "ms to painted", "ms of the server's CPU"),
            steps.rows(),
            f"All {size.runs:,} take {size.runs // 100 - 1} clicks for 100 more runs.",
        )
    )
    return found


def _sorted_s(page: Page, metric: str) -> float | None:
    before = page.inner_text(_FIRST_ROW)
    page.click("[data-testid=sort-select-dropdown]")
    page.wait_for_selector(f"[data-testid=sort-select-{metric}]")
    watch(page)
    page.click(f"[data-testid=sort-select-{metric}]")
    return _changed_s(page, before)


def _found_s(page: Page, depth: int) -> float | None:
    before = page.inner_text(_FIRST_ROW)
    page.fill("[data-testid=search-box]", f"metrics.accuracy > 0.5 and params.depth = '{depth}'")
    watch(page)
    page.keyboard.press("Enter")
    return _changed_s(page, before)


def _changed_s(page: Page, before: str) -> float | None:
    now = f"""(document.querySelector("{_FIRST_ROW}") || {{}}).textContent"""
    return painted_s(page, f'![undefined, "{before}"].includes({now})', PATIENCE_S)


def _more_s(page: Page) -> float | None:
    count = page.evaluate(_COUNT)
    watch(page)
    page.click("button:has-text('Load more')")
    return painted_s(page, f'{_COUNT} !== "{count}"', PATIENCE_S)
