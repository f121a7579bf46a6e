"""`radt.Run`: what training scripts use."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from radt.journal.format import EventKind
from radt.journal.values import checked_name, to_number, to_step
from radt.journal.writer import LogScalar, Number
from radt.run.files import add_file, add_text
from radt.run.inert import NullJournal
from radt.run.lifecycle import ActiveRun, current, enter, leave
from radt.run.markers import Marker, Span
from radt.run.notices import warn_once
from radt.run.standalone import RunOptions
from radt.run.target import inside_a_run

_OUTSIDE = "something was logged outside of `with radt.Run()`, and is not recorded"


class Run:
    """A run as the training script sees it: ``with radt.Run() as run: run.log_metric(…)``.

    Under ``radt`` the block joins the run that was started; alone it begins a run of its own and
    ends it, FAILED if an exception leaves the block. Blocks within blocks are one run. With
    ``RADT_MODE=off`` nothing is recorded and all methods can still be called.

    Logging never fails because of radt, a disk or a network: what cannot be recorded is dropped,
    counted, and said once on standard error. Mistakes in the call itself raise TypeError or
    `radt.errors.UsageError`.

    The arguments are for runs that the script begins itself, except ``params``.

    Args:
        name: What people call the run; the script's name if None.
        experiment: What it belongs to; the script's name if None.
        workload: Label of a workload; none if None.
        listeners: As in an experiment file: ``"top+smi@500ms"``, a list of them, or ``"none"``.
        params: Parameters to log at the start.
        home: The data folder; ``$RADT_HOME``, else ``./radt-data``, if None.

    Anything else that `mlflow` has (``run.log_figure``, ``run.sklearn``) can be reached through the
    run and loads mlflow then.
    """

    #: Records a value of a metric now: ``log_metric(name, value, step=None)``.
    #:
    #: ``value`` is a number, boolean, numpy scalar or tensor of one element; ``step`` a whole
    #: number. An attribute rather than a method: one call less, at a million values a second.
    #: Raises TypeError for what is no number or no text, UsageError for a name that is empty, too
    #: long or unprintable.
    log_metric: LogScalar

    def __init__(
        self,
        name: str | None = None,
        *,
        experiment: str | None = None,
        workload: str | None = None,
        listeners: str | Sequence[str] | None = None,
        params: Mapping[str, object] | None = None,
        home: str | os.PathLike[str] | None = None,
    ) -> None:
        self._options = RunOptions(
            name=name,
            experiment=experiment,
            workload=workload,
            listeners=listeners,
            params=params,
            home=None if home is None else Path(home),
        )
        self._depth = 0
        self._epoch: Marker | None = None
        self._use(None)

    def _use(self, active: ActiveRun | None) -> None:
        self._active = active
        self._journal = (
            NullJournal(lambda: warn_once(_OUTSIDE)) if active is None else active.journal
        )
        self.log_metric = self._journal.scalar

    def __enter__(self) -> Self:
        active = enter(self._options)
        if active.depth == 1:
            active.run = self
        self._use(active)
        self._depth += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        active = self._active
        if active is None:
            return
        self._depth -= 1
        if self._depth == 0:
            self._end_epoch()
            self._use(None)
        leave(active, error)

    @property
    def id(self) -> str:
        """Id of the run, which `radt.load` understands; empty when nothing is recorded."""
        return self._active.target.run_id if self._active is not None else ""

    # Values ----------------------------------------------------------------------------------

    def log_metrics(self, metrics: Mapping[str, Number], step: int | None = None) -> None:
        """Record values of several metrics now; all of them, or none if one is not a number.

        Raises:
            TypeError: A value is no number, a name no text, the step no whole number.
            UsageError: A name is empty, too long or unprintable.
        """
        number = None if step is None else to_step(step)
        values = [(checked_name(name), to_number(value)) for name, value in metrics.items()]
        log = self.log_metric
        for name, value in values:
            log(name, value, number)

    def log_param(self, name: str, value: object) -> None:
        """Record a parameter as text; a later value replaces an earlier one.

        Raises:
            TypeError: The name is no text.
            UsageError: The name is empty, too long or unprintable.
        """
        self.log_params({name: value})

    def log_params(self, params: Mapping[str, object]) -> None:
        """Record several parameters; errors as in `log_param`."""
        values = {checked_name(name, "parameter"): str(value) for name, value in params.items()}
        self._journal.say(EventKind.PARAMS, values=values)

    def set_tag(self, name: str, value: object) -> None:
        """Record a tag as text; a later value replaces an earlier one.

        Raises:
            TypeError: The name is no text.
            UsageError: The name is empty, too long or unprintable.
        """
        self.set_tags({name: value})

    def set_tags(self, tags: Mapping[str, object]) -> None:
        """Record several tags; errors as in `set_tag`."""
        values = {checked_name(name, "tag"): str(value) for name, value in tags.items()}
        self._journal.say(EventKind.TAGS, values=values)

    # Files -----------------------------------------------------------------------------------

    def log_artifact(self, path: str | os.PathLike[str], artifact_path: str | None = None) -> None:
        """Record a copy, taken now, of a file or a folder.

        Args:
            path: What to copy.
            artifact_path: Folder among the run's artifacts; their top if None.

        Raises:
            FileNotFoundError: It is not there.
            UsageError: ``artifact_path`` is absolute or leads out of the artifacts.
        """
        if self._recording():
            assert self._active is not None
            add_file(self._active.target.run_dir, Path(path), artifact_path)

    def log_text(self, text: str, file: str) -> None:
        """Record a text as an artifact named ``file``, which may have folders: ``a/b.txt``.

        Raises:
            UsageError: ``file`` is absolute or leads out of the artifacts.
        """
        if self._recording():
            assert self._active is not None
            add_text(self._active.target.run_dir, text, file)

    def _recording(self) -> bool:
        if self._active is None:
            warn_once(_OUTSIDE)
            return False
        return self._active.recorded

    # Markers ---------------------------------------------------------------------------------

    def epochs(self, count: int, start: int = 1) -> Iterator[int]:
        """Loop over ``count`` epochs, marking when each begins and ends: ``start``, …"""
        self._journal.say(EventKind.EPOCHS, total=to_step(count))
        for number in range(start, start + count):
            self._end_epoch()
            with Marker.epoch(self._journal, number):
                yield number

    def epoch(self, number: int) -> Marker:
        """Mark that an epoch begins; it ends with its ``with`` block, the next epoch or the run."""
        self._end_epoch()
        self._epoch = Marker.epoch(self._journal, to_step(number))
        return self._epoch

    def span(self, name: str) -> Span:
        """Mark a stretch of time: ``with run.span("validate"):`` or ``@run.span("validate")``.

        Raises:
            TypeError: The name is no text.
            UsageError: The name is empty, too long or unprintable.
        """
        return Span(self._journal, checked_name(name, "span"))

    def _end_epoch(self) -> None:
        if self._epoch is not None:
            self._epoch.end()
            self._epoch = None

    # MLflow ----------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copy, pickle and notebooks ask for these
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if self._active is None:
            raise AttributeError(f"run.{name} is mlflow's, and can be used in `with radt.Run()`")
        return self._active.mlflow.attribute(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _in_other_process, ()

    def __repr__(self) -> str:
        return f"<radt.Run {self.id or 'not recording'}>"


def active_run() -> Run | None:
    """The run that this process can log to; None if there is none.

    That is the run whose ``with`` block is open. In a process that was started inside a run (a
    spawned worker, another script) it is that run, joined for the rest of the process.
    """
    active = current()
    if active is not None:
        return active.run
    if not inside_a_run():
        return None
    return Run().__enter__()


def _in_other_process() -> Run:
    """What a `Run` that was sent to a worker becomes there."""
    return active_run() or Run()
