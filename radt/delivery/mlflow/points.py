"""Points for MLflow: scripts' metrics in full, hardware series as means, and a summary.

Counters are uploaded as rates, because a line that only rises shows little. ``gpu.pcie.rx`` (bytes)
becomes ``gpu.pcie.rx_per_s``, ``gpu.energy`` (joules) ``gpu.energy_per_s``, which is in watts. A
counter's total over the whole run is in the summary, under its own name.

Pure functions turn records of the store into points. The same records always give the same points,
so that MLflow stores points only once even if they are sent twice after a crash.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from radt.delivery.mlflow.limits import MAX_POINTS, BatchSender, Notes, unique_keys
from radt.delivery.mlflow.target import NS_PER_MS, MlflowPoint, MlflowTarget
from radt.errors import CodecError
from radt.model import NO_STEP, SOFTWARE, THROUGH_MLFLOW, MarkerKind, SeriesKind
from radt.store.cells import of_samples
from radt.store.counters import rate_unit
from radt.store.reader import StoreReader
from radt.store.records import (
    GapRecord,
    LedgerRecord,
    MarkerRecord,
    RunRecord,
    Samples,
    SeriesRecord,
)
from radt.store.summaries import SeriesSummary
from radt.store.totals import KERNEL_KEYS, Extent, extents_of, key_of, total_value
from radt.store.writer import StoreWriter
from radt.usage import KERNEL, lower_bound

log = logging.getLogger(__name__)

#: Hardware series are averaged over this interval, as in MLflow's own sampler.
MEAN_INTERVAL_S = 10
NS_PER_S = 1_000_000_000
_MEAN_INTERVAL_NS = MEAN_INTERVAL_S * NS_PER_S

#: A counter that was not read for longer has no rate for that time.
_LONGEST_RATE_NS = 60_000_000_000
_LONGEST_RATE_INTERVALS = 4

EPOCH_KEY = "epoch/duration_s"
#: MLflow's pages group metrics by prefix.
SUMMARY_PREFIX = "summary/"
#: Maximum number of summary values that become metrics in MLflow; the file `SUMMARY_FILE` has all.
MAX_SUMMARIES = 12
SUMMARY_FILE = "radt-summary.json"
_SAMPLES = "samples/"
_FIRST = tuple(
    re.compile(pattern)
    for pattern in (
        "duration_s",
        f"{EPOCH_KEY}/mean",
        "cpu_time_s",
        "rss_peak_bytes",
        r"gpu\.energy/.*total(_at_least)?",
        r"gpu\.utilization/.*mean",
        r"gpu\.memory\.used/.*max",
        r"gpu\.power/.*mean",
    )
)


def series_names(series: Sequence[SeriesRecord]) -> dict[int, str]:
    """Return the name of each series of a run by its number: `series_name`, made unique.

    Several listeners may read the same metric (``gpu.power`` by NVML and by DCGM). Combined, they
    would be a line that jumps between two sources. So the first in the run has the plain name, and
    later ones get their listener as a suffix.
    """
    return _told_apart(series, series_name)


def _told_apart(
    series: Sequence[SeriesRecord], name_of: Callable[[SeriesRecord], str]
) -> dict[int, str]:
    names: dict[int, str] = {}
    owners: dict[str, str] = {}
    for record in sorted(series, key=lambda record: record.series_no):
        name = name_of(record)
        own = owners.setdefault(name, record.listener) == record.listener
        names[record.series_no] = name if own else f"{name}/{record.listener}"
    return names


def series_name(series: SeriesRecord) -> str:
    """Return the name of a series in MLflow, before replacing invalid characters.

    ``loss``, ``loss/rank 1`` for script metrics; ``system/gpu.power/gpu0`` for hardware, because
    MLflow shows this prefix on its page of system metrics; ``system/gpu.energy_per_s/gpu0`` for the
    rate of a counter.
    """
    counter = series.kind is SeriesKind.COUNTER and series.listener != SOFTWARE
    metric = series.metric + (rate_unit(series.unit).suffix if counter else "")
    name = f"{metric}/{series.entity}" if series.entity else metric
    return name if series.listener == SOFTWARE else f"system/{name}"


def _entity_name(series: SeriesRecord) -> str:
    return f"{series.metric}/{series.entity}" if series.entity else series.metric


def software_points(key: str, samples: Samples, first_index: int) -> list[MlflowPoint]:
    """Return all points unchanged. Points without a step get their number in the series as step.

    MLflow truncates histories in which points share a step, so its charts would lose them if all
    had step 0. ``first_index`` is the first sample's number in the series.
    """
    times_ms = (samples.times_ns // NS_PER_MS).tolist()
    indices = range(first_index, first_index + len(samples))
    if samples.steps is None:
        steps: Sequence[int] = indices
    else:
        steps = [
            index if step == NO_STEP else step
            for index, step in zip(indices, samples.steps.tolist(), strict=True)
        ]
    values = samples.values.tolist()
    return [
        MlflowPoint(key, value, time_ms, step)
        for value, time_ms, step in zip(values, times_ms, steps, strict=True)
    ]


class Means(NamedTuple):
    """Points of a hardware series, and the time (exclusive) up to which they cover it."""

    points: list[MlflowPoint]
    until_ns: int


def look_back_ns(series: SeriesRecord) -> int:
    """Return how far before ``since_ns`` the samples for `hardware_means` must begin."""
    if series.kind is not SeriesKind.COUNTER:
        return 0
    return max(_LONGEST_RATE_NS, round(_LONGEST_RATE_INTERVALS * (series.interval_s or 0.0) * 1e9))


def hardware_means(
    key: str,
    series: SeriesRecord,
    samples: Samples,
    *,
    origin_ns: int,
    since_ns: int,
    final: bool,
) -> Means:
    """Return means (of a counter's rate) over `MEAN_INTERVAL_S` each, since ``origin_ns``.

    An interval is complete when a later sample exists, or when the series has ended (``final``).
    The step is the interval's end in seconds since ``origin_ns``. Non-finite values are ignored; an
    interval without finite values has no point. A counter's increase is attributed to the time of
    its reading.

    Args:
        key: MLflow's key of the metric.
        series: The series.
        samples: Samples in time order, beginning `look_back_ns` before ``since_ns``. Earlier ones
            are ignored except for the last reading of a counter.
        origin_ns: Start of the first interval.
        since_ns: End of the time already covered, 0 for none.
        final: Whether the series has ended.
    """
    keep = samples.times_ns >= since_ns
    times = samples.times_ns[keep]
    if not len(times):
        return Means([], since_ns)
    numbers = np.unique((times - origin_ns) // _MEAN_INTERVAL_NS)
    complete = numbers if final else numbers[:-1]
    cells, _ = of_samples(samples, series, origin_ns)
    is_new = cells.since_s >= (since_ns - origin_ns) / 1e9
    if series.kind is SeriesKind.COUNTER:
        is_new &= cells.weight <= look_back_ns(series) / 1e9
    means = cells.taken(is_new).grouped(MEAN_INTERVAL_S)
    points = []
    for number, value in zip(means.first // MEAN_INTERVAL_S, means.mean.tolist(), strict=True):
        if number > (complete[-1] if len(complete) else -np.inf):
            continue
        stop_ns = origin_ns + (int(number) + 1) * _MEAN_INTERVAL_NS
        # A point may have its own time only if no earlier, interrupted call can have sent it.
        time_ns = int(times[-1]) if number == numbers[-1] else stop_ns
        points.append(
            MlflowPoint(key, value, time_ns // NS_PER_MS, (int(number) + 1) * MEAN_INTERVAL_S)
        )
    if final:
        return Means(points, int(times[-1]) + 1)
    return Means(
        points, int(origin_ns + numbers[-1] * _MEAN_INTERVAL_NS) if len(complete) else since_ns
    )


def epoch_points(markers: Sequence[MarkerRecord]) -> list[MlflowPoint]:
    """Return the duration of each completed epoch of the run's first process by number."""
    return [
        MlflowPoint(
            EPOCH_KEY,
            (marker.end_ns - marker.start_ns) / 1e9,
            marker.end_ns // NS_PER_MS,
            index if marker.step is None else marker.step,
        )
        for index, marker in enumerate(markers)
        if marker.kind is MarkerKind.EPOCH and not marker.process and marker.end_ns is not None
    ]


def summary_values(
    run: RunRecord,
    summaries: Sequence[SeriesSummary],
    epochs: Sequence[MlflowPoint],
    ledger: Sequence[LedgerRecord],
    gaps: Sequence[GapRecord],
) -> dict[str, float]:
    """Return the numbers of a run's summary file, by name.

    Mean and maximum of each hardware series, the increase of counters, the kernel's totals of its
    processes (``cpu_time_s``), duration of the run and of its epochs (the mean without the first,
    which is warm-up, if there are others), and the completeness of the samples.
    """
    values: dict[str, float | None] = {"duration_s": run.lasted_s()}
    durations = [point.value for point in epochs]
    if durations:
        steady = durations[1:] or durations
        values[f"{EPOCH_KEY}/mean"] = sum(steady) / len(steady)
        values[f"{EPOCH_KEY}/max"] = max(steady)
    names = _told_apart([summary.series for summary in summaries], _entity_name)
    extents = extents_of(run, summaries, gaps)
    for summary in summaries:
        series = summary.series
        if series.listener == SOFTWARE:
            continue
        if series.listener == KERNEL:
            if series.metric in KERNEL_KEYS:
                values[key_of(series)] = total_value(summary)
            continue
        name = names[series.series_no]
        if series.kind is SeriesKind.COUNTER:
            key = f"{name}/total"
            is_part = extents.get(series.series_no) is Extent.PART
            values[lower_bound(key) if is_part else key] = total_value(summary)
        else:
            values[f"{name}/mean"] = summary.mean
            values[f"{name}/max"] = summary.maximum
    for entry in ledger:
        values[f"{_SAMPLES}{entry.listener}/received"] = float(entry.received)
        values[f"{_SAMPLES}{entry.listener}/missed"] = float(entry.missed)
    return {name: value for name, value in values.items() if value is not None}


def summary_metrics(values: Mapping[str, float]) -> dict[str, float]:
    """Return the summary values that are also metrics, by name: at most `MAX_SUMMARIES`.

    MLflow's tables sort runs by them. Durations, CPU and GPUs come first, each quantity for all of
    its devices or, if there is not enough room, for none; other series get the remaining places.
    """
    chosen: dict[str, float] = {}
    wanted = [name for name in values if not name.startswith(_SAMPLES)]
    groups = [[name for name in wanted if pattern.fullmatch(name)] for pattern in _FIRST]
    groups += [[name] for name in wanted]
    for group in groups:
        new = [name for name in group if f"{SUMMARY_PREFIX}{name}" not in chosen]
        if len(chosen) + len(new) <= MAX_SUMMARIES:
            chosen |= {f"{SUMMARY_PREFIX}{name}": values[name] for name in new}
    return chosen


class PointUploader:
    """Part of `radt.delivery.mlflow.uploader.Uploader`, and equally thread-safe."""

    def __init__(self, target: MlflowTarget, reader: StoreReader, writer: StoreWriter) -> None:
        self._target = target
        self._reader = reader
        self._writer = writer
        self._batches = BatchSender(MAX_POINTS)

    def send_new(
        self,
        run: RunRecord,
        mlflow_id: str,
        series: Sequence[SeriesRecord],
        key_of: Mapping[int, str],
        notes: Notes,
    ) -> None:
        """Send all new points, several series per request; record progress after each request.

        `key_of` is MLflow's key of each series, by number; `notes` collects the points that MLflow
        refused, and the series that are damaged in the store.

        Raises:
            DeliveryError: MLflow failed.
            StoreError: The store failed.
        """
        points: list[MlflowPoint] = []
        marks: dict[int, int] = {}

        def flush() -> None:
            self._log_points(points, mlflow_id, notes)
            self._writer.mark_delivered(run.run_id, marks)
            points.clear()
            marks.clear()

        def room() -> int:
            return max(1, self._batches.limit - len(points))

        for series_no, piece, until in self._pieces(run, series, key_of, room, notes):
            points += piece
            marks[series_no] = until
            if len(points) >= self._batches.limit:
                flush()
        if marks:
            flush()

    def _pieces(
        self,
        run: RunRecord,
        series: Sequence[SeriesRecord],
        key_of: Mapping[int, str],
        room: Callable[[], int],
        notes: Notes,
    ) -> Iterator[tuple[int, list[MlflowPoint], int]]:
        """Yield new points by series, as many as fit: number, points, position."""
        delivered = self._reader.delivered(run.run_id)
        counts = self._reader.point_counts(run.run_id)
        for record in series:
            if record.method == THROUGH_MLFLOW:
                continue
            number, key = record.series_no, key_of[record.series_no]
            done = delivered.get(number, 0)
            pieces = (
                self._new_points(record, key, done, counts.get(number, 0), room)
                if record.listener == SOFTWARE
                else self._new_means(run, record, key, done, room)
            )
            try:
                for piece, until in pieces:
                    yield number, piece, until
            except CodecError as error:
                note = f"series {key}: {error.message}"
                if note not in notes:
                    log.warning("run %s: %s", run.run_id, note)
                notes[note] = None

    def _new_points(
        self, series: SeriesRecord, key: str, done: int, count: int, room: Callable[[], int]
    ) -> Iterator[tuple[list[MlflowPoint], int]]:
        """Yield as many points of a script's metric as fit, and the number of points up to there.

        ``count`` is the number of all points, of which the first ``done`` are not new.
        """
        while done < count:
            samples = self._reader.points_after(series.run_id, series.series_no, done, room())
            if not len(samples):
                break  # pruned meanwhile
            piece = software_points(key, samples, done)
            done += len(samples)
            yield piece, done

    def _new_means(
        self,
        run: RunRecord,
        series: SeriesRecord,
        key: str,
        since_ns: int,
        room: Callable[[], int],
    ) -> Iterator[tuple[list[MlflowPoint], int]]:
        """Yield as many means as fit, and the time up to which they cover the series."""
        if run.started_ns is None and not run.status.ended:
            return  # seconds count from the start, which is still unknown
        origin_ns = run.started_ns or run.created_ns
        samples = self._reader.samples(
            run.run_id, series.series_no, start_ns=since_ns - look_back_ns(series)
        )
        points, until_ns = hardware_means(
            key,
            series,
            samples,
            origin_ns=origin_ns,
            since_ns=since_ns,
            final=run.status.ended,
        )
        while len(points) > (count := room()):
            piece, points = points[:count], points[count:]
            yield piece, origin_ns + piece[-1].step * NS_PER_S
        if until_ns > since_ns:
            yield points, until_ns

    def send_summary(self, run: RunRecord, mlflow_id: str, notes: Notes) -> dict[str, float]:
        """Send the run's summary and the durations of its epochs; return all summary values.

        Raises:
            DeliveryError: MLflow failed.
            StoreError: The store failed.
        """
        epochs = epoch_points(self._reader.markers([run.run_id]))
        summaries = self._reader.summary([run.run_id])
        ledger = self._reader.ledger([run.run_id])
        gaps = self._reader.gaps([run.run_id])
        values = summary_values(run, summaries, epochs, ledger, gaps)
        metrics = summary_metrics(values)
        keys = unique_keys(metrics)
        ended_ms = (run.ended_ns or 0) // NS_PER_MS
        points = epochs + [
            MlflowPoint(keys[name], value, ended_ms, 0) for name, value in metrics.items()
        ]
        self._log_points(points, mlflow_id, notes)
        return values

    def _log_points(self, points: Sequence[MlflowPoint], mlflow_id: str, notes: Notes) -> None:
        self._batches.send(points, partial(self._target.log_points, mlflow_id), notes)
