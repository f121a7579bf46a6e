"""What a read of a run's journals brings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from radt.journal.series import JournalSeries
from radt.model import MarkerKind, RunStatus
from radt.store.records import Float64Array, Int64Array, JournalCursor


@dataclass(frozen=True, slots=True)
class ScalarColumn:
    """New values of one metric of one process: three arrays of one length, in slot order.

    ``process`` is empty for the run's first process, else ``rank 1``, ``child 2``. ``times_ns``
    are monotonic; ``steps`` hold `radt.model.NO_STEP` where none was given. ``series`` says more of
    what radt itself reads inside the process, and ``name`` is then its metric; None for what the
    script logs.
    """

    process: str
    name: str
    times_ns: Int64Array
    steps: Int64Array
    values: Float64Array
    series: JournalSeries | None = None


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """The begin or end of an epoch or span; both bear the same ``token``, unique in a process.

    ``step`` is the epoch's number, None for spans.
    """

    process: str
    kind: MarkerKind
    name: str
    step: int | None
    monotonic_ns: int
    begin: bool
    token: int


@dataclass(frozen=True, slots=True)
class Finish:
    """How the run's first process says that the run ended; ``reason`` is empty if all is well."""

    status: RunStatus
    reason: str = ""


@dataclass(frozen=True, slots=True)
class JournalBatch:
    """What is new in all journals of a run.

    ``pids`` are all processes that have a journal. ``dropped`` counts records that could not be
    written, mostly for want of disk space. ``cursors`` belong into the transaction that stores
    the rest; ``more`` says that the limit was reached.
    """

    scalars: list[ScalarColumn] = field(default_factory=list)
    spans: list[SpanEvent] = field(default_factory=list)
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    epochs_total: int | None = None
    finish: Finish | None = None
    pids: set[int] = field(default_factory=set)
    cursors: list[JournalCursor] = field(default_factory=list)
    dropped: int = 0
    more: bool = False
