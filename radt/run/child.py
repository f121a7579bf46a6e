"""Runs within a run: one process trains several jobs, and each is a run of its own.

A child describes itself in its own folder (`radt.collector.manifest`), from which the collector
records it as a script's run that has no listeners. Its tag `radt.tags.PARENT` names the run whose
process, hardware and end it shares.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

from radt.collector.manifest import Manifest, ask_for_collection
from radt.errors import RadtError
from radt.home import RunDir
from radt.journal.format import EventKind
from radt.journal.writer import JournalWriter
from radt.model import RunStatus
from radt.run.base import RunBase
from radt.run.endings import ending_of
from radt.run.instruments import Instruments
from radt.run.notices import warn_once
from radt.run.passthrough import NullJournal
from radt.run.target import Target
from radt.run_name import child_letter
from radt.tags import LETTER, PARENT, WORKLOAD


class ChildRun(RunBase):
    """A run within a run, as `radt.Run.child` begins it. It ends with its block or with `finish`.

    Attributes:
        id: Id of the run; empty when nothing is recorded.
        name: Name of the run.
    """

    def __init__(self, name: str, run_id: str, run_dir: RunDir | None, family: Family) -> None:
        super().__init__()
        self.id = run_id
        self.name = name
        self._run_dir = run_dir
        self._family = family
        journal = (
            NullJournal()
            if run_dir is None
            else JournalWriter(run_dir.journal, rank=None, warn=warn_once)
        )
        self._writer = journal
        self._log_to(journal, Instruments(journal))
        self._pid = os.getpid()

    def finish(self, error: BaseException | None = None) -> None:
        """End the run: FINISHED, or FAILED with the error as its reason. Harmless if it has ended.

        Nothing can be logged afterwards.
        """
        self._end(*ending_of(error))

    def _end(self, status: RunStatus, reason: str) -> None:
        if os.getpid() != self._pid or not self._family.leave(self):
            return
        self._end_epoch()
        self._instruments.close()
        ended_ns = time.monotonic_ns()
        self._writer.say(EventKind.FINISH, status=str(status), reason=reason, ended_ns=ended_ns)
        self._writer.close()

    def _files(self) -> RunDir | None:
        return self._run_dir

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.finish(error)

    def __repr__(self) -> str:
        return f"<radt.ChildRun {self.name} {self.id or 'not recording'}>"


@dataclass(slots=True)
class Family:
    """The children of a run in this process. Thread-safe."""

    _open: list[ChildRun] = field(default_factory=list)
    _names: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, target: Target | None, name: str, params: Mapping[str, object]) -> ChildRun:
        """Begin a child of a run.

        One that cannot be recorded, or without a run, takes values and keeps none.
        """
        child = ChildRun(name, "", None, self)
        if target is not None:
            with self._lock:
                self._names[name] += 1
                label = name if self._names[name] == 1 else f"{name} {self._names[name]}"
            try:
                child = self._described(target, name, label, params)
            except (RadtError, OSError) as error:
                warn_once(f"child runs are not recorded: {error}. Training goes on")
        with self._lock:
            self._open.append(child)
        return child

    def _described(
        self, target: Target, name: str, label: str, params: Mapping[str, object]
    ) -> ChildRun:
        """Return a child whose folder says all that its rows need.

        Raises:
            RadtError, OSError: Its parent's folder or its own cannot be used.
        """
        if os.path.ismount(target.run_dir.path):
            raise OSError("a container has the folder of its own run only")
        parent = Manifest.read(target.run_dir.path)
        if parent is None:
            raise OSError(f"{target.run_dir.path} does not describe its run")
        run_id = uuid.uuid4().hex
        run_dir = RunDir(target.run_dir.path.parent / run_id).create()
        letter = child_letter(parent.run.letter, label)
        tags = {PARENT: target.run_id, LETTER: letter}
        if parent.run.workload:
            tags[WORKLOAD] = parent.run.workload
        child = ChildRun(name, run_id, run_dir, self)
        run = replace(
            parent.run,
            registration=replace(
                parent.run.registration,
                run_id=run_id,
                spool=str(run_dir.path),
                listeners=(),
                devices=(),
                profiler="",
            ),
            letter=letter,
            name=name,
            is_numbered=False,
            has_runner=False,
            pid=os.getpid(),
            started_monotonic_ns=time.monotonic_ns(),
            params={str(key): str(value) for key, value in params.items()},
            tags=tags,
        )
        with ExitStack() as undone:
            undone.callback(shutil.rmtree, run_dir.path, ignore_errors=True)
            undone.callback(child._writer.close)  # noqa: SLF001
            child._writer.open()  # noqa: SLF001 - before it is looked for
            Manifest.of_this_process(run).write()
            undone.pop_all()
        with suppress(RadtError, OSError):  # else its folder is looked for
            ask_for_collection(run_dir.path)
        return child

    def leave(self, child: ChildRun) -> bool:
        """Return whether the child was open; it no longer is."""
        with self._lock:
            was_open = child in self._open
            if was_open:
                self._open.remove(child)
            return was_open

    def end(self, status: RunStatus, reason: str) -> None:
        """End those that are open, as their parent ends."""
        with self._lock:
            left = list(self._open)
        for child in left:
            child._end(status, reason)  # noqa: SLF001
