"""A run's metrics in numbers, and what differs between it and another run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from radt.errors import RunNotFoundError
from radt.frontend.data.catalog import RunEntry
from radt.frontend.data.model import SCOPE_WORDS, unit_scale
from radt.frontend.data.run.subject import RunSubject
from radt.frontend.data.run_files import folders_of, opened
from radt.frontend.data.source import Source, Stretch
from radt.model import SOFTWARE, SeriesKind
from radt.store.counters import rate_unit, rates
from radt.store.reader import StoreReader
from radt.store.records import Float64Array, SeriesRecord, SummaryRecord
from radt.tags import RUNNER, TRACKER_CPU_S, TRACKER_JOURNAL_BYTES
from radt.technique_metrics import meaning_of, standard_unit
from radt.usage import KERNEL

_PACKAGES = "environment/packages.txt"
_MAX_PACKAGES_BYTES = 1_000_000
_NS_PER_S = 1e9
#: Tags in which radt keeps account; they differ between any two runs.
_ACCOUNTS = frozenset({RUNNER, TRACKER_CPU_S, TRACKER_JOURNAL_BYTES})
#: Points of a metric's small curve.
_CURVE_POINTS = 64
#: Curves of further metrics are not read.
MAX_CURVES = 48


@dataclass(frozen=True, slots=True)
class MetricRow:
    """A series of the run in numbers; None where no value is finite.

    Of a counter there are ``total``, its growth from its first to its last reading in the unit of
    the series, and ``mean``, the same a second. ``unit`` is that of the other numbers, ``label``
    its name on the page.
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
    def label(self) -> str:
        return unit_scale(self.unit, self._largest).label

    def scaled(self, value: float | None) -> float | None:
        """Return a value in units of ``label``."""
        return None if value is None else value * unit_scale(self.unit, self._largest).factor

    @property
    def _largest(self) -> float:
        values = (self.last, self.minimum, self.maximum, self.mean)
        return max((abs(value) for value in values if value is not None), default=0.0)


def metric_rows(source: Source, run_id: str) -> list[MetricRow]:
    """Return all series of a run in numbers, those that the script logged first.

    They are read from chunk headers; no point is decoded.

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


def _row(record: SummaryRecord) -> MetricRow:
    series = record.series
    name = f"{series.metric} {series.entity}".rstrip()
    words = [SCOPE_WORDS[series.scope], series.method or (meaning_of(series.metric) or "")]
    explanation = " · ".join(filter(None, words))
    if series.kind is not SeriesKind.COUNTER:
        unit = standard_unit(series.metric, series.unit)
        extremes = (record.last, record.minimum, record.maximum, record.mean)
        return MetricRow(series, name, explanation, unit, record.count, *extremes)
    rate = rate_unit(series.unit)
    seconds = (record.last_ns - record.first_ns) / _NS_PER_S
    total = mean = None
    if record.first is not None and record.last is not None and seconds > 0:
        growth = record.last - record.first
        if growth >= 0:  # else it was reset
            total, mean = growth, growth / seconds * rate.factor
    nothing = (None, None, None)
    return MetricRow(series, name, explanation, rate.unit, record.count, *nothing, mean, total)


def curve(source: Source, row: MetricRow, *, ended: bool) -> Float64Array:
    """Return values of a series at about equal distances, for a small curve; rates of a counter.

    Raises:
        StoreError: The store cannot be read, or a chunk is damaged.
    """
    series = row.series
    if series.kind is not SeriesKind.COUNTER:
        return source.samples(Stretch(series, max_points=_CURVE_POINTS), ended=ended).values

    def read(reader: StoreReader) -> Float64Array:
        # Mean rates between some readings: all of them would have to be decoded for each.
        readings = reader.envelope(series.run_id, series.series_no, max_points=_CURVE_POINTS)
        return rates(readings, series).values

    return source.remember(("run-curve", series.run_id, series.series_no), read)


@dataclass(frozen=True, slots=True)
class Difference:
    """A fact of two runs; None where a run does not have it."""

    name: str
    here: str | None
    there: str | None

    @property
    def differs(self) -> bool:
        return self.here != self.there


@dataclass(frozen=True, slots=True)
class Differences:
    """Facts of one kind, those that differ first."""

    title: str
    facts: tuple[Difference, ...]


def differences(source: Source, subject: RunSubject) -> list[Differences]:
    """Return parameters, execution, tags and packages of the run beside those of the other one.

    Raises:
        StoreError: The store cannot be read.
    """
    runs = [subject.run, *([subject.other] if subject.other is not None else [])]
    ids = tuple(run.run_id for run in runs)
    params = source.remember(("params", ids), lambda reader: reader.params_of(ids))
    tags = source.remember(("tags", ids), lambda reader: reader.tags_of(ids))
    parts: list[tuple[str, Sequence[Mapping[str, str]]]] = [
        ("Parameters", [params.get(run.run_id, {}) for run in runs]),
        ("Execution", [_execution(run) for run in runs]),
        ("Tags", [_without_accounts(tags.get(run.run_id, {})) for run in runs]),
        ("Packages", [packages_of(source, run) for run in runs]),
    ]
    return [Differences(title, tuple(_beside(*known))) for title, known in parts]


def _without_accounts(tags: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in tags.items() if name not in _ACCOUNTS}


def _beside(
    here: Mapping[str, str], there: Mapping[str, str] | None = None
) -> Iterable[Difference]:
    if there is None:
        return [Difference(name, value, value) for name, value in sorted(here.items())]
    names = sorted({*here, *there})
    facts = [Difference(name, here.get(name), there.get(name)) for name in names]
    return sorted(facts, key=lambda fact: not fact.differs)


def _execution(run: RunEntry) -> dict[str, str]:
    record = run.record
    facts = {
        "command": record.command,
        "machine": record.host,
        "devices": record.devices,
        "collocation": record.collocation,
        "listeners": record.listeners,
    }
    if record.is_from_mlflow:  # which knows none of these
        return {}
    return {name: value for name, value in facts.items() if value}


def packages_of(source: Source, run: RunEntry) -> Mapping[str, str]:
    """Return the versions of the packages that the run was started with; empty if unknown."""

    def read(_: object) -> Mapping[str, str]:
        for folder in folders_of(run.record, source.address):
            try:
                with opened(folder.path, _PACKAGES) as file:
                    content = file.read(_MAX_PACKAGES_BYTES).decode("utf-8", "replace")
            except (RunNotFoundError, OSError):
                continue  # delivered already
            pairs = (line.partition("==") for line in content.splitlines())
            return {name: version for name, _, version in pairs if name}
        return {}

    return source.remember(("run-packages", run.run_id), read)
