"""Parameters and tags of a run as MLflow gets them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from radt.store.records import RunRecord
from radt.tracking.names import MAX_PARAM_LENGTH, MAX_TAG_LENGTH, cut, unique_keys

_UNNAMED = re.compile(r"arg\d+")


def deliverable_params(params: Mapping[str, str], *, ended: bool) -> dict[str, str]:
    """Parameters to send now.

    Those that come from the command line (``--lr 1e-3``) wait until the run has ended: MLflow never
    changes a parameter, so a script that calls ``mlflow.log_params(vars(args))`` itself would fail
    on ``0.001`` if we had been there first with ``1e-3``. The script's own value wins. Until then
    they are in the parameter ``Params``, all in one.
    """
    keys = unique_keys(params)
    waiting = frozenset[str]() if ended else command_line_names(params.get("Params", ""))
    return {
        keys[name]: cut(value, MAX_PARAM_LENGTH)
        for name, value in params.items()
        if ended or not (name in waiting or _UNNAMED.fullmatch(name))
    }


def command_line_names(text: str) -> frozenset[str]:
    """Names of the options in a command line: ``--lr 1 size=3`` has ``lr`` and ``size``."""
    try:
        words = shlex.split(text)
    except ValueError:  # unbalanced quotes; the names do not need them
        words = text.split()
    return frozenset(word.lstrip("-").partition("=")[0] for word in words)


def deliverable_tags(
    run: RunRecord, tags: Mapping[str, str], keys: Mapping[str, str]
) -> dict[str, str]:
    """The run's tags, how it ended, and the real names of series that MLflow does not allow.

    Args:
        keys: MLflow's key of each name of a series.
    """
    tag_keys = unique_keys(tags)
    found = {tag_keys[name]: value for name, value in tags.items()}
    for name, key in keys.items():
        if key != name:
            found[f"radt.metric.{key}"[:250]] = name
    if run.status.ended:
        found["radt.status"] = run.status.value  # MLflow has fewer
        if run.end_reason:
            found["radt.end_reason"] = run.end_reason
        if run.exit_code is not None:
            found["radt.exit_code"] = str(run.exit_code)
    return {key: cut(value, MAX_TAG_LENGTH) for key, value in found.items()}
