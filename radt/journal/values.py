"""What scripts may log: names, values and steps, and what is said about those they may not.

These errors are the script's own mistakes and the only ones that logging ever raises.
"""

from __future__ import annotations

import operator
from typing import Any, SupportsFloat, SupportsIndex

from radt.errors import UsageError
from radt.model import NO_STEP

MAX_NAME_LENGTH = 250  # MLflow's limit for the names of metrics and params


def to_number(value: SupportsFloat | SupportsIndex) -> float:
    """A value as a float: numbers, booleans, numpy scalars, tensors with one element.

    Raises:
        TypeError: It is no single number.
        UsageError: It is too large for a float.
    """
    if isinstance(value, (str, bytes, bytearray)):  # float() would read them
        raise TypeError(f"a metric's value must be a number, not {value!r}")
    try:
        # torch warns when a tensor with a gradient is made a float, and not about item().
        return float(value.item() if hasattr(value, "item") else value)
    except OverflowError as error:
        raise UsageError("a metric's value is too large for a float", str(error)) from error
    except (TypeError, ValueError, RuntimeError) as error:
        # What numpy and torch raise for several elements depends on their versions.
        raise TypeError(
            f"a metric's value must be a single number, not {type(value).__name__} ({error}); "
            "log a mean, or one element"
        ) from error


def to_step(step: object) -> int:
    """A step as an integer.

    Raises:
        TypeError: It is no whole number.
        UsageError: It does not fit into 64 bits.
    """
    whole: Any = step
    if hasattr(step, "is_integer") and step.is_integer():
        whole = int(whole)  # epochs that came out of a division
    try:
        number = operator.index(whole)
    except (TypeError, RuntimeError) as error:
        raise TypeError(f"a step must be a whole number, not {step!r}") from error
    if not NO_STEP < number < 2**63:
        raise UsageError(f"step {number} does not fit into 64 bits", "Count steps from 0")
    return number


def checked_name(name: object, what: str = "metric") -> str:
    """The name, if it can be one.

    Raises:
        TypeError: It is no text.
        UsageError: It is empty, longer than 250 characters or has control characters.
    """
    if not isinstance(name, str):
        raise TypeError(f"the name of a {what} must be a text, not {type(name).__name__}")
    if not name.strip():
        raise UsageError(f"the name of a {what} is empty", "Give it a name such as 'loss'")
    if len(name) > MAX_NAME_LENGTH:
        raise UsageError(
            f"the name of a {what} has {len(name)} characters: {name[:40]!r}…",
            f"Use at most {MAX_NAME_LENGTH}",
        )
    if not name.isprintable():
        raise UsageError(
            f"the name of a {what} has characters that cannot be printed: {name!r}",
            "Leave out line ends, tabs and control characters",
        )
    return str(name)
