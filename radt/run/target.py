"""Find where a script's values go (a run that exists, a new one, or nowhere), and start together.

At the entrance of `with radt.Run()` a row waits for the other rows of its workload; the runner's
side is `radt.runner.barrier`. Whatever goes wrong, training goes on. Imports the standard library
only.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from radt.home import RUN_DIR_VARIABLE, RUN_ID_VARIABLE, Home, RunDir
from radt.procfs import boot_id, start_ticks
from radt.run.notices import warn_once

MODE_VARIABLE = "RADT_MODE"
#: Where the runner says what people call the run.
NAME_VARIABLE = "RADT_NAME"


class Part(Enum):
    """What this process does for the run besides logging."""

    NONE = auto()  # there is no run: radt is switched off
    MEMBER = auto()  # nothing: a runner, or a process above this one, begins and ends it
    RANK = auto()  # nothing: rank 0, beside this one, begins and ends it
    OWNER = auto()  # it begins and ends the run
    CHILD = auto()  # it begins and ends the run within another one


@dataclass(frozen=True, slots=True)
class Target:
    """A run and this process's part in it. ``rank`` is None outside of distributed training."""

    part: Part
    run_id: str
    run_dir: RunDir
    home: Home
    rank: int | None = None

    @classmethod
    def none(cls) -> Target:
        """Return the target of what is not recorded."""
        return cls(Part.NONE, "", RunDir(Path()), Home(Path()))


def switched_off(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether ``RADT_MODE=off``."""
    return environ.get(MODE_VARIABLE, "").strip().lower() == "off"


def inside_a_run(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether a runner, or a process that this one descends from, has a run open."""
    return bool(environ.get(RUN_ID_VARIABLE)) and not switched_off(environ)


def find_target(
    home: Path | str | None, ordinal: int, environ: Mapping[str, str] = os.environ
) -> Target:
    """Return where values go from now on.

    Args:
        home: The data folder for a new run; None for the usual one.
        ordinal: How many runs this process has owned before.
    """
    data = Home.resolve(home, warn=warn_once)
    if switched_off(environ):
        return Target(Part.NONE, "", RunDir(Path()), data)
    rank = _number(environ, "RANK")
    if inside_a_run(environ):
        run_id = environ[RUN_ID_VARIABLE]
        given = environ.get(RUN_DIR_VARIABLE)
        run_dir = RunDir(Path(given)) if given else data.run_dir(run_id)
        return Target(Part.MEMBER, run_id, run_dir, data, rank)
    part, run_id = Part.OWNER, uuid.uuid4().hex
    if rank is not None and (_number(environ, "WORLD_SIZE") or 1) > 1:
        # Ranks that one launcher started on this machine are one run, without a word between them.
        run_id = _id_of_ranks(environ, ordinal)
        local_rank = _number(environ, "LOCAL_RANK")
        part = Part.RANK if (rank if local_rank is None else local_rank) else Part.OWNER
    return Target(part, run_id, data.run_dir(run_id), data, rank)


def _id_of_ranks(environ: Mapping[str, str], ordinal: int) -> str:
    launcher = os.getppid()
    parts = (
        boot_id(),
        launcher,
        start_ticks(launcher),
        environ.get("MASTER_ADDR", ""),
        environ.get("MASTER_PORT", ""),
        environ.get("TORCHELASTIC_RESTART_COUNT", ""),
        ordinal,
    )
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "").strip()
    return int(text) if text.isascii() and text.isdigit() else None


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
