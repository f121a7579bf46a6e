"""Run experiments from Python: what ``radt FILE`` does, as a function.

Imports only the standard library, so that a script that never calls the function does not pay for
pandas or the runner.
"""

from __future__ import annotations

import difflib
import os
import signal
from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radt.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

    from radt.settings import Setting

#: Subfolder of the data folder that DataFrames are saved in.
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
        **options: Fields of `radt.runner.options.StartOptions`: ``rerun``, ``only``,
            ``repeat``, ``cooldown_s``, ``wait_for_file_s``, ``max_time_s``, ``max_epoch``,
            ``sync``, ``fail_fast``, ``busy``, ``notify``, ``wait``, ``quiet``. ``sync`` and
            ``busy`` may be strings.

    Returns:
        The table with Status and Run: a copy of a DataFrame, all cells of a CSV file as strings,
        or one row per run of a sweep with a column for each parameter.

    Raises:
        ExperimentError: The experiment has problems, listed in the message; nothing was started.
        HeldError: The experiment is already running.
        UsageError: An option has an invalid value.
        RadtError: The experiment could not be prepared or recorded.
    """
    from radt import settings
    from radt.cluster.opened import executor_of
    from radt.devices.machine import Machine
    from radt.experiment.frame import FrameExperiment, read_table, with_statuses
    from radt.listeners import registry
    from radt.paths import start_folder
    from radt.runner.options import StartOptions
    from radt.runner.start import start
    from radt.settings import Settings

    frame = None if isinstance(source, str | os.PathLike) else _as_frame(source)
    path = Path(source) if isinstance(source, str | os.PathLike) else None
    if path is not None and fresh:
        raise UsageError("fresh is for tables", f"Empty the Status cells of {path}")
    rerun, only = bool(options.pop("rerun", False)), _labels(options.pop("only", ()))
    given = _texts(options)
    given |= {
        setting: os.fspath(value)
        for setting, value in (
            (settings.HOME, home),
            (settings.TRACKING_URI, tracking_uri),
            (settings.STORE_URI, store_uri),
        )
        if value
    }
    values = Settings.of(start_folder() if path is None else path.absolute().parent, given)
    try:
        values.check()
    except UsageError as error:  # option names have no leading dashes in Python
        raise UsageError(error.message.removeprefix("--"), error.remedy) from None
    chosen = StartOptions.of(values, rerun=rerun, only=only)
    if path is None:
        assert frame is not None
        table = FrameExperiment.of(frame)
        folder = chosen.home.path / FRAMES_FOLDER
        table.check(folder / f"{table.name}.csv", Machine.detect(), registry.load())
        chosen.home.create()
        path = table.store(folder, fresh=fresh)
    outcome = start(path, chosen, executor_of(values, path))
    if outcome.interrupted_by == signal.SIGINT:
        raise KeyboardInterrupt
    if outcome.interrupted_by is not None:  # a signal to this process asked radt to stop
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


def _texts(options: Mapping[str, object]) -> dict[Setting[Any], str]:
    """Convert keyword options to settings with text values; None is not given.

    Raises:
        TypeError: An option does not exist.
    """
    from radt.runner.options import SETTINGS_OF_FIELDS
    from radt.units import seconds_text

    own = {"home", "tracking_uri", "store_uri"}
    texts: dict[Setting[Any], str] = {}
    for name, value in options.items():
        setting = None if name in own else SETTINGS_OF_FIELDS.get(name)
        if setting is None:
            names = ["rerun", "only", *SETTINGS_OF_FIELDS.keys() - own]
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"run_experiment() has no option {name!r}{hint}")
        if value is not None:
            texts[setting] = seconds_text(value) if isinstance(value, float) else str(value)
    return texts


def _labels(value: object) -> tuple[str, ...]:
    """Convert one workload label or several, strings or integers, to strings."""
    if isinstance(value, str | Integral):
        return (str(value),)
    if isinstance(value, Sequence):
        return tuple(map(str, value))
    raise UsageError(f"only: {value!r} is not a valid value", "Give a workload or a list of them")
