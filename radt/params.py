"""Splits a command's arguments into single parameters, so that runs can be filtered by them."""

from __future__ import annotations

from collections.abc import Sequence


def command_params(file: str, text: str, arguments: Sequence[str]) -> dict[str, str]:
    """Parameters of a run from its command: ``File``, ``Params`` as written, and single ones.

    >>> command_params("train.py", "--lr 0.1", ["--lr", "0.1"])
    {'File': 'train.py', 'Params': '--lr 0.1', 'lr': '0.1'}
    """
    return {"File": file, "Params": text} | split_params(arguments)


def split_params(arguments: Sequence[str]) -> dict[str, str]:
    """Parameters by name, as command lines have them.

    ``--lr 0.1``, ``--lr=0.1`` and ``lr=0.1`` (Hydra) give ``lr``; an option without a value is
    ``true``; an option given several times, or with several values, keeps all of them; arguments
    without a name are counted (``arg1``).

    >>> split_params(["data.csv", "--lr", "-0.1", "--amp", "--size=3", "model=vit"])
    {'arg1': 'data.csv', 'lr': '-0.1', 'amp': 'true', 'size': '3', 'model': 'vit'}
    """
    values: dict[str, list[str]] = {}
    current: str | None = None
    unnamed = 0
    for argument in arguments:
        if _is_option(argument):
            name, equals, value = argument.lstrip("-").partition("=")
            values.setdefault(name, [])
            current = name
            if equals:
                values[name].append(value)
                current = None
        elif current is not None:
            values[current].append(argument)
        elif "=" in argument and argument.partition("=")[0].replace(".", "_").isidentifier():
            name, _, value = argument.partition("=")
            values.setdefault(name, []).append(value)
        else:
            unnamed += 1
            values[f"arg{unnamed}"] = [argument]
    return {name: " ".join(given) if given else "true" for name, given in values.items()}


def _is_option(argument: str) -> bool:
    """Whether it starts with a dash and is no negative number."""
    if not argument.startswith("-") or argument.strip("-") == "":
        return False
    try:
        float(argument)
    except ValueError:
        return True
    return False
