"""What every source of runs says of them: MLflow, TensorBoard, W&B, CSV logs."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol

from radt.errors import TrackingError, cut
from radt.importers.below import SourceFile
from radt.model import SOFTWARE, RunStatus, Scope
from radt.store.records import Samples


class RefusedError(TrackingError):
    """MLflow answers, but not with what was asked for."""


@dataclass(frozen=True, slots=True)
class SourceSeries:
    """One metric of a run. ``entity`` is the device, with the machine where it is named."""

    metric: str
    scope: Scope = Scope.RUN
    listener: str = SOFTWARE
    unit: str = ""
    entity: str = ""
    method: str = ""


@dataclass(frozen=True, slots=True)
class SourceRun:
    """A run as a source lists it, without what takes much memory.

    ``digest`` changes with the run: one that was imported with the same digest is not read again.
    ``title`` names its workload. ``name`` is its own name if it is alone there. ``status`` is None
    where only reading the run tells it. ``tracking_uri`` is MLflow's, and empty for files.
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
    #: Whether it is a run itself and not only the parent of others.
    has_series: bool = True
    command: str = ""
    tracking_uri: str = ""
    experiment_id: str = ""

    @property
    def where(self) -> str:
        """What messages call it."""
        return f"run {self.run_id}"


@dataclass(slots=True)
class RunFacts:
    """What a source says of a run besides points; it fills this in while it is read.

    ``problems`` name what cannot be read, ``left_out`` what is not imported. A run that
    ``is_empty`` is not stored before there is something in it.
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
class Piece:
    """Successive points of a series, of which ``first`` came before.

    Without ``has_times`` the times are no property of the points, and do not tell them apart.
    """

    series: SourceSeries
    first: int
    samples: Samples
    has_times: bool = True


@dataclass(frozen=True, slots=True)
class Media:
    """A file of a run: its path among the run's artifacts, and a file to copy, or the content."""

    path: str
    content: SourceFile | bytes

    @property
    def shown(self) -> str:
        """What messages call it."""
        return cut(str(self.content) if isinstance(self.content, SourceFile) else self.path, 200)

    def open(self) -> BinaryIO:
        """
        Raises:
            OSError: The file cannot be read, or leads out of its source.
        """
        content = self.content
        return content.open() if isinstance(content, SourceFile) else io.BytesIO(content)


class Stored(Protocol):
    """What the store has of the run that is read."""

    def count(self, series: SourceSeries) -> int:
        """Return the number of points that the store has."""
        ...

    def has_steps(self, series: SourceSeries) -> bool:
        """Return whether the last of them has a step."""
        ...

    def has(self, series: SourceSeries, point: Samples) -> bool:
        """Return whether it has a point, wherever."""
        ...


class Source(Protocol):
    """Runs that others recorded."""

    @property
    def where(self) -> str:
        """What was given, for people."""
        ...

    @property
    def grows_only(self) -> bool:
        """Whether a run that lacks points that it had before is another run."""
        ...

    @property
    def left_out(self) -> Sequence[str]:
        """What was not looked into, with the reason."""
        ...

    def runs(self) -> Sequence[SourceRun]:
        """Return all runs.

        Raises:
            UsageError: There are none.
        """
        ...

    def prepare(self, runs: Sequence[SourceRun]) -> None:
        """Read ahead what is cheaper to read of several new runs at once."""
        ...

    def read(
        self, run: SourceRun, stored: Stored, facts: RunFacts, whole: Collection[SourceSeries] = ()
    ) -> Iterator[Piece | Media]:
        """Yield a run's points, and fill in ``facts``.

        Pieces of a series follow each other. The first one begins with the last point that the
        store has, or earlier, so that points that came before it are noticed; the import then reads
        those series once more, as ``whole``, with all of their points.

        Raises:
            SourceError: Nothing of it can be read.
            RefusedError: MLflow has no such run.
        """
        ...
