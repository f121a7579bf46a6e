"""``radt selftest`` as users call it."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import asdict
from pathlib import Path

import pytest

from radt.cli import main
from radt.cli.selftest import plain
from radt.selftest import measure, pairs, starting
from radt.selftest.machine import Machine
from radt.selftest.results import Finding, Selftest, Unit
from tests.support.bench import Bench, wait_until


def test_a_whole_selftest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of it, with fewer and smaller things to start."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RADT_HOME")
    monkeypatch.setattr(measure, "RUNS", 2)
    monkeypatch.setattr(measure, "LOG_CALLS", 1000)
    monkeypatch.setattr(starting, "ROWS", 2)
    monkeypatch.setattr(starting, "WORKLOADS", 2)
    monkeypatch.setattr(pairs, "REST_AT_MOST_S", 1.0)
    with pytest.raises(SystemExit) as ended:
        main(
            [
                *("selftest", "--pairs", "1", "--seconds", "0.2", "--seed", "7"),
                *("--listeners", "top", "--format", "json", "--output", "result.json"),
            ]
        )
    assert "result.json" in capsys.readouterr().out
    found = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert found["schema"] == "radt.selftest/1"
    assert found["options"] == {"pairs": 1, "seconds": 0.2, "listeners": "top", "seed": 7}
    assert found["machine"]["cpus"] == len(os.sched_getaffinity(0))
    findings = {one["key"]: one for one in found["findings"]}
    assert [one["failure"] for one in findings.values() if one["failure"]] == []
    assert set(findings) == {
        *("fsync", "import", "log_metric.median", "log_metric.p99", "log_metric.worst"),
        *(f"sampling_{rate}hz.{what}" for rate in (1, 10) for what in ("cpu", "memory")),
        *(f"sampling_{rate}hz.{what}" for rate in (1, 10) for what in ("missed", "late")),
        *("listener.top", "slowdown.cpu", "added.cpu", "tracker.cpu", "start_skew", "between"),
    }
    assert all(one["value"] is not None for one in findings.values())
    assert findings["slowdown.cpu"]["verdict"] == "cannot tell"  # of one pair
    for key in ("added.cpu", "tracker.cpu", "log_metric.median", "sampling_10hz.cpu"):
        assert findings[key]["value"] > 0
    missed = any(one["verdict"] == "missed" for one in findings.values())
    assert found["passed"] is not missed
    assert ended.value.code == int(missed)
    # Nothing of the user's was used, and nothing is left.
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]
    assert list(Path(os.environ["RADT_RUNTIME_DIR"]).iterdir()) == []


def test_ctrl_c_leaves_nothing(bench: Bench) -> None:
    process = bench.start("selftest", "--pairs", "50")
    wait_until(lambda: list(bench.folder.glob(".radt-selftest-*/radt.db")), "it measures")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert list(bench.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-l", "topp"], "'topp' is no listener"),
        (["-l", "nsys"], "'nsys' is a profiler"),
        (["-o", "nowhere/x.json"], "there is no folder"),
    ],
)
def test_mistakes_are_said_before_a_minute_is_spent(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["selftest", *arguments])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_file_has_the_lines_of_the_terminal() -> None:
    found = Selftest(
        machine=asdict(Machine.detect()),
        options={"listeners": "top", "seed": 7},
        findings=[Finding("k", "time of a run, CPU", 1.01, Unit.FACTOR, 1.02)],
        warnings=["other programs keep the machine busy"],
        took_s=61.0,
    )
    text = plain(found)
    assert "radt selftest · " in text
    assert "listeners top · seed 7" in text
    assert "!  other programs keep the machine busy" in text
    assert "✔  time of a run, CPU          1.010×  at most 1.02×\n" in text
    assert "1 held · 1:01" in text
    assert "\x1b" not in text
