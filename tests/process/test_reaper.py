"""What ends training processes when the runner dies, each means by itself."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

from radt.runner import gate, reaper
from tests.support.bench import alive, wait_until

#: Says its process id and that of a child in a session of its own, and stays.
STAYS = """
import os, subprocess, sys
if sys.argv[1:]:
    child = subprocess.Popen([sys.executable, __file__], start_new_session=True,
                             stdout=subprocess.PIPE)
    child.stdout.readline()
    print(os.getpid(), child.pid, flush=True)
else:
    print("up", flush=True)
os.read(os.pipe()[0], 1)
"""


def test_reaper_ends_groups_and_what_left_them_when_its_runner_is_gone(tmp_path: Path) -> None:
    script = tmp_path / "stays.py"
    script.write_text(STAYS, encoding="ascii")
    reaped, kept = uuid.uuid4().hex, uuid.uuid4().hex
    ended, forgotten = (
        subprocess.Popen(
            [sys.executable, str(script), "parent"],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=dict(os.environ, RADT_RUN_ID=run_id),
        )
        for run_id in (reaped, kept)
    )
    assert ended.stdout is not None
    assert forgotten.stdout is not None
    pids = [int(pid) for pid in ended.stdout.readline().split()]
    others = [int(pid) for pid in forgotten.stdout.readline().split()]
    runner = subprocess.Popen(
        [sys.executable, "-I", "-S", reaper.__file__], stdin=subprocess.PIPE, text=True
    )
    runner.communicate(
        f"+{ended.pid} {reaped}\n+{forgotten.pid} {kept}\n-{forgotten.pid}\n", timeout=60
    )
    try:
        ended.wait(30)
        wait_until(lambda: not any(alive(pid) for pid in pids), "the run's processes are gone")
        assert all(alive(pid) for pid in others), "a run that has ended is none of its business"
    finally:
        reaper.stop_processes_of(kept)
        forgotten.wait(30)


#: A runner that starts one gated command, releases it, and stays.
RUNNER = """
import os, subprocess, sys
ready, release = os.pipe(), os.pipe()
child = subprocess.Popen(
    [sys.executable, "-I", "-S", sys.argv[1], str(ready[1]), str(release[0]), str(os.getpid()),
     sys.executable, "-c", "import os; print(os.getpid(), flush=True); os.read(os.pipe()[0], 1)"],
    pass_fds=(ready[1], release[0]), start_new_session=True,
)
os.read(ready[0], 1)
os.close(release[1])
child.wait()
"""


def test_the_kernel_ends_a_gated_command_when_its_runner_is_gone() -> None:
    runner = subprocess.Popen(
        [sys.executable, "-c", RUNNER, gate.__file__], stdout=subprocess.PIPE, text=True
    )
    assert runner.stdout is not None
    pid = int(runner.stdout.readline())
    runner.kill()
    runner.wait()
    wait_until(lambda: not alive(pid), "the command is gone")
