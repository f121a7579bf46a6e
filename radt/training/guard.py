"""``python -m radt.training.guard FOLDER SCRIPT …``: restart a script when its process is lost.

One job can take down all others of its process: an illegal memory access on the GPU destroys the
CUDA context of all jobs, and a crash in native code ends the process. The guard then restarts the
script, whose `MultiTrainer` continues from the checkpoint folder; the job that was running has
failed. So there is at most one restart per job.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from radt.processes import die_with_parent

#: Files in the checkpoint folder: the name of the running job, and of the one that ended a process.
RUNNING, _LOST = "running", "lost"
#: Signals that end a process on purpose.
_ON_PURPOSE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def lost_job(folder: Path) -> str:
    """Return the job that ended the previous process, until `forget_lost`; "" if none did."""
    return _name_in(folder / _LOST)


def forget_lost(folder: Path) -> None:
    """Forget the job that ended the previous process, once its state says so."""
    (folder / _LOST).unlink(missing_ok=True)


def guard(folder: Path, command: Sequence[str]) -> int:
    """Run a command, and restart it whenever a job ended its process. Return the last exit code."""
    while True:
        (folder / RUNNING).unlink(missing_ok=True)
        code = _run(command)
        name = _name_in(folder / RUNNING)
        if code == 0 or not name or -code in _ON_PURPOSE:
            return code
        sys.stderr.write(f"job {name} ended its process (exit code {code}); the others go on\n")
        (folder / RUNNING).replace(folder / _LOST)


def _name_in(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.exists() else ""


def _run(command: Sequence[str]) -> int:
    # `preexec_fn` is safe here because the guard has only one thread.
    with subprocess.Popen(command, preexec_fn=die_with_parent) as process:

        def forward(number: int, frame: FrameType | None) -> None:
            del frame
            process.send_signal(number)

        before = {number: signal.signal(number, forward) for number in _ON_PURPOSE}
        try:
            return process.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and guard."""
    parser = argparse.ArgumentParser(
        prog="python -m radt.training.guard",
        description="Start a script again when a job of its MultiTrainer ends its process.",
    )
    parser.add_argument("folder", type=Path, help="the checkpoint folder of its MultiTrainer")
    parser.add_argument("script", help="the Python script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    options = parser.parse_args(arguments)
    code = guard(options.folder, [sys.executable, options.script, *options.arguments])
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
