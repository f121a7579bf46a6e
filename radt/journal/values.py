"""What may be logged: names, values and steps, and the errors for those that may not.

What scripts log has a name and nothing else. What radt itself reads inside the process (memory of
PyTorch, the time of a step) has a unit, a scope and a listener, as what the collector reads has.
All of that travels as the name: it is said once for each series, kept with the journal's cursor,
and begins with a character that names of scripts cannot have. Imports the standard library only.

These errors are the script's own mistakes and the only ones that logging ever raises.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Self, SupportsFloat, SupportsIndex

from radt.errors import UsageError
from radt.model import NO_STEP, Scope, SeriesKind

#: The ASCII unit separator: `radt.journal.values.checked_name` refuses what cannot be printed.
_SEPARATOR = "\x1f"


@dataclass(frozen=True, slots=True)
class JournalSeries:
    """A series that a training process fills; the fields are those of `radt.listeners.api.Metric`.

    ``entity`` is what was read within the process: ``cuda:0``, empty if there is only one.
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
        """What its values are written under (`radt.journal.writer.JournalWriter.sample`)."""
        texts = (self.listener, self.metric, self.unit, self.scope.value, self.kind.value)
        return "".join(_SEPARATOR + text for text in (*texts, self.entity, self.method))

    @classmethod
    def from_name(cls, name: str) -> Self | None:
        """Return what a name says; None for the plain name of something that a script logs."""
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
    """Return a value as a float: numbers, booleans, numpy scalars, tensors with one element.

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


def to_step(step: object, of: object = None) -> int:
    """Return a step as an integer: whole numbers of Python, numpy and torch; no booleans.

    Args:
        step: What the script gave.
        of: The metric's name, for messages.

    Raises:
        TypeError: It is no whole number.
        UsageError: It is not between -2^63 + 1 and 2^63 - 1.
    """
    subject = "a step" if of is None else f"the step of {of!r:.80}"
    try:
        given: Any = step.item() if hasattr(step, "item") else step
        if hasattr(given, "is_integer") and given.is_integer():
            given = int(given)  # epochs that came out of a division
        counted: Any = None if isinstance(given, bool) else given  # a flag counts nothing
        number = operator.index(counted)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{subject} must be a whole number, not {step!r:.80}") from error
    if not NO_STEP < number < 2**63:
        raise UsageError(f"{subject} does not fit into 64 bits", "Count steps from 0")
    return number


def checked_name(name: object, what: str = "metric") -> str:
    """Return the name, if it can be one.

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
