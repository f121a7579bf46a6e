"""The workload that the page shows, its neighbours, and its slowdown against solo runs.

The slowdown follows the rule of `radt.analysis.baselines`: a run's baseline is a run of the same
experiment with the same file, parameters, devices and machine that ran alone, without a profiler,
preferably on an undivided device; repeats are averaged and the newest workload wins. On a cluster,
where none ran on the same node, those of nodes with the same hardware count. Only candidates for
the runs of one workload are read, and only current attempts count.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from sqlalchemy import text

from radt.analysis.attempts import NO_COLLOCATION, Attempt, attempts_of, current_attempts
from radt.analysis.baselines import BaselineKey, is_undivided, keys_of, place_of, ran_alone
from radt.analysis.windows import after_first
from radt.errors import RunNotFoundError
from radt.frontend.data.catalog import Catalog, RunEntry, WorkloadEntry, read_catalog, tint
from radt.frontend.data.source import Source
from radt.frontend.selection import latest_experiment
from radt.frontend.view import View
from radt.model import MarkerKind, RunStatus
from radt.store.reader import StoreReader
from radt.store.records import MarkerRecord
from radt.tags import CLUSTER_HARDWARE

#: The limit on drawn runs; the page says how many are left out.
MAX_RUNS = 64
#: The length of the list of other workloads; a search finds the rest.
MAX_OFFERED = 80

_OF_ID = text(
    "SELECT experiment, workload_id FROM workload "
    "WHERE workload_id >= :first AND workload_id < :last ORDER BY created_ns DESC LIMIT 1"
)


@dataclass(frozen=True)
class Subject:
    """One workload among those of its experiment; ``automatic``: it is shown because it is the
    newest.

    ``left_out`` counts runs beyond `MAX_RUNS`.
    """

    catalog: Catalog
    workload: WorkloadEntry
    automatic: bool = False
    left_out: int = 0

    @property
    def workload_id(self) -> str:
        return self.workload.record.workload_id

    @property
    def runs(self) -> Mapping[str, RunEntry]:
        """The shown runs by id, in order of their letters."""
        return {run.run_id: run for run in self.workload.runs}

    @property
    def whole(self) -> tuple[RunEntry, ...]:
        """The shown runs without runs within runs, which share processes and devices with them."""
        return tuple(run for run in self.workload.runs if run.parent is None)

    @property
    def run_ids(self) -> tuple[str, ...]:
        return tuple(run.run_id for run in self.workload.runs)

    @property
    def origin_ns(self) -> int:
        """Zero of elapsed time: the barrier, or the first start if there was no barrier."""
        if self.workload.record.barrier_ns:
            return self.workload.record.barrier_ns
        origins = [run.origin_ns for run in self.workload.runs]
        return min(origins, default=self.workload.record.created_ns)

    @property
    def is_live(self) -> bool:
        return any(not run.record.status.ended for run in self.workload.runs)

    @property
    def is_from_mlflow(self) -> bool:
        """Whether all of its runs were imported from MLflow: it has no barrier and no files."""
        runs = self.workload.runs
        return bool(runs) and all(run.record.is_from_mlflow for run in runs)

    @property
    def title(self) -> str:
        return self.workload.record.label or self.workload_id[:12]

    def neighbour(self, step: int) -> WorkloadEntry | None:
        """Return the workload at this offset from the shown one; None beyond the ends."""
        place = self.workload.ordinal + step
        return self.catalog.workloads[place] if 0 <= place < len(self.catalog.workloads) else None


def find_subject(source: Source, view: View) -> Subject:
    """Return the workload of a view, by default the newest of the experiment in focus.

    Raises:
        RunNotFoundError: There is no such workload.
        NothingRecordedError: No experiment is stored.
        StoreError: The store cannot be read.
    """
    if view.workload is None:
        catalog = read_catalog(source, experiment_of(source, view))
        return _subject(catalog, _newest(catalog, source), automatic=True)
    place = _place(source, view.workload)
    if place is None:
        raise RunNotFoundError(
            f"no workload {view.workload[:40]} in {source.address}",
            "It may have been deleted or be in another store. Choose a workload on the Runs page",
        )
    experiment, workload_id = place
    catalog = read_catalog(source, experiment)
    for workload in catalog.workloads:
        if workload.record.workload_id == workload_id:
            return _subject(catalog, workload)
    raise RunNotFoundError(
        f"workload {workload_id[:12]} has just been deleted", "Choose another on the Runs page"
    )


def offered(subject: Subject, search: str) -> list[dict[str, Any]]:
    """Return the workloads to choose from, the newest first, including the shown one."""
    words = search.lower().split()
    options: list[dict[str, Any]] = []
    for workload in reversed(subject.catalog.workloads):
        is_shown = workload.record.workload_id == subject.workload_id
        label = option_label(workload)
        if all(word in label.lower() for word in words) or is_shown:
            options.append({"value": workload.record.workload_id, "label": label})
        if len(options) >= MAX_OFFERED and any(
            option["value"] == subject.workload_id for option in options
        ):
            break
    if len(options) > MAX_OFFERED:
        shown = next(option for option in options if option["value"] == subject.workload_id)
        options = [*options[: MAX_OFFERED - 1], shown]
    return options


def option_label(workload: WorkloadEntry) -> str:
    """Return ``three · 3 runs · cnn-small · finished``, with a number for repeated labels."""
    whole = [run for run in workload.runs if run.parent is None]
    names = list(dict.fromkeys(run.record.name for run in whole if run.record.name))
    count = len(whole)
    parts = [
        workload.record.label or workload.record.workload_id[:8],
        f"{count} run" if count == 1 else f"{count} runs",
        ", ".join(names[:3]) + ("…" if len(names) > 3 else ""),
        f"#{workload.ordinal + 1}",
    ]
    return " · ".join(part for part in parts if part)


def experiment_of(source: Source, view: View) -> str:
    """Return the experiment in focus: the chosen one, that of the workload or of the last pick.

    Raises:
        NothingRecordedError: No experiment is stored.
        StoreError: The store cannot be read.
    """
    if view.experiment:
        return view.experiment
    if view.workload and (place := _place(source, view.workload)) is not None:
        return place[0]
    if view.picks:
        return view.picks[-1].experiment
    return latest_experiment(source)


def _newest(catalog: Catalog, source: Source) -> WorkloadEntry:
    begun = [
        workload
        for workload in catalog.workloads
        if any(run.record.status is not RunStatus.SCHEDULED for run in workload.runs)
    ]
    candidates = begun or list(catalog.workloads)
    if not candidates:
        raise RunNotFoundError(
            f"experiment {catalog.experiment} has no workload in {source.address}",
            "It may have been deleted. Choose another on the Runs page",
        )
    return candidates[-1]


def _subject(catalog: Catalog, workload: WorkloadEntry, *, automatic: bool = False) -> Subject:
    # On this page a run's ordinal is its colour index, which is the same on all pages.
    shown = tuple(
        replace(run, ordinal=tint(catalog, run.run_id, run)) for run in workload.runs[:MAX_RUNS]
    )
    left_out = len(workload.runs) - len(shown)
    shortened = WorkloadEntry(workload.record, shown, workload.ordinal)
    return Subject(catalog, shortened, automatic, left_out)


def _place(source: Source, beginning: str) -> tuple[str, str] | None:
    """Return experiment and id of the workload whose id has this prefix."""

    def read(reader: StoreReader) -> tuple[str, str] | None:
        last = beginning + chr(0x10FFFF)
        with reader.snapshot() as connection:
            row = connection.execute(_OF_ID, {"first": beginning, "last": last}).first()
        return None if row is None else (str(row[0]), str(row[1]))

    return source.remember(("workload-place", beginning), read)


#: The limit on candidates: the newest solo workloads of the experiment.
_MAX_CANDIDATES = 500


@dataclass(frozen=True, slots=True)
class Slowdown:
    """A run and its baseline: seconds per epoch of both, and the machine of the baseline."""

    epoch_s: float
    solo_s: float
    solo_host: str

    @property
    def ratio(self) -> float:
        return self.epoch_s / self.solo_s


def slowdowns(source: Source, subject: Subject) -> dict[str, Slowdown]:
    """Return slowdowns by run id; runs without a baseline or an ended epoch are left out.

    Runs that failed have none, as in reports; those still running use their epochs so far.

    Raises:
        StoreError: The store cannot be read.
    """
    key = ("workload-slowdowns", subject.workload_id)
    return source.remember(key, lambda reader: _read(reader, subject))


def _read(reader: StoreReader, subject: Subject) -> dict[str, Slowdown]:
    compared = [
        run
        for run in subject.workload.trained
        if run.record.status in (RunStatus.FINISHED, RunStatus.RUNNING)
    ]
    hardware = reader.tagged(CLUSTER_HARDWARE, subject.workload.record.experiment)
    candidates = _candidates(subject, compared, hardware)
    if not candidates:
        return {}
    baselines = _baselines(reader, subject, candidates)
    ids = [run.run_id for run in compared]
    keys = keys_of(reader, [run.record for run in compared], reader.params_of(ids))
    epochs = _epochs(reader, ids)
    slowdowns: dict[str, Slowdown] = {}
    for run in compared:
        alone = baselines.get(keys[run.run_id], {})
        known = alone.get(run.record.host) or _of_other_nodes(alone.values())
        mine_s = after_first(epochs.get(run.run_id, ())).time_per_epoch_s
        if known is None or mine_s is None or known.workload_id == subject.workload_id:
            continue
        slowdowns[run.run_id] = Slowdown(mine_s, fmean(known.times_s), known.host)
    return slowdowns


def _candidates(
    subject: Subject, compared: Sequence[RunEntry], hardware: Mapping[str, str]
) -> list[WorkloadEntry]:
    places = {place_of(run.record, hardware) for run in compared}
    runs = subject.workload.trained
    alone = len(runs) == 1 and runs[0].record.collocation in NO_COLLOCATION
    if alone and not subject.workload.is_profiled:
        return []  # the workload is itself a baseline
    candidates = [
        workload
        for workload in subject.catalog.workloads
        if len(workload.trained) == 1
        and not workload.is_profiled
        and workload.trained[0].record.status is RunStatus.FINISHED
        and place_of(workload.trained[0].record, hardware) in places
    ]
    return candidates[-_MAX_CANDIDATES:]


@dataclass(frozen=True, slots=True)
class _Alone:
    """A workload whose run was alone: seconds per epoch of each repeat, and the machine."""

    times_s: Sequence[float]
    host: str
    workload_id: str
    created_ns: int
    is_undivided: bool


def _baselines(
    reader: StoreReader, subject: Subject, candidates: Sequence[WorkloadEntry]
) -> dict[BaselineKey, dict[str, _Alone]]:
    """Return the baseline of each key on each machine."""
    labels = {workload.record.label for workload in candidates}
    of_labels = [w for w in subject.catalog.workloads if w.record.label in labels]
    records = [run.record for w in of_labels for run in w.runs]
    tags = reader.tags_of([record.run_id for record in records])
    entries = {run.run_id: run.record for w in of_labels for run in w.runs}
    attempts = current_attempts(attempts_of(records, tags))
    alone = sorted(filter(ran_alone, attempts), key=is_undivided)  # the last one counts
    finished = [_finished(repeats) for repeats in alone]
    ids = [run_id for of_row in finished for run_id in of_row]
    keys = keys_of(reader, [entries[run_id] for run_id in ids], reader.params_of(ids))
    epochs = _epochs(reader, ids)
    baselines: dict[BaselineKey, dict[str, _Alone]] = {}
    for repeats, of_row in zip(alone, finished, strict=True):
        times = [after_first(epochs.get(run_id, ())).time_per_epoch_s for run_id in of_row]
        known = [time_s for time_s in times if time_s is not None]
        if known:
            newest = entries[of_row[-1]]
            baselines.setdefault(keys[newest.run_id], {})[newest.host] = _Alone(
                known, newest.host, newest.workload_id, newest.created_ns, is_undivided(repeats)
            )
    return baselines


def _of_other_nodes(alone: Collection[_Alone]) -> _Alone | None:
    """Return the best of them, with the times of all nodes that have one as good."""
    best = max(alone, key=lambda one: (one.is_undivided, one.created_ns), default=None)
    if best is None:
        return None
    alike = [one for one in alone if one.is_undivided == best.is_undivided]
    return replace(best, times_s=[time_s for one in alike for time_s in one.times_s])


def _finished(repeats: Sequence[Attempt]) -> list[str]:
    return [
        run.run_id
        for attempt in repeats
        for run in attempt.trained
        if run.status is RunStatus.FINISHED
    ]


def _epochs(reader: StoreReader, run_ids: Sequence[str]) -> dict[str, list[MarkerRecord]]:
    epochs: dict[str, list[MarkerRecord]] = {}
    for marker in reader.markers(run_ids):
        if marker.kind is MarkerKind.EPOCH and not marker.process:
            epochs.setdefault(marker.run_id, []).append(marker)
    return epochs
