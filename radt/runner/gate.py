"""The barrier's gate: stands in for a training process until all of its workload are ready.

Run as ``python -I -S gate.py READY_FD RELEASE_FD RUNNER_PID COMMAND...`` and imports next to
nothing, so that it is up in milliseconds. It

1. asks the kernel to be killed when the runner dies (kept across exec),
2. says ready: one byte to READY_FD,
3. waits until RELEASE_FD is at its end, which the runner brings about for all rows at once by
   closing one pipe,
4. writes the monotonic time to READY_FD (8 bytes, native order) and becomes the command.

If the command cannot be executed, READY_FD also gets ``errno`` (4 bytes): exec closes the pipe
otherwise, so the runner can tell.
"""

import ctypes
import os
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
READY = b"r"
#: Exit code of a gate whose command could not be executed, as shells use it.
EXIT_NOT_EXECUTABLE = 127


def main(argv: list[str]) -> int:
    """See the module's text."""
    ready_fd, release_fd, runner_pid = int(argv[0]), int(argv[1]), int(argv[2])
    command = argv[3:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != runner_pid:  # it died before the kernel was asked
        return 1
    # A shell that starts radt in the background has SIGINT ignored; the run must still get it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.write(ready_fd, READY)
    os.read(release_fd, 1)
    released_ns = time.monotonic_ns()
    os.set_inheritable(ready_fd, False)
    os.close(release_fd)
    os.write(ready_fd, released_ns.to_bytes(8, sys.byteorder))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(ready_fd, (error.errno or 0).to_bytes(4, sys.byteorder))
        return EXIT_NOT_EXECUTABLE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
