"""Validate names, values and steps that a script logs.

A script's metric only has a name. Values that radt itself reads inside the process (PyTorch's
memory, the time of a step) have a unit, a scope and a listener, like those of the collector. All of
these are encoded in the name, which is written once per series, kept with the journal's cursor, and
begins with a character that names of script metrics cannot have. Imports the standard library only.

The errors raised here are mistakes in the script, and the only ones that logging ever raises.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Self, SupportsFloat, SupportsIndex

from radt.errors import UsageError
from radt.model import NO_STEP, Scope, SeriesKind

#: The ASCII unit separator, which `radt.journal.values.checked_name` refuses as unprintable.
_SEPARATOR = "\x1f"


@dataclass(frozen=True, slots=True)
class JournalSeries:
    """A series that a training process fills; the fields are those of `radt.listeners.api.Metric`.

    ``entity`` is the measured part of the process: ``cuda:0``, empty if there is only one.
    """

    listener: str
    metric: str
    unit: str
    scope: Scope
    kind: SeriesKind = SeriesKind.GAUGE
    entity: str = ""
    method: str = ""

    @property
    def name(self) -> str:
        """Return the encoded name (`radt.journal.writer.JournalWriter.sample`)."""
        texts = (self.listener, self.metric, self.unit, self.scope.value, self.kind.value)
        return "".join(_SEPARATOR + text for text in (*texts, self.entity, self.method))

    @classmethod
    def from_name(cls, name: str) -> Self | None:
        """Parse a name; return None for the plain name of a script's metric."""
        before, *texts = name.split(_SEPARATOR)
        if before or len(texts) != 7:
            return None
        listener, metric, unit, scope, kind, entity, method = texts
        try:
            return cls(listener, metric, unit, Scope(scope), SeriesKind(kind), entity, method)
        except ValueError:  # written by a later version
            return None


MAX_NAME_LENGTH = 250  # MLflow's limit for the names of metrics and params


def to_number(value: SupportsFloat | SupportsIndex) -> float:
    """Convert a value to float: numbers, booleans, numpy scalars, tensors with one element.

    Raises:
        TypeError: The value is not a single number.
        UsageError: The value is too large for a float.
    """
    if isinstance(value, (str, bytes, bytearray)):  # float() would parse them
        raise TypeError(f"a metric's value must be a number, not {value!r}")
    try:
        # For a tensor with a gradient, torch warns about float() but not about item().
        return float(value.item() if hasattr(value, "item") else value)
    except OverflowError as error:
        raise UsageError("a metric's value is too large for a float", str(error)) from error
    except (TypeError, ValueError, RuntimeError) as error:
        # For several elements, numpy and torch raise various errors, depending on their version.
        raise TypeError(
            f"a metric's value must be a single number, not {type(value).__name__} ({error}); "
            "log a mean, or one element"
        ) from error


def to_step(step: object, of: object = None) -> int:
    """Convert a step to int: integers of Python, numpy and torch, but no booleans.

    Args:
        step: The script's value.
        of: The metric's name, for messages.

    Raises:
        TypeError: The step is not an integer.
        UsageError: The step is not between -2^63 + 1 and 2^63 - 1.
    """
    subject = "a step" if of is None else f"the step of {of!r:.80}"
    try:
        given: Any = step.item() if hasattr(step, "item") else step
        if hasattr(given, "is_integer") and given.is_integer():
            given = int(given)  # epochs that result from a division
        counted: Any = None if isinstance(given, bool) else given  # a boolean is not a count
        number = operator.index(counted)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{subject} must be a whole number, not {step!r:.80}") from error
    if not NO_STEP < number < 2**63:
        raise UsageError(f"{subject} does not fit into 64 bits", "Count steps from 0")
    return number


def checked_name(name: object, what: str = "metric") -> str:
    """Return the name if it is valid.

    Raises:
        TypeError: The name is not a string.
        UsageError: The name is empty, longer than 250 characters or has control characters.
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
