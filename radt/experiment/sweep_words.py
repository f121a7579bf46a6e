"""How the parameters of a sweep become arguments of a program.

`words` is the only place that knows what a style makes of a value. What quotes words for a cell is
`radt.experiment.sweep_spec.SweepSpec.rows`.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TypeAlias

#: What YAML parses a value to. Only W&B's sweeps pass mappings: nested parameters.
Value: TypeAlias = "str | int | float | bool | list[Value] | dict[str, Value] | None"

#: Words that start with a dash and that argparse takes for values all the same.
_NUMBER = re.compile(r"-\d+|-\d*\.\d+|-", re.ASCII)
#: What Hydra takes for another type than text.
_KEYWORDS = ("true", "false", "null", "nan", "inf", "-inf", "+inf")
#: Other texts in lists that Hydra reads without quotes.
_PLAIN = re.compile(r"[A-Za-z_/.+-][\w/.+-]*", re.ASCII)


class Style(StrEnum):
    """How a parameter is passed to a program."""

    #: As argparse has it: a flag or nothing for booleans, nothing for null, several words for a
    #: list (``nargs="+"``).
    OPTION = "--name value"
    #: The same, with ``--no-name`` for false (``argparse.BooleanOptionalAction``).
    ON_OFF = "--name/--no-name"
    #: One word with the value as Python prints it, whatever it is. W&B's default.
    TEXT = "--name=value"
    #: As Hydra and OmegaConf have it: ``lr=0.1``, ``amp=true``, ``sizes=[1,2]``; nothing for null.
    ASSIGNMENT = "name=value"
    # How commands of W&B's sweeps ask for the arguments, beside ``args``, which is TEXT.
    ARGS_NO_EQUALS = "args_no_equals"
    ARGS_NO_BOOLEAN_FLAGS = "args_no_boolean_flags"
    ARGS_NO_HYPHENS = "args_no_hyphens"


def words(name: str, value: Value, style: Style) -> list[str]:
    """Return the arguments that pass a value, none for nothing to pass.

    >>> words("sizes", [1, 2], Style.OPTION), words("amp", False, Style.ON_OFF)
    (['--sizes', '1', '2'], ['--no-amp'])
    """
    match style, value:
        case Style.OPTION | Style.ON_OFF | Style.ASSIGNMENT, None:
            return []
        case Style.OPTION | Style.ARGS_NO_BOOLEAN_FLAGS, False:
            return []
        case Style.OPTION | Style.ON_OFF | Style.ARGS_NO_BOOLEAN_FLAGS, True:
            return [f"--{name}"]
        case Style.ON_OFF, False:
            return [f"--no-{name}"]
        case Style.OPTION | Style.ON_OFF, list():
            return [f"--{name}", *map(str, value)]
        case Style.ARGS_NO_EQUALS, _:
            return [f"--{name}", str(value)]
        case Style.ARGS_NO_HYPHENS, _:
            return [f"{name}={value}"]
        case Style.ASSIGNMENT, _:
            return [f"{name}={_assigned(value)}"]
        case Style.OPTION | Style.ON_OFF, _ if not is_option(str(value)):
            return [f"--{name}", str(value)]
    return [f"--{name}={value}"]


def is_option(word: str) -> bool:
    """Return whether argparse takes a word for an option, wherever it stands."""
    return word.startswith("-") and _NUMBER.fullmatch(word) is None


def _assigned(value: Value, *, is_item: bool = False) -> str:
    """Return a value as Hydra's overrides spell it; a text outside of lists is itself."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case list():
            return f"[{','.join(_assigned(item, is_item=True) for item in value)}]"
        case str() if is_item and (_PLAIN.fullmatch(value) is None or value.lower() in _KEYWORDS):
            # A backslash is itself unless a quote follows, be it the closing one.
            return "'" + re.sub(r"(\\*)('|\Z)", _escaped_quote, value) + "'"
    return str(value)


def _escaped_quote(match: re.Match[str]) -> str:
    return match[1] * 2 + (r"\'" if match[2] else "")
