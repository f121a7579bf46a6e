"""Experiments from Python: what ``radt FILE`` does, as a function.

Nothing but the standard library is imported here: who asks for the function may never call it, and
pays for neither pandas nor the runner until then.
"""

from __future__ import annotations

import difflib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radt.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

    from radt.runner.pending import ExperimentOptions
    from radt.settings import Settings

#: Where tables are kept as files, in the data folder.
FRAMES_FOLDER = "frames"


def run_experiment(
    source: pd.DataFrame | Path | str,
    *,
    home: Path | str | None = None,
    tracking_uri: str | None = None,
    store_uri: str | None = None,
    fresh: bool = False,
    **options: object,
) -> pd.DataFrame:
    """Run an experiment as ``radt FILE`` does, here or on a cluster, and return its table.

    Rows that share a workload start together. Finished rows are skipped; an interrupted experiment
    resumes. Variables and settings files (``radt config``) provide defaults.

    A DataFrame is saved as a file in the data folder, under ``frames``, identified by its content
    without Status and Run: another call with the same rows resumes it. ``radt status`` and ``radt
    stop`` accept that file. Paths in it are relative to the current folder.

    Ctrl-C stops the runs gracefully, then raises KeyboardInterrupt; a second Ctrl-C kills them.
    Outside the main thread, signals are not handled.

    Args:
        source: An experiment file (CSV, or a sweep in YAML), or its rows.
        home: The data folder.
        tracking_uri: MLflow's address.
        store_uri: Postgres database that recorded data is uploaded to.
        fresh: Run all rows of a DataFrame again. For a file, empty the Status cells instead.
        **options: Fields of `radt.runner.pending.ExperimentOptions`: ``rerun``, ``only``,
            ``repeat``, ``cooldown_s``, ``wait_for_file_s``, ``max_time_s``, ``max_epoch``,
            ``sync``, ``fail_fast``, ``busy``, ``notify``, ``quiet``. ``sync`` and ``busy`` may be
            strings.

    Returns:
        The table with Status and Run: a copy of a DataFrame, all cells of a CSV file as strings,
        or one row per run of a sweep with a column for each parameter.

    Raises:
        ExperimentError: The experiment has problems, listed in the message; nothing was started.
        HeldError: The experiment is already running.
        UsageError: An option has an invalid value.
        RadtError: The experiment could not be prepared or recorded.
    """
    from rich.console import Console

    from radt import settings
    from radt.cluster.opened import refuse_open_submission
    from radt.cluster.settings import ClusterSettings
    from radt.cluster.slurm import Slurm
    from radt.devices.machine import Machine
    from radt.experiment.frame import FrameExperiment, read_table, with_statuses
    from radt.home import Home
    from radt.listeners import registry
    from radt.paths import start_folder
    from radt.runner.start import start_experiment
    from radt.settings import Settings

    frame = None if isinstance(source, str | os.PathLike) else _as_frame(source)
    path = Path(source) if isinstance(source, str | os.PathLike) else None
    if path is not None and fresh:
        raise UsageError("fresh is for tables", f"Empty the Status cells of {path}")
    values = Settings.of(start_folder() if path is None else path.absolute().parent)
    values.check()
    chosen = _options(values, options)
    data = Home.resolve(values[settings.HOME] if home is None else home)
    if path is None:
        assert frame is not None
        table = FrameExperiment.of(frame)
        folder = data.path / FRAMES_FOLDER
        table.check(folder / f"{table.name}.csv", Machine.detect(), registry.load())
        path = table.store(data.create().path / FRAMES_FOLDER, fresh=fresh)
    given: dict[str, Any] = {
        "home": data,
        "options": chosen,
        "console": Console(highlight=False),
        "tracking_uri": tracking_uri or values[settings.TRACKING_URI] or data.default_tracking_uri,
        "store_uri": store_uri or values[settings.STORE_URI] or None,
    }
    if (cluster := ClusterSettings.chosen(values)) is not None:
        from radt.cluster.start import ClusterStart, start_on_cluster

        start = ClusterStart(values[settings.ON], cluster, Slurm())
        outcome = start_on_cluster(path, start, **given)
    else:
        refuse_open_submission(path)
        outcome = start_experiment(path, **given)
    if outcome.interrupted_by == signal.SIGINT:
        raise KeyboardInterrupt
    if outcome.interrupted_by is not None:  # who asked radt to end asked this process
        raise SystemExit(outcome.exit_code)
    return read_table(path) if frame is None else with_statuses(frame, path)


def _as_frame(source: object) -> pd.DataFrame:
    import pandas as pd

    if not isinstance(source, pd.DataFrame):
        raise TypeError(
            f"run_experiment() takes a DataFrame or the path of an experiment file, not a "
            f"{type(source).__name__}"
        )
    return source


def _options(found: Settings, given: Mapping[str, object]) -> ExperimentOptions:
    """The options of the settings, with those given here in their place.

    Raises:
        TypeError: There is no such option.
        UsageError: It has no value of its kind.
    """
    from dataclasses import fields, replace

    from radt.collocation.busy import BusyPolicy
    from radt.runner.pending import ExperimentOptions, SyncPoint, experiment_options

    names = [field.name for field in fields(ExperimentOptions)]
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"run_experiment() has no option {name!r}{hint}")
    parsers: Mapping[str, Callable[[Any], object]] = {
        "only": _labels,
        "repeat": _count,
        "cooldown_s": lambda value: _seconds(value, least=0.0),
        "wait_for_file_s": lambda value: _seconds(value, least=0.0),
        "max_time_s": lambda value: None if value is None else _seconds(value, least=1e-3),
        "max_epoch": lambda value: None if value is None else _count(value),
        "sync": lambda value: _word(SyncPoint, value),
        "busy": lambda value: _word(BusyPolicy, value),
        "notify": lambda value: _kind(value, str, "a text"),
    }
    values: dict[str, Any] = {}
    for name, value in given.items():
        parse = parsers.get(name, lambda value: _kind(value, bool, "True or False"))
        try:
            values[name] = parse(value)
        except UsageError as error:
            raise UsageError(f"{name}: {error.message}", error.remedy) from None
    return replace(experiment_options(found), **values)


def _labels(value: object) -> tuple[str, ...]:
    """Workloads as people have them in hand: one or several, numbers as well."""
    if isinstance(value, str | Integral):
        return (str(value),)
    if isinstance(value, Sequence):
        return tuple(map(str, value))
    raise _refused(value, "a workload or a list of them")


def _count(value: object) -> int:
    if isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1:
        return int(value)
    raise _refused(value, "a number of at least 1")


def _seconds(value: object, *, least: float) -> float:
    if isinstance(value, Real) and not isinstance(value, bool) and float(value) >= least:
        return float(value)
    raise _refused(value, "a number of seconds")


def _word(words: type[StrEnum], value: object) -> object:
    try:
        return words(str(value))
    except ValueError:
        raise _refused(value, " or ".join(repr(str(word)) for word in words)) from None


def _kind(value: object, kind: type, what: str) -> object:
    if isinstance(value, kind):
        return value
    raise _refused(value, what)


def _refused(value: object, what: str) -> UsageError:
    return UsageError(f"{value!r} is not a value for it", f"Give {what}")
