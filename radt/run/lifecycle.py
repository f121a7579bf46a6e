"""Begins and ends the run of this process. There is one at a time; blocks within blocks join it."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from radt.errors import RadtError, described
from radt.home import (
    HOME_VARIABLE,
    OWN_TOTALS_VARIABLE,
    RUN_DIR_VARIABLE,
    RUN_ID_VARIABLE,
    RunDir,
)
from radt.journal.format import EventKind
from radt.journal.writer import JournalWriter
from radt.run.child import ChildRun, Family
from radt.run.endings import ending_of
from radt.run.history import History
from radt.run.instruments import Instruments
from radt.run.limits import LimitWatch
from radt.run.notices import warn_once
from radt.run.passthrough import MlflowPassthrough, NullJournal
from radt.run.standalone import RunOptions, StandaloneSession, parse_listeners
from radt.run.target import Part, Target, find_target, inside_a_run
from radt.run.torch_options import TorchWishes
from radt.usage import own_usage, usage_file, write_growth

if TYPE_CHECKING:
    from radt.run.run import Run


@dataclass(slots=True)
class ActiveRun:
    """The run that is open in this process.

    ``depth`` counts the blocks that are open in it; ``run`` is the outermost one's, ``runs`` are
    those of all of them. ``watch`` holds the limits, None without any. ``instruments`` measure from
    inside. ``usage`` is what the kernel had counted of the process as the run began, empty where
    somebody else counts; ``history`` is what the run keeps for scripts that log as W&B's do;
    ``children`` are the runs within it that this process began.
    """

    target: Target
    journal: JournalWriter | NullJournal
    mlflow: MlflowPassthrough
    depth: int = 1
    run: Run | None = None
    runs: list[Run] = field(default_factory=list)
    watch: LimitWatch | None = None
    session: StandaloneSession | None = None
    outer: dict[str, str | None] = field(default_factory=dict)
    pid: int = field(default_factory=os.getpid)
    usage: dict[str, float] = field(default_factory=dict)
    history: History = field(default_factory=History)
    children: Family = field(default_factory=Family)
    instruments: Instruments = field(init=False)

    def __post_init__(self) -> None:
        self.instruments = Instruments(self.journal)

    @property
    def recorded(self) -> bool:
        """Whether there is a run at all, rather than ``RADT_MODE=off``."""
        return self.target.part is not Part.NONE


class _State:
    """What the process knows between blocks."""

    def __init__(self) -> None:
        self.current: ActiveRun | None = None
        #: Journals of runs that others end: one a process, however many blocks it opens.
        self.joined: dict[str, JournalWriter] = {}
        self.owned = 0
        self.ends_at_exit = False
        #: What the kernel had counted of this process as its first block began, in a container.
        self.usage: dict[str, float] = {}
        self.lock = threading.RLock()


_state = _State()


def _after_fork() -> None:
    _state.lock = threading.RLock()
    _state.usage = {}  # its parent waits for it, and has its accounts then


os.register_at_fork(after_in_child=_after_fork)


def current() -> ActiveRun | None:
    """Return the run that is open in this process."""
    return _state.current


def of_process() -> ActiveRun | None:
    """Return the run that is open here, or the one that this process belongs to; None without one.

    No block is opened.
    """
    with _state.lock:
        if _state.current is not None or not inside_a_run():
            return _state.current
        target = find_target(None, _state.owned)
        return ActiveRun(target, _joined_journal(target), MlflowPassthrough(target))


def enter(options: RunOptions) -> ActiveRun:
    """Open a block: join the open run, or join or begin one.

    Raises:
        UsageError: An option cannot be understood.
    """
    with _state.lock:
        active = _state.current
        if active is not None:
            active.depth += 1
        else:
            # The caller's mistakes, before anything begins.
            TorchWishes.find(options.torch, parse_listeners(options.listeners), RunDir(Path()))
            active = _state.current = _open(find_target(options.home, _state.owned), options)
    begun_with_params = active.session is not None and active.depth == 1
    if options.params and not begun_with_params:
        values = {str(name): str(value) for name, value in options.params.items()}
        active.journal.say(EventKind.PARAMS, values=values)
    return active


def measure(active: ActiveRun, options: RunOptions) -> None:
    """Measure from inside what was asked for, from now on until the block is left."""
    target = active.target
    if not active.recorded:
        return
    own = target.part is not Part.MEMBER
    choices = parse_listeners(options.listeners) if own else ()
    wishes = TorchWishes.find(options.torch, choices, target.run_dir)
    _guarded("measuring from inside", lambda: active.instruments.start(wishes, target))


def leave(active: ActiveRun, error: BaseException | None) -> None:
    """Close a block; the last one ends the run if it is this process's to end."""
    with _state.lock:
        active.depth -= 1
        if active.depth > 0 or _state.current is not active:
            return
        _state.current = None
    if active.watch is not None:
        active.watch.end()
    if os.getpid() != active.pid:  # a forked child that came out of its parent's block
        active.journal.close()
        return
    status, reason = ending_of(error)
    active.children.end(status, reason)
    _guarded("measuring from inside", active.instruments.close)
    if active.usage:
        _guarded("recording the run's totals", partial(_write_totals, active))
    if active.target.part in (Part.NONE, Part.MEMBER):
        return
    active.journal.say(EventKind.FINISH, status=str(status), reason=reason)
    active.journal.close()
    _restore_environment(active)
    _guarded("leaving MLflow's run", lambda: active.mlflow.release(status))
    session = active.session
    if session is not None:
        _guarded("ending the run", lambda: session.finish(status, reason))


def begin_child(active: ActiveRun | None, name: str, params: Mapping[str, object]) -> ChildRun:
    """Begin a run within a run; without one it takes values and keeps none."""
    if active is None:
        return Family().begin(None, name, params)
    if not isinstance(active.journal, JournalWriter):
        return active.children.begin(None, name, params)
    _end_with_process()
    return active.children.begin(active.target, name, params)


def _write_totals(active: ActiveRun) -> None:
    target = active.target
    rank = None if target.part is Part.OWNER else target.rank
    if target.part is Part.MEMBER and rank is None:
        rank = os.getpid()  # the next script in the container has a file of its own
    write_growth(usage_file(target.run_dir.path, rank), active.usage)


def _open(target: Target, options: RunOptions) -> ActiveRun:
    if target.part is Part.NONE:
        return ActiveRun(target, NullJournal(), MlflowPassthrough(target))
    if target.part is Part.MEMBER:
        journal = _joined_journal(target)
        journal.open()
        if os.environ.pop(OWN_TOTALS_VARIABLE, ""):  # its children are among its accounts
            _state.usage = own_usage()
        return ActiveRun(target, journal, MlflowPassthrough(target), usage=_state.usage)
    _state.owned += 1
    _end_with_process()
    session = _begin(target, options) if target.part is Part.OWNER else None
    # A journal that nobody could tell the run of would stay for ever.
    lost = target.part is Part.OWNER and (session is None or session.lost)
    mlflow = MlflowPassthrough(target)
    if session is not None:
        mlflow = MlflowPassthrough(target, lambda: session.recording)
    active = ActiveRun(target, NullJournal() if lost else _journal(target), mlflow, session=session)
    active.journal.open()
    _set_environment(active)
    if active.session is not None and active.session.may_be_recorded:
        _guarded("preparing MLflow", mlflow.prepare)
    active.usage = own_usage()
    return active


def _begin(target: Target, options: RunOptions) -> StandaloneSession | None:
    """Return the run's session; None if not even its folder can be made."""
    begun: list[StandaloneSession] = []

    def begin() -> None:
        target.home.create()
        target.run_dir.create()
        begun.append(StandaloneSession(target, options))

    _guarded("beginning the run", begin)
    return begun[0] if begun else None


def _joined_journal(target: Target) -> JournalWriter:
    journal = _state.joined.get(target.run_id)
    if journal is None:
        journal = _state.joined[target.run_id] = _journal(target)
    return journal


def _journal(target: Target) -> JournalWriter:
    return JournalWriter(target.run_dir.journal, rank=target.rank, warn=warn_once)


def _set_environment(active: ActiveRun) -> None:
    """Processes that the script starts join the run as those of a runner do."""
    target = active.target
    values = {
        RUN_ID_VARIABLE: target.run_id,
        RUN_DIR_VARIABLE: str(target.run_dir.path),
        HOME_VARIABLE: str(target.home.path),
    }
    for name, value in values.items():
        active.outer[name] = os.environ.get(name)
        os.environ[name] = value


def _restore_environment(active: ActiveRun) -> None:
    for name, value in active.outer.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _guarded(what: str, action: Callable[[], object]) -> None:
    """Whatever goes wrong in radt or MLflow, training must not notice."""
    try:
        action()
    except (RadtError, OSError) as error:
        warn_once(f"{what} did not work: {error}. Training goes on")
    except Exception as error:  # noqa: BLE001 - MLflow's plug-ins may raise anything
        warn_once(f"{what} did not work: {described(error)}. Training goes on")


def _end_with_process() -> None:
    """A run whose block is never left (no ``with``), and its children, end with this process."""
    if not _state.ends_at_exit:
        _state.ends_at_exit = True
        atexit.register(_end_at_exit)


def _end_at_exit() -> None:
    active = _state.current
    if active is None or os.getpid() != active.pid:
        return
    active.depth = 1
    in_a_console = hasattr(sys, "ps1")  # where a traceback ends nothing
    leave(active, None if in_a_console else getattr(sys, "last_value", None))
