"""What the store has of a run that a framework's training was recorded in."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from radt.model import SOFTWARE, MarkerKind, RunStatus
from radt.store.reader import StoreReader

Points = list[tuple[int, float]]
#: The step of a value without one.
NO_STEP = -(2**63)


@dataclass(frozen=True)
class Training:
    """A run; ``epochs`` are the numbers of those that ended, ``spans`` how many ended by name.

    ``measured`` says how many values there are of what radt measures of steps.
    """

    status: RunStatus
    metrics: dict[str, Points]
    params: dict[str, str]
    tags: dict[str, str]
    epochs: list[int | None]
    spans: Counter[str]
    measured: dict[str, int]


_MEASURED = {"step.time", "samples_per_s", "data_wait"}


def trainings(reader: StoreReader) -> dict[str, Training]:
    """Return all runs by name."""
    return {run.name: _training(reader, run.run_id, run.status) for run in reader.runs()}


def _training(reader: StoreReader, run_id: str, status: RunStatus) -> Training:
    metrics, measured = {}, {}
    for series in reader.series([run_id]):
        samples = reader.samples(run_id, series.series_no)
        steps = [NO_STEP] * len(samples) if samples.steps is None else samples.steps.tolist()
        if series.metric in _MEASURED:
            measured[series.metric] = len(samples)
        elif series.listener == SOFTWARE:
            assert series.metric not in metrics, f"{series.metric} is there twice"
            metrics[series.metric] = list(zip(steps, samples.values.tolist(), strict=True))
    markers = [marker for marker in reader.markers([run_id]) if marker.end_ns is not None]
    epochs = [marker for marker in markers if marker.kind is MarkerKind.EPOCH]
    return Training(
        status,
        metrics,
        dict(reader.params(run_id)),
        dict(reader.tags(run_id)),
        [marker.step for marker in sorted(epochs, key=lambda marker: marker.start_ns)],
        Counter(marker.name for marker in markers if marker.kind is MarkerKind.SPAN),
        measured,
    )


def steps_of(points: Points) -> list[int]:
    """Return the steps of a metric's values."""
    return [step for step, _ in points]
