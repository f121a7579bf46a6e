"""What runs are called where their own names do not tell them apart: by the parameters that differ.

The runs of a sweep all have the script's name. What makes one of them is a learning rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath

from radt.store.records import RunRecord

#: The whole command line, which is there in its parts as well; and what is no matter of the model.
_NOT_TOLD = frozenset({"Params", "Cpus", "Timeout", "Environment"})
#: More would be no name.
_MAX_PARAMS = 4


def telling_names(
    runs: Sequence[RunRecord], params: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    """A name for each run, by id: its own, and the parameters that tell it from its namesakes.

    Runs of the same name and parameters keep the name: they are repeats of each other. A name that
    is only the script's makes room for the parameters. These stand in the order in which they are
    given, without those that are the same in all namesakes.
    """
    namesakes: dict[str, list[RunRecord]] = {}
    for run in runs:
        namesakes.setdefault(run.name, []).append(run)
    found = {}
    for name, same in namesakes.items():
        differing = _differing([params.get(run.run_id, {}) for run in same])
        for run in same:
            given = params.get(run.run_id, {})
            told = _told(given, differing)
            is_own = name != PurePath(given.get("File", "")).stem  # else it is the script's
            found[run.run_id] = f"{name}, {told}" if told and is_own else told or name
    return found


def _differing(given: Sequence[Mapping[str, str]]) -> list[str]:
    """The parameters that have several values, those with the most first given first."""
    keys = dict.fromkeys(key for one in given for key in one if key not in _NOT_TOLD)
    return [key for key in keys if len({one.get(key) for one in given}) > 1]


def _told(params: Mapping[str, str], differing: Sequence[str]) -> str:
    # What a run was not given is told by those that were.
    given = [key for key in differing if key in params]
    told = [f"{key} {params[key]}" for key in given[:_MAX_PARAMS]]
    return ", ".join(told) + (", …" if len(given) > _MAX_PARAMS else "")
