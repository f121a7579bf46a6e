"""The parent of a detached runner: writes into the runner's log how it ended, whatever the cause.

Started as a script with ``-I -S`` and imports only the standard library, because it lives as long
as the experiment. If it is killed itself, the runner continues, and only its exit code is lost.

    python -I -S supervisor.py COMMAND…
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

#: Background processes of shells and schedulers ignore these, but `radt stop` needs them.
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LAST_LINE = re.compile(r"radt: (?:ended with exit code|killed by signal) (\d+) at .*")
_EXIT_CODE, _SIGNAL = "ended with exit code", "killed by signal"


def last_line(code: int) -> str:
    """Return a line on how the runner ended; ``code`` is negative for a signal."""
    how = f"{_EXIT_CODE} {code}" if code >= 0 else f"{_SIGNAL} {-code}"
    return f"radt: {how} at {time.strftime('%Y-%m-%d %H:%M:%S')}"


def exit_code(line: str) -> int | None:
    """Return the exit code from a log's last line, 128 + N for signal N; None for other lines."""
    match = _LAST_LINE.fullmatch(line.strip())
    if match is None:
        return None
    return int(match[1]) + (128 if _SIGNAL in line else 0)


def main(command: list[str]) -> int:
    """Run the command with this process's output; returns an exit code like its own."""
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    code = subprocess.Popen(command, stdin=subprocess.DEVNULL).wait()
    try:
        os.write(sys.stdout.fileno(), f"{last_line(code)}\n".encode())
    except OSError:
        pass  # a full disk: the exit code is lost
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
