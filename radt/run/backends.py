"""Where the values of a run go and how it ends: in a run of others, in one of its own, or nowhere.

A back end is one run of radt in this process. `radt.run.recording` opens blocks in it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from radt.collector.manifest import Manifest, ask_for_collection
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
from radt.model import RunStatus
from radt.run.notices import warn_once
from radt.run.off import NullJournal
from radt.run.parameters import read_parameters
from radt.run.passthrough import MlflowPassthrough
from radt.run.standalone import RunOptions, StandaloneSession, wait_for_ranks
from radt.run.target import NAME_VARIABLE, Part, Target
from radt.run_name import child_letter
from radt.tags import LETTER, MLFLOW_RUN, MLFLOW_RUN_NAME, PARENT, WORKLOAD
from radt.usage import own_usage, usage_file, write_growth

Result = TypeVar("Result")

#: In the journal's folder: the name of the block that has the run, empty for one without.
_HOLDER = ".block"


class Off:
    """Records nothing: radt is switched off, or the run cannot be recorded.

    Attributes:
        target: The run, and this process's part in it.
        name: Name of the run; empty when nothing is recorded.
        journal: Where values go.
        mlflow: MLflow as seen from the run.
        environment: Variables by which other processes join the run.
        child_names: How often each name was given to a child.
        experiment: Name of its experiment, as far as this process knows it.
        workload: Label of its workload; empty for none.
    """

    experiment = workload = ""

    def __init__(self, target: Target, name: str = "") -> None:
        self.target = target
        self._name = name
        self.journal: JournalWriter | NullJournal = NullJournal()
        self.mlflow = MlflowPassthrough(target)
        self.environment: Mapping[str, str] = {}
        self.child_names: Counter[str] = Counter()
        self.usage: dict[str, float] = {}

    @property
    def name(self) -> str:
        return self._name

    def rename(self, name: str) -> bool:  # noqa: ARG002
        """Give the run another name; return False where that is not this process's to do."""
        return False

    @property
    def recorded(self) -> bool:
        """Whether there is a run at all, rather than ``RADT_MODE=off``."""
        return self.target.part is not Part.NONE

    @property
    def shown_id(self) -> str:
        """Id of the run, as the Run column shows it; empty when nothing is recorded."""
        return self.mlflow.shown_id or self.target.run_id

    def is_for(self, name: str) -> bool:  # noqa: ARG002
        """Return whether what other processes call by this name may be the run itself."""
        return True

    def finish(self, status: RunStatus, reason: str) -> None:
        """The last block in it has ended."""


class Joined(Off):
    """A run that a runner, or a process above this one, begins and ends. One a process."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.journal = _journal(target)
        self.experiment = os.environ.get("RADT_EXPERIMENT", "")
        self.workload = os.environ.get("RADT_WORKLOAD", "")
        #: Whether a block of this process has had the run.
        self.has_had_block = False
        self._claim: str | None = None

    def open(self) -> None:
        """A block begins."""
        self.journal.open()
        if os.environ.pop(OWN_TOTALS_VARIABLE, ""):  # its children are among its accounts
            self.usage = own_usage()

    def takes(self, options: RunOptions) -> bool:
        """Return whether a block is the run itself, rather than a child.

        The first block is. A later one goes on with it if it says nothing of its own; the block of
        another process if it has the same name, or none, or is a rank of a distributed training.
        """
        if self.has_had_block:
            return not (options.name or options.params is not None or options.is_session)
        return self.is_for(options.name or "")

    def is_for(self, name: str) -> bool:
        if self.target.rank is None and self._claim is None:
            holder = _holder(self.target.run_dir, name)
            if holder != name:
                return not name
            self._claim = name
        return True

    @property
    def name(self) -> str:
        return os.environ.get(NAME_VARIABLE, "")

    def finish(self, status: RunStatus, reason: str) -> None:  # noqa: ARG002 - others end it
        if self._claim == "":  # it leaves the run to a block of another process, which has a name
            with suppress(OSError):  # a disk that cannot be written ends no training
                (self.target.run_dir.journal / _HOLDER).unlink()
            self._claim = None
        rank = os.getpid() if self.target.rank is None else self.target.rank
        _write_totals(self, rank)  # the next script in a container has a file of its own


class Standalone(Off):
    """A run that this process begins and ends: its own, its rank's part, or a child of another.

    Args:
        target: The run.
        session: The collector's part of it; None for ranks and children.
        is_lost: Whether nobody could ever know of the run.
        name: The name of a child.
    """

    def __init__(
        self,
        target: Target,
        session: StandaloneSession | None = None,
        *,
        is_lost: bool = False,
        name: str = "",
    ) -> None:
        super().__init__(target, name)
        self._session = session
        if not is_lost:
            self.journal = _journal(target)
        if session is not None:
            self.experiment, self.workload = session.run.experiment, session.run.workload
            self.mlflow = MlflowPassthrough(target, lambda: session.recording)

    @classmethod
    def begin(cls, target: Target, options: RunOptions) -> Standalone:
        """Begin a run of this process, or its rank's part of one."""
        session = None
        if target.part is Part.OWNER:
            session = guarded("beginning the run", lambda: _session(target, options))
        lost = target.part is Part.OWNER and (session is None or session.lost)
        begun = cls(target, session, is_lost=lost)
        begun.journal.open()
        begun.environment = {
            RUN_ID_VARIABLE: target.run_id,
            RUN_DIR_VARIABLE: str(target.run_dir.path),
            HOME_VARIABLE: str(target.home.path),
        }
        if session is not None and session.may_be_recorded:
            variables = guarded("preparing MLflow", begun.mlflow.prepare)
            begun.environment = begun.environment | (variables or {})
            begun.mlflow.run_id = session.mlflow_run
        begun.usage = own_usage()
        return begun

    @classmethod
    def begin_child(cls, parent: Off, name: str, options: RunOptions) -> Off:
        """Begin a run within a run, described in a folder of its own, without listeners.

        One that cannot be recorded takes values and keeps none.
        """
        unrecorded = Off(replace(parent.target, part=Part.NONE, run_id=""), name)
        if not isinstance(parent.journal, JournalWriter):
            return unrecorded
        parent.child_names[name] += 1
        count = parent.child_names[name]
        try:
            return cls._described(parent, name, name if count == 1 else f"{name} {count}", options)
        except (RadtError, OSError) as error:
            warn_once(f"child runs are not recorded: {error}. Training goes on")
            return unrecorded

    @classmethod
    def _described(cls, parent: Off, name: str, label: str, options: RunOptions) -> Standalone:
        """Return a child whose folder says all that its rows need.

        Raises:
            RadtError, OSError: Its parent's folder or its own cannot be used.
        """
        folder = parent.target.run_dir.path
        if os.path.ismount(folder):
            raise OSError("a container has the folder of its own run only")
        above = Manifest.read(folder)
        if above is None:
            raise OSError(f"{folder} does not describe its run")
        rank = parent.target.rank
        identity = os.urandom(16) if rank is None else f"{parent.target.run_id} {label}".encode()
        run_id = hashlib.blake2b(identity, digest_size=16).hexdigest()  # the same for all ranks
        run_dir = RunDir(folder.parent / run_id).create()
        if rank:
            target = replace(parent.target, part=Part.RANK, run_id=run_id, run_dir=run_dir)
            child = cls(target, name=name)
            child.journal.open()
            return child
        tags = {PARENT: parent.target.run_id, LETTER: child_letter(above.run.letter, label)}
        if above.run.workload:
            tags[WORKLOAD] = above.run.workload
        if options.mlflow_run and options.mlflow_uri == above.run.registration.tracking_uri:
            tags[MLFLOW_RUN] = options.mlflow_run
        target = replace(parent.target, part=Part.CHILD, run_id=run_id, run_dir=run_dir)
        child = cls(target, name=name)
        child.experiment, child.workload = above.run.experiment, above.run.workload
        registration = replace(
            above.run.registration,
            run_id=run_id,
            spool=str(run_dir.path),
            listeners=(),
            devices=(),
            profiler="",
        )
        run = replace(
            above.run,
            registration=registration,
            letter=tags[LETTER],
            name=name,
            is_numbered=False,
            has_runner=False,
            pid=os.getpid(),
            started_monotonic_ns=time.monotonic_ns(),
            params=read_parameters(options.params),
            tags=tags,
        )
        with ExitStack() as undone:
            undone.callback(shutil.rmtree, run_dir.path, ignore_errors=True)
            undone.callback(child.journal.close)
            child.journal.open()  # before it is looked for
            Manifest.of_this_process(run).write()
            undone.pop_all()
        with suppress(RadtError, OSError):  # else its folder is looked for
            ask_for_collection(run_dir.path)
        child.mlflow.run_id = tags.get(MLFLOW_RUN)
        return child

    @property
    def has_collector(self) -> bool:
        """Whether the collector has the run, as soon as that is known."""
        return self._session is not None and self._session.recording

    @property
    def name(self) -> str:
        return self._name or ("" if self._session is None else self._session.name)

    def rename(self, name: str) -> bool:
        self._name = name
        self.journal.say(EventKind.TAGS, values={MLFLOW_RUN_NAME: name})
        return True

    def finish(self, status: RunStatus, reason: str) -> None:
        is_child = self.target.part is Part.CHILD  # whose totals are its parent's
        if not is_child:
            _write_totals(self, None if self.target.part is Part.OWNER else self.target.rank)
        if is_child and self.target.rank is not None:
            wait_for_ranks(self.target.run_dir.journal)
        end = {"ended_ns": time.monotonic_ns()} if is_child else {}
        self.journal.say(EventKind.FINISH, status=str(status), reason=reason, **end)
        self.journal.close()
        guarded("leaving MLflow's run", lambda: self.mlflow.release(status))
        session = self._session
        if session is not None:
            session.run = replace(session.run, name=self.name)
            guarded("ending the run", lambda: session.finish(status, reason))


def guarded(what: str, action: Callable[[], Result]) -> Result | None:
    """Whatever goes wrong in radt or MLflow, training must not notice."""
    try:
        return action()
    except (RadtError, OSError) as error:
        warn_once(f"{what} did not work: {error}. Training goes on")
    except Exception as error:  # noqa: BLE001 - MLflow's plug-ins may raise anything
        warn_once(f"{what} did not work: {described(error)}. Training goes on")
    return None


def _holder(run_dir: RunDir, name: str) -> str:
    """Return the name of the block that has a run among all processes; ``name`` if none has it."""
    path = run_dir.journal / _HOLDER
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(name)
    except FileExistsError:
        with suppress(OSError):
            return path.read_text(encoding="utf-8")
    except OSError:
        pass  # whoever cannot write there has no children either
    return name


def _session(target: Target, options: RunOptions) -> StandaloneSession:
    target.home.create()
    target.run_dir.create()
    _holder(target.run_dir, options.name or "")
    return StandaloneSession(target, options)


def _journal(target: Target) -> JournalWriter:
    return JournalWriter(target.run_dir.journal, rank=target.rank, warn=warn_once)


def _write_totals(backend: Off, rank: int | None) -> None:
    if backend.usage:
        file = usage_file(backend.target.run_dir.path, rank)
        guarded("recording the run's totals", partial(write_growth, file, backend.usage))
