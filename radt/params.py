"""Split a command's arguments into named parameters, so that runs can be filtered by them."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: ``lr=0.1``, ``optimizer.lr=0.1``. Hydra adds a key with a plus, and selects a file by its folder
#: (``model/encoder=vit``).
_ASSIGNED = re.compile(r"\+{0,2}(?P<name>[^\W\d][\w.@/-]*)=(?P<value>.*)", re.DOTALL)


def command_params(file: str, text: str, arguments: Sequence[str]) -> dict[str, str]:
    """Return a run's parameters from its command: ``File``, ``Params`` as written, and single ones.

    >>> command_params("train.py", "--lr 0.1", ["--lr", "0.1"])
    {'File': 'train.py', 'Params': '--lr 0.1', 'lr': '0.1'}
    """
    return {"File": file, "Params": text} | split_params(arguments)


def split_params(arguments: Sequence[str]) -> dict[str, str]:
    """Return parameters by name, parsed from command-line arguments.

    ``--lr 0.1``, ``--lr=0.1`` and ``lr=0.1`` (Hydra) give ``lr``; an option without a value is
    ``true``; an option given several times, or with several values, keeps all of them; arguments
    without a name are numbered (``arg1``).

    >>> split_params(["data.csv", "--lr", "-0.1", "--amp", "--size=3", "model=vit"])
    {'arg1': 'data.csv', 'lr': '-0.1', 'amp': 'true', 'size': '3', 'model': 'vit'}
    """
    return {
        name: " ".join(given) if given else "true" for name, given in param_words(arguments).items()
    }


def param_words(arguments: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the words of each parameter, by the names of `split_params`.

    ``name=value`` after an option that already has a value is a separate parameter, unless that
    value also has this form: then the option takes a list of such words.

    >>> param_words(["--config-name", "exp", "+lr=0.1", "--env", "A=1", "B=2"])
    {'config-name': ('exp',), 'lr': ('0.1',), 'env': ('A=1', 'B=2')}
    """
    values: dict[str, list[str]] = {}
    current: str | None = None
    unnamed = 0
    for argument in arguments:
        assigned = _ASSIGNED.fullmatch(argument)
        if is_option(argument):
            name, equals, value = argument.lstrip("-").partition("=")
            values.setdefault(name, [])
            current = name
            if equals:
                values[name].append(value)
                current = None
        elif current is not None and not (
            assigned and values[current] and _ASSIGNED.fullmatch(values[current][-1]) is None
        ):
            values[current].append(argument)
        elif assigned:
            current = None
            values.setdefault(assigned["name"], []).append(assigned["value"])
        else:
            unnamed += 1
            values[f"arg{unnamed}"] = [argument]
    return {name: tuple(given) for name, given in values.items()}


def is_option(argument: str) -> bool:
    """Return True for a word that starts with a dash and is not a negative number."""
    if not argument.startswith("-") or argument.strip("-") == "":
        return False
    try:
        float(argument)
    except ValueError:
        return True
    return False
