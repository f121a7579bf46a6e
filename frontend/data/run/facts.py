"""A run's metrics in numbers, and its differences from another run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from radt.analysis.lines import reduced
from radt.errors import RunNotFoundError
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.catalog import RunEntry
from radt.frontend.data.model import SCOPE_WORDS
from radt.frontend.data.run.subject import RunSubject
from radt.frontend.data.run_files import folders_of, opened
from radt.frontend.data.series_cache import Ask
from radt.frontend.data.workload.run_facts import Fact, facts_table
from radt.model import SOFTWARE, SeriesKind
from radt.store.counters import rate_unit
from radt.store.reader import StoreReader
from radt.store.records import Float64Array, SeriesRecord
from radt.store.summaries import SeriesSummary
from radt.tags import RUNNER, TRACKER_CPU_S, TRACKER_JOURNAL_BYTES
from radt.technique_metrics import meaning_of, standard_unit
from radt.units import scale_of
from radt.usage import KERNEL

_PACKAGES = "environment/packages.txt"
_MAX_PACKAGES_BYTES = 1_000_000
#: radt's accounting tags, which differ between any two runs.
_ACCOUNTS = frozenset({RUNNER, TRACKER_CPU_S, TRACKER_JOURNAL_BYTES})
#: Number of points of a metric's small curve.
_CURVE_POINTS = 64
#: Maximum number of curves.
MAX_CURVES = 48


@dataclass(frozen=True, slots=True)
class MetricRow:
    """A series of the run in numbers. Values are None if none is finite, but ``last`` is as logged.

    For a counter, ``total`` is its growth in the unit of the series, and ``mean`` its growth per
    second. ``unit`` is that of the other numbers, ``label`` its name on the page.
    """

    series: SeriesRecord
    name: str
    explanation: str
    unit: str
    count: int
    last: float | None
    minimum: float | None
    maximum: float | None
    mean: float | None
    total: float | None = None

    @property
    def extremes(self) -> tuple[float | None, ...]:
        """The last value, the lowest and the highest."""
        return self.last, self.minimum, self.maximum

    @property
    def label(self) -> str:
        return scale_of(self.unit, self._largest).label

    def scaled(self, value: float | None) -> float | None:
        """Return a value in units of ``label``."""
        return None if value is None else value * scale_of(self.unit, self._largest).factor

    @property
    def _largest(self) -> float:
        values = (*self.extremes, self.mean)
        known = (abs(value) for value in values if value is not None and math.isfinite(value))
        return max(known, default=0.0)


def metric_rows(source: CachedStore, run_id: str) -> list[MetricRow]:
    """Return all series of a run in numbers, those that the script logged first.

    Raises:
        StoreError: The store cannot be read.
    """

    def read(reader: StoreReader) -> list[MetricRow]:
        records = [r for r in reader.summary([run_id]) if r.series.listener != KERNEL]
        return sorted(map(_row, records), key=_rank)

    return source.remember(("run-metrics", run_id), read)


def _rank(row: MetricRow) -> tuple[bool, str, str, int]:
    series = row.series
    return series.listener != SOFTWARE, series.listener, row.name, series.series_no


def _row(record: SeriesSummary) -> MetricRow:
    series = record.series
    name = f"{series.metric} {series.entity}".rstrip()
    words = [SCOPE_WORDS[series.scope], series.method or (meaning_of(series.metric) or "")]
    explanation = " · ".join(filter(None, words))
    if series.kind is not SeriesKind.COUNTER:
        unit = standard_unit(series.metric, series.unit)
        extremes = (record.last, record.minimum, record.maximum, record.mean)
        return MetricRow(series, name, explanation, unit, record.count, *extremes)
    rate = rate_unit(series.unit)
    total, mean = record.growth, None
    if total is not None and record.seconds > 0:
        mean = total / record.seconds * rate.factor
    nothing = (None, None, None)
    return MetricRow(series, name, explanation, rate.unit, record.count, *nothing, mean, total)


def curve(source: CachedStore, run: RunEntry, row: MetricRow) -> Float64Array:
    """Return values of a series for a small curve, including extremes; rates of a counter.

    Raises:
        StoreError: The store cannot be read, or a chunk is damaged.
    """
    ask = Ask(row.series, run.origin_ns, variant=run.pruned)
    cells = source.cells(ask, ended=run.record.status.ended, revision=run.revision)
    if len(cells) <= _CURVE_POINTS:
        return cells.mean
    cells = reduced(cells, _CURVE_POINTS // 2, float(cells.last[-1] - cells.first[0]))
    extremes: Float64Array = np.stack([cells.low, cells.high]).ravel("F")
    return extremes


def differences(source: CachedStore, subject: RunSubject) -> Mapping[str, Sequence[Fact]]:
    """Return parameters, execution, tags and packages of the run beside those of the other run.

    Raises:
        StoreError: The store cannot be read.
    """
    runs = [subject.run, *([subject.other] if subject.other is not None else [])]
    ids = tuple(run.run_id for run in runs)
    tags = source.remember(("tags", ids), lambda reader: reader.tags_of(ids))
    kinds: Mapping[str, Mapping[str, Mapping[str, str]]] = {
        "Parameters": source.remember(("params", ids), lambda reader: reader.params_of(ids)),
        "Execution": {run.run_id: _execution(run) for run in runs},
        "Tags": {run_id: _without_accounts(own) for run_id, own in tags.items()},
        "Packages": {run.run_id: packages_of(source, run) for run in runs},
    }
    return {title: facts_table(ids, texts) for title, texts in kinds.items()}


def _without_accounts(tags: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in tags.items() if name not in _ACCOUNTS}


def _execution(run: RunEntry) -> dict[str, str]:
    record = run.record
    facts = {
        "command": record.command,
        "machine": record.host,
        "devices": record.devices,
        "collocation": record.collocation,
        "listeners": record.listeners,
    }
    if record.is_from_mlflow:  # MLflow has none of these
        return {}
    return {name: value for name, value in facts.items() if value}


def packages_of(source: CachedStore, run: RunEntry) -> Mapping[str, str]:
    """Return the versions of the packages that the run was started with; empty if unknown."""

    def read(_: object) -> Mapping[str, str]:
        for folder in folders_of(run.record, source.address):
            try:
                with opened(folder.path, _PACKAGES) as file:
                    content = file.read(_MAX_PACKAGES_BYTES).decode("utf-8", "replace")
            except (RunNotFoundError, OSError):
                continue  # already uploaded
            pairs = (line.partition("==") for line in content.splitlines())
            return {name: version for name, _, version in pairs if name}
        return {}

    return source.remember(("run-packages", run.run_id), read)
