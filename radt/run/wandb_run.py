"""The names of W&B and Trackio on a run.

`WandbRun.log` counts steps automatically and takes nested values of any kind. Values that radt does
not record cause one warning. `Config` and `Summary` are dictionaries with attributes.
"""

from __future__ import annotations

import glob
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from radt.errors import UsageError
from radt.journal.values import checked_name, to_number, to_step
from radt.run.history import History
from radt.run.logged_run import LoggedRun
from radt.run.media import is_plotly
from radt.run.notices import send_alert, warn_once
from radt.run.parameters import first_level, read_parameters

#: Returns the run that a script uses, if there is one.
FindRun = Callable[[], "WandbRun | None"]


def flattened(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested values with their dotted names: ``{"a": {"b": 1}}`` has ``a.b``."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _recorded(run: WandbRun, name: str, value: Any, step: int) -> bool:
    """Record an image, table, figure or text. Return False for anything else."""
    if hasattr(value, "record"):  # `radt.integrations.wandb`
        value.record(run, name, step)
    elif isinstance(value, list | tuple) and value and all(hasattr(v, "record") for v in value):
        for index, each in enumerate(value):
            each.record(run, f"{name}/{index}", step)
    elif hasattr(value, "savefig") or is_plotly(value):
        run.log_image(name, value, step)
    elif hasattr(value, "columns"):
        run.log_table(name, value, step)
    else:
        return False
    return True


def _leave_out(name: str, value: object, error: Exception) -> None:
    if isinstance(error, UsageError | OSError):
        warn_once(f"{name!r:.80} is not recorded: {error}")
        return
    warn_once(
        f"{name!r:.80} is not recorded: log takes numbers, images and tables, and this is a "
        f"{type(value).__name__}. Use run.log_image, log_table, log_text or log_artifact"
    )


def needed(find: FindRun) -> WandbRun | None:
    """Return the run that ``find`` returns, with a warning if there is none."""
    run = find()
    if run is None:
        warn_once("there is no run yet: call radt.init() first; nothing is recorded")
    return run


class _Values(MutableMapping[str, Any]):
    """A dictionary with attributes, which belongs to the run that ``find`` returns."""

    _find: FindRun

    def __init__(self, find: FindRun) -> None:
        vars(self)["_find"] = find

    def _known(self) -> dict[str, Any]:
        raise NotImplementedError

    def _history(self) -> History:
        run = self._find()
        return History() if run is None else run.history

    def __getitem__(self, name: str) -> Any:
        return self._known()[name]

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"{name!r} is recorded and cannot be taken back")

    def __iter__(self) -> Iterator[str]:
        return iter(self._known())

    def __len__(self) -> int:
        return len(self._known())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)  # also of a copy, which has no attributes yet
        if name not in self._known():
            raise AttributeError(f"{name!r} is not set; there is {', '.join(self) or 'nothing'}")
        return self._known()[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __repr__(self) -> str:
        return repr(self._known())


class Config(_Values):
    """Parameters of a run with their original types, as items or attributes. Recorded as text.

    Assigned values become parameters of the run (`radt.Run.log_params`); nested names are joined by
    dots.
    """

    def _known(self) -> dict[str, Any]:
        return self._history().config

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({name: value})

    def update(self, values: Any = (), allow_val_change: bool | None = None) -> None:  # type: ignore[override]  # noqa: ARG002 - W&B's
        """Record parameters, of any kind of configuration (`radt.Run.log_params`).

        Args:
            values: The parameters.
            allow_val_change: Ignored: a later value always replaces an earlier one.
        """
        if (run := needed(self._find)) is not None:
            given = first_level(values)
            run.history.config.update(given)
            run.log_params(read_parameters(given))

    def setdefaults(self, values: Any) -> None:
        """Record the parameters that are not set yet."""
        self.update({n: value for n, value in first_level(values).items() if n not in self})

    def as_dict(self) -> dict[str, Any]:
        """Return a copy."""
        return dict(self._known())


class Summary(_Values):
    """Last value of each logged metric; assigned values are recorded.

    A number becomes a value of a metric without a step, any other value a tag.
    """

    def _known(self) -> dict[str, Any]:
        return self._history().summary

    def __setitem__(self, name: str, value: Any) -> None:
        if (run := needed(self._find)) is None:
            return
        run.history.summary[name] = value
        for part, single in flattened({name: value}):
            try:
                run.log_metric(part, to_number(single))
            except TypeError:
                run.set_tag(checked_name(part), single)


class WandbRun(LoggedRun):
    """A run with the attributes and methods of W&B's."""

    @property
    def project(self) -> str:
        """Its experiment, which W&B calls project."""
        return self._last.backend.experiment

    @property
    def group(self) -> str:
        """Its workload, which W&B calls group; empty for none."""
        return self._last.backend.workload

    @property
    def url(self) -> str | None:
        """Address of the run's folder; None when nothing is recorded."""
        run_dir = self._last.files
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
        if not isinstance(metrics, Mapping):
            kind = type(metrics).__name__
            raise TypeError(f"log takes a dictionary of values by name, not {kind}")
        history = self.history
        if step is not None:
            history.step = to_step(step)
        for name, value in flattened(metrics):
            try:
                if _recorded(self, name, value, history.step):
                    continue
                number = to_number(value)
                self.log_metric(name, number, history.step)
            except (TypeError, UsageError, OSError) as error:
                _leave_out(name, value, error)
            else:
                history.note(name, number)
        if step is None if commit is None else commit:
            history.step += 1

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
        return self._last.history

    def save(self, pattern: str | os.PathLike[str], *args: object, **kwargs: object) -> None:  # noqa: ARG002 - W&B's
        """Record copies, taken now, of the files and folders that match a pattern, as artifacts."""
        paths = sorted(glob.glob(os.fspath(pattern)))  # noqa: PTH207 - patterns may be absolute
        if not paths:
            warn_once(f"{os.fspath(pattern)!r} is not saved: there is no such file yet")
        for path in paths:
            self.log_artifact(path)
