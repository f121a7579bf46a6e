"""Runs without a ``with`` block, by the names of W&B and Trackio: `init`, `log`, `finish`.

``import radt as wandb`` runs a plain W&B script. What has no counterpart in radt is accepted and
named once on standard error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from radt.run.history import Config, Summary
from radt.run.notices import warn_once
from radt.run.recording import Place, current
from radt.run.run import Run, active_run, begin, run_of
from radt.run.standalone import RunOptions
from radt.run.target import MODE_VARIABLE

#: Arguments of W&B's ``init`` without which nothing is lost.
_HARMLESS = {
    *("anonymous", "allow_val_change", "dir", "embed", "entity", "force", "private", "save_code"),
    *("settings", "space_id"),
}


def save(pattern: str | os.PathLike[str], *args: object, **kwargs: object) -> None:
    """Record copies of files as `radt.Run.save` does, in the open run."""
    if (run := _needed_run()) is not None:
        run.save(pattern, *args, **kwargs)


def watch(*args: object, **kwargs: object) -> None:
    """Accept W&B's call as `radt.Run.watch` does."""
    if (run := _needed_run()) is not None:
        run.watch(*args, **kwargs)


def define_metric(*args: object, **kwargs: object) -> None:
    """Accept W&B's call as `radt.Run.define_metric` does."""
    if (run := _needed_run()) is not None:
        run.define_metric(*args, **kwargs)


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

    If `init` has already started a run in this thread or task, it returns that run; in a notebook,
    or if the name is another one, it finishes it first.

    Args:
        project: The experiment.
        name: Name of the run.
        config: Parameters, of any kind of configuration (`radt.Run.log_params`).
        tags: Recorded as one tag named ``tags``.
        group: The workload.
        notes: Recorded as a tag.
        job_type: Recorded as a tag.
        mode: ``"disabled"`` records nothing.
        reinit: ``True`` or ``"finish_previous"`` finishes an earlier run first;
            ``"return_previous"`` returns it; ``"create_new"`` starts a run beside it, which is
            logged to through the object returned.
        ranks: As in `radt.Run`.
        **others: Other arguments of W&B; ignored, with one warning if that has an effect.
    """
    options = RunOptions(name, project, group, ranks=ranks, is_session=True)
    earlier = _session_here()
    if earlier is not None and reinit != "create_new":
        if _is_another(earlier, options, reinit):
            earlier.finish()
        else:
            if config is not None:
                earlier.config.update(config)
            return earlier
    ignored = sorted(name for name, value in others.items() if value and name not in _HARMLESS)
    if ignored:
        warn_once(f"init: radt has nothing for {', '.join(ignored)}, which is ignored")
    with _switched_off(off=mode == "disabled"):
        run = begin(options, is_new=reinit == "create_new")
    if config is not None:
        run.config.update(config)
    texts = {
        "tags": tags if isinstance(tags, str) else ", ".join(map(str, tags or ())),
        "notes": notes,
        "job_type": job_type,
    }
    if given := {key: text for key, text in texts.items() if text}:
        run.set_tags(given)
    return run


def _session_here() -> Run | None:
    """Return the run that `init` has begun in this thread or task, if it is the current one."""
    recording = current()
    if recording is None or not recording.is_session or recording.place != Place.here():
        return None
    return run_of(recording)


def _is_another(earlier: Run, options: RunOptions, reinit: bool | str | None) -> bool:
    """Return whether `init` begins a run of its own although one is open.

    W&B says which by ``reinit``. Trackio begins one always; the name tells it from a second call
    for the same run.
    """
    if reinit in (False, None, "default"):
        return "ipykernel" in sys.modules or options.name not in (None, earlier.name)
    return reinit != "return_previous"


@contextmanager
def _switched_off(*, off: bool) -> Iterator[None]:
    before = os.environ.get(MODE_VARIABLE)
    if off:
        os.environ[MODE_VARIABLE] = "off"
    try:
        yield
    finally:
        if before is not None:
            os.environ[MODE_VARIABLE] = before
        elif off:
            del os.environ[MODE_VARIABLE]


def log(metrics: Mapping[str, Any], step: int | None = None, commit: bool | None = None) -> None:
    """Record values in the open run, or the run this process belongs to; see `radt.Run.log`."""
    if (run := _needed_run()) is not None:
        run.log(metrics, step, commit)


def _needed_run() -> Run | None:
    run = active_run()
    if run is None:
        warn_once("there is no run yet: call radt.init() first; nothing is recorded")
    return run


def finish(exit_code: int | None = None) -> None:
    """End the open run, as FAILED if the exit code is not 0. Harmless without a run."""
    recording = current()
    if recording is not None:
        run_of(recording).finish(exit_code)


def login(*args: object, **kwargs: object) -> bool:  # noqa: ARG001 - W&B's
    """Return True: no account is needed."""
    return True


#: Parameters of the open run: ``radt.config.lr``, ``radt.config["lr"]``.
config = Config(active_run)
#: Last values of the open run; what is set here is recorded.
summary = Summary(active_run)
