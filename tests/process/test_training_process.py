"""One training process: barrier, output, signals, what it leaves behind. Real processes."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from radt.errors import LaunchError
from radt.runner.output import TAIL_BYTES, TAIL_LINES, last_lines
from radt.runner.process import Barrier, Exit, TrainingProcess
from tests.support.bench import wait_until

TIMEOUT_S = 180.0


class Started:
    """A process under test, with what it reported."""

    def __init__(self, command: list[str], folder: Path, barrier: Barrier, run_id: str) -> None:
        self.lines: list[str] = []
        self.exit: Exit | None = None
        self.ended = threading.Event()
        self.log = folder / "output.log"
        self.process = TrainingProcess(
            command,
            run_id=run_id,
            cwd=folder,
            env=dict(os.environ, RADT_RUN_ID=run_id),
            barrier=barrier,
            output_log=self.log,
            show=self.lines.append,
            on_exit=self._on_exit,
        )

    def _on_exit(self, exit_: Exit) -> None:
        self.exit = exit_
        self.ended.set()

    def result(self) -> Exit:
        assert self.ended.wait(TIMEOUT_S)
        assert self.exit is not None
        return self.exit


@pytest.fixture
def barrier() -> Iterator[Barrier]:
    made = Barrier()
    yield made
    made.close()


def python(source: str, *arguments: str) -> list[str]:
    return [sys.executable, "-u", "-c", source, *arguments]


def run(source: str, folder: Path, barrier: Barrier, *arguments: str) -> Started:
    started = Started(python(source, *arguments), folder, barrier, run_id=uuid.uuid4().hex)
    started.process.wait_ready(TIMEOUT_S)
    barrier.release()
    started.process.wait_released(TIMEOUT_S)
    return started


def test_nothing_runs_before_the_barrier_and_then_all_do(tmp_path: Path) -> None:
    barrier = Barrier()
    source = "import sys, pathlib; pathlib.Path(sys.argv[1]).touch()"
    rows = []
    for number in range(4):
        folder = tmp_path / str(number)
        folder.mkdir()
        rows.append(Started(python(source, "ran"), folder, barrier, uuid.uuid4().hex))
    for row in rows:
        row.process.wait_ready(TIMEOUT_S)
    assert list(tmp_path.glob("*/ran")) == []
    barrier.release()
    stamps_ns = [row.process.wait_released(TIMEOUT_S) for row in rows]
    barrier.close()
    assert [(row.result().code, row.result().leftovers) for row in rows] == [(0, 0)] * 4
    assert len(list(tmp_path.glob("*/ran"))) == 4
    assert max(stamps_ns) - min(stamps_ns) < TIMEOUT_S * 1e9


def test_hostile_arguments_arrive_as_they_are(tmp_path: Path, barrier: Barrier) -> None:
    hostile = ["a b", "'\"`$(touch bad)", "line\nbreak", "ünïcode 🚀", "", "--", "*"]
    source = "import sys, json; print(json.dumps(sys.argv[1:]))"
    started = run(source, tmp_path, barrier, *hostile)
    assert started.result().code == 0
    assert json.loads(started.log.read_text(encoding="utf-8")) == hostile
    assert not (tmp_path / "bad").exists()


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("raise SystemExit(3)", 3),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("import os; os.abort()", -6),
        ("pass", 0),
    ],
)
def test_how_it_ended(tmp_path: Path, barrier: Barrier, source: str, code: int) -> None:
    before_ns = time.monotonic_ns()
    result = run(source, tmp_path, barrier).result()
    assert (result.code, result.leftovers, result.keeper_died) == (code, 0, False)
    assert result.ended_ns is not None
    assert before_ns < result.ended_ns < time.monotonic_ns()


def test_missing_command_is_an_error_that_names_it(tmp_path: Path, barrier: Barrier) -> None:
    started = Started(["./no-such-command"], tmp_path, barrier, uuid.uuid4().hex)
    started.process.wait_ready(TIMEOUT_S)
    barrier.release()
    with pytest.raises(LaunchError, match=r"no-such-command cannot be executed: No such file"):
        started.process.wait_released(TIMEOUT_S)
    assert started.result().code == 127


def test_a_flood_of_lines_is_logged_whole_and_shown_in_part(
    tmp_path: Path, barrier: Barrier
) -> None:
    count = 100_000
    source = f"import sys; sys.stdout.write(''.join(f'line {{i}}\\n' for i in range({count})))"
    started = run(source, tmp_path, barrier)
    assert started.result().code == 0
    logged = started.log.read_bytes().split(b"\n")
    assert logged == [b"line %d" % number for number in range(count)] + [b""]
    assert len(started.lines) < count
    assert started.lines[-1] == f"line {count - 1}", "a burst is shown by its end"
    assert any("more lines, see output.log" in line for line in started.lines)


def test_binary_rubbish_is_logged_as_it_is_and_shown_harmlessly(
    tmp_path: Path, barrier: Barrier
) -> None:
    rubbish = bytes(range(256)) * 4 + b"\x1b[2J\x1b]0;title\x07done\nlast without end"
    source = f"import sys; sys.stdout.buffer.write({rubbish!r})"
    started = run(source, tmp_path, barrier)
    assert started.result().code == 0
    assert started.log.read_bytes() == rubbish
    assert not any(ord(character) < 32 for line in started.lines for character in line)
    assert started.lines[-1] == "last without end"


def test_a_progress_bar_shows_its_last_state(tmp_path: Path, barrier: Barrier) -> None:
    started = run(r"print('10 %\r50 %\r100 %')", tmp_path, barrier)
    assert started.result().code == 0
    assert started.lines == ["100 %"]


LEAVES_CHILDREN = """
import os, subprocess, sys
sleeper = [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"]
kept = os.pipe()
for own_session in (False, True):
    child = subprocess.Popen(
        sleeper, stdin=kept[0], stdout=subprocess.PIPE, start_new_session=own_session,
        pass_fds=[kept[1]],
    )
    child.stdout.readline()
    print(child.pid, flush=True)
os._exit(0)
"""


def test_children_left_behind_are_stopped_even_in_their_own_session(
    tmp_path: Path, barrier: Barrier
) -> None:
    started = run(LEAVES_CHILDREN, tmp_path, barrier)
    result = started.result()
    children = [int(line) for line in started.log.read_text(encoding="ascii").split()]
    assert (result.code, result.leftovers) == (0, 2)
    assert len(children) == 2
    assert not any(is_running(pid) for pid in children)


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_signal_reaches_the_whole_group(tmp_path: Path, barrier: Barrier) -> None:
    source = (
        "import os, sys, time\n"
        "child = os.fork()\n"
        "try:\n"
        "    sys.stdout.write('up\\n'); sys.stdout.flush()\n"
        "    os.read(os.pipe()[0], 1)\n"
        "except KeyboardInterrupt:\n"
        "    os.write(1, b'interrupted\\n')\n"
        "    if child: os.wait()\n"
        "    os._exit(7)\n"
    )
    started = run(source, tmp_path, barrier)
    while started.lines.count("up") < 2:
        assert not started.ended.wait(0.01), "it ended too early"
    started.process.signal(signal.SIGINT)
    assert started.result().code == 7
    assert started.log.read_text(encoding="ascii").count("interrupted") == 2


def test_output_is_read_on_although_its_log_cannot_be_made(
    tmp_path: Path, barrier: Barrier
) -> None:
    (tmp_path / "output.log").mkdir()
    started = run("print('x' * 1_000_000, flush=True); print('end')", tmp_path, barrier)
    assert started.result().code == 0
    assert "radt: output.log is incomplete: Is a directory" in started.lines
    assert started.lines[-1] == "end"


def test_the_tail_has_the_last_lines_cleaned(tmp_path: Path, barrier: Barrier) -> None:
    source = (
        "for i in range(1000): print('line', i)\n"
        "print('10 %\\r100 %\\n\\x1b[31mred\\x1b[0m\\tx\\nno end', end='')"
    )
    started = run(source, tmp_path, barrier)
    tail = started.result().tail
    assert tail == tuple(started.process.tail())
    assert tail[-4:] == ("line 999", "100 %", "red    x", "no end")
    assert len(tail) == TAIL_LINES
    assert tail[0] == f"line {1000 + 3 - TAIL_LINES}"


def test_the_last_lines_of_a_file_are_cleaned(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    assert last_lines(log, 100) == []
    log.touch()
    assert last_lines(log, 100) == []
    log.write_bytes(b"first\n10 %\r100 %\n\x1b[31mred\x1b[0m\tx\nno end")
    assert last_lines(log, 1000) == ["first", "100 %", "red    x", "no end"]
    assert last_lines(log, len("x\nno end")) == ["x", "no end"]


def test_the_tail_is_small_whatever_is_printed(tmp_path: Path, barrier: Barrier) -> None:
    source = "for i in range(1000): print(chr(97 + i % 26) * 9000)\nprint('x' * 1_000_000)"
    tail = run(source, tmp_path, barrier).result().tail
    assert tail[-1].startswith("xxx")
    assert 20 < len(tail) < 50
    tail = run("for i in range(1000): print('y' * 350)", tmp_path, Barrier()).result().tail
    assert (TAIL_BYTES / 351) - 1 < len(tail) <= TAIL_BYTES / 350


def test_the_tail_can_be_read_while_the_run_goes_on(tmp_path: Path, barrier: Barrier) -> None:
    os.mkfifo(tmp_path / "end")
    started = run("print('half', end='', flush=True); open('end').read()", tmp_path, barrier)
    wait_until(lambda: started.process.tail() == ["half"], "the output so far")
    (tmp_path / "end").write_text("", encoding="ascii")
    assert started.result().tail == ("half",)
