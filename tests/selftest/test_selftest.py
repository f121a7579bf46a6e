"""``radt selftest`` as users call it, and what its measurements say."""

from __future__ import annotations

import json
import math
import os
import sys
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from radt import selftest
from radt.cli import main
from radt.cli.selftest import command
from radt.errors import LaunchError
from radt.selftest import LimitVerdict, OverheadMeasurement, drawn_orders
from tests.support.bench import Bench, bench_in
from tests.support.waiting import wait_until


def test_a_whole_selftest_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of it, with less to start."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(selftest, "RUNS", 2)
    monkeypatch.setattr(selftest, "WORKLOADS", 2)
    before = dict(os.environ)
    with pytest.raises(SystemExit) as ended:
        main(["selftest", "--pairs", "1", "--seconds", "0.2", "--seed", "7", "--json"])
    document = json.loads(capsys.readouterr().out)
    measurements = {one["key"]: one for one in document["measurements"]}
    assert [one["error"] for one in measurements.values() if one["error"]] == []
    assert set(measurements) == {"start_skew", "sampling.cpu", "sampling.missed", "time_ratio"}
    assert measurements["time_ratio"]["value"] > 0
    assert measurements["time_ratio"]["verdict"] == "inconclusive"  # from one pair
    assert 0 < measurements["sampling.cpu"]["value"] < 1
    over = any(one["verdict"] == "over the limit" for one in measurements.values())
    assert ended.value.code == int(over)
    assert os.environ == before
    assert list((tmp_path / "temporary").iterdir()) == []
    assert list(Path(os.environ["RADT_RUNTIME_DIR"]).iterdir()) == []
    assert not (tmp_path / "radt-data").exists()


def test_the_spinner_leaves_nothing_between_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    measurement = OverheadMeasurement("start_skew", "start skew", 1.0, 2.0, low=0.9, high=1.1)
    monkeypatch.setattr(
        "radt.cli.selftest.run_selftest", lambda *args: args[-1](measurement) or [measurement]
    )
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    before, _, after = CliRunner().invoke(command, []).output.partition("start skew")
    assert "measuring" in before and after
    _, _, cleared = before.rpartition("measuring")
    assert "\x1b[2K" in cleared, "the spinner's line is erased before a measurement is printed"


@pytest.mark.long
def test_a_failed_measurement_is_reported_and_the_others_are_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(selftest, "_WORK", "raise SystemExit('no work today')\n")
    monkeypatch.setattr(selftest, "RUNS", 1)
    monkeypatch.setattr(selftest, "WORKLOADS", 1)
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main(["selftest", "--pairs", "1", "--seconds", "0.1"])
    assert ended.value.code == 1
    output = capsys.readouterr().out
    assert "work.py ended with exit code 1: no work today" in output
    assert "readings missed" in output


@pytest.mark.parametrize("then", ["sys.exit(1)", "signal.pause()"])
def test_idle_rows_that_do_not_start_end_the_measurement(
    then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = f"import signal, sys; print('no rows today', file=sys.stderr, flush=True); {then}"
    runner = [sys.executable, "-c", program]
    monkeypatch.setattr(selftest, "_experiment", lambda *_, **__: runner)
    monkeypatch.setattr(selftest, "_TIMEOUT_S", 3.0)
    with selftest._sandbox() as home, pytest.raises(LaunchError) as raised:
        selftest._sampling(home, 0.1)
    assert "0 of 8 idle rows started: no rows today" in str(raised.value)


def test_the_collector_of_a_killed_selftest_ends_by_itself(tmp_path: Path) -> None:
    with bench_in(tmp_path, columns=80, TMPDIR=str(tmp_path)) as bench:
        _kill_when_it_runs(bench, tmp_path)


def _kill_when_it_runs(bench: Bench, folder: Path) -> None:
    process = bench.start("selftest", "--pairs", "50")
    wait_until(lambda: list(folder.glob("radt-selftest-*/radt-data/radt.db")), "it measures")
    (sandbox,) = folder.glob("radt-selftest-*")
    process.kill()
    process.wait()

    def processes() -> list[str]:
        mark = f"RADT_HOME={sandbox / 'radt-data'}".encode()
        pids = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    pids.append(entry.name)
            except OSError:
                continue
        return pids

    wait_until(lambda: not processes(), "no process of it")


def test_an_interval_around_the_limit_is_inconclusive() -> None:
    def verdict(value: float | None, low: float | None, high: float | None) -> LimitVerdict:
        return OverheadMeasurement("key", "label", value, 1.02, low=low, high=high).verdict

    assert verdict(1.01, 1.00, 1.02) is LimitVerdict.WITHIN
    assert verdict(1.01, 1.00, 1.03) is LimitVerdict.INCONCLUSIVE
    assert verdict(1.01, 0.0, math.inf) is LimitVerdict.INCONCLUSIVE
    assert verdict(1.05, 1.03, 1.07) is LimitVerdict.OVER
    assert verdict(1.01, None, None) is LimitVerdict.WITHIN
    assert verdict(None, None, None) is LimitVerdict.FAILED


def test_orders_are_balanced_and_follow_the_seed() -> None:
    orders = drawn_orders(40, 3)
    assert orders == drawn_orders(40, 3) != drawn_orders(40, 4)
    assert Counter(orders) == {True: 20, False: 20}
    assert all(set(orders[at : at + 2]) == {True, False} for at in range(0, 40, 2))
