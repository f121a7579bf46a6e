"""Waits at the entrance of `with radt.Run()` for the other rows of the workload.

The runner's side, and how they talk, is `radt.runner.barrier`. Imports the standard library
only. Whatever goes wrong, training goes on.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress

from radt.home import RUN_ID_VARIABLE
from radt.run.notices import warn_once

#: Path of the runner's socket; the same name as in `radt.runner.barrier`.
BARRIER_VARIABLE = "RADT_BARRIER"
#: The runner answers at once, unless it is stopped or something else listens there.
ANSWER_TIMEOUT_S = 30.0

#: Sockets at which this process has waited.
_visited: set[str] = set()


def wait_for_others() -> None:
    """Return when all rows of the workload have come here; at once where nobody waits.

    A process waits once. Signals are handled meanwhile, and may raise.
    """
    path = os.environ.get(BARRIER_VARIABLE, "")
    if not path or path in _visited:
        return
    _visited.add(path)
    try:
        _wait(path, os.environ.get(RUN_ID_VARIABLE, ""))
    except OSError as error:
        warn_once(
            "the run starts without the other rows of its workload: their barrier does not "
            f"answer ({error.strerror or error})"
        )


def _wait(path: str, run_id: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_TIMEOUT_S)
        connection.connect(path)
        connection.sendall(f"{run_id} {os.getpid()}\n".encode())
        _, descriptors, _, _ = socket.recv_fds(connection, 1, 1, socket.MSG_CMSG_CLOEXEC)
        if not descriptors:
            raise ConnectionRefusedError("it does not know this run")
        try:
            # Nothing is ever written to this pipe. Its end is the release of all rows at one
            # instant, or the runner's death.
            os.read(descriptors[0], 1)
            released_ns = time.monotonic_ns()
        finally:
            os.close(descriptors[0])
        with suppress(OSError):  # the runner may have gone; the release is what counts here
            connection.sendall(f"{released_ns}\n".encode())
