"""What is made of the ends and words of profilers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from radt.lifetime import Wait
from radt.model import RunStatus
from radt.runner import exit_recorder
from radt.runner.active import ActiveRun, Escalation, StopRequest
from radt.runner.command import NOTE, PATIENCE_S, Profiling, profiler_error
from radt.runner.follow import WorkloadFollower
from radt.runner.outcome import RunEnd
from radt.runner.process import Exit
from radt.runner.progress import RowProgress
from tests.support.bench import wait_until


@pytest.fixture
def profiling(tmp_path: Path) -> Profiling:
    (tmp_path / "artifacts" / "profiles").mkdir(parents=True)
    return Profiling("ncu", ("ncu",), {}, (), tmp_path / NOTE)


def under_exit_recorder(note: Path, *command: str) -> list[str]:
    return [sys.executable, "-I", "-S", exit_recorder.__file__, str(note), *command]


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 3", 3), ("kill -TERM $$", -15), ("kill -KILL $$", -9)],
)
def test_the_exit_recorder_ends_as_the_program_did(tmp_path: Path, script: str, code: int) -> None:
    note = tmp_path / "note"
    done = subprocess.run(under_exit_recorder(note, "sh", "-c", script), check=False)

    assert done.returncode == code
    assert note.read_text().split()[0] == str(code)
    assert [path.name for path in tmp_path.iterdir()] == ["note"]


def test_the_exit_recorder_leaves_signals_to_the_program(tmp_path: Path) -> None:
    note, ready = tmp_path / "note", tmp_path / "ready"
    script = f"trap 'exit 7' INT; trap '' TERM; touch '{ready}'; while :; do sleep 0.05; done"
    process = subprocess.Popen(
        under_exit_recorder(note, "sh", "-c", script), start_new_session=True
    )
    wait_until(ready.exists, "the program runs")
    process.send_signal(signal.SIGTERM)  # to the exit recorder alone
    os.killpg(process.pid, signal.SIGTERM)
    os.killpg(process.pid, signal.SIGINT)

    assert process.wait(180) == 7
    assert note.read_text().split()[0] == "7"


def test_the_exit_recorder_of_what_cannot_be_executed(tmp_path: Path) -> None:
    done = subprocess.run(
        under_exit_recorder(tmp_path / "note", str(tmp_path / "none")),
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 127
    assert "none cannot be executed: No such file" in done.stderr
    assert (tmp_path / "note").read_text().split()[0] == "127"


def test_whose_end_it_was(profiling: Profiling) -> None:
    finished, failed = RunEnd(RunStatus.FINISHED), RunEnd(RunStatus.FAILED, "exit code 1")
    killed = RunEnd(RunStatus.KILLED, "killed by SIGKILL")

    nobody_saw = profiling.ending(finished, Exit(0, ended_ns=10), [])
    assert nobody_saw.reason == "ncu ended before the program did (exit code 0)"
    assert profiling.ending(killed, Exit(-9, ended_ns=10), []) == killed  # all of it was killed
    profiling.note.write_text("-15 11")
    assert profiling.ending(killed, Exit(0, ended_ns=10), []).status is RunStatus.FAILED
    profiling.note.write_text("1 9")
    assert profiling.ending(failed, Exit(1, ended_ns=10), []) == failed
    shut_down = ["==ERROR== no space", "==PROF== Trying to shutdown target application"]
    assert profiling.ending(killed, Exit(9, ended_ns=10), shut_down).reason == (
        "ncu ended it: no space"
    )
    assert profiling.ending(finished, Exit(0, ended_ns=10), shut_down) == finished


def test_what_a_profiler_has_not_done(profiling: Profiling) -> None:
    profiling.note.write_text("0 9")
    assert profiling.problem(Exit(0), []) == "ncu wrote no report"
    (profiling.note.parent / "artifacts/profiles/r.ncu-rep").write_text("x")
    assert profiling.problem(Exit(0), ["==ERROR== something"]) == ""
    assert profiling.problem(Exit(1), ["==ERROR== something"]) == "ncu: something"
    profiling.note.write_text("1 9")
    assert profiling.problem(Exit(1), ["==ERROR== the program's"]) == ""


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        (["==ERROR== ERR_NVGPUCTRPERM - The user does not have"], "NVreg_RestrictProfiling"),
        (
            [
                "==ERROR== Profiling failed because a driver resource was unavailable. Ensure that "
                "no other tool (like DCGM) is concurrently collecting profiling data."
            ],
            "another profiler or DCGM is reading the GPU's counters",
        ),
        (["==WARNING== No kernels were profiled."], "no kernel ran"),
        (["unrecognised option '--wait'", "", "usage: nsys profile"], "unrecognised option"),
        (["==ERROR== The application returned an error code (1)."], ""),
        (["an error in the script", "ValueError: no"], ""),
    ],
)
def test_their_own_words(tail: list[str], expected: str) -> None:
    found = profiler_error(tail)
    assert expected in found and bool(expected) == bool(found)


def test_patience_comes_before_insisting(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr("radt.runner.active.time.monotonic", lambda: now_s)
    patient, usual = Escalation(signal.SIGINT, patience_s=100.0), Escalation(signal.SIGINT)
    assert patient.next_signal() == usual.next_signal() == signal.SIGINT
    now_s += 30
    assert (patient.next_signal(), usual.next_signal()) == (None, signal.SIGTERM)
    now_s += 90
    assert patient.next_signal() is signal.SIGTERM
    patient.kill_now()
    assert patient.is_hurried and patient.next_signal() is signal.SIGKILL


def test_a_report_is_not_timed(profiling: Profiling) -> None:
    """The program was in time; what comes after it is the profiler's."""
    recorded = SimpleNamespace(plan=SimpleNamespace(timeout_s=1.0))
    row = ActiveRun(
        recorded=cast(Any, recorded),
        progress=RowProgress("a", "row", started_monotonic_s=time.monotonic() - 10),
        startable=cast(Any, SimpleNamespace(profiling=profiling)),
        process=cast(Any, object()),
    )
    profiling.note.write_text("0 9")
    row.check_time()
    assert not row.timed_out and row.escalation is None
    profiling.note.unlink()
    row.check_time()
    assert row.timed_out
    assert row.escalation is not None and row.escalation.patience_s == PATIENCE_S


def test_a_profiled_row_is_not_insisted_on_like_others_until_the_user_does(
    profiling: Profiling, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr("radt.runner.active.time.monotonic", lambda: now_s)
    rows = {
        name: ActiveRun(
            recorded=cast(Any, None),
            progress=RowProgress("a", name),
            startable=cast(Any, SimpleNamespace(profiling=found)),
            process=cast(Any, object()),
        )
        for name, found in (("profiled", profiling), ("plain", None))
    }
    names = {id(row): name for name, row in rows.items()}
    sent: list[tuple[str, str]] = []
    stop = StopRequest()
    workload = SimpleNamespace(
        stop=stop,
        rows=list(rows.values()),
        context=SimpleNamespace(options=SimpleNamespace(wait=Wait.NO)),
        progress=SimpleNamespace(activity=""),
        signal=lambda row, number: sent.append((names[id(row)], number.name)),
    )
    follower = WorkloadFollower(cast(Any, workload))

    stop.request(signal.SIGTERM)
    follower._send_signals()
    assert sorted(sent) == [("plain", "SIGTERM"), ("profiled", "SIGINT")]
    sent.clear()
    now_s += 30
    follower._send_signals()
    assert sent == [("plain", "SIGKILL")]
    sent.clear()
    stop.request(signal.SIGTERM)
    follower._send_signals()
    assert sorted(sent) == [("plain", "SIGKILL"), ("profiled", "SIGKILL")]
