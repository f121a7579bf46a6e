"""`radt.Run`: what training scripts use."""

# ruff: noqa: SLF001 - functions of this module open runs

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from radt.journal.format import EventKind
from radt.journal.values import checked_name, to_step
from radt.journal.writer import LogScalar
from radt.run.instruments import EpochMarker, Span
from radt.run.limits import LimitReached, Limits, LimitWatch
from radt.run.logged_run import OUTSIDE
from radt.run.notices import guarded, warn_once
from radt.run.off import NullJournal
from radt.run.open_runs import (
    Joining,
    OpenRun,
    Place,
    belongs_to_a_run,
    current,
    enter,
    leave,
    make_current,
    make_former,
    measure,
    unrecorded,
)
from radt.run.open_runs import begin as begin_run
from radt.run.passthrough import is_mlflows
from radt.run.standalone import RunOptions
from radt.run.steps import Batch, Batches, StepNumber
from radt.run.target import wait_for_others
from radt.run.wandb_names import OF_RUN, PAGE, of_run
from radt.run.wandb_run import WandbRun


class Run(WandbRun):
    """A run as the training script sees it: ``with radt.Run() as run: run.log_metric(…)``.

    Under ``radt``, the block joins the run that radt started. In a script on its own, it starts a
    run and ends it, as FAILED if an exception leaves the block. A block within a block is the same
    run; a block of another thread or asyncio task is a run of its own. Under ``radt``, the row's
    run belongs to the first block, and further ones are its children. With ``RADT_MODE=off``, all
    methods work and record nothing.

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
        params: Parameters to log at the start; of any kind of configuration, see `log_params`.
        home: The data folder; ``$RADT_HOME``, else ``./radt-data``, if None.
        torch: Record PyTorch's memory every second; if None, as in the experiment file (``torch``
            in Listeners).
        ranks: Whether the processes of a launcher (torchrun, mpirun, srun) are one run: ``"join"``,
            ``"separate"``, or ``"auto"`` to join those of one distributed training. If None,
            ``$RADT_RANKS``, else ``"auto"``.
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
        params: object = None,
        home: str | os.PathLike[str] | None = None,
        torch: bool | None = None,
        ranks: str | None = None,
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
            ranks=ranks,
        )
        self._limits = Limits(max_epoch, max_time_s)
        self._joining = Joining.ENCLOSING
        #: For each open block of this object, the run that was current before it.
        self._before: list[OpenRun | None] = []
        #: True if it is open without a block: after `radt.init`, or as a child.
        self._is_held = False
        self._epoch: EpochMarker | None = None
        super().__init__()

    def __enter__(self) -> Self:
        if self._is_held:  # from now on there is a block that a limit can end
            assert self._open_run is not None
            self._is_held = False
            self._open_run.place = Place.here()
            self._before[-1] = make_current(self._open_run)
            if self._open_run.owner is None:
                self._watch(self._open_run)
        elif (open_run := self._join()) is not None:
            self._watch(open_run)
            measure(open_run, self._options)
        return self

    def _join(self) -> OpenRun | None:
        """Open a block. The outermost one waits for the workload's other rows. Return the run."""
        open_run = enter(self._options, self._joining)
        is_outermost = not open_run.handles
        open_run.handles.append(self)
        self._use(open_run)
        self._before.append(make_current(open_run))
        if not is_outermost:
            return None
        if "mlflow" in sys.modules:  # otherwise `radt.mlflow_plugin` is called on import
            from radt.run.mlflow_calls import install

            guarded("following MLflow", install)
        try:
            wait_for_others()
        except BaseException as error:  # Ctrl-C: `with` leaves only a block that was entered
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return open_run

    def _hold(self, *, is_current: bool = True) -> None:
        """Open the run until `finish`, the end of its ``with`` or the end of the process."""
        open_run = self._join()
        self._is_held = True
        if open_run is not None and self._joining is not Joining.PROCESS:
            measure(open_run, self._options)
        if not is_current:
            make_current(self._before[-1])

    def _watch(self, open_run: OpenRun) -> None:
        limits = self._limits.within()
        if not limits or isinstance(open_run.backend.journal, NullJournal):
            return

        def rebind(log_metric: LogScalar) -> None:
            for logging in (open_run.instruments, *open_run.handles):
                logging.log_metric = log_metric

        watch = LimitWatch(limits, open_run.backend.journal, rebind)
        open_run.instruments.watch = watch
        open_run.instruments.steps.check = watch.check_time

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        open_run = self._open_run
        if open_run is None:
            return None
        at_limit = False
        if open_run.depth == 1 and open_run.instruments.watch is not None:
            open_run.instruments.watch.end()
            at_limit = isinstance(error, LimitReached)
        open_run.handles.remove(self)
        before, self._is_held = self._before.pop(), False
        if not self._before:
            self._end_epoch()
            self._use(None)
        leave(open_run, None if at_limit else error)
        make_former(open_run, before)
        return at_limit

    def finish(self, exit_code: int | BaseException | None = None) -> None:
        """End the run now, as the end of its block would. Harmless if it has ended.

        Args:
            exit_code: An exit code or an exception. The run is FAILED unless this is 0 or None.
        """
        error = SystemExit(exit_code) if exit_code and isinstance(exit_code, int) else exit_code
        if not isinstance(error, BaseException):
            error = None
        while self._before:
            self.__exit__(None if error is None else type(error), error, None)

    # Children --------------------------------------------------------------------------------

    def child(self, name: str, params: object = None) -> Run:
        """Begin a run within this one, for one of several trainings that this process does.

        ``with run.child("lenet") as child: child.log_metric("loss", 0.3)``. Several may be open at
        once, and any thread may use them. MLflow and `radt ls` show them below their parent. The
        hardware is measured once, in the parent: children share it, and reports do not count them
        as neighbours of each other. Children still open end with their parent.

        Args:
            name: Its name. A name that is used again is another run.
            params: Parameters to log at the start, as in `log_params`.

        Raises:
            TypeError: The name is not a string.
            UsageError: The name is empty, too long or unprintable.
        """
        if self._open_run is None:
            warn_once(OUTSIDE)
        checked_name(name, "child")
        child = Run(name, params=params)
        open_run = begin_run(self._open_run or unrecorded(), child._options, is_owned=True)
        open_run.handles.append(child)
        child._use(open_run)
        child._before.append(None)
        child._is_held = True
        return child

    # Markers ---------------------------------------------------------------------------------

    def epoch(self, number: int, total: int | None = None) -> EpochMarker:
        """Mark the start of an epoch, which ends with its block, the next epoch or the run.

        Args:
            number: Its number.
            total: The number of epochs, to show progress; None if unknown.
        """
        self._end_epoch()
        if total is not None:
            self._journal.say(EventKind.EPOCHS, total=to_step(total))
        self._epoch = self._instruments.epoch(to_step(number), total)
        return self._epoch

    def span(self, name: str) -> Span:
        """Mark a time span: ``with run.span("validate"):`` or ``@run.span("validate")``.

        Raises:
            TypeError: The name is not a string.
            UsageError: The name is empty, too long or unprintable.
        """
        return self._instruments.span(checked_name(name, "span"))

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
        count = to_step(count)
        watch = self._instruments.watch
        total = count if watch is None else watch.epochs_of(count)
        self._journal.say(EventKind.EPOCHS, total=total)
        for number in range(start, start + count):
            self._end_epoch()
            if watch is not None and not watch.allows_epoch(number):
                return
            self._epoch = self._instruments.epoch(number, total)
            with self._epoch, self.profile() if number in chosen else nullcontext():
                yield number

    def profile(self) -> Span:
        """Return the range that profilers record: ``with run.profile():``, or ``@run.profile()``.

        ``nsys`` and ``ncu`` record nothing outside of it (``nsysraw`` and ``ncuraw`` everything);
        ``torchprof`` traces the first one. Without a profiler, it is a span named profile, which
        takes a few microseconds.
        """
        return self._instruments.profile()

    # Steps -----------------------------------------------------------------------------------

    @property
    def step(self) -> StepNumber:
        """``run.step(samples)`` marks the end of a training step: its duration, and samples per s.

        As a number, it is the next step of `log`, as in W&B.

        A step starts at the end of the previous one, the first at the start of its epoch; a step
        without a start is not timed. Takes a few microseconds and does not wait for the GPU.

        Args:
            samples: The size of its batch.
            time_s: Its duration, if the script measures that itself.
            wait_s: The part of it spent waiting for the batch.

        Raises:
            TypeError: ``samples`` is not an integer.
            UsageError: ``samples`` is negative.
        """
        number = StepNumber(self.history.step)
        number.recorder = self._instruments.steps
        return number

    def batches(
        self,
        loader: Iterable[Batch],
        samples: int | Callable[[Batch], int] | None = None,
    ) -> Batches[Batch]:
        """Loop over a loader: ``for images, labels in run.batches(loader):``.

        Each iteration is a step, as in `step`; the share of time spent waiting for the loader is
        recorded too. A nested loop (evaluation) does not count steps.

        Args:
            loader: An iterable of batches.
            samples: The size of a batch, or a function that returns it; the first dimension of the
                first tensor in the batch if None.

        Raises:
            TypeError: ``samples`` is not an integer.
            UsageError: ``samples`` is negative.
        """
        return Batches(loader, samples, self._instruments.steps)

    def _end_epoch(self) -> None:
        if self._epoch is not None:
            self._epoch.end()
            self._epoch = None

    # MLflow ----------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copy, pickle and notebooks ask for these
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if name in OF_RUN:
            return of_run(self, name)
        if not is_mlflows(name):
            raise AttributeError(f"neither radt.Run nor mlflow has {name!r}. {PAGE}")
        if self._open_run is None:
            raise AttributeError(f"run.{name} is mlflow's, and can be used in `with radt.Run()`")
        return self._open_run.backend.mlflow.attribute(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _in_other_process, ()

    def __repr__(self) -> str:
        return f"<radt.Run {self.id or 'not recording'}>"


def begin(options: RunOptions, *, is_new: bool = False) -> Run:
    """Begin a run that stays open until `Run.finish`, the end of its ``with`` or of the process.

    Args:
        options: What the script says about it.
        is_new: Begin it beside the open run, which stays the current one.
    """
    run = Run()
    run._options = options
    run._joining = Joining.NONE if is_new else Joining.ENCLOSING
    run._hold(is_current=not is_new)
    return run


def run_of(open_run: OpenRun) -> Run:
    """Return the `Run` of an open run."""
    for handle in open_run.handles:
        if isinstance(handle, Run):
            return handle
    run = Run()
    open_run.handles.append(run)
    run._use(open_run)
    return run


def active_run() -> Run | None:
    """Return the run that this thread or task can log to; None if there is none.

    This is the run of its innermost ``with`` block; in a thread or task without one, the only run
    that is open in the process. A process that was started inside a run (a spawned worker, another
    script) joins that run until the process ends.
    """
    open_run = current(warns=True)
    if open_run is not None:
        return run_of(open_run)
    if not belongs_to_a_run():
        return None
    run = Run()
    run._joining = Joining.PROCESS
    run._hold()  # no limits, because there is no block that they could end
    return run


def _in_other_process() -> Run:
    """Return the `Run` that replaces a pickled one in a worker process."""
    return active_run() or Run()
