"""Record values, parameters and summaries of a run in the style of W&B and Trackio.

`radt.Run.log` counts steps automatically and takes nested values of any kind. Values that radt does
not record cause one warning. `Config` and `Summary` are dictionaries with attributes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Protocol, TypeVar

from radt.errors import UsageError
from radt.journal.values import checked_name, to_number, to_step
from radt.journal.writer import LogScalar
from radt.run.media import is_plotly
from radt.run.notices import warn_once
from radt.run.parameters import first_level, read_parameters

#: Computes a statistic from its previous value, a new value, and the number of values.
_Fold = Callable[[float, float, int], float]
_FOLDS: dict[str, _Fold] = {
    "last": lambda _, value, __: value,
    "max": lambda known, value, _: value if math.isnan(known) or value > known else known,
    "mean": lambda known, value, count: known + (value - known) / count,
    "min": lambda known, value, _: value if math.isnan(known) or value < known else known,
}


@dataclass(slots=True)
class History:
    """State that a run keeps for its script: next step, parameters, last values and warnings given.

    Attributes:
        statistics: Names of the statistics in a metric's summary, by pattern of metric names.
        counts: Number of values of each metric with statistics.
        alerts: Time of the last alert with each title (`time.monotonic`).
    """

    step: int = 0
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    statistics: dict[str, dict[str, _Fold]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    tags: tuple[str, ...] = ()
    notes: str | None = None
    job_type: str | None = None
    alerts: dict[str, float] = field(default_factory=dict)

    def define(self, pattern: str, summary: str, goal: str | None) -> None:
        """Choose the statistics that the summary of matching metrics keeps.

        Raises:
            UsageError: The statistic is unknown, or ``best`` has no goal.
        """
        known = _FOLDS | {"best": _FOLDS.get(f"{goal}"[:3], _FOLDS["last"])}
        kinds = [kind.strip() for kind in summary.split(",")]
        if "best" in kinds and goal not in ("minimize", "maximize"):
            raise UsageError(f"Expected goal='minimize' or 'maximize' with 'best', got {goal!r}")
        if unknown := set(kinds) - known.keys() - {"copy", "first", "none"}:
            raise UsageError(f"Expected summary={'|'.join(known)}, got {unknown.pop()!r}")
        self.statistics[pattern] = {kind: known[kind] for kind in kinds if kind in known}

    def note(self, name: str, value: float) -> None:
        """Update the summary with a value that was logged."""
        patterns = [pattern for pattern in self.statistics if fnmatchcase(name, pattern)]
        if not patterns:
            self.summary[name] = value
            return
        self.counts[name] += 1
        known = self.summary[name] if self.counts[name] > 1 else {}
        self.summary[name] = {
            kind: fold(known.get(kind, value), value, self.counts[name])
            for kind, fold in self.statistics[patterns[-1]].items()
        }


class Logging(Protocol):
    """The part of a run that `log` needs."""

    @property
    def history(self) -> History: ...
    @property
    def log_metric(self) -> LogScalar: ...
    def log_params(self, params: object) -> None: ...
    def set_tag(self, name: str, value: object) -> None: ...
    def log_image(self, name: str, image: Any, step: int | None = None) -> None: ...
    def log_table(self, name: str, table: Any, step: int | None = None) -> None: ...


def log(
    run: Logging,
    history: History,
    metrics: Mapping[str, Any],
    step: int | None,
    commit: bool | None,
) -> None:
    """Record values at a step; see `radt.Run.log`.

    Raises:
        TypeError: ``metrics`` is not a mapping, or the step not a whole number.
        UsageError: The step does not fit into 64 bits.
    """
    if not isinstance(metrics, Mapping):
        raise TypeError(f"log takes a dictionary of values by name, not {type(metrics).__name__}")
    if step is not None:
        history.step = to_step(step)
    for name, value in flattened(metrics):
        try:
            if _recorded(run, name, value, history.step):
                continue
            number = to_number(value)
            run.log_metric(name, number, history.step)
        except (TypeError, UsageError, OSError) as error:
            _leave_out(name, value, error)
        else:
            history.note(name, number)
    if step is None if commit is None else commit:
        history.step += 1


def flattened(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested values with their dotted names: ``{"a": {"b": 1}}`` has ``a.b``."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _recorded(run: Logging, name: str, value: Any, step: int) -> bool:
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


FindRun = Callable[[], Logging | None]
RunT = TypeVar("RunT")


def needed(find: Callable[[], RunT | None]) -> RunT | None:
    """Return the run that ``find`` returns, with a warning if there is none."""
    run = find()
    if run is None:
        warn_once("there is no run yet: call radt.init() first; nothing is recorded")
    return run


class _Values(MutableMapping[str, Any]):
    """A dictionary with attributes, which belongs to the run that ``find`` returns."""

    def __init__(self, find: FindRun) -> None:
        object.__setattr__(self, "_find", find)

    def _known(self) -> dict[str, Any]:
        raise NotImplementedError

    def _history(self) -> History:
        run: Logging | None = object.__getattribute__(self, "_find")()
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
        if name.startswith("_") or name not in self._known():
            raise AttributeError(f"{name!r} is not set; there is {', '.join(self) or 'nothing'}")
        return self._known()[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __repr__(self) -> str:
        return repr(self._known())

    def _run(self) -> Logging | None:
        find: FindRun = object.__getattribute__(self, "_find")
        return needed(find)


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
        run = self._run()
        if run is None:
            return
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
        run = self._run()
        if run is None:
            return
        run.history.summary[name] = value
        for part, single in flattened({name: value}):
            try:
                run.log_metric(part, to_number(single))
            except TypeError:
                run.set_tag(checked_name(part), single)
