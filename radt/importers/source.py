"""Interface of all sources of runs: MLflow, TensorBoard, W&B, CSV logs."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol

from radt.errors import TrackingError, cut
from radt.importers.below import SourceFile
from radt.model import SOFTWARE, RunStatus, Scope
from radt.store.records import Samples


class MlflowRefusedError(TrackingError):
    """MLflow refuses a request."""


@dataclass(frozen=True, slots=True)
class SourceSeries:
    """One metric of a run. ``entity`` is the device, with the machine if it has a name."""

    metric: str
    scope: Scope = Scope.RUN
    listener: str = SOFTWARE
    unit: str = ""
    entity: str = ""
    method: str = ""


@dataclass(frozen=True, slots=True)
class SourceRun:
    """A run as listed by a source, without its larger data.

    ``digest`` changes with the run: one that was imported with the same digest is not read again.
    ``title`` names its workload. ``name`` is its own name if it is alone there. ``status`` is None
    if it is only known after reading the run. ``tracking_uri`` is MLflow's, and empty for files.
    """

    run_id: str
    experiment: str
    title: str
    digest: str
    name: str = ""
    status: RunStatus | None = None
    started_ns: int = 0
    ended_ns: int | None = None
    parent_id: str = ""
    #: False if it is only the parent of other runs.
    has_series: bool = True
    command: str = ""
    tracking_uri: str = ""
    experiment_id: str = ""

    @property
    def where(self) -> str:
        """Return the name of the run in messages."""
        return f"run {self.run_id}"


@dataclass(slots=True)
class RunFacts:
    """Data of a run besides its points, filled in while it is read.

    ``problems`` describe unreadable parts, ``left_out`` parts that are not imported. A run that
    ``is_empty`` is not stored until it has data.
    """

    status: RunStatus = RunStatus.FINISHED
    started_ns: int | None = None
    ended_ns: int | None = None
    end_reason: str = ""
    exit_code: int | None = None
    command: str = ""
    digest: str = ""
    is_empty: bool = False
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SourcePiece:
    """Successive points of a series, starting with number ``first``.

    Without ``has_times``, the times do not belong to the points and do not distinguish them.
    """

    series: SourceSeries
    first: int
    samples: Samples
    has_times: bool = True


@dataclass(frozen=True, slots=True)
class Media:
    """A file of a run: its path among the run's artifacts, and the content or a file to copy."""

    path: str
    content: SourceFile | bytes

    @property
    def shown(self) -> str:
        """Return the name of the file in messages."""
        return cut(str(self.content) if isinstance(self.content, SourceFile) else self.path, 200)

    def open(self) -> BinaryIO:
        """Open the content for reading.

        Raises:
            OSError: The file cannot be read, or leads out of its source.
        """
        content = self.content
        return content.open() if isinstance(content, SourceFile) else io.BytesIO(content)


class Stored(Protocol):
    """The store's state of the run that is being read."""

    def count(self, series: SourceSeries) -> int:
        """Return the number of stored points."""
        ...

    def has_steps(self, series: SourceSeries) -> bool:
        """Return whether the last stored point has a step."""
        ...

    def has(self, series: SourceSeries, point: Samples) -> bool:
        """Return whether the store has a point, at any position."""
        ...


class ImportSource(Protocol):
    """Runs that other programs recorded."""

    @property
    def where(self) -> str:
        """Return the given location, for display."""
        ...

    @property
    def grows_only(self) -> bool:
        """Return True if a run whose earlier points are missing must be another run."""
        ...

    @property
    def left_out(self) -> Sequence[str]:
        """Return skipped files and folders with the reason."""
        ...

    def runs(self) -> Sequence[SourceRun]:
        """Return all runs.

        Raises:
            UsageError: There are none.
        """
        ...

    def prepare(self, runs: Sequence[SourceRun]) -> None:
        """Read ahead for several new runs, where that needs fewer requests."""
        ...

    def read(
        self, run: SourceRun, stored: Stored, facts: RunFacts, whole: Collection[SourceSeries] = ()
    ) -> Iterator[SourcePiece | Media]:
        """Yield a run's points, and fill in ``facts``.

        Pieces of a series follow each other. The first one starts with the last point that the
        store has, or earlier, so that points inserted before it are noticed. The import then reads
        those series again with all of their points, as ``whole``.

        Raises:
            SourceError: No part of the run can be read.
            RefusedError: MLflow does not have the run.
        """
        ...
