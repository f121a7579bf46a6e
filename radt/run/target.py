"""Find the run for a script's values (an existing one, a new one, or none), and start together.

On entering `with radt.Run()`, a row waits for the other rows of its workload; the runner's side is
`radt.runner.barrier`. Failures here never stop training. Imports only the standard library.
"""

from __future__ import annotations

import itertools
import os
import socket
import time
import uuid
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path

from radt.collector.manifest import has_ended
from radt.home import (
    BARRIER_VARIABLE,
    RUN_DIR_VARIABLE,
    RUN_ID_VARIABLE,
    VARIABLES_OF_A_RUN,
    Home,
    RunDir,
)
from radt.run.notices import warn_once
from radt.run.ranks import RankLaunch, Ranks, find_launch, number

MODE_VARIABLE = "RADT_MODE"
#: The runner's name for the run.
NAME_VARIABLE = "RADT_NAME"


class ProcessPart(Enum):
    """This process's role in the run, besides logging."""

    NONE = auto()  # there is no run: radt is switched off
    MEMBER = auto()  # nothing: a runner or an ancestor process begins and ends it
    RANK = auto()  # nothing: rank 0 on this machine begins and ends it
    OWNER = auto()  # begins and ends the run
    CHILD = auto()  # begins and ends the run within another one


@dataclass(frozen=True, slots=True)
class RunTarget:
    """A run, and what this process does for it.

    ``rank`` is None outside of distributed training. With a ``launch``, the other ranks are
    separate runs of the same workload, and ``name_suffix`` distinguishes this run from theirs.
    ``launched_by`` is the ended run in which this process was started, "" without one.
    """

    part: ProcessPart
    run_id: str
    run_dir: RunDir
    home: Home
    rank: int | None = None
    launch: RankLaunch | None = None
    name_suffix: str = ""
    launched_by: str = ""

    @classmethod
    def none(cls) -> RunTarget:
        """Return the target that records nothing."""
        return cls(ProcessPart.NONE, "", RunDir(Path()), Home(Path()))


#: Runs in which this process was started, and whether each was open when first checked. The process
#: continues to log to an open one even after its end.
_was_open: dict[str, bool] = {}


def switched_off(environ: Mapping[str, str] = os.environ) -> bool:
    """Return True for ``RADT_MODE=off``."""
    return environ.get(MODE_VARIABLE, "").strip().lower() == "off"


def inside_a_run(environ: MutableMapping[str, str] = os.environ) -> bool:
    """Return True if a runner or an ancestor process has a run open.

    Jobs and background processes may begin after the end of that run. They are not part of it, so
    its variables are removed.
    """
    run_id, folder = environ.get(RUN_ID_VARIABLE), environ.get(RUN_DIR_VARIABLE)
    if not run_id or switched_off(environ):
        return False
    if run_id not in _was_open:
        _was_open[run_id] = not (folder and has_ended(Path(folder)))
    if not _was_open[run_id]:
        for name in VARIABLES_OF_A_RUN:
            environ.pop(name, None)
    return _was_open[run_id]


def find_target(
    home: Path | str | None,
    ordinal: int,
    ranks: str | None = None,
    environ: MutableMapping[str, str] = os.environ,
) -> RunTarget:
    """Return where values go from now on.

    Args:
        home: The data folder for a new run; None for the default.
        ordinal: Number of runs that this process has owned before.
        ranks: A value of `Ranks`; None to use the variable.
        environ: The variables. Those of a run that has ended are removed.

    Raises:
        UsageError: ``ranks`` is not a value of `Ranks`.
    """
    data = Home.resolve(home, warn=warn_once)
    choice = Ranks.choose(ranks, environ)
    if switched_off(environ):
        return RunTarget.none()
    if inside_a_run(environ):
        run_id = environ[RUN_ID_VARIABLE]
        given = environ.get(RUN_DIR_VARIABLE)
        run_dir = RunDir(Path(given)) if given else data.run_dir(run_id)
        return RunTarget(ProcessPart.MEMBER, run_id, run_dir, data, number(environ, "RANK"))
    launch, run_id = find_launch(environ), uuid.uuid4().hex
    launched_by = next((before for before, was_open in _was_open.items() if not was_open), "")
    alone = RunTarget(
        ProcessPart.OWNER, run_id, data.run_dir(run_id), data, launched_by=launched_by
    )
    if launch is None:
        return alone
    joins = choice is Ranks.JOIN or (choice is Ranks.AUTO and launch.is_one_training(environ))
    # All ranks on this machine compute the same ids without communicating.
    for nth in itertools.count(ordinal):
        launch = replace(launch, ordinal=nth)
        run_id = launch.digest() if joins else launch.digest(launch.rank)
        if launch.takes_part(data, data.run_dir(run_id)):
            break
    alone = replace(alone, run_id=run_id, run_dir=data.run_dir(run_id))
    suffix = f" rank {launch.rank}"
    if not joins:
        return replace(alone, launch=launch, name_suffix=suffix)
    part = ProcessPart.RANK if launch.local_rank else ProcessPart.OWNER
    # On several nodes, joined ranks are one run per node.
    return replace(alone, part=part, rank=launch.rank, name_suffix=suffix if launch.rank else "")


#: The runner answers at once, unless it is stopped or another program listens there.
ANSWER_TIMEOUT_S = 30.0

#: Sockets at which this process has already waited.
_visited: set[str] = set()


def wait_for_others() -> None:
    """Wait for all rows of the workload to arrive here. Return at once if there is no barrier.

    A process waits only once. Signal handlers run meanwhile and may raise.
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
            # Nothing is ever written to this pipe. It closes when all rows are released at once, or
            # when the runner dies.
            os.read(descriptors[0], 1)
            released_ns = time.monotonic_ns()
        finally:
            os.close(descriptors[0])
        with suppress(OSError):  # the runner may be gone, but the row is released
            connection.sendall(f"{released_ns}\n".encode())
