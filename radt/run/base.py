"""What `radt.Run` and its children have in common: values, files, markers and steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from radt.errors import UsageError
from radt.home import IMAGES, TABLES, RunDir
from radt.journal.format import EventKind
from radt.journal.values import checked_name, to_number, to_step
from radt.journal.writer import JournalWriter, LogScalar, Number
from radt.run.files import add_content, add_file
from radt.run.instruments import EpochMarker, Instruments, Span
from radt.run.limits import LimitedJournal
from radt.run.media import (
    IMAGE_SUFFIXES,
    html_of,
    is_plotly,
    json_of,
    path_at,
    png_of,
    stepped,
)
from radt.run.passthrough import NullJournal
from radt.run.steps import Batch, Batches


class RunBase:
    """A run as a script logs to it."""

    #: Records a value of a metric now: ``log_metric(name, value, step=None)``.
    #:
    #: ``value`` is a number, boolean, numpy scalar or tensor of one element, recorded as a double:
    #: NaN, infinities and -0.0 unchanged. ``step`` is an integer of Python, numpy or torch, from
    #: -2^63 + 1 to 2^63 - 1, not a boolean. It is an attribute rather than a method to save a call
    #: per value. Raises TypeError for a value that is not a number or a name that is not a string,
    #: UsageError for a step or value that is too large, and for a name that is empty, too long or
    #: unprintable; then records nothing.
    log_metric: LogScalar

    def __init__(self) -> None:
        self._epoch: EpochMarker | None = None

    def _log_to(
        self, journal: NullJournal | JournalWriter | LimitedJournal, instruments: Instruments
    ) -> None:
        """Log there from now on."""
        self._journal, self._instruments = journal, instruments
        self.log_metric = journal.scalar

    def _files(self) -> RunDir | None:
        """Return where the run's files go; None if they are not recorded."""
        raise NotImplementedError

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

        Raises:
            TypeError: The name is not a string.
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
            TypeError: The name is not a string.
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

        Links are followed. A warning names files of a folder that cannot be copied (a broken or
        circular link, a pipe); the rest of the folder is recorded.

        Args:
            path: File or folder to copy.
            artifact_path: Folder among the run's artifacts; the root if None.

        Raises:
            FileNotFoundError: ``path`` does not exist.
            UsageError: ``artifact_path`` is absolute or leads out of the artifacts.
        """
        if (run_dir := self._files()) is not None:
            add_file(run_dir, Path(path), artifact_path)

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
        self._epoch = EpochMarker(self._journal, to_step(number), self._instruments, total)
        return self._epoch

    def span(self, name: str) -> Span:
        """Mark a time span: ``with run.span("validate"):`` or ``@run.span("validate")``.

        Raises:
            TypeError: The name is not a string.
            UsageError: The name is empty, too long or unprintable.
        """
        return Span(self._journal, checked_name(name, "span"))

    # Steps -----------------------------------------------------------------------------------

    def step(
        self,
        samples: int | None = None,
        *,
        time_s: float | None = None,
        wait_s: float | None = None,
    ) -> None:
        """Mark the end of a training step: record its duration, and samples per second.

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
        self._instruments.steps.step(samples, time_s, wait_s)

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
