"""Runs without a ``with`` block, by the names of W&B and Trackio: `init`, `log`, `finish`.

``import radt as wandb`` runs a plain W&B script. Features without a counterpart in radt are
accepted, with one warning on standard error.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

from radt.errors import UsageError
from radt.run.notices import warn_once
from radt.run.open_runs import Place, current
from radt.run.run import Run, active_run, begin, run_of
from radt.run.standalone import RunOptions
from radt.run.wandb_run import Config, Summary, needed

#: Arguments of W&B's ``init`` that can be ignored without loss.
_HARMLESS = {
    *("anonymous", "allow_val_change", "dir", "embed", "entity", "force", "private", "save_code"),
    *("settings", "space_id"),
}


def _in_open_run(name: str) -> Callable[..., None]:
    """Return a method of `Run` as a function that acts on the open run."""

    @wraps(getattr(Run, name))
    def function(*args: object, **kwargs: object) -> None:
        if (run := needed(active_run)) is not None:
            getattr(run, name)(*args, **kwargs)

    return function


alert = _in_open_run("alert")
define_metric = _in_open_run("define_metric")
log = _in_open_run("log")
log_artifact = _in_open_run("log_artifact")
save = _in_open_run("save")
watch = _in_open_run("watch")


def init(
    project: str | None = None,
    name: str | None = None,
    config: Any = None,
    *,
    tags: str | Sequence[str] | None = None,
    group: str | None = None,
    notes: str | None = None,
    job_type: str | None = None,
    mode: str | None = None,
    reinit: bool | str | None = None,
    ranks: str | None = None,
    **others: object,
) -> Run:
    """Start a run, or join the one that this process belongs to; `finish` ends it.

    If `init` has already started a run in this thread or task, it returns that run. In a notebook,
    or if the name differs, it finishes that run first.

    Args:
        project: The experiment.
        name: Name of the run.
        config: Parameters, of any kind of configuration (`radt.Run.log_params`), or a YAML file.
        tags: Recorded as one tag named ``tags``.
        group: The workload.
        notes: Recorded as a tag.
        job_type: Recorded as a tag.
        mode: ``"disabled"`` records nothing.
        reinit: ``True`` or ``"finish_previous"`` finishes an earlier run first;
            ``"return_previous"`` returns it; ``"create_new"`` starts a run beside it; log to that
            run through the returned object.
        ranks: As in `radt.Run`.
        **others: Other arguments of W&B; ignored, with one warning if they would have an effect.

    ``WANDB_PROJECT``, ``WANDB_NAME``, ``WANDB_TAGS``, ``WANDB_RUN_GROUP``, ``WANDB_NOTES``,
    ``WANDB_JOB_TYPE`` and ``WANDB_MODE`` apply where an argument is missing.

    Raises:
        UsageError: The configuration file cannot be read.
    """
    ignored = sorted(name for name, value in others.items() if value and name not in _HARMLESS)
    if ignored:
        warn_once(f"init: radt has nothing for {', '.join(ignored)}, which is ignored")
    given = _config_file(config) if isinstance(config, str | os.PathLike) else config
    earlier = _session_here()
    if earlier is not None and reinit != "create_new" and _is_another(earlier, name, reinit):
        earlier.finish()
        earlier = None
    if earlier is None or reinit == "create_new":
        if mode is None and (mode := _variable("MODE")) == "disabled":
            warn_once("nothing is recorded: WANDB_MODE is disabled")
        name, project = name or _variable("NAME"), project or _variable("PROJECT")
        group = group or _variable("RUN_GROUP")
        is_off = mode == "disabled"
        options = RunOptions(name, project, group, ranks=ranks, is_session=True, is_off=is_off)
        run = begin(options, is_new=reinit == "create_new")
        tags = tags or [tag for tag in re.split(r"\s*,\s*", _variable("TAGS") or "") if tag]
        notes, job_type = notes or _variable("NOTES"), job_type or _variable("JOB_TYPE")
    else:
        run = earlier
    if given is not None:
        run.config.update(given)
    if tags:
        run.tags = tags
    if notes:
        run.notes = notes
    if job_type:
        run.history.job_type = job_type
        run.set_tag("job_type", job_type)
    return run


def _variable(name: str) -> str | None:
    return os.environ.get(f"WANDB_{name}") or None


def _config_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the parameters of a YAML file: ``lr: 0.1``, or W&B's ``lr: {value: 0.1}``.

    Raises:
        UsageError: The file cannot be read, or is not a mapping.
    """
    import yaml

    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"init: config={os.fspath(path)!r} cannot be read: {error}") from error
    if not isinstance(found, Mapping):
        raise UsageError(f"Expected parameters by name in {os.fspath(path)}, got {found!r:.80}")
    return {
        str(name): value["value"]
        if isinstance(value, Mapping) and "value" in value and value.keys() <= {"desc", "value"}
        else value
        for name, value in found.items()
        if name not in ("_wandb", "wandb_version")
    }


def _session_here() -> Run | None:
    """Return the run that `init` began in this thread or task, if it is the current one."""
    open_run = current()
    if open_run is None or not open_run.is_session or open_run.place != Place.here():
        return None
    return run_of(open_run)


def _is_another(earlier: Run, name: str | None, reinit: bool | str | None) -> bool:
    """Return True if `init` begins a new run although one is open.

    W&B decides by ``reinit``. Trackio always begins a new run; a second call with the same name
    continues the open one.
    """
    if reinit in (False, None, "default"):
        return "ipykernel" in sys.modules or name not in (None, earlier.name)
    return reinit != "return_previous"


def finish(exit_code: int | None = None, quiet: bool | None = None) -> None:  # noqa: ARG001 - W&B's
    """End the open run, as FAILED if the exit code is not 0. Harmless without a run."""
    open_run = current()
    if open_run is not None:
        run_of(open_run).finish(exit_code)


def login(*args: object, **kwargs: object) -> bool:  # noqa: ARG001 - W&B's
    """Return True: no account is needed."""
    return True


#: Parameters of the open run: ``radt.config.lr``, ``radt.config["lr"]``.
config = Config(active_run)
#: Last values of the open run. Assigned values are recorded.
summary = Summary(active_run)
