"""Rows of the store as dataclasses.

Times are wall-clock nanoseconds since the epoch on the machine's radt clock: monotonic time plus an
offset that is constant while the clock is in use (`radt.clock`), so that differences are exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from radt.model import MarkerKind, MissingReason, RunStatus, Scope, SeriesKind

if TYPE_CHECKING:  # a runner starts without numpy
    import numpy as np
    import numpy.typing as npt

Int64Array: TypeAlias = "npt.NDArray[np.int64]"
Float64Array: TypeAlias = "npt.NDArray[np.float64]"
BoolArray: TypeAlias = "npt.NDArray[np.bool_]"


@dataclass(frozen=True, slots=True)
class WorkloadRecord:
    """A workload: runs that start together and share the hardware.

    ``label`` is the user's workload id; each repetition of a workload gets a new ``workload_id``.
    """

    workload_id: str
    experiment: str
    label: str
    created_ns: int
    status: RunStatus = RunStatus.SCHEDULED
    tracking_uri: str = ""
    mlflow_experiment_id: str | None = None
    mlflow_run_id: str | None = None
    barrier_ns: int | None = None
    start_skew_ns: int | None = None
    ended_ns: int | None = None


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run: one training process.

    ``devices`` is normalised (``0``, ``1+2``, ``cpu``); ``listeners`` likewise (``top+smi``).
    ``mlflow_run_id`` is None until the run is in MLflow. ``end_reason`` is a sentence for display
    ("killed by signal 9", "exit code 3"). ``spool`` is the run's spool folder.
    """

    run_id: str
    workload_id: str
    experiment: str
    workload: str
    letter: str
    name: str
    created_ns: int
    status: RunStatus = RunStatus.SCHEDULED
    devices: str = "cpu"
    collocation: str = "-"
    listeners: str = ""
    command: str = ""
    host: str = ""
    spool: str = ""
    tracking_uri: str = ""
    mlflow_run_id: str | None = None
    pid: int | None = None
    started_ns: int | None = None
    ended_ns: int | None = None
    exit_code: int | None = None
    end_reason: str = ""

    @property
    def origin_ns(self) -> int:
        """Return the origin of the run's elapsed time: its start, else its creation."""
        return self.created_ns if self.started_ns is None else self.started_ns

    def lasted_s(self, now_ns: int | None = None) -> float | None:
        """Return the run's duration, up to ``now_ns`` while it runs; None if unknown.

        Args:
            now_ns: The current time (ns since 1970), for a run that has not ended.
        """
        end_ns = now_ns if self.ended_ns is None and not self.status.ended else self.ended_ns
        if self.started_ns is None or end_ns is None:
            return None
        return max(0, end_ns - self.started_ns) / 1e9

    @property
    def is_from_mlflow(self) -> bool:
        """Return whether the run was imported from MLflow, which does not record the machine.

        A run that radt recorded and uploaded to a database also has the same id in both.
        """
        return self.run_id == self.mlflow_run_id and not self.host


#: Series numbers of a run's second node start here, those of the third at twice this number.
SERIES_OF_A_NODE = 100_000
#: Likewise for marker numbers.
MARKERS_OF_A_NODE = 1_000_000_000


def node_of(series_no: int, entity: str) -> str:
    """Return the node that a series belongs to; "" for the run's first node, the run's host."""
    return entity.partition("/")[0] if series_no >= SERIES_OF_A_NODE else ""


@dataclass(frozen=True, slots=True)
class SeriesRecord:
    """One metric of one scope in one run.

    ``series_no`` counts from 0 within the run. ``entity`` names what was measured within the scope
    (``gpu0``, ``core 3``, ``rank 1``; empty if there is only one). On nodes other than the run's
    first, it begins with the node (``node2/gpu0``, or ``node2``). ``interval_s`` is None for script
    metrics and for irregular readings of a listener. ``method``, ``estimated`` and ``wraps_at``
    come from the listener's `radt.listeners.api.Metric`.
    """

    run_id: str
    series_no: int
    listener: str
    metric: str
    unit: str
    scope: Scope
    kind: SeriesKind
    entity: str = ""
    interval_s: float | None = None
    method: str = ""
    estimated: bool = False
    wraps_at: float | None = None

    @property
    def identity(self) -> tuple[str, ...]:
        """Return what distinguishes the series from the others of its run, besides its number."""
        return self.listener, self.metric, self.scope, self.entity

    @property
    def node(self) -> str:
        """Return the series' node; "" for the first one."""
        return node_of(self.series_no, self.entity)

    @property
    def entity_there(self) -> str:
        """Return the measured entity, without its node."""
        return self.entity.partition("/")[2] if self.node else self.entity

    @property
    def counted_as(self) -> str:
        """Return the listener's name in ledgers and gaps: each node has listeners of its own."""
        return f"{self.node}/{self.listener}" if self.node else self.listener


@dataclass(frozen=True, slots=True)
class Samples:
    """Points of one series in time order: ``times_ns`` (N,), ``values`` (N,), ``steps`` (N,).

    ``steps`` is None for series without steps (hardware); `radt.model.NO_STEP` marks a single
    missing step. Integer values up to 2**53 are exact; larger ones are rounded to the nearest
    float, off by less than 1 in 10**15 (a byte counter gets there after 9 petabytes). Times and
    steps are 64-bit integers throughout.
    """

    times_ns: Int64Array
    values: Float64Array
    steps: Int64Array | None = None

    def __len__(self) -> int:
        return len(self.times_ns)

    def __getitem__(self, which: slice | Int64Array | BoolArray) -> Samples:
        """Return the points at these indices; those of a slice are views."""
        steps = None if self.steps is None else self.steps[which]
        return Samples(self.times_ns[which], self.values[which], steps)


@dataclass(frozen=True, slots=True)
class SeriesBatch:
    """New points to append to one series."""

    series_no: int
    samples: Samples


@dataclass(frozen=True, slots=True)
class MarkerRecord:
    """An instant (``end_ns`` None) or a span with a name.

    ``marker_no`` counts from 0 within the run; writing an existing number replaces its marker,
    which is how an open epoch or span gets its end. ``process`` is empty for the run's first
    process, else ``rank 1``, ``child 2``. ``step`` is the epoch's number for epochs.
    """

    run_id: str
    marker_no: int
    kind: MarkerKind
    name: str
    start_ns: int
    end_ns: int | None = None
    step: int | None = None
    process: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """Samples expected and received of one listener in one run; replaced as the counts grow.

    ``expected = received + missed``, where a missed tick is one whose time passed without a
    reading. ``sampling_ns`` is the total time that readings took, ``late_ns`` their total delay
    after they were due; the maximum of each is also kept.
    """

    run_id: str
    listener: str
    interval_s: float
    expected: int
    received: int
    missed: int
    sampling_ns: int
    state: str = "running"
    reason: str = ""
    sampling_max_ns: int = 0
    late_ns: int = 0
    late_max_ns: int = 0


@dataclass(frozen=True, slots=True)
class GapRecord:
    """A stretch without values in one series, or in all series of a listener (``series_no`` -1)."""

    run_id: str
    listener: str
    series_no: int
    start_ns: int
    end_ns: int
    reason: MissingReason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class JournalCursor:
    """Position up to which a process's journal has been stored."""

    journal: str
    segment: int = 0
    slot: int = 0
    event_offset: int = 0
    names: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class ExperimentSummary:
    """A row in the list of experiments; ``statuses`` counts runs by status."""

    name: str
    run_count: int
    statuses: Mapping[RunStatus, int]
    last_activity_ns: int


@dataclass(frozen=True, slots=True)
class SavedView:
    """A view of the dashboard that was saved by name; ``address`` is its path and query."""

    name: str
    address: str
    saved_ns: int
