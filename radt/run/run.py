"""`radt.Run`: what training scripts use."""

# ruff: noqa: SLF001 - functions of this module open runs

from __future__ import annotations

import glob
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from radt.errors import UsageError
from radt.home import IMAGES, TABLES, RunDir
from radt.journal.format import EventKind
from radt.journal.values import checked_name, to_number, to_step
from radt.journal.writer import LogScalar, Number
from radt.run.files import add_content, add_file
from radt.run.history import Config, History, Summary, log
from radt.run.instruments import EpochMarker, Instruments, Span
from radt.run.limits import LimitReached, Limits, LimitWatch
from radt.run.media import (
    IMAGE_SUFFIXES,
    html_of,
    is_plotly,
    json_of,
    path_at,
    png_of,
    stepped,
)
from radt.run.notices import guarded, send_alert, warn_once
from radt.run.off import NullJournal
from radt.run.parameters import read_parameters
from radt.run.passthrough import is_mlflows
from radt.run.recording import (
    Joining,
    Place,
    Recording,
    belongs_to_a_run,
    current,
    enter,
    leave,
    make_current,
    make_former,
    measure,
    unrecorded,
)
from radt.run.recording import begin as begin_run
from radt.run.standalone import RunOptions
from radt.run.steps import Batch, Batches, StepNumber
from radt.run.target import wait_for_others
from radt.run.wandb_names import OF_RUN, PAGE, of_run

_OUTSIDE = "values logged outside of `with radt.Run()` are not recorded"
_NO_INSTRUMENTS = Instruments(NullJournal(lambda: warn_once(_OUTSIDE)))


class FileList(Protocol):
    """Files, each with its folder among the artifacts, as in W&B's ``Artifact``."""

    files: list[tuple[str | os.PathLike[str], str]]


class Run:
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

    #: Records a value of a metric now: ``log_metric(name, value, step=None)``.
    #:
    #: ``value`` is a number, boolean, numpy scalar or tensor of one element, recorded as a double:
    #: NaN, infinities and -0.0 unchanged. ``step`` is an integer of Python, numpy or torch, from
    #: -2^63 + 1 to 2^63 - 1, not a boolean. It is an attribute rather than a method to save a call
    #: per value. Raises TypeError for a value that is not a number or a name that is not a string,
    #: UsageError for a step or value that is too large, and for a name that is empty, too long or
    #: unprintable; then records nothing.
    log_metric: LogScalar

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
        self._recording: Recording | None = None
        self._last: Recording | None = None
        #: For each open block of this object, the run that was current before it.
        self._before: list[Recording | None] = []
        #: True if it is open without a block: after `radt.init`, or as a child.
        self._is_held = False
        self._epoch: EpochMarker | None = None
        self._own_history = History()
        self._use(None)

    def _use(self, recording: Recording | None) -> None:
        self._instruments = _NO_INSTRUMENTS
        if recording is not None:
            self._last = recording
            self._instruments = recording.instruments
        self._recording, self._journal = recording, self._instruments.journal
        self.log_metric = self._instruments.log_metric

    def __enter__(self) -> Self:
        if self._is_held:  # from now on there is a block that a limit can end
            assert self._recording is not None
            self._is_held = False
            self._recording.place = Place.here()
            self._before[-1] = make_current(self._recording)
            if self._recording.owner is None:
                self._watch(self._recording)
        elif (recording := self._join()) is not None:
            self._watch(recording)
            measure(recording, self._options)
        return self

    def _join(self) -> Recording | None:
        """Open a block. The outermost one waits for the workload's other rows. Return the run."""
        recording = enter(self._options, self._joining)
        is_outermost = not recording.handles
        recording.handles.append(self)
        self._use(recording)
        self._before.append(make_current(recording))
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
        return recording

    def _hold(self, *, is_current: bool = True) -> None:
        """Open the run until `finish`, the end of its ``with`` or the end of the process."""
        recording = self._join()
        self._is_held = True
        if recording is not None and self._joining is not Joining.PROCESS:
            measure(recording, self._options)
        if not is_current:
            make_current(self._before[-1])

    def _watch(self, recording: Recording) -> None:
        limits = self._limits.within()
        if not limits or isinstance(recording.backend.journal, NullJournal):
            return

        def rebind(log_metric: LogScalar) -> None:
            for logging in (recording.instruments, *recording.handles):
                logging.log_metric = log_metric

        watch = LimitWatch(limits, recording.backend.journal, rebind)
        recording.instruments.watch = watch
        recording.instruments.steps.check = watch.check_time

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        recording = self._recording
        if recording is None:
            return None
        at_limit = False
        if recording.depth == 1 and recording.instruments.watch is not None:
            recording.instruments.watch.end()
            at_limit = isinstance(error, LimitReached)
        recording.handles.remove(self)
        before, self._is_held = self._before.pop(), False
        if not self._before:
            self._end_epoch()
            self._use(None)
        leave(recording, None if at_limit else error)
        make_former(recording, before)
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

    @property
    def id(self) -> str:
        """Id of the run, as the Run column shows it; empty when nothing is recorded."""
        return "" if self._last is None else self._last.backend.shown_id

    @property
    def name(self) -> str:
        """Name of the run; empty when nothing is recorded."""
        return "" if self._last is None else self._last.backend.name

    @name.setter
    def name(self, value: str) -> None:
        name = checked_name(value, "run")
        if self._recording is None:
            warn_once(_OUTSIDE)
        elif self._recording.backend.recorded and not self._recording.backend.rename(name):
            warn_once(f"the run cannot be renamed to {name!r}: whoever began it names it")

    @property
    def project(self) -> str:
        """Its experiment, which W&B calls project."""
        return "" if self._last is None else self._last.backend.experiment

    @property
    def group(self) -> str:
        """Its workload, which W&B calls group; empty for none."""
        return "" if self._last is None else self._last.backend.workload

    @property
    def url(self) -> str | None:
        """Address of the run's folder; None when nothing is recorded."""
        run_dir = None if self._last is None else self._last.files
        return None if run_dir is None else run_dir.path.absolute().as_uri()

    @property
    def tags(self) -> tuple[str, ...]:
        """W&B's tags of the run, recorded as one tag named ``tags``."""
        return self.history.tags

    @tags.setter
    def tags(self, values: str | Iterable[object]) -> None:
        self.history.tags = (values,) if isinstance(values, str) else tuple(map(str, values))
        self.set_tag("tags", ", ".join(self.history.tags))

    @property
    def notes(self) -> str | None:
        """W&B's notes on the run, recorded as a tag."""
        return self.history.notes

    @notes.setter
    def notes(self, text: str) -> None:
        self.history.notes = text
        self.set_tag("notes", text)

    def alert(
        self,
        title: str,
        text: str = "",
        level: str = "INFO",
        wait_duration: float | timedelta = 0.0,
    ) -> None:
        """Send a notification as ``radt --notify`` does, and keep it as the tag ``alert.TITLE``.

        It goes to the command or address of ``RADT_NOTIFY`` or ``notify`` in ``radt.toml``, and to
        standard error if there is none.

        Args:
            title: What happened. It is the name of the tag.
            text: Details.
            level: ``"INFO"``, ``"WARN"`` or ``"ERROR"``.
            wait_duration: Seconds, or a timedelta, without another alert of this title.

        Raises:
            TypeError: The title is not a string.
            UsageError: The title is empty, too long or unprintable.
        """
        self.set_tag(f"alert.{title}", f"{level}: {text or title}")
        if isinstance(wait_duration, timedelta):
            wait_duration = wait_duration.total_seconds()
        now_s = time.monotonic()
        if self.id and now_s >= self.history.alerts.get(title, -math.inf) + wait_duration:
            self.history.alerts[title] = now_s
            send_alert(self.project, f"{self.name}: {level}: {title}: {text}")

    def watch(self, *args: object, **kwargs: object) -> None:  # noqa: ARG002 - W&B's
        """Accept W&B's call, and warn that radt does not record gradients and weights."""
        warn_once("watch: radt records no gradients and weights; log the norms that you look at")

    def define_metric(
        self,
        name: str,
        step_metric: object = None,
        *,
        summary: str | None = None,
        goal: str | None = None,
        **others: object,  # noqa: ARG002 - W&B's
    ) -> None:
        """Choose what `summary` has of a metric instead of its last value, as in W&B.

        Args:
            name: The metric, or a pattern of names: ``val/*``.
            step_metric: Has no effect, except for a warning: any metric can be drawn over step or
                time.
            summary: ``"min"``, ``"max"``, ``"mean"``, ``"first"``, ``"last"`` or ``"best"``, or
                several with commas: ``run.summary["loss"]["min"]``.
            goal: For ``"best"``: ``"minimize"`` or ``"maximize"``.
            **others: Other arguments of W&B, without effect.

        Raises:
            UsageError: The statistic or its goal is not one of these.
        """
        if step_metric is not None:
            warn_once(
                "define_metric: radt draws every metric over step, epoch or time as you choose in "
                "the dashboard; step_metric is ignored"
            )
        if summary is not None:
            self.history.define(name, summary, goal)

    @property
    def dir(self) -> str:
        """A folder whose files become artifacts of the run when it ends."""
        run_dir = None if self._recording is None else self._recording.files
        if run_dir is None:
            return str(Path.cwd())
        run_dir.artifacts.mkdir(parents=True, exist_ok=True)
        return str(run_dir.artifacts)

    # Values ----------------------------------------------------------------------------------

    def log_metrics(self, metrics: Mapping[str, Number], step: int | None = None) -> None:
        """Record values of several metrics now: all, or none if one is not a number.

        Raises:
            TypeError: A value is not a number, a name not a string, or the step not an integer.
            UsageError: A name is empty, too long or unprintable.
        """
        number = None if step is None else to_step(step, next(iter(metrics), None))
        values = [(checked_name(name), to_number(value)) for name, value in metrics.items()]
        log = self.log_metric
        for name, value in values:
            log(name, value, number)

    def log_param(self, name: str, value: object) -> None:
        """Record a parameter as text; a later value replaces an earlier one.

        A nested value becomes several parameters, with dots in their names: ``opt.lr``.

        Raises:
            TypeError: The name is not a string.
            UsageError: The name is empty, too long or unprintable.
        """
        self.log_params({name: value})

    def log_params(self, params: object) -> None:
        """Record several parameters; errors as in `log_param`.

        Args:
            params: A dictionary, argparse's namespace, absl's ``FLAGS``, a configuration of
                OmegaConf, Hydra or ml_collections, a data class, named tuple, attrs class, pydantic
                model, or any object with attributes. Names of nested values are joined by dots:
                ``opt.lr``. A list is one value, unless its items are nested: ``layers.0.size``.
                A warning names what cannot be read.
        """
        for name in params if isinstance(params, Mapping) else ():
            checked_name(name, "parameter")
        self._journal.say(EventKind.PARAMS, values=read_parameters(params))

    def set_tag(self, name: str, value: object) -> None:
        """Record a tag as text; a later value replaces an earlier one.

        Raises:
            TypeError: The name is not a string.
            UsageError: The name is empty, too long or unprintable.
        """
        self.set_tags({name: value})

    def set_tags(self, tags: Mapping[str, object]) -> None:
        """Record several tags; errors as in `set_tag`."""
        values = {checked_name(name, "tag"): str(value) for name, value in tags.items()}
        self._journal.say(EventKind.TAGS, values=values)

    def log(
        self, metrics: Mapping[str, Any], step: int | None = None, commit: bool | None = None
    ) -> None:
        """Record values by name with an automatic step, as ``log`` of W&B and Trackio does.

        Names in nested dictionaries are joined by dots. Images, figures, tables and HTML are
        recorded as by `log_image`, `log_table` and `log_text`; other values that are not numbers
        are left out, with one warning.

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
        return self._own_history if self._last is None else self._last.history

    # Files -----------------------------------------------------------------------------------

    def _files(self) -> RunDir | None:
        """The folder for the run's files; None if they are not recorded."""
        if self._recording is None:
            warn_once(_OUTSIDE)
            return None
        return self._recording.files

    def log_artifact(
        self,
        path: str | os.PathLike[str] | FileList,
        artifact_path: str | None = None,
        *,
        name: str | None = None,
        **others: object,
    ) -> None:
        """Record a copy, taken now, of a file or a folder.

        Links are followed. A warning names files of a folder that cannot be copied (a broken or
        circular link, a pipe); the rest of the folder is recorded.

        Args:
            path: File or folder to copy, or W&B's ``Artifact`` with several.
            artifact_path: Folder among the run's artifacts; the root if None.
            name: W&B's name of that folder.
            **others: Other arguments of W&B; a warning says that they are not recorded.

        Raises:
            FileNotFoundError: ``path`` does not exist.
            UsageError: ``artifact_path`` is absolute or leads out of the artifacts.
        """
        if lost := sorted(name for name, value in others.items() if value and name != "type"):
            warn_once(f"log_artifact: radt does not record {', '.join(lost)}")
        if (run_dir := self._files()) is not None:
            for file, folder in getattr(path, "files", [(path, name or artifact_path)]):
                add_file(run_dir, Path(file), folder)

    def save(self, pattern: str | os.PathLike[str], *args: object, **kwargs: object) -> None:  # noqa: ARG002 - W&B's
        """Record copies, taken now, of the files and folders that match a pattern, as artifacts."""
        paths = sorted(glob.glob(os.fspath(pattern)))  # noqa: PTH207 - patterns may be absolute
        if not paths:
            warn_once(f"{os.fspath(pattern)!r} is not saved: there is no such file yet")
        for path in paths:
            self.log_artifact(path)

    def log_text(self, text: str, file: str, step: int | None = None) -> None:
        """Record text as an artifact named ``file``, which may contain folders: ``a/b.txt``.

        With a step it is one of a sequence, which the dashboard shows with a slider: step 3 of
        ``a/b.txt`` is the artifact ``a/b/step-3.txt``. Text of the same file and step replaces an
        earlier one.

        Raises:
            TypeError: The step is not an integer.
            UsageError: ``file`` is absolute or leads out of the artifacts.
        """
        path = stepped(file, step)
        if (run_dir := self._files()) is not None:
            data = text.encode("utf-8", errors="backslashreplace")  # lone surrogates
            add_content(run_dir, data, path)

    def log_image(self, name: str, image: Any, step: int | None = None) -> None:
        """Record an image, at a step one of a sequence: ``log_image("val/masks", mask, step)``.

        It becomes an artifact, ``images/val/masks/step-100.png``; without a step
        ``images/val/masks.png``. An image of the same name and step replaces an earlier one.

        Args:
            name: Its name, which may contain folders.
            image: An array or a tensor of the shape (height, width) or (height, width, 1, 3 or 4):
                uint8, boolean, or float from 0 to 1; a figure of matplotlib or plotly; a PIL image;
                or the path of a PNG, JPEG, GIF, WebP or SVG file, which is copied. Arrays and
                figures of matplotlib are stored as PNG, those of plotly as HTML.
            step: The step it belongs to.

        Raises:
            FileNotFoundError: There is no file of this path.
            TypeError: ``image`` is none of these, or the step not an integer.
            UsageError: The name leads out of the artifacts; the shape, type or values of an array
                or the kind of a file are not those of an image.
        """
        if isinstance(image, (str, os.PathLike)):
            file = Path(image)
            if file.suffix.lower() not in IMAGE_SUFFIXES:
                raise UsageError(
                    f"{file.name!r:.80} is not an image that browsers show",
                    f"Save it as one of {' '.join(sorted(IMAGE_SUFFIXES))}",
                )
            path, read = path_at(IMAGES, name, file.suffix.lower(), step), file.read_bytes
        elif is_plotly(image):
            path, read = path_at(IMAGES, name, ".html", step), partial(html_of, image)
        else:
            path, read = path_at(IMAGES, name, ".png", step), partial(png_of, image)
        if (run_dir := self._files()) is not None:
            add_content(run_dir, read(), path)

    def log_table(self, name: str, table: Any, step: int | None = None) -> None:
        """Record a table, at a step one of a sequence: ``log_table("errors", frame, step)``.

        It becomes an artifact, ``tables/errors/step-100.json``, in the format of MLflow's
        ``log_table``. A table of the same name and step replaces an earlier one.

        Args:
            name: Its name, which may contain folders.
            table: A DataFrame, whose index is left out, or a dictionary of columns: lists, arrays
                or tensors.
            step: The step it belongs to.

        Raises:
            TypeError: ``table`` is neither, or the step not an integer.
            UsageError: The name leads out of the artifacts, or columns differ in length.
        """
        path = path_at(TABLES, name, ".json", step)
        if (run_dir := self._files()) is not None:
            add_content(run_dir, json_of(table), path)

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
        if self._recording is None:
            warn_once(_OUTSIDE)
        checked_name(name, "child")
        child = Run(name, params=params)
        recording = begin_run(self._recording or unrecorded(), child._options, is_owned=True)
        recording.handles.append(child)
        child._use(recording)
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
        if self._recording is None:
            raise AttributeError(f"run.{name} is mlflow's, and can be used in `with radt.Run()`")
        return self._recording.backend.mlflow.attribute(name)

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


def run_of(recording: Recording) -> Run:
    """Return the `Run` of an open recording."""
    for handle in recording.handles:
        if isinstance(handle, Run):
            return handle
    run = Run()
    recording.handles.append(run)
    run._use(recording)
    return run


def active_run() -> Run | None:
    """Return the run that this thread or task can log to; None if there is none.

    This is the run of its innermost ``with`` block; in a thread or task without one, the only run
    that is open in the process. A process that was started inside a run (a spawned worker, another
    script) joins that run until the process ends.
    """
    recording = current(warns=True)
    if recording is not None:
        return run_of(recording)
    if not belongs_to_a_run():
        return None
    run = Run()
    run._joining = Joining.PROCESS
    run._hold()  # no limits, because there is no block that they could end
    return run


def _in_other_process() -> Run:
    """Return the `Run` that replaces a pickled one in a worker process."""
    return active_run() or Run()
