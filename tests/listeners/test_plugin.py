"""Plug-ins as their authors ship them: built, installed by pip, found by radt's own commands.

``tests/plugins/radt-listener-example`` is the page that people copy; what is in
``radt-listener-broken`` breaks its promises, each in another way.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.bench import RADT, Bench, has_store, stop_collectors, wait_until

_PLUGINS = Path(__file__).parents[1] / "plugins"
_EXAMPLE, _BROKEN = "radt-listener-example", "radt-listener-broken"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed both packages."""
    folder = tmp_path_factory.mktemp("plugins")
    sources = [
        # Building writes beside the sources.
        shutil.copytree(_PLUGINS / name, folder / name, ignore=shutil.ignore_patterns("*.egg-info"))
        for name in (_EXAMPLE, _BROKEN)
    ]
    site = folder / "site"
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input", "--no-compile")
    alone = ("--no-index", "--no-deps", "--no-build-isolation")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *quiet, *alone, "--target", site, *sources],
        check=True,
    )
    return site


@pytest.fixture
def env(site: Path, private_folders: None) -> Mapping[str, str]:
    return os.environ | {"PYTHONPATH": str(site), "COLUMNS": "80", "NO_COLOR": "1"}


def _radt(env: Mapping[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [RADT, "listeners", *arguments], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_the_example_is_listed_like_a_listener_of_radts_own(env: Mapping[str, str]) -> None:
    entries = {entry["name"]: entry for entry in json.loads(_radt(env, "--json"))["listeners"]}
    example = entries["pressure"]
    assert example["origin"] == "radt_listener_example"
    assert example["interval_s"] == 2.0
    assert example["options"] == {"share": "also the kernel's own mean of 10 s"}
    assert {(one["name"], one["unit"], one["scope"], one["kind"]) for one in example["series"]} == {
        ("system.pressure.stalled", "s", "host", "counter"),
        ("system.pressure.share", "1", "host", "gauge"),
        ("process.files", "1", "process", "gauge"),
    }
    assert "how the values are measured" in _radt(env, "pressure")


def test_broken_ones_are_reported_and_the_others_listed(env: Mapping[str, str]) -> None:
    entries = {entry["name"]: entry for entry in json.loads(_radt(env, "--json"))["listeners"]}
    assert {"top", "smi", "pressure"} <= set(entries)
    failures = {name: entry["failure"] for name, entry in entries.items() if entry["failure"]}
    assert set(failures) == {
        *("absent", "crashing", "incomplete", "secretive", "radt_listener_broken:Top")
    }
    assert "ModuleNotFoundError" in failures["absent"]
    assert "RuntimeError: the driver's library is of another version" in failures["crashing"]
    assert "does not define sample" in failures["incomplete"]
    assert "LookupError: it is a secret" in failures["secretive"]
    assert "the name 'top' is taken already" in failures["radt_listener_broken:Top"]
    assert entries["top"]["origin"] == "radt.listeners.top"
    assert "OSError: no such bus" in entries["unprobed"]["reason"]
    assert not entries["unprobed"]["available"]
    shown = _radt(env)
    for name in failures:
        assert f"✘  {name}" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "RuntimeError: the driver's library" in _radt(env, "crashing")


@pytest.fixture
def bench(tmp_path: Path, env: Mapping[str, str]) -> Iterator[Bench]:
    folder = tmp_path / "user"
    folder.mkdir()
    quick = {"RADT_COLLECTOR_IDLE_S": "2", "RADT_FLUSH_S": "0.1"}
    made = Bench(folder, dict(env, RADT_HOME=str(folder / "radt-data"), **quick))
    yield made
    stop_collectors(Path(made.env["RADT_RUNTIME_DIR"]))


_UNTIL_PRESSURE = """
import pathlib, sqlite3, time
deadline = time.monotonic() + 180
store = pathlib.Path("radt-data/radt.db")
def received():
    with sqlite3.connect(f"file:{store}?mode=ro", uri=True) as database:
        query = "select sum(received) from ledger where listener = 'pressure'"
        return database.execute(query).fetchone()[0] or 0
while received() <= 3:
    assert time.monotonic() < deadline, "waited in vain for samples"
    time.sleep(0.05)
"""


def _received(bench: Bench, name: str) -> int:
    if not has_store(bench.home):
        return 0
    runs = [run.run_id for run in bench.reader.runs() if run.name.split()[0] == name]
    return sum(row.received for row in bench.reader.ledger(runs)) if runs else 0


_SCRIPT = """
import pathlib, sqlite3, sys, time
opened = [open(__file__) for _ in range(20)]
deadline = time.monotonic() + 180
store = pathlib.Path("radt-data/radt.db")
def there():
    with sqlite3.connect(f"file:{store}?mode=ro", uri=True) as database:
        series = {row[0] for row in database.execute("select metric from series")}
        states = dict(database.execute("select listener, state from ledger"))
    return {"process.files", "system.pressure.stalled"} <= series and all(
        states.get(name) == "dropped" for name in ("raising", "lying", "endless")
    )
while not there():
    assert time.monotonic() < deadline, "waited in vain for samples"
    time.sleep(0.05)
"""


def test_one_that_is_installed_while_a_collector_is_up_is_loaded(bench: Bench, site: Path) -> None:
    late = bench.folder / "site"
    late.mkdir()
    bench.env["PYTHONPATH"] = str(late)
    gate = bench.signal_ready("gate")
    bench.script("first.py", f"open({str(gate)!r}).read()\n")
    bench.script("second.py", _UNTIL_PRESSURE)
    first = bench.start("-l", "top@100ms", "first.py")
    wait_until(lambda: _received(bench, "first") > 3, "the collector samples")
    shutil.copytree(site, late, dirs_exist_ok=True)
    done = bench.radt("-l", "pressure@50ms", "second.py")
    assert "is not installed" not in done.stdout
    assert _received(bench, "second") > 3
    seen = _received(bench, "first")
    wait_until(lambda: _received(bench, "first") > seen, "it goes on sampling")
    gate.write_text("go", encoding="ascii")
    assert first.wait(180) == 0
    run = next(run for run in bench.reader.runs() if run.name.split()[0] == "first")
    assert not [one for one in bench.reader.markers([run.run_id]) if "restarted" in one.name]


def test_a_run_records_the_example_and_outlives_the_broken_ones(bench: Bench) -> None:
    bench.script("train.py", _SCRIPT)
    listeners = "top@100ms+pressure:share@50ms+raising@50ms+lying@50ms+endless@50ms+unprobed"
    path = bench.experiment(
        "Experiment,Workload,Status,Run,Devices,Collocation,File,Listeners,Params\n"
        f"plugged,1,,,cpu,-,train.py,{listeners},\n"
    )
    bench.radt(str(path))
    (run,) = bench.reader.runs()
    assert str(run.status) == "FINISHED"
    series = {(one.metric, one.entity): one for one in bench.reader.series([run.run_id])}
    for resource in ("cpu", "memory", "io"):
        stalled = series["system.pressure.stalled", resource]
        assert (stalled.listener, stalled.unit) == ("pressure", "s")
        assert "/proc/pressure" in stalled.method
        assert ("system.pressure.share", resource) in series
    files = series["process.files", ""]
    most = max(bench.reader.samples(run.run_id, files.series_no).values)
    assert 20 <= most <= 60
    assert any(one.listener == "top" for one in series.values())
    ledger = {row.listener: row for row in bench.reader.ledger([run.run_id])}
    assert ledger["pressure"].received > 0
    assert {name: ledger[name].state for name in ("raising", "lying", "endless")} == {
        "raising": "dropped",
        "lying": "dropped",
        "endless": "dropped",
    }
    assert "out of paper" in ledger["raising"].reason
    assert "lying.other" in ledger["lying"].reason
    assert ledger["top"].state == "ended"
    assert not any(one.listener in ("raising", "lying", "endless") for one in series.values())
