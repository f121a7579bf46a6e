"""Series of a training process that say more of themselves than a name.

What scripts log has a name and nothing else. What radt itself reads inside the process (memory of
PyTorch, the time of a step) has a unit, a scope and a listener, as what the collector reads has.
All of that travels as the name: it is said once for each series, kept with the journal's cursor,
and begins with a character that names of scripts cannot have. Imports the standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from radt.model import Scope, SeriesKind

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
        """What a name says; None for the plain name of something that a script logs."""
        before, *texts = name.split(_SEPARATOR)
        if before or len(texts) != 7:
            return None
        listener, metric, unit, scope, kind, entity, method = texts
        try:
            return cls(listener, metric, unit, Scope(scope), SeriesKind(kind), entity, method)
        except ValueError:  # written by a later version
            return None
