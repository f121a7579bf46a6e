"""Find where a script's values go (a run that exists, a new one, or nowhere), and start together.

At the entrance of `with radt.Run()` a row waits for the other rows of its workload; the runner's
side is `radt.runner.barrier`. Whatever goes wrong, training goes on. Imports the standard library
only.
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
from radt.home import RUN_DIR_VARIABLE, RUN_ID_VARIABLE, VARIABLES_OF_A_RUN, Home, RunDir
from radt.run.notices import warn_once
from radt.run.ranks import Launch, Ranks, find_launch, number

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
    """A run and this process's part in it.

    ``rank`` is None outside of distributed training. With a ``launch`` the other ranks of it are
    runs of their own, and together they are a workload. ``name_suffix`` distinguishes the run from
    theirs. ``launched_by`` is the ended run that this process was started in, "" without one.
    """

    part: Part
    run_id: str
    run_dir: RunDir
    home: Home
    rank: int | None = None
    launch: Launch | None = None
    name_suffix: str = ""
    launched_by: str = ""

    @classmethod
    def none(cls) -> Target:
        """Return the target of what is not recorded."""
        return cls(Part.NONE, "", RunDir(Path()), Home(Path()))


#: Runs that this process was started in, by whether they were open when it first asked. It goes on
#: in those even after their end.
_was_open: dict[str, bool] = {}


def switched_off(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether ``RADT_MODE=off``."""
    return environ.get(MODE_VARIABLE, "").strip().lower() == "off"


def inside_a_run(environ: MutableMapping[str, str] = os.environ) -> bool:
    """Return whether a runner, or a process that this one descends from, has a run open.

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
) -> Target:
    """Return where values go from now on.

    Args:
        home: The data folder for a new run; None for the usual one.
        ordinal: How many runs this process has owned before.
        ranks: A value of `Ranks`; None for what the variable says.
        environ: The variables; those of a run that has ended are removed.

    Raises:
        UsageError: ``ranks`` is something else.
    """
    data = Home.resolve(home, warn=warn_once)
    choice = Ranks.choose(ranks, environ)
    if switched_off(environ):
        return Target(Part.NONE, "", RunDir(Path()), data)
    if inside_a_run(environ):
        run_id = environ[RUN_ID_VARIABLE]
        given = environ.get(RUN_DIR_VARIABLE)
        run_dir = RunDir(Path(given)) if given else data.run_dir(run_id)
        return Target(Part.MEMBER, run_id, run_dir, data, number(environ, "RANK"))
    launch, run_id = find_launch(environ), uuid.uuid4().hex
    alone = Target(Part.OWNER, run_id, data.run_dir(run_id), data, launched_by=_launched_by())
    if launch is None:
        return alone
    joins = choice is Ranks.JOIN or (choice is Ranks.AUTO and launch.is_one_training(environ))
    # Ranks of this machine derive the same ids, without a word between them.
    for nth in itertools.count(ordinal):
        launch = replace(launch, ordinal=nth)
        run_id = launch.digest() if joins else launch.digest(launch.rank)
        if launch.takes_part(data, data.run_dir(run_id)):
            break
    alone = replace(alone, run_id=run_id, run_dir=data.run_dir(run_id))
    suffix = f" rank {launch.rank}"
    if not joins:
        return replace(alone, launch=launch, name_suffix=suffix)
    part = Part.RANK if launch.local_rank else Part.OWNER
    # On several nodes, joined ranks are a run for each.
    return replace(alone, part=part, rank=launch.rank, name_suffix=suffix if launch.rank else "")


def _launched_by() -> str:
    return next((run_id for run_id, was_open in _was_open.items() if not was_open), "")


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
