"""The exit recorder: runs a command and records how it ended, whatever the cause.

Run as ``python -I -S exit_recorder.py NOTE COMMAND…``; with ``-`` as NOTE it writes a line on
standard output instead of a file. It is

* between a profiler and the program. A profiler's exit code says little about the program: the
  profiler may fail to write its report after a program that succeeded, or succeed although it
  killed the program.
* the parent of a detached runner, whose log it ends (`radt.runner.detach`). If it is killed itself,
  the runner continues, and only its exit code is lost.

Imports nothing of radt, which ``-I -S`` makes unavailable, and little else: it lives as long as the
command.
"""

import os
import signal
import sys
import time

#: Ignored here: the command gets them, too, and decides how to react. Background processes of
#: shells and schedulers ignore them, but `radt stop` needs them, so they are reset for the command.
HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
#: Python ignores these by default; reset them, so that the command decides.
IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
EXIT_NOT_EXECUTABLE = 127
#: Stands for standard output.
OUTPUT = "-"
_EXIT_CODE, _SIGNAL = "ended with exit code", "killed by signal"


def main(note: str, command: list[str]) -> None:
    """Run the command, note how and when it ended, and end as it did.

    The note holds its exit code, negative for a signal, and the monotonic time in ns.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
    for number in HEARD:
        signal.signal(number, lambda *_: None)
    try:
        pid = os.posix_spawnp(
            command[0], command, os.environ, setsigmask=(), setsigdef=(*HEARD, *IGNORED)
        )
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be executed: {error.strerror}\n")
        write(note, EXIT_NOT_EXECUTABLE)
        sys.exit(EXIT_NOT_EXECUTABLE)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    write(note, code)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code if code >= 0 else 128 - code)


def write(note: str, code: int) -> None:
    """Write the note atomically, or the line."""
    if note == OUTPUT:
        try:
            os.write(sys.stdout.fileno(), f"{last_line(code)}\n".encode())
        except OSError:
            pass  # a full disk: the exit code is lost
        return
    with open(note + ".part", "w", encoding="ascii") as file:  # noqa: PTH123 - saves an import
        file.write(f"{code} {time.monotonic_ns()}")
    os.replace(note + ".part", note)  # noqa: PTH105


def last_line(code: int) -> str:
    """Return a line on how the command ended; ``code`` is negative for a signal."""
    how = f"{_EXIT_CODE} {code}" if code >= 0 else f"{_SIGNAL} {-code}"
    return f"radt: {how} at {time.strftime('%Y-%m-%d %H:%M:%S')}"


def exit_code(line: str) -> int | None:
    """Return the exit code from a log's last line, 128 + N for signal N; None for other lines."""
    import re  # not needed by the program

    match = re.fullmatch(rf"radt: (?:{_EXIT_CODE}|{_SIGNAL}) (\d+) at .*", line.strip())
    if match is None:
        return None
    return int(match[1]) + (128 if _SIGNAL in line else 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
