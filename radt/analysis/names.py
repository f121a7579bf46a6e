"""Name runs, groups of like runs and workloads by what distinguishes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from radt.run_name import script_of
from radt.store.records import RunRecord

#: The command line, whose parts are separate parameters, and parameters outside the model.
_NOT_IN_NAMES = frozenset({"Params", "Cpus", "Timeout", "Environment"})
#: Maximum number of parameters in a name.
_MAX_PARAMS = 4
#: Maximum number of values of one parameter in the name of like runs.
_MAX_VALUES = 4


def distinct_names(
    runs: Sequence[RunRecord],
    params: Mapping[str, Mapping[str, str]],
    most_params: int | None = _MAX_PARAMS,
) -> dict[str, str]:
    """Return a name for each run, by id: its own and the parameters that differ among namesakes.

    The runs of a sweep all have the script's name and differ, for example, in the learning rate.
    Runs with the same name and parameters keep the name: they are repeats of each other. A name
    that consists only of script, arguments and number is replaced by the parameters, in the order
    in which they are given, and at most ``most_params`` of them.
    """
    namesakes: dict[str, list[RunRecord]] = {}
    scripts = {run.run_id: _script(run, params) for run in runs}
    for run in runs:
        namesakes.setdefault(scripts[run.run_id] or run.name, []).append(run)
    names = {}
    for name, same in namesakes.items():
        differing = differing_params([params.get(run.run_id, {}) for run in same])
        for run in same:
            values = _params_text(params.get(run.run_id, {}), differing, most_params)
            is_own = not scripts[run.run_id]
            names[run.run_id] = f"{name}, {values}" if values and is_own else values or name
    return names


def brief_names(
    runs: Sequence[RunRecord],
    params: Mapping[str, Mapping[str, str]],
    most_params: int | None = _MAX_PARAMS,
) -> dict[str, str]:
    """Return `distinct_names` without the name that all runs have: ``lr 0.1``."""
    names = distinct_names(runs, params, most_params)
    parts = {run_id: name.partition(", ") for run_id, name in names.items()}
    if len({name for name, _, _ in parts.values()}) > 1 or not all(p[2] for p in parts.values()):
        return names
    return {run_id: values for run_id, (_, _, values) in parts.items()}


def joint_name(names: Sequence[str]) -> str:
    """Return one name for like runs: what their names have in common, and what differs.

    >>> joint_name(["mlp, lr 0.003, seed 0", "mlp, lr 0.003, seed 1"])
    'mlp, lr 0.003, seed 0/1'
    >>> joint_name(["first", "second"])
    'first, second'
    """
    distinct = list(dict.fromkeys(names))
    parts = list(zip(*(name.split(", ") for name in distinct), strict=False))
    if len({name.count(", ") for name in distinct}) > 1:
        return ", ".join(distinct)
    texts = []
    for same in (tuple(dict.fromkeys(part)) for part in parts):
        keys = {text.rpartition(" ")[0] for text in same}
        if len(same) == 1:
            texts.append(same[0])
        elif len(keys) > 1 or keys == {""}:
            return ", ".join(distinct)
        else:
            values = [text.rpartition(" ")[2] for text in same]
            more = "/…" if len(values) > _MAX_VALUES else ""
            texts.append(f"{keys.pop()} {'/'.join(values[:_MAX_VALUES])}{more}")
    return ", ".join(texts)


def _script(run: RunRecord, params: Mapping[str, Mapping[str, str]]) -> str:
    """Return the script that a run is named after; empty if the run has its own name."""
    return script_of(run.name, params.get(run.run_id, {}).get("File", ""))


def differing_params(params: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the parameters with several values, in the order in which they are given."""
    keys = dict.fromkeys(
        key for run_params in params for key in run_params if key not in _NOT_IN_NAMES
    )
    return [key for key in keys if len({run_params.get(key) for run_params in params}) > 1]


def _params_text(
    params: Mapping[str, str], differing: Sequence[str], most_params: int | None
) -> str:
    # A run without a parameter is distinguished by its absence.
    texts = [f"{key} {params[key]}" for key in differing if key in params]
    return ", ".join([*texts[:most_params], *(["…"] if texts[:most_params] != texts else [])])
