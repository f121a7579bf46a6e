"""The names of W&B and Trackio on a run."""

from __future__ import annotations

import glob
import math
import os
import time
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from radt.run.history import Config, History, Summary, log
from radt.run.logged_run import LoggedRun
from radt.run.notices import send_alert, warn_once


class WandbRun(LoggedRun):
    """A run with the attributes and methods of W&B's."""

    def __init__(self) -> None:
        super().__init__()
        self._own_history = History()

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
        run_dir = None if self._open_run is None else self._open_run.files
        if run_dir is None:
            return str(Path.cwd())
        run_dir.artifacts.mkdir(parents=True, exist_ok=True)
        return str(run_dir.artifacts)

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

    def save(self, pattern: str | os.PathLike[str], *args: object, **kwargs: object) -> None:  # noqa: ARG002 - W&B's
        """Record copies, taken now, of the files and folders that match a pattern, as artifacts."""
        paths = sorted(glob.glob(os.fspath(pattern)))  # noqa: PTH207 - patterns may be absolute
        if not paths:
            warn_once(f"{os.fspath(pattern)!r} is not saved: there is no such file yet")
        for path in paths:
            self.log_artifact(path)
