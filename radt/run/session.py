"""Runs without a ``with`` block, by the names of W&B and Trackio: `init`, `log`, `finish`.

``import radt as wandb`` runs a plain W&B script. What has no counterpart in radt is accepted and
named once on standard error.
"""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from radt.run.history import Config, Summary
from radt.run.lifecycle import current, measure
from radt.run.notices import warn_once
from radt.run.run import Run, active_run
from radt.run.target import MODE_VARIABLE

#: Arguments of W&B's ``init`` without which nothing is lost.
_HARMLESS = {
    *("anonymous", "allow_val_change", "dir", "embed", "entity", "force", "private", "save_code"),
    *("settings", "space_id"),
}


def save(pattern: str | os.PathLike[str], *args: object, **kwargs: object) -> None:  # noqa: ARG001 - W&B's
    """Record copies, taken now, of the files and folders that match a pattern, as artifacts."""
    paths = sorted(glob.glob(os.fspath(pattern)))  # noqa: PTH207 - patterns may be absolute
    run = active_run()
    if run is None or not paths:
        why = "there is no run" if run is None else "there is no such file yet"
        warn_once(f"{os.fspath(pattern)!r} is not saved: {why}")
        return
    for path in paths:
        run.log_artifact(path)


def watch(*args: object, **kwargs: object) -> None:  # noqa: ARG001 - W&B's
    """Accept W&B's call, and warn that radt does not record gradients and weights."""
    warn_once("watch: radt records no gradients and weights; log the norms that you look at")


def define_metric(*args: object, **kwargs: object) -> None:  # noqa: ARG001 - W&B's
    """Accept W&B's call, and warn that it has no effect."""
    warn_once(
        "define_metric: radt draws every metric over step, epoch or time as you choose in the "
        "dashboard; step_metric, summary and goal are ignored"
    )


class SessionRun(Run):
    """What `init` returns: a run that is open until `finish`, the end of its ``with``, or exit."""

    def _begin(self) -> None:
        self._last_id = self._last_name = ""
        outermost = self._join()
        assert self._active is not None
        if outermost:
            measure(self._active, self._options)
        self._last_id, self._last_name = super().id, super().name

    def __enter__(self) -> Self:
        if self._depth == 0:
            return super().__enter__()
        if limits := self._limits.within():  # only now is there a block that can end
            self._watch(limits)
        return self

    @property
    def id(self) -> str:
        """Id of the run, also after its end."""
        return super().id or self._last_id

    @property
    def name(self) -> str:
        """What people call the run."""
        return super().name or self._last_name

    @name.setter
    def name(self, value: str) -> None:
        warn_once(
            f"the run cannot be renamed to {value!r}: a run keeps the name it began with. Give it "
            "to radt.init(name=…)"
        )

    @property
    def dir(self) -> str:
        """A folder whose files become artifacts of the run when it ends."""
        if self._active is None or not self._active.recorded:
            return str(Path.cwd())
        folder = self._active.target.run_dir.artifacts
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder)

    define_metric = staticmethod(define_metric)
    save = staticmethod(save)
    watch = staticmethod(watch)


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
    **others: object,
) -> SessionRun:
    """Start a run, or join the one that this process belongs to; `finish` ends it.

    If `init` has already started a run, it returns that run; in a notebook, it finishes it first.

    Args:
        project: The experiment.
        name: Name of the run.
        config: Parameters: a dictionary, or an object with attributes.
        tags: Recorded as one tag named ``tags``.
        group: The workload.
        notes: Recorded as a tag.
        job_type: Recorded as a tag.
        mode: ``"disabled"`` records nothing.
        reinit: ``True`` or ``"finish_previous"`` finishes an earlier run first.
        **others: Other arguments of W&B; ignored, with one warning if that has an effect.
    """
    earlier = current()
    if earlier is not None and isinstance(earlier.run, SessionRun):
        if reinit in (True, "finish_previous") or (reinit is None and _in_notebook()):
            earlier.run.finish()
        else:
            if config is not None:
                earlier.run.config.update(config)
            return earlier.run
    ignored = sorted(name for name, value in others.items() if value and name not in _HARMLESS)
    if ignored:
        warn_once(f"init: radt has nothing for {', '.join(ignored)}, which is ignored")
    run = SessionRun(name, experiment=project, workload=group)
    with _switched_off(off=mode == "disabled"):
        run._begin()  # noqa: SLF001 - its own
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


def _in_notebook() -> bool:
    return "ipykernel" in sys.modules


def log(metrics: Mapping[str, Any], step: int | None = None, commit: bool | None = None) -> None:
    """Record values in the open run, or the run this process belongs to; see `radt.Run.log`."""
    run = active_run()
    if run is None:
        warn_once("there is no run yet: call radt.init() first; nothing is recorded")
    else:
        run.log(metrics, step, commit)


def finish(exit_code: int | None = None) -> None:
    """End the open run, as FAILED if the exit code is not 0. Harmless without a run."""
    active = current()
    if active is not None and active.run is not None:
        active.run.finish(exit_code)


def login(*args: object, **kwargs: object) -> bool:  # noqa: ARG001 - W&B's
    """Return True: no account is needed."""
    return True


#: Parameters of the open run: ``radt.config.lr``, ``radt.config["lr"]``.
config = Config(active_run)
#: Last values of the open run; what is set here is recorded.
summary = Summary(active_run)
