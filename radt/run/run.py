"""`radt.Run`: what training scripts use."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from radt.home import RunDir
from radt.journal.format import EventKind
from radt.journal.values import checked_name, to_step
from radt.journal.writer import LogScalar
from radt.run.base import RunBase
from radt.run.child import ChildRun
from radt.run.history import Config, History, Summary, log
from radt.run.instruments import EpochMarker, Instruments, ProfileRange
from radt.run.lifecycle import ActiveRun, begin_child, current, enter, leave, measure
from radt.run.limits import LimitReached, Limits, LimitWatch
from radt.run.notices import warn_once
from radt.run.passthrough import NullJournal
from radt.run.standalone import RunOptions
from radt.run.target import NAME_VARIABLE, inside_a_run, wait_for_others

_OUTSIDE = "values logged outside of `with radt.Run()` are not recorded"


class Run(RunBase):
    """A run as the training script sees it: ``with radt.Run() as run: run.log_metric(…)``.

    Under ``radt``, the block joins the run that radt started. In a script on its own, it starts a
    run and ends it, as FAILED if an exception leaves the block. Nested blocks are one run. With
    ``RADT_MODE=off``, all methods work and record nothing.

    Logging never fails because of radt, a disk or a network: radt drops values that it cannot
    record, counts them, and reports this once on standard error. Invalid arguments raise TypeError
    or `radt.errors.UsageError`.

    With a limit, `epochs` ends its loop when the outermost block reaches its number of epochs or
    its time. A block without `epochs` ends at its next `epoch`; after its time also at its next
    value or span, or in mid-call 10 s later. The script continues after the block.

    The arguments apply to runs that the script starts itself, except ``params``, ``torch`` and
    the limits.

    Args:
        name: Name of the run; the script's name if None.
        experiment: Experiment of the run; the script's name if None.
        workload: Label of its workload; none if None.
        listeners: As in an experiment file: ``"top+smi@500ms"``, a list of them, or ``"none"``.
        params: Parameters to log at the start.
        home: The data folder; ``$RADT_HOME``, else ``./radt-data``, if None.
        torch: Record PyTorch's memory every second; if None, as in the experiment file (``torch``
            in Listeners).
        max_epoch: Maximum number of different epochs. `radt` may set a lower one.
        max_time_s: Maximum duration of the block, in seconds. `radt` may set a lower one.

    Any other function of `mlflow` (``run.log_figure``, ``run.sklearn``) is available on the run,
    and loads mlflow on first use.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        experiment: str | None = None,
        workload: str | None = None,
        listeners: str | Sequence[str] | None = None,
        params: Mapping[str, object] | None = None,
        home: str | os.PathLike[str] | None = None,
        torch: bool | None = None,
        max_epoch: int | None = None,
        max_time_s: float | None = None,
    ) -> None:
        self._options = RunOptions(
            name=name,
            experiment=experiment,
            workload=workload,
            listeners=listeners,
            params=params,
            home=None if home is None else Path(home),
            torch=torch,
        )
        super().__init__()
        self._limits = Limits(max_epoch, max_time_s)
        self._depth = 0
        self._own_history = History()
        self._active: ActiveRun | None = None
        self._use(None)

    def _use(self, active: ActiveRun | None) -> None:
        if active is None and self._active is not None:
            self._own_history = self._active.history  # to be read after the end
        self._active = active
        if active is None:
            outside = NullJournal(lambda: warn_once(_OUTSIDE))
            self._log_to(outside, Instruments(outside))
        else:
            journal = active.journal if active.watch is None else active.watch.journal
            self._log_to(journal, active.instruments)

    def __enter__(self) -> Self:
        outermost = self._join()
        if outermost:
            if limits := self._limits.within():
                self._watch(limits)
            assert self._active is not None
            measure(self._active, self._options)
        return self

    def _join(self) -> bool:
        """Open a block, together with the other rows of the workload; whether it is outermost."""
        active = enter(self._options)
        outermost = active.run is None
        if outermost:
            active.run = self
        active.runs.append(self)
        self._use(active)
        self._depth += 1
        if outermost:
            try:
                wait_for_others()
            except BaseException as error:  # Ctrl-C: `with` does not leave what was not entered
                self.__exit__(type(error), error, error.__traceback__)
                raise
        return outermost

    def _watch(self, limits: Limits) -> None:
        active = self._active
        if active is None or isinstance(active.journal, NullJournal):
            return

        def rebind(log_metric: LogScalar) -> None:
            for run in list(active.runs):
                run.log_metric = log_metric

        active.watch = LimitWatch(limits, active.journal, rebind)
        active.instruments.steps.check = active.watch.check_time
        self._use(active)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        active = self._active
        if active is None:
            return None
        at_limit = False
        if active.depth == 1 and active.watch is not None:
            active.watch.end()
            at_limit = isinstance(error, LimitReached)
        active.runs.remove(self)
        self._depth -= 1
        if self._depth == 0:
            self._end_epoch()
            self._use(None)
        leave(active, None if at_limit else error)
        return at_limit

    @property
    def id(self) -> str:
        """Id of the run, as the Run column shows it; empty when nothing is recorded."""
        if self._active is None:
            return ""
        return self._active.mlflow.shown_id or self._active.target.run_id

    @property
    def name(self) -> str:
        """Name of the run; empty when nothing is recorded."""
        session = self._active.session if self._active is not None else None
        if session is not None:
            return session.name
        return os.environ.get(NAME_VARIABLE, "") if self._active is not None else ""

    def finish(self, exit_code: int | None = None) -> None:
        """End the run now, as the end of its block would; FAILED if the exit code is not 0."""
        error = SystemExit(exit_code) if exit_code else None
        while self._depth:
            self.__exit__(None if error is None else SystemExit, error, None)

    # Values ----------------------------------------------------------------------------------

    def log(
        self, metrics: Mapping[str, Any], step: int | None = None, commit: bool | None = None
    ) -> None:
        """Record values by name with an automatic step, as ``log`` of W&B and Trackio does.

        Names in nested dictionaries are joined by dots. Values that are not numbers are left out,
        with one warning.

        Args:
            metrics: The values.
            step: The step from now on; one more than at the last call if None.
            commit: Whether the step ends; if None, it ends unless ``step`` is given.

        Raises:
            TypeError: ``metrics`` is not a dictionary, or the step not an integer.
            UsageError: The step does not fit into 64 bits.
        """
        log(self, self.history, metrics, step, commit)

    @property
    def config(self) -> Config:
        """Parameters of the run: ``run.config.lr``, ``run.config["lr"]``, ``run.config.update()``.

        Assigned values are recorded as by `log_params`.
        """
        return Config(lambda: self)

    @property
    def summary(self) -> Summary:
        """Last value of each metric of `log`; assigned values are recorded, strings as tags."""
        return Summary(lambda: self)

    @property
    def history(self) -> History:
        """State of `log`, `config` and `summary`."""
        return self._own_history if self._active is None else self._active.history

    def _files(self) -> RunDir | None:
        if self._active is None:
            warn_once(_OUTSIDE)
            return None
        return self._active.target.run_dir if self._active.recorded else None

    # Children --------------------------------------------------------------------------------

    def child(self, name: str, params: Mapping[str, object] | None = None) -> ChildRun:
        """Begin a run within this one, for one of several trainings that this process does.

        ``with run.child("lenet") as child: child.log_metric("loss", 0.3)``. Several may be open at
        once, and any thread may use them. MLflow and `radt ls` show them below their parent. The
        hardware is measured once, in the parent: children share it, and reports do not count them
        as neighbours of each other. Children still open end with their parent.

        Args:
            name: Its name. A name that is used again is another run.
            params: Parameters to log at the start.

        Raises:
            TypeError: The name is not a string.
            UsageError: The name is empty, too long or unprintable.
        """
        if self._active is None:
            warn_once(_OUTSIDE)
        return begin_child(self._active, checked_name(name, "child"), params or {})

    # Markers ---------------------------------------------------------------------------------

    def epochs(
        self, count: int, start: int = 1, *, profile: int | Iterable[int] | None = None
    ) -> Iterator[int]:
        """Loop over ``count`` epochs from ``start``, and mark the start and end of each.

        Args:
            count: Number of epochs.
            start: Number of the first epoch.
            profile: Numbers of the epochs to profile, each as a `profile` range.
        """
        chosen = {profile} if isinstance(profile, int) else set(profile or ())
        count, watch = to_step(count), self._limit_watch
        total = count if watch is None else watch.epochs_of(count)
        self._journal.say(EventKind.EPOCHS, total=total)
        for number in range(start, start + count):
            self._end_epoch()
            if watch is not None and not watch.allows_epoch(number):
                return
            self._epoch = EpochMarker(self._journal, number, self._instruments, total)
            with self._epoch, self.profile() if number in chosen else nullcontext():
                yield number

    def profile(self) -> ProfileRange:
        """Return the range that profilers record: ``with run.profile():``, or ``@run.profile()``.

        ``nsys`` and ``ncu`` record nothing outside of it (``nsysraw`` and ``ncuraw`` everything);
        ``torchprof`` traces the first one. Without a profiler, it is a span named profile, which
        takes a few microseconds.
        """
        return ProfileRange(self._journal, self._instruments.tracer)

    @property
    def _limit_watch(self) -> LimitWatch | None:
        return self._active.watch if self._active is not None else None

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
    """Return the run that this process can log to; None if there is none.

    This is the run whose ``with`` block is open. A process that was started inside a run (a spawned
    worker, another script) joins that run until the process ends.
    """
    active = current()
    if active is not None:
        return active.run
    if not inside_a_run():
        return None
    run = Run()
    run._join()  # noqa: SLF001 - no limits: there is no block that could end
    return run


def _in_other_process() -> Run:
    """Return what a `Run` that was sent to a worker becomes there."""
    return active_run() or Run()
