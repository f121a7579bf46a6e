"""Attributes and functions of W&B that radt does not implement itself.

A function without a result is accepted, and a warning names what is not recorded. A function whose
result the script needs raises an error. For W&B's classes see `radt.integrations.wandb`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from radt.errors import UsageError
from radt.run.notices import warn_once

PAGE = "docs/migrate/wandb.md says what radt has for W&B's names"

#: Functions that can be ignored without loss.
_NEEDLESS = frozenset({"display", "ensure_configured", "require", "setup", "teardown", "unwatch"})
#: Functions that can be ignored, but whose effect is lost.
_LOSSY = frozenset(
    {"finish_artifact", "link_artifact", "link_model", "log_code", "mark_preempting"}
    | {"pin_config_keys", "to_html", "upsert_artifact", "write_logs"}
)
_REFUSED = frozenset(
    {"Api", "agent", "attach", "controller", "restore", "sweep", "use_artifact", "use_model"}
)
FUNCTIONS = _NEEDLESS | _LOSSY | _REFUSED
_ATTRIBUTES: Mapping[str, Callable[[Any], Any]] = {
    "disabled": lambda run: not run.id,
    "entity": lambda _: "",
    "get_url": lambda run: lambda: run.url,
    "join": lambda run: run.finish,
    "job_type": lambda run: run.history.job_type,
    "log_model": lambda run: run.log_artifact,
    "offline": lambda _: True,
    "path": lambda run: f"{run.project}/{run.id}",
    "resumed": lambda _: False,
    "starting_step": lambda _: 0,
    "sweep_id": lambda _: None,
}
#: Names that `of_run` supports.
OF_RUN = FUNCTIONS | _ATTRIBUTES.keys()


def of_run(run: object, name: str) -> Any:
    """Return the value of a W&B attribute for a run."""
    return _ATTRIBUTES[name](run) if name in _ATTRIBUTES else function(name)


def function(name: str) -> Callable[..., None]:
    """Return a substitute for a function of W&B."""

    def stand_in(*_args: object, **_kwargs: object) -> None:
        if name in _REFUSED:
            raise UsageError(f"radt has no {name}", PAGE)
        if name in _LOSSY:
            warn_once(f"{name}: radt has nothing like it. {PAGE}")

    return stand_in
