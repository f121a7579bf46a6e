"""Record a run's values and its end: in a run that another process began, in a new one, or nowhere.

A backend is one run in this process. `radt.run.open_runs` opens blocks in it.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from radt import settings
from radt.collector.client import CollectorClient
from radt.collector.manifest import Manifest, ask_for_collection, mark_ended
from radt.collector.start import problems
from radt.errors import RadtError
from radt.home import (
    HOME_VARIABLE,
    OWN_TOTALS_VARIABLE,
    RUN_DIR_VARIABLE,
    RUN_ID_VARIABLE,
    Home,
    RunDir,
)
from radt.journal.format import EventKind
from radt.journal.writer import JournalWriter
from radt.model import RunStatus, short_id
from radt.paths import has_moved
from radt.run.notices import guarded, say, warn_once
from radt.run.off import NullJournal
from radt.run.parameters import read_parameters
from radt.run.passthrough import MlflowPassthrough
from radt.run.standalone import RunOptions, describe, is_quiet, wait_for_ranks
from radt.run.target import NAME_VARIABLE, ProcessPart, RunTarget
from radt.run.uploads import wait_at_exit
from radt.run_name import child_letter
from radt.tags import LETTER, MLFLOW_RUN, MLFLOW_RUN_NAME, PARENT, WORKLOAD
from radt.units import duration
from radt.usage import own_usage, usage_file, write_growth

#: File in the journal's folder with the name of the block that holds the run; empty for a block
#: without a name.
_HOLDER = ".block"


#: How long a script waits for a collector to start or answer, unless its patience ends earlier.
_START_TIMEOUT_S = 15.0
#: How long the end of a script waits until its values are stored, unless its patience ends earlier.
_FINISH_TIMEOUT_S = 10.0


class Off:
    """A run that records nothing, because radt is switched off or the run cannot be recorded.

    Attributes:
        target: The run, and what this process does for it.
        name: Name of the run; empty when nothing is recorded.
        journal: Where values go.
        mlflow: MLflow as seen from the run.
        environment: Variables by which other processes join the run.
        child_names: Number of children with each name.
        experiment: Name of its experiment, as far as this process knows it.
        workload: Label of its workload; empty for none.
    """

    experiment = workload = ""

    def __init__(self, target: RunTarget, name: str = "") -> None:
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
        """Rename the run. Return False if this process may not."""
        return False

    @property
    def has_collector(self) -> bool:
        """True if the collector records the run at this process's request. May wait to know."""
        return False

    @property
    def recorded(self) -> bool:
        """True if there is a run; False with ``RADT_MODE=off``."""
        return self.target.part is not ProcessPart.NONE

    @property
    def shown_id(self) -> str:
        """Id of the run, as the Run column shows it; empty when nothing is recorded."""
        return self.mlflow.shown_id or self.target.run_id

    def is_for(self, name: str) -> bool:  # noqa: ARG002
        """Return True if a block that another process opens by this name may be the run itself."""
        return True

    def finish(self, status: RunStatus, reason: str) -> None:
        """End the run after its last block has ended."""


class Joined(Off):
    """A run that a runner or an ancestor process begins and ends. There is one per process."""

    def __init__(self, target: RunTarget) -> None:
        super().__init__(target)
        self.journal = _journal(target)
        self.experiment = os.environ.get("RADT_EXPERIMENT", "")
        self.workload = os.environ.get("RADT_WORKLOAD", "")
        #: True once a block of this process has been the run.
        self.has_had_block = False
        self._claim: str | None = None

    def open(self) -> None:
        """Start recording for a new block."""
        self.journal.open()
        if os.environ.pop(OWN_TOTALS_VARIABLE, ""):  # in a container: no runner counts them
            self.usage = own_usage()

    def takes(self, options: RunOptions) -> bool:
        """Return True if a block is the run itself rather than a child.

        The first block is the run. A later block of the same process continues it unless it has
        options of its own. A block of another process continues it if it has the same name, no
        name, or is a rank of the same distributed training.
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
        if self._claim == "":  # let a named block of another process have the run
            with suppress(OSError):  # an unwritable disk must not end training
                (self.target.run_dir.journal / _HOLDER).unlink()
            self._claim = None
        rank = os.getpid() if self.target.rank is None else self.target.rank
        _write_totals(self, rank)  # each script in a container writes its own file


class Standalone(Off):
    """A run that this process ends: its own (`Owner`), its rank's part of one, or a child.

    Args:
        target: The run.
        name: The name of a child.
        is_lost: Record nothing, because no collector could find the run.
    """

    def __init__(self, target: RunTarget, name: str = "", *, is_lost: bool = False) -> None:
        super().__init__(target, name)
        if not is_lost:
            self.journal = _journal(target)

    @classmethod
    def begin(cls, target: RunTarget, options: RunOptions) -> Standalone:
        """Begin a run of this process, or its rank's part of one."""
        begun: Standalone | None = None
        if target.part is ProcessPart.RANK:
            begun = cls(target)
        else:
            begun = guarded("beginning the run", lambda: Owner(target, options))
        begun = begun or cls(target, is_lost=True)
        begun.open()
        return begun

    def open(self) -> None:
        """Start recording for the first block."""
        self.journal.open()
        self.environment = {
            RUN_ID_VARIABLE: self.target.run_id,
            RUN_DIR_VARIABLE: str(self.target.run_dir.path),
            HOME_VARIABLE: str(self.target.home.path),
        }
        self.usage = own_usage()

    @classmethod
    def begin_child(cls, parent: Off, name: str, options: RunOptions) -> Off:
        """Begin a child run, described in its own folder, without listeners.

        If the child cannot be recorded, it accepts values and drops them.
        """
        unrecorded = Off(replace(parent.target, part=ProcessPart.NONE, run_id=""), name)
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
        """Return a child whose folder has everything that the store needs for it.

        Raises:
            RadtError, OSError: The parent's folder or the child's cannot be used.
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
            target = replace(parent.target, part=ProcessPart.RANK, run_id=run_id, run_dir=run_dir)
            child = cls(target, name)
            child.journal.open()
            return child
        tags = {PARENT: parent.target.run_id, LETTER: child_letter(above.run.letter, label)}
        if above.run.workload:
            tags[WORKLOAD] = above.run.workload
        if options.mlflow_run and options.mlflow_uri == above.run.registration.tracking_uri:
            tags[MLFLOW_RUN] = options.mlflow_run
        target = replace(parent.target, part=ProcessPart.CHILD, run_id=run_id, run_dir=run_dir)
        child = cls(target, name)
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
            child.journal.open()  # the journal must exist before a collector looks for it
            Manifest.of_this_process(run).write()
            undone.pop_all()
        with suppress(RadtError, OSError):  # else a later scan finds the folder
            ask_for_collection(run_dir.path)
        child.mlflow.run_id = tags.get(MLFLOW_RUN)
        return child

    def rename(self, name: str) -> bool:
        self._name = name
        self.journal.say(EventKind.TAGS, values={MLFLOW_RUN_NAME: name})
        return True

    def finish(self, status: RunStatus, reason: str) -> None:
        is_child = self.target.part is ProcessPart.CHILD  # the parent records the totals
        if not is_child:
            _write_totals(self, None if self.target.part is ProcessPart.OWNER else self.target.rank)
        if is_child and self.target.rank is not None:
            wait_for_ranks(self.target.run_dir.journal)
        end = {"ended_ns": time.monotonic_ns()} if is_child else {}
        self.journal.say(EventKind.FINISH, status=str(status), reason=reason, **end)
        self.journal.close()
        guarded("leaving MLflow's run", lambda: self.mlflow.release(status))


class Owner(Standalone):
    """A run that this process begins, together with the collector. Failures are warnings.

    The run's folder describes the run before the collector is asked, so that any later collector
    can record it.
    """

    def __init__(self, target: RunTarget, options: RunOptions) -> None:
        super().__init__(target)
        target.home.create()
        target.run_dir.create()
        _holder(target.run_dir, options.name or "")
        self.mlflow = MlflowPassthrough(target, self._connected)
        self._client: CollectorClient | None = None
        self._connecting: threading.Thread | None = None
        self.run = describe(target, options)
        self.experiment, self.workload = self.run.experiment, self.run.workload
        wait_at_exit(
            target.home, self.run.registration.tracking_uri, self.run.registration.store_uri
        )
        #: Why the manifest could not be written; None if it was.
        self._undescribed: OSError | None = None
        for problem in problems():  # also in the collector's log, which nobody reads
            warn_once(f"{problem}. The default is used")
        try:
            Manifest.of_this_process(self.run).write()
        except OSError as error:
            self._undescribed = error
        client = CollectorClient(
            start=True,
            timeout_s=_START_TIMEOUT_S,
            patience_s=_START_TIMEOUT_S,
            deadline_s=_patient_until_s(),
        )
        with suppress(RadtError, OSError):  # `_connect` reports the error
            if self._undescribed is None and not client.knock():
                self._connect_meanwhile(client)
                return
        self._connect(client)

    def _connect_meanwhile(self, client: CollectorClient) -> None:
        """Connect in the background while the collector starts, as the folder describes the run."""
        with suppress(RadtError, OSError):  # this process may be killed before it has connected
            ask_for_collection(self.target.run_dir.path)
        self._connecting = threading.Thread(
            target=self._connect, args=(client,), name="reaching the collector", daemon=True
        )
        self._connecting.start()

    def _connected(self) -> CollectorClient | None:
        """Wait until connecting has succeeded or failed. Return the client, or None."""
        connecting = self._connecting
        if connecting is not None and connecting is not threading.current_thread():
            connecting.join()
        return self._client

    def _connect(self, client: CollectorClient) -> None:
        try:
            client.reach()
            self._take_up(client)
            self._client = client
            self._say(f"is recorded in {_shown(self.target.home.path)}")
        except (RadtError, OSError) as error:
            client.close()
            if self._undescribed is not None:
                warn_once(
                    f"the run is not recorded: {error}. Nor can its folder "
                    f"{self.target.run_dir.path} be written: "
                    f"{self._undescribed.strerror}. Training goes on"
                )
                return
            with suppress(RadtError, OSError):  # else a later scan finds the folder
                ask_for_collection(self.target.run_dir.path)
            warn_once(
                f"the run is not recorded yet: {error}. Training goes on; what it logs is kept in "
                f"{self.target.run_dir.path}, and recorded from there as soon as a collector "
                "answers, at the latest by `radt sync`"
            )

    def _take_up(self, client: CollectorClient) -> None:
        begun = client.begin(self.run)
        self.run = replace(self.run, name=begun.name or self.run.name)
        for warning in begun.warnings:
            warn_once(warning)

    def _say(self, predicate: str) -> None:
        """Print a line about the run, unless the user wants none."""
        if not is_quiet():
            say(f"run {short_id(self.target.run_id)} ({self.run.name}) {predicate}")

    def open(self) -> None:
        if self._is_lost:
            self.journal = NullJournal()
        super().open()
        if self._connecting is not None or self._client is not None:  # it is or may be recorded
            variables = guarded("preparing MLflow", self.mlflow.prepare)
            self.environment = {**self.environment, **(variables or {})}
            self.mlflow.run_id = self.run.tags.get(MLFLOW_RUN)

    @property
    def name(self) -> str:
        if self._name:
            return self._name
        self._connected()  # the collector numbers the name
        return self.run.name

    @property
    def has_collector(self) -> bool:
        return self._connected() is not None

    @property
    def _is_lost(self) -> bool:
        """True if no collector can ever find the run, so that its values would be useless."""
        return self._undescribed is not None and self._client is None

    def finish(self, status: RunStatus, reason: str) -> None:
        super().finish(status, reason)
        self.run = replace(self.run, name=self.name)
        if not self._is_lost:
            guarded("ending the run", lambda: self._finish(status, reason))

    def _finish(self, status: RunStatus, reason: str) -> None:
        """Return once the whole run is stored. Its journal is closed."""
        with suppress(OSError):  # the collector marks it itself once all is stored
            mark_ended(self.target.run_dir.path)
        wait_for_ranks(self.target.run_dir.journal)
        client, deadline_s = self._connected(), _patient_until_s()
        try:
            if client is None:  # a collector may have started meanwhile
                client = CollectorClient(start=False, timeout_s=0.0, deadline_s=deadline_s).reach()
                self._take_up(client)
            client.deadline_s = deadline_s
            client.finish(self.target.run_id, status, reason=reason, timeout_s=_FINISH_TIMEOUT_S)
            taken_s = (time.monotonic_ns() - self.run.started_monotonic_ns) / 1e9
            home, see = self.target.home, "radt dashboard"
            if home.path != Home.resolve(warn=warn_once).path or has_moved():
                see += f" --home {shlex.quote(str(_shown(home.path)))}"
            self._say(f"{status} in {duration(taken_s)}; see {see}")
        except (RadtError, OSError) as error:
            if self._client is not None:  # otherwise already reported when the run began
                warn_once(f"the end of the run is not recorded yet: {error}")
        if client is not None:
            client.close()


def _holder(run_dir: RunDir, name: str) -> str:
    """Return the name of the block that holds a run across all processes; claim it if none does."""
    path = run_dir.journal / _HOLDER
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(name)
    except FileExistsError:
        with suppress(OSError):
            return path.read_text(encoding="utf-8")
    except OSError:
        pass  # a process that cannot write here has no children either
    return name


def _patient_until_s() -> float:
    """Return the monotonic time until which to wait for the collector, whatever state it is in."""
    patience_s = settings.variable(settings.COLLECTOR_PATIENCE_S, os.environ).value
    return time.monotonic() + float(patience_s)


def _shown(path: Path) -> Path:
    """Return the path relative to the current folder if it lies below it and that never changed."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) and not has_moved() else path


def _journal(target: RunTarget) -> JournalWriter:
    return JournalWriter(target.run_dir.journal, rank=target.rank, warn=warn_once)


def _write_totals(backend: Off, rank: int | None) -> None:
    if backend.usage:
        file = usage_file(backend.target.run_dir.path, rank)
        guarded("recording the run's totals", partial(write_growth, file, backend.usage))
