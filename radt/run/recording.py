"""The runs that are open in this process, and which of them is current.

A block joins the run whose block encloses it: in the same thread and the same task. Any other block
is a run of its own. *Current* is the run of the innermost block of the context (`contextvars`), so
that threads and tasks have their own; where the context has none (a data loader's thread, a
callback, a notebook's next cell), it is the only run of the process, if there is only one.

Under a runner, and in processes that a run started, the run there is belongs to the first block;
further ones are its children.
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
from radt.run.backends import Joined, Off, Standalone, guarded
from radt.run.exits import exit_of_process, watch_exit
from radt.run.history import History
from radt.run.instruments import Instruments
from radt.run.limits import LimitReached
from radt.run.notices import warn_once
from radt.run.parameters import read_parameters
from radt.run.standalone import RunOptions, is_quiet, parse_listeners
from radt.run.target import Part, Target, find_target, inside_a_run
from radt.run.torch_options import TorchWishes


class Joining(Enum):
    """Which run a new block joins, if it is there."""

    ENCLOSING = auto()  # that of the block around it
    PROCESS = auto()  # also the run that the process belongs to, rather than be a child of it
    NONE = auto()


class Handle(Protocol):
    """A `radt.Run` that logs to a recording."""

    log_metric: LogScalar


class Place(NamedTuple):
    """Where a block was entered. A task is an asyncio task; None outside of any."""

    pid: int
    thread: int
    task: object = None

    @classmethod
    def here(cls) -> Place:
        task = None
        asyncio = sys.modules.get("asyncio")
        if asyncio is not None and "ipykernel" not in sys.modules:  # whose cells are tasks
            try:
                task = asyncio.current_task()
            except (RuntimeError, AttributeError):
                pass  # no loop runs here, or asyncio is being imported
        return cls(os.getpid(), threading.get_ident(), task)


@dataclass(slots=True, eq=False)
class Recording:
    """A run that is open in this process.

    Attributes:
        backend: Where its values go.
        place: Where its outermost block was entered.
        parent: The run that it is a child of; None for none.
        owner: The open run whose end ends it; None for none.
        depth: Number of its open blocks, each of which has its handle.
        instruments: What measures from inside, and watches its limits.
        history: What it keeps for scripts that log as W&B's do.
        is_session: Whether `radt.init` began it.
    """

    backend: Off
    place: Place
    parent: Off | None = None
    owner: Recording | None = None
    depth: int = 0
    handles: list[Handle] = field(default_factory=list)
    history: History = field(default_factory=History)
    ended: bool = False
    is_session: bool = False
    instruments: Instruments = field(init=False)

    def __post_init__(self) -> None:
        self.instruments = Instruments(self.backend.journal)

    @property
    def target(self) -> Target:
        return self.backend.target

    @property
    def enclosing(self) -> Recording | None:
        """The run that it is a child of, as this process logs to it; None for none."""
        if self.parent is None:
            return None
        blocks = (recording for recording in _process.open if recording.backend is self.parent)
        return next(blocks, None) or Recording(self.parent, self.place)

    @property
    def files(self) -> RunDir | None:
        """Where the run's files go; None if they are not recorded."""
        return self.target.run_dir if self.backend.recorded else None

    @property
    def is_own(self) -> bool:
        """Whether this process began it."""
        return isinstance(self.backend, Standalone)


class _Process:
    """What the process knows of its runs."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.open: list[Recording] = []
        #: Runs that others end: one back end a process, however many blocks it opens.
        self.joined: dict[str, Joined] = {}
        self.owned = 0
        self.ends_at_exit = False
        #: Variables as they were before runs of this process set them.
        self.outer: dict[str, str | None] = {}

    def publish(self) -> None:
        """Set the variables by which processes that the script starts join its run.

        Those that its open runs do not agree on stay unset: nobody could say whose they are.
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
        """Unset them, to see what the process was started with."""
        kept, self.open = self.open, []
        self.publish()
        self.open = kept


_process = _Process()
_current: ContextVar[Recording | None] = ContextVar("radt_run", default=None)


def _after_fork() -> None:
    """A forked process is one that the open runs started, as a spawned one is."""
    _process.lock = threading.RLock()
    _process.open, _process.outer = [], {}
    for joined in _process.joined.values():
        joined.usage = {}  # its parent waits for it, and has its accounts then
        joined.has_had_block = False


os.register_at_fork(after_in_child=_after_fork)


# Which run ------------------------------------------------------------------------------------


def current(*, warns: bool = False) -> Recording | None:
    """Return the run of this context, or the only one that is open in this process.

    Args:
        warns: Whether to say that it could be any of several.
    """
    recording = _current.get()
    if recording is not None and not recording.ended:
        return recording
    runs = [recording for recording in _process.open if recording.parent is None]
    if len(runs) > 1:
        runs = [recording for recording in runs if not recording.is_own][:1]
        if not runs and warns:
            warn_once(
                "several runs are open in this process, and none of them in thread "
                f"{threading.current_thread().name!r}: what it logs is not recorded. Give it the "
                "run object, or start it with contextvars.copy_context().run"
            )
    return runs[0] if runs else None


def make_current(recording: Recording | None) -> Recording | None:
    """Have this context log to a run; return the one before."""
    before = _current.get()
    _current.set(recording)
    return before


def make_former(recording: Recording, before: Recording | None) -> None:
    """Have this context log to the run before, unless it logs to neither of them."""
    if _current.get() is recording:
        _current.set(before)


def belongs_to_a_run() -> bool:
    """Return whether a runner, or a process above this one, has a run open for this process."""
    return inside_a_run() and not any(r.is_own and r.parent is None for r in _process.open)


def of_process() -> Recording | None:
    """Return the current run, or the one that this process belongs to; None without one.

    No block is opened.
    """
    with _process.lock:
        recording = current()
        if recording is None and belongs_to_a_run():
            recording = Recording(_joined(_target(RunOptions())), Place.here())
        return recording


def _target(options: RunOptions) -> Target:
    """Return where values go from now on; that of a run that is joined is looked for once."""
    known = _process.joined.get(os.environ.get(RUN_ID_VARIABLE, ""))
    if known is not None and inside_a_run():
        return known.target
    return find_target(options.home, _process.owned, options.ranks)


def _joined(target: Target) -> Joined:
    if target.run_id not in _process.joined:
        _process.joined[target.run_id] = Joined(target)
    return _process.joined[target.run_id]


# Blocks ---------------------------------------------------------------------------------------


def enter(options: RunOptions, joining: Joining = Joining.ENCLOSING) -> Recording:
    """Open a block: join the run that encloses it, or join or begin one.

    Raises:
        UsageError: An option cannot be understood.
    """
    place = Place.here()
    with _process.lock:
        recording = None if joining is Joining.NONE else _enclosing(place)
        is_begun = False
        if recording is None:
            # The caller's mistakes, before anything begins.
            TorchWishes.find(options.torch, parse_listeners(options.listeners), RunDir(Path()))
            try:
                recording = _begin(options, place, joining)
                _process.open.append(recording)
            finally:
                _process.publish()
            recording.is_session = options.is_session
            is_begun = recording.target.part in (Part.OWNER, Part.CHILD)
        recording.depth += 1
    if options.params is not None and not is_begun:  # else its first lines say them
        values = read_parameters(options.params)
        recording.backend.journal.say(EventKind.PARAMS, values=values)
    return recording


def _enclosing(place: Place) -> Recording | None:
    recording = _current.get()
    if recording is not None and not recording.ended and recording.place == place:
        return recording
    blocks = (r for r in reversed(_process.open) if r.place == place and r.owner is None)
    return next(blocks, None)


def _begin(options: RunOptions, place: Place, joining: Joining) -> Recording:
    outer = _current.get()
    is_inside = outer is not None and not outer.ended and outer.place.pid == place.pid
    if outer is not None and is_inside and outer.place != place:  # in a thread or task of its block
        return _child(outer.backend, options, place)
    _process.withdraw()
    target = _target(options)
    if target.part is Part.NONE:
        return Recording(Off(target), place)
    if target.part is Part.MEMBER:
        run = _joined(target)
        is_taken = any(r.backend is run and r.depth for r in _process.open)
        if joining is Joining.PROCESS or (not is_taken and run.takes(options)):
            run.has_had_block |= joining is not Joining.PROCESS
            run.open()
            return Recording(run, place)
        return _child(run, options, place)
    return _new_run(target, options, place)


def _child(parent: Off, options: RunOptions, place: Place) -> Recording:
    name = options.name or parent.name or "run"
    if not is_quiet():
        warn_once(
            f"{parent.name or 'the run'!r} is the run of the first block; each further block is a "
            "run of its own below it"
        )
    return _new_child(parent, name, options, place)


def begin_child(owner: Recording | None, name: str, options: RunOptions) -> Recording:
    """Begin a run within a run, open until it is left or its owner ends."""
    parent = Off(Target.none()) if owner is None else owner.backend
    recording = _new_child(parent, name, options, Place.here())
    recording.owner, recording.depth = owner, 1
    with _process.lock:
        _process.open.append(recording)
    return recording


def begin(parent: Recording | None, options: RunOptions, *, encloses: bool) -> Recording:
    """Begin a run of its own, or a child, that is open until `finish`.

    Args:
        parent: The run that it is a child of; None for none.
        options: What the script says of it.
        encloses: Whether blocks of this thread and task join it.
    """
    with _process.lock:
        place = Place.here() if encloses else Place(os.getpid(), thread=0)
        if parent is not None:
            recording = _new_child(parent.backend, options.name or "run", options, place)
        else:
            try:
                _process.withdraw()
                recording = _new_run(_target(options), options, place)
            finally:
                _process.publish()
        recording.depth = 1
        _process.open.append(recording)
        _process.publish()
    return recording


def _new_run(target: Target, options: RunOptions, place: Place) -> Recording:
    _process.owned += 1
    end_with_process()
    return Recording(Standalone.begin(target, options), place)


def _new_child(parent: Off, name: str, options: RunOptions, place: Place) -> Recording:
    end_with_process()
    return Recording(Standalone.begin_child(parent, name, options), place, parent)


def measure(recording: Recording, options: RunOptions) -> None:
    """Measure from inside what was asked for, from now on until the block is left."""
    target = recording.target
    if not recording.backend.recorded or recording.parent is not None:  # its parent is measured
        return
    own = target.part is not Part.MEMBER
    choices = parse_listeners(options.listeners) if own else ()
    wishes = TorchWishes.find(options.torch, choices, target.run_dir)
    guarded("measuring from inside", lambda: recording.instruments.start(wishes, target))


def leave(recording: Recording, error: BaseException | None, *, wholly: bool = False) -> None:
    """Close a block; the last one ends the run if it is this process's to end.

    Args:
        recording: The run.
        error: What left the block; None for its end.
        wholly: Whether all of its blocks are closed.
    """
    with _process.lock:
        recording.depth = 0 if wholly else recording.depth - 1
        if recording.depth > 0:
            return
    finish(recording, *ending_of(error))


def finish(recording: Recording, status: RunStatus, reason: str) -> None:
    """End a run in this process, and its children. Harmless if it has ended."""
    with _process.lock:
        if recording.ended:
            return
        recording.ended = True
        if recording in _process.open:
            _process.open.remove(recording)
    if recording.instruments.watch is not None:
        recording.instruments.watch.end()
    if os.getpid() != recording.place.pid:  # a forked child that came out of its parent's block
        recording.backend.journal.close()
        return
    for child in [child for child in _process.open if child.owner is recording]:
        finish(child, status, reason)
    guarded("measuring from inside", recording.instruments.close)
    with _process.lock:
        _process.publish()
    recording.backend.finish(status, reason)


def ending_of(error: BaseException | None) -> tuple[RunStatus, str]:
    """Return how a run ended whose block this exception left, and why."""
    match error:
        case None | GeneratorExit() | LimitReached():
            return RunStatus.FINISHED, ""
        case SystemExit(code=None | 0):
            return RunStatus.FINISHED, ""
        case SystemExit(code=code):
            return RunStatus.FAILED, cut(f"exit code {text_of(code) or type(code).__name__}")
        case KeyboardInterrupt():
            return RunStatus.KILLED, "interrupted by the user"
    return RunStatus.FAILED, described(error)


def end_with_process() -> None:
    """A run whose block is never left (no ``with``), and its children, end with this process."""
    if not _process.ends_at_exit:
        _process.ends_at_exit = True
        watch_exit()
        atexit.register(_end_at_exit)


def _end_at_exit() -> None:
    in_a_console = hasattr(sys, "ps1")  # where a traceback ends nothing
    error = None if in_a_console else exit_of_process()
    for recording in reversed(_process.open.copy()):
        if recording.place.pid == os.getpid():
            leave(recording, error, wholly=True)
