"""The exit recorder: runs between a profiler and the program, and records how the program ended.

Run as ``python -I -S exit_recorder.py NOTE COMMAND…``. A profiler's exit code says little about the
program: the profiler may fail to write its report after a program that succeeded, or succeed
although it killed the program. Imports nothing of radt, which ``-I -S`` makes unavailable.
"""

import os
import signal
import sys
import time

#: Ignored here: the program gets them, too, and decides how to react.
HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
#: Python ignores these by default; reset them, so that the program decides.
IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
EXIT_NOT_EXECUTABLE = 127


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
    """Write the note atomically."""
    with open(note + ".part", "w", encoding="ascii") as file:  # noqa: PTH123 - saves an import
        file.write(f"{code} {time.monotonic_ns()}")
    os.replace(note + ".part", note)  # noqa: PTH105


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
