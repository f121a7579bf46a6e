"""``radt selftest`` as users call it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from tests.support.bench import Bench, wait_until


def test_a_whole_selftest(bench: Bench) -> None:
    done = bench.radt(
        *("selftest", "--pairs", "1", "--seconds", "0.2", "--seed", "7", "--listeners", "top"),
        *("--format", "json", "--output", "result.json"),
        code=None,
    )
    assert "result.json" in done.stdout, done.stderr
    found = json.loads((bench.folder / "result.json").read_text(encoding="utf-8"))
    assert found["schema"] == "radt.selftest/1"
    assert found["options"] == {"pairs": 1, "seconds": 0.2, "listeners": "top", "seed": 7}
    assert found["machine"]["cpus"] == len(os.sched_getaffinity(0))
    findings = {one["key"]: one for one in found["findings"]}
    rest = {
        *("fsync", "import", "log_metric.median", "log_metric.p99", "log_metric.worst"),
        *(f"sampling_{rate}hz.{what}" for rate in (1, 10) for what in ("cpu", "memory")),
        *(f"sampling_{rate}hz.{what}" for rate in (1, 10) for what in ("missed", "late")),
        *("listener.top", "start_skew", "between"),
        *("slowdown.cpu", "added.cpu", "tracker.cpu"),
    }
    assert set(findings) == rest
    assert [one["failure"] for one in findings.values() if one["failure"]] == []
    assert all(one["value"] is not None for one in findings.values())
    assert findings["slowdown.cpu"]["verdict"] == "cannot tell"  # of one pair
    assert findings["added.cpu"]["value"] > 0
    assert findings["log_metric.median"]["value"] > 0
    assert findings["sampling_1hz.cpu"]["value"] > 0
    assert found["raw"]["pairs"][0]["with_radt"]["tracker_s"] > 0
    missed = any(one["verdict"] == "missed" for one in findings.values())
    assert (done.returncode == 0) == (not missed) == found["passed"]
    # Nothing of the user's was used, and nothing is left.
    assert [path.name for path in bench.folder.iterdir()] == ["result.json"]
    assert list(Path(bench.env["RADT_RUNTIME_DIR"]).iterdir()) == []


def test_ctrl_c_leaves_nothing(bench: Bench) -> None:
    process = bench.start("selftest", "--pairs", "50")
    wait_until(lambda: list(bench.folder.glob(".radt-selftest-*/radt.db")), "it measures")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert list(bench.folder.iterdir()) == []


def test_mistakes_are_said_before_a_minute_is_spent(bench: Bench) -> None:
    assert "'topp' is no listener" in bench.radt("selftest", "-l", "topp", code=2).stderr
    assert "profiler" in bench.radt("selftest", "-l", "nsys", code=2).stderr
    assert "no folder" in bench.radt("selftest", "-o", "nowhere/x.json", code=2).stderr
    assert bench.radt("selftest", "--pairs", "-1", code=2).stderr
    assert list(bench.folder.iterdir()) == []
