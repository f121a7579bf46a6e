"""Metrics of runs with known points, and reports of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from radt.analysis.report import Report, ReportCache, read_report
from radt.analysis.series_quantities import parse_series_quantity
from radt.analysis.summaries import WorkloadSummary
from radt.analysis.window_spec import WindowSpec
from radt.model import SOFTWARE, Scope, SeriesKind
from radt.store.reader import StoreReader
from radt.store.records import Samples, SeriesBatch, SeriesRecord
from tests.frontend.report_support import Planted, S, Study


def report_of(
    study: Study,
    *names: str,
    window: str = "",
    cache: ReportCache | None = None,
    profiled: bool = False,
) -> Report:
    """The report of a study, with these quantities of series."""
    with StoreReader(study.store) as reader:
        return read_report(
            reader,
            study.experiment,
            window=WindowSpec.parse(window),
            series=tuple(map(parse_series_quantity, names)),
            cache=cache,
            profiled=profiled,
        )


def workloads_of(study: Study) -> dict[str, WorkloadSummary]:
    return {workload.label: workload for workload in report_of(study).workloads}


def add_metric(
    study: Study,
    run_id: str,
    metric: str,
    values: Sequence[float],
    *,
    times_s: Sequence[float] = (),
    unit: str = "",
    kind: SeriesKind = SeriesKind.GAUGE,
    listener: str = SOFTWARE,
    entity: str = "",
    wraps_at: float | None = None,
) -> None:
    """Add a series to a run; without times, its points are a second apart from second 1 on."""
    with StoreReader(study.store) as reader:
        number = 1 + max(one.series_no for one in reader.series([run_id]))
        (run,) = reader.runs(run_ids=[run_id])
    assert run.started_ns is not None
    scope = Scope.RUN if listener == SOFTWARE else Scope.GPU
    record = SeriesRecord(
        *(run_id, number, listener, metric, unit, scope, kind, entity), wraps_at=wraps_at
    )
    study.writer.add_series([record])
    seconds = np.asarray(times_s or np.arange(1, len(values) + 1), dtype=np.float64)
    times_ns = run.started_ns + np.round(seconds * S).astype(np.int64)
    study.writer.append(
        run_id, [SeriesBatch(number, Samples(times_ns, np.asarray(values, dtype=np.float64)))]
    )
    study.writer.seal(run_id)


def repeats(
    study: Study, label: str, accuracies: Sequence[Sequence[float]], *, unit: str = ""
) -> list[str]:
    """Add a workload of one run, once for each of the curves of its accuracy; return the runs."""
    run_ids = []
    for number, values in enumerate(accuracies):
        tags = {"radt.series": f"{study.experiment} {label}", "radt.repeat": f"{number + 1}/9"}
        workload_id = study.workload(label, [Planted("a", 2.0)], tags=tags)
        run_id = study.run_id(workload_id, "a")
        add_metric(study, run_id, "accuracy", values, unit=unit)
        run_ids.append(run_id)
    return run_ids
