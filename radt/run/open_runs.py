"""Track the runs that are open in this process, and which of them is current.

A block joins the run of the block around it, if that is in the same thread and the same task. Any
other block is a new run. *Current* is the run of the innermost block of the context
(`contextvars`), so that threads and tasks have their own. In a context without one (a data loader's
thread, a callback, the next cell of a notebook), it is the only open run of the process, if there
is just one.

Under a runner, and in processes that a run started, the existing run belongs to the first block;
further blocks are its children.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import NamedTuple, Protocol

from radt.errors import cut, described, text_of
from radt.home import RUN_ID_VARIABLE, RunDir
from radt.journal.format import EventKind
from radt.journal.writer import LogScalar
from radt.model import RunStatus
from radt.run.backends import Joined, Off, Standalone
from radt.run.exits import exit_of_process, watch_exit
from radt.run.history import History
from radt.run.instruments import Instruments
from radt.run.limits import LimitReached
from radt.run.notices import guarded, warn_once
from radt.run.parameters import read_parameters
from radt.run.standalone import RunOptions, is_quiet, parse_listeners
from radt.run.target import ProcessPart, RunTarget, find_target, inside_a_run
from radt.run.torch_options import TorchWishes
from radt.run.uploads import Terminated, fail_exit, finish_uploads, ignore_termination


class Joining(Enum):
    """Which existing run a new block joins."""

    ENCLOSING = auto()  # the run of the block around it
    PROCESS = auto()  # also the run of the process, instead of becoming its child
    NONE = auto()


class Handle(Protocol):
    """A `radt.Run` that logs to an open run."""

    log_metric: LogScalar


class Place(NamedTuple):
    """Where a block was entered. ``task`` is None outside of any asyncio task."""

    pid: int
    thread: int
    task: object = None

    @classmethod
    def here(cls) -> Place:
        task = None
        asyncio = sys.modules.get("asyncio")
        if asyncio is not None and "ipykernel" not in sys.modules:  # its cells are tasks
            try:
                task = asyncio.current_task()
            except (RuntimeError, AttributeError):
                pass  # no event loop runs here, or asyncio is being imported
        return cls(os.getpid(), threading.get_ident(), task)


@dataclass(slots=True, eq=False)
class OpenRun:
    """A run that is open in this process.

    Attributes:
        backend: Where its values go.
        place: Where its outermost block was entered.
        parent: The run that it is a child of; None for none.
        owner: The open run whose end ends it; None for none.
        depth: Number of its open blocks, each of which has a handle.
        instruments: Measures from inside, and watches the limits.
        history: State for scripts that log in W&B's style.
        is_session: True if `radt.init` began it.
    """

    backend: Off
    place: Place
    parent: Off | None = None
    owner: OpenRun | None = None
    depth: int = 0
    handles: list[Handle] = field(default_factory=list)
    history: History = field(default_factory=History)
    ended: bool = False
    is_session: bool = False
    instruments: Instruments = field(init=False)

    def __post_init__(self) -> None:
        self.instruments = Instruments(self.backend.journal)

    @property
    def target(self) -> RunTarget:
        return self.backend.target

    @property
    def enclosing(self) -> OpenRun | None:
        """The parent run as it is open in this process; None without a parent."""
        if self.parent is None:
            return None
        blocks = (open_run for open_run in _process.open if open_run.backend is self.parent)
        return next(blocks, None) or OpenRun(self.parent, self.place)

    @property
    def files(self) -> RunDir | None:
        """The folder for the run's files; None if they are not recorded."""
        return self.target.run_dir if self.backend.recorded else None

    @property
    def is_own(self) -> bool:
        """True if this process began the run."""
        return isinstance(self.backend, Standalone)


class _Process:
    """The runs that this process has opened or joined."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.open: list[OpenRun] = []
        #: Runs that other processes end: one backend per run, however many blocks are opened.
        self.joined: dict[str, Joined] = {}
        self.owned = 0
        self.ends_at_exit = False
        #: Environment variables as they were before this process's runs set them.
        self.outer: dict[str, str | None] = {}

    def publish(self) -> None:
        """Set the variables by which processes that the script starts join its run.

        A variable stays unset if its value differs between open runs, as no child process could
        tell which one it belongs to.
        """
        for name, value in self.outer.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self.outer.clear()
        wanted = [r.backend.environment for r in self.open if r.backend.environment]
        for name, value in wanted[0].items() if wanted else ():
            if all(variables.get(name) == value for variables in wanted):
                self.outer[name] = os.environ.get(name)
                os.environ[name] = value

    def withdraw(self) -> None:
        """Restore the variables that the process was started with."""
        kept, self.open = self.open, []
        self.publish()
        self.open = kept


_process = _Process()
_current: ContextVar[OpenRun | None] = ContextVar("radt_run", default=None)


def _after_fork() -> None:
    """Make a forked child treat the open runs as a spawned one does: as started by its parent."""
    _process.lock = threading.RLock()
    _process.open, _process.outer = [], {}
    for joined in _process.joined.values():
        joined.usage = {}  # the parent waits for it and accounts for it then
        joined.has_had_block = False


os.register_at_fork(after_in_child=_after_fork)


# Which run ------------------------------------------------------------------------------------


def current(*, warns: bool = False) -> OpenRun | None:
    """Return the run of this context, or the only one that is open in this process.

    Args:
        warns: Warn if the run is ambiguous.
    """
    open_run = _current.get()
    if open_run is not None and not open_run.ended:
        return open_run
    runs = [open_run for open_run in _process.open if open_run.parent is None]
    if len(runs) > 1:
        runs = [open_run for open_run in runs if not open_run.is_own][:1]
        if not runs and warns:
            warn_once(
                "several runs are open in this process, and none of them in thread "
                f"{threading.current_thread().name!r}: what it logs is not recorded. Give it the "
                "run object, or start it with contextvars.copy_context().run"
            )
    return runs[0] if runs else None


def make_current(open_run: OpenRun | None) -> OpenRun | None:
    """Make a run current in this context. Return the previous one."""
    before = _current.get()
    _current.set(open_run)
    return before


def make_former(open_run: OpenRun, before: OpenRun | None) -> None:
    """Restore the previous run of this context, if ``open_run`` is still current."""
    if _current.get() is open_run:
        _current.set(before)


def belongs_to_a_run() -> bool:
    """Return True if a runner or an ancestor process has a run open for this process."""
    return inside_a_run() and not any(r.is_own and r.parent is None for r in _process.open)


def of_process() -> OpenRun | None:
    """Return the current run, or the one that this process belongs to; None without one.

    Does not open a block.
    """
    with _process.lock:
        open_run = current()
        if open_run is None and belongs_to_a_run():
            open_run = OpenRun(_joined(_target(RunOptions())), Place.here())
        return open_run


def _target(options: RunOptions) -> RunTarget:
    """Return where values go from now on. The target of a joined run is looked up only once."""
    known = _process.joined.get(os.environ.get(RUN_ID_VARIABLE, ""))
    if known is not None and inside_a_run():
        return known.target
    return find_target(options.home, _process.owned, options.ranks)


def _joined(target: RunTarget) -> Joined:
    if target.run_id not in _process.joined:
        _process.joined[target.run_id] = Joined(target)
    return _process.joined[target.run_id]


# Blocks ---------------------------------------------------------------------------------------


def enter(options: RunOptions, joining: Joining = Joining.ENCLOSING) -> OpenRun:
    """Open a block: join the run of the block around it or of the process, or begin one.

    Raises:
        UsageError: An option is not valid.
    """
    place = Place.here()
    with _process.lock:
        open_run = None if joining is Joining.NONE else _enclosing(place)
        is_begun = False
        if open_run is None:
            # Raise for the caller's mistakes before anything begins.
            TorchWishes.find(options.torch, parse_listeners(options.listeners), RunDir(Path()))
            try:
                open_run = _begin(options, place, joining)
                _process.open.append(open_run)
            finally:
                _process.publish()
            open_run.is_session = options.is_session
            is_begun = open_run.target.part in (ProcessPart.OWNER, ProcessPart.CHILD)
        open_run.depth += 1
    if options.params is not None and not is_begun:  # otherwise the run's first rows have them
        values = read_parameters(options.params)
        open_run.backend.journal.say(EventKind.PARAMS, values=values)
    return open_run


def _enclosing(place: Place) -> OpenRun | None:
    open_run = _current.get()
    if open_run is not None and not open_run.ended and open_run.place == place:
        return open_run
    blocks = (r for r in reversed(_process.open) if r.place == place and r.owner is None)
    return next(blocks, None)


def _begin(options: RunOptions, place: Place, joining: Joining) -> OpenRun:
    outer = _current.get()
    is_inside = outer is not None and not outer.ended and outer.place.pid == place.pid
    if outer is not None and is_inside and outer.place != place:  # another thread or task
        return _child(outer.backend, options, place)
    _process.withdraw()
    target = RunTarget.none() if options.is_off else _target(options)
    if target.part is ProcessPart.NONE:
        return OpenRun(Off(target), place)
    if target.part is ProcessPart.MEMBER:
        run = _joined(target)
        is_taken = any(r.backend is run and r.depth for r in _process.open)
        if joining is Joining.PROCESS or (not is_taken and run.takes(options)):
            run.has_had_block |= joining is not Joining.PROCESS
            run.open()
            return OpenRun(run, place)
        return _child(run, options, place)
    return _new_run(target, options, place)


def _child(parent: Off, options: RunOptions, place: Place) -> OpenRun:
    name = options.name or parent.name or "run"
    if not is_quiet():
        warn_once(
            f"{parent.name or 'the run'!r} is the run of the first block; each further block is a "
            "run of its own below it"
        )
    return _new_child(parent, name, options, place)


def begin(
    parent: OpenRun | None, options: RunOptions, *, encloses: bool = False, is_owned: bool = False
) -> OpenRun:
    """Begin a new run, or a child, which stays open until it is left.

    Args:
        parent: The run that it is a child of; None for none.
        options: What the script says about it.
        encloses: Let blocks of this thread and task join it.
        is_owned: End it with its parent.
    """
    with _process.lock:
        place = Place.here() if encloses else Place(os.getpid(), thread=0)
        if parent is not None:
            open_run = _new_child(parent.backend, options.name or "run", options, place)
            open_run.owner = parent if is_owned else None
        else:
            try:
                _process.withdraw()
                open_run = _new_run(_target(options), options, place)
            finally:
                _process.publish()
        open_run.depth = 1
        _process.open.append(open_run)
        _process.publish()
    return open_run


def unrecorded() -> OpenRun:
    """Return a run that records nothing."""
    return OpenRun(Off(RunTarget.none()), Place.here())


def _new_run(target: RunTarget, options: RunOptions, place: Place) -> OpenRun:
    _process.owned += 1
    end_with_process()
    return OpenRun(Standalone.begin(target, options), place)


def _new_child(parent: Off, name: str, options: RunOptions, place: Place) -> OpenRun:
    end_with_process()
    return OpenRun(Standalone.begin_child(parent, name, options), place, parent)


def measure(open_run: OpenRun, options: RunOptions) -> None:
    """Start the requested measurements in this process, until the block is left."""
    target = open_run.target
    if not open_run.backend.recorded or open_run.parent is not None:  # the parent is measured
        return
    own = target.part is not ProcessPart.MEMBER
    choices = parse_listeners(options.listeners) if own else ()
    wishes = TorchWishes.find(options.torch, choices, target.run_dir)
    guarded("measuring from inside", lambda: open_run.instruments.start(wishes, target))


def leave(open_run: OpenRun, error: BaseException | None, *, wholly: bool = False) -> None:
    """Close a block. The last block ends the run if this process owns its end.

    Args:
        open_run: The run.
        error: The exception that left the block; None if it reached its end.
        wholly: Close all of its blocks.
    """
    with _process.lock:
        open_run.depth = 0 if wholly else open_run.depth - 1
        if open_run.depth > 0:
            return
    finish(open_run, *ending_of(error))


def finish(open_run: OpenRun, status: RunStatus, reason: str) -> None:
    """End a run and its children in this process. Harmless if it has ended."""
    with _process.lock:
        if open_run.ended:
            return
        open_run.ended = True
        if open_run in _process.open:
            _process.open.remove(open_run)
    if open_run.instruments.watch is not None:
        open_run.instruments.watch.end()
    if os.getpid() != open_run.place.pid:  # a forked child left its parent's block
        open_run.backend.journal.close()
        return
    for child in [child for child in _process.open if child.owner is open_run]:
        finish(child, status, reason)
    guarded("measuring from inside", open_run.instruments.close)
    with _process.lock:
        _process.publish()
    open_run.backend.finish(status, reason)


def ending_of(error: BaseException | None) -> tuple[RunStatus, str]:
    """Return the status and the reason of a run whose block this exception left."""
    match error:
        case None | GeneratorExit() | LimitReached():
            return RunStatus.FINISHED, ""
        case SystemExit(code=None | 0):
            return RunStatus.FINISHED, ""
        case Terminated():
            return RunStatus.KILLED, "killed by SIGTERM"
        case SystemExit(code=code):
            return RunStatus.FAILED, cut(f"exit code {text_of(code) or type(code).__name__}")
        case KeyboardInterrupt():
            return RunStatus.KILLED, "interrupted by the user"
    return RunStatus.FAILED, described(error)


def end_with_process() -> None:
    """End runs whose block is never left (no ``with``), and their children, with this process."""
    if not _process.ends_at_exit:
        _process.ends_at_exit = True
        watch_exit()
        atexit.register(_end_at_exit)


def _end_at_exit() -> None:
    ignore_termination()
    in_a_console = hasattr(sys, "ps1")  # there, a traceback does not end the process
    error = None if in_a_console else exit_of_process()
    for open_run in reversed(_process.open.copy()):
        if open_run.place.pid == os.getpid():
            leave(open_run, error, wholly=True)
    if not finish_uploads() and ending_of(error)[0] is RunStatus.FINISHED:
        fail_exit()
