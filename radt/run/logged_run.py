"""The values and files of a run: the part of `radt.Run` that does not open or close one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from radt.errors import UsageError
from radt.home import IMAGES, TABLES, RunDir
from radt.journal.format import EventKind
from radt.journal.values import checked_name, to_number, to_step
from radt.journal.writer import LogScalar, Number
from radt.run.files import add_content, add_file
from radt.run.instruments import Instruments
from radt.run.media import IMAGE_SUFFIXES, html_of, is_plotly, json_of, path_at, png_of, stepped
from radt.run.notices import warn_once
from radt.run.off import NullJournal
from radt.run.open_runs import OpenRun, unrecorded
from radt.run.parameters import read_parameters

OUTSIDE = "values logged outside of `with radt.Run()` are not recorded"
_NO_INSTRUMENTS = Instruments(NullJournal(lambda: warn_once(OUTSIDE)))


class FileList(Protocol):
    """Files, each with its folder among the artifacts, as in W&B's ``Artifact``."""

    files: list[tuple[str | os.PathLike[str], str]]


class LoggedRun:
    """Records values, parameters, tags and files in the run of the open block."""

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
        self._open_run: OpenRun | None = None
        #: The run of the last block; before the first one, a run that records nothing.
        self._last = unrecorded()
        self._use(None)

    def _use(self, open_run: OpenRun | None) -> None:
        self._instruments = _NO_INSTRUMENTS
        if open_run is not None:
            self._last = open_run
            self._instruments = open_run.instruments
        self._open_run, self._journal = open_run, self._instruments.journal
        self.log_metric = self._instruments.log_metric

    @property
    def id(self) -> str:
        """Id of the run, as the Run column shows it; empty when nothing is recorded."""
        return self._last.backend.shown_id

    @property
    def name(self) -> str:
        """Name of the run; empty when nothing is recorded."""
        return self._last.backend.name

    @name.setter
    def name(self, value: str) -> None:
        name = checked_name(value, "run")
        if self._open_run is None:
            warn_once(OUTSIDE)
        elif self._open_run.backend.recorded and not self._open_run.backend.rename(name):
            warn_once(f"cannot rename the run to {name!r}: only the process that started it can")

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

    # Files -----------------------------------------------------------------------------------

    def _files(self) -> RunDir | None:
        """Return the folder for the run's files; None if files are not recorded."""
        if self._open_run is None:
            warn_once(OUTSIDE)
            return None
        return self._open_run.files

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
            name: W&B's name for `artifact_path`; takes precedence over it.
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

    def log_text(self, text: str, file: str, step: int | None = None) -> None:
        """Record text as an artifact named ``file``, which may contain folders: ``a/b.txt``.

        With a step it belongs to a sequence, which the dashboard shows with a slider: step 3 of
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
        """Record an image; with a step, one of a sequence: ``log_image("val/masks", mask, step)``.

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
        """Record a table; with a step, one of a sequence: ``log_table("errors", frame, step)``.

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
