"""The runs of one experiment in order, and their colours, which depend on the order.

Up to eight runs get the eight colours in order. With more runs, each workload begins with the next
colour, and its runs have the colours from there on. The line of a whole workload has the colour of
its first run.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, takewhile

from radt.analysis.collocated import is_about_collocation
from radt.analysis.selection import Omission, Reason, Selection, read_tags, select
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.theme import HUE_COUNT
from radt.model import Role, RunStatus
from radt.run_name import family_of, letter_order
from radt.store.reader import StoreReader
from radt.store.records import ExperimentSummary, RunRecord, WorkloadRecord
from radt.tags import PARENT, PROFILED, PRUNED, ROLE

#: Maximum number of runs shown until the user chooses: the number of distinguishable colours.
AUTOMATIC_RUNS = 8


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A run, its workload, and its index among the experiment's runs (from 0).

    ``revision`` is the run's revision when the catalog was read, or an earlier one.
    ``profiled`` is the profiler that slowed the run down, ``pruned`` describes deleted samples and
    when they were deleted; both are empty for none. ``is_elsewhere_too`` says that another machine
    has a workload of the same label, ``is_service`` that the run serves others of its workload.
    ``parent`` is the run that a child run belongs to (`radt.Run.child`). ``omission`` says why the
    run does not count (`radt.analysis.selection`), None if it does. If several experiments are
    compared, ``prefix`` is the name of the run's experiment. ``label`` is what distinguishes a run
    of a sweep from the other selected runs; empty if its workload and letter do.
    """

    record: RunRecord
    workload: WorkloadRecord
    ordinal: int
    workload_ordinal: int
    alone: bool
    profiled: str = ""
    pruned: str = ""
    is_elsewhere_too: bool = False
    is_service: bool = False
    parent: RunEntry | None = None
    omission: Reason | None = None
    revision: int = 0
    prefix: str = ""
    label: str = ""

    @property
    def run_id(self) -> str:
        return self.record.run_id

    @property
    def is_archived(self) -> bool:
        """Return whether the run is archived, so that lists leave it out."""
        return self.omission is Omission.ARCHIVED

    @property
    def origin_ns(self) -> int:
        """Zero of elapsed time: the barrier that released all runs of the workload at once."""
        return self.workload.barrier_ns or self.record.started_ns or self.record.created_ns

    @property
    def short(self) -> str:
        """Its workload and letter, ``three b``, or just ``solo``; in a sweep ``lr 0.1``."""
        parts = (self.prefix, self.label) if self.label else (self.workload_name, self.mark)
        return " ".join(filter(None, parts))

    @property
    def mark(self) -> str:
        """Its distinction within its workload: its letter, or a child's name; or nothing."""
        if self.alone:
            return ""
        is_only_child = self.parent is not None and self.parent.alone
        return family_of(self.record.letter)[1] if is_only_child else self.record.letter

    @property
    def letter_or_name(self) -> str:
        """Its name where its workload is known: its letter if it has one; of a child, its mark."""
        own = self.mark if self.parent is not None else ""
        return own or self.record.letter or self.record.name or self.run_id[:8]

    @property
    def workload_name(self) -> str:
        """The workload's label, with machine or experiment if the label is ambiguous.

        A script run on its own has no label and uses the run's name.
        """
        if self.parent is not None:
            return self.parent.workload_name
        label, host = self.record.workload or self.record.name, self.record.host
        name = f"{label} {host}".strip() if self.is_elsewhere_too else label
        return f"{self.prefix} {name}".strip()

    @property
    def title(self) -> str:
        """The run's line in a list: ``three b  cnn-small``."""
        return f"{self.short}  {self.second_name}".strip()

    @property
    def second_name(self) -> str:
        """The run's own name if it differs from `short`, else empty."""
        is_named = self.record.workload and self.parent is None and not self.label
        return self.name if is_named else ""

    @property
    def name(self) -> str:
        """The run's own name, marked if it is a service."""
        name = self.record.name
        return f"{name} ({Role.SERVICE})".lstrip() if self.is_service else name


@dataclass(frozen=True, slots=True)
class WorkloadEntry:
    """A workload, its runs, and its index among the experiment's workloads (from 0)."""

    record: WorkloadRecord
    runs: tuple[RunEntry, ...]
    ordinal: int

    @property
    def trained(self) -> tuple[RunEntry, ...]:
        """Its runs without services and child runs."""
        return tuple(run for run in self.runs if not run.is_service and run.parent is None)

    @property
    def listed(self) -> tuple[RunEntry, ...]:
        """Its runs without archived ones."""
        return tuple(run for run in self.runs if not run.is_archived)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The machines that the workload ran on, usually one."""
        return tuple(dict.fromkeys(run.record.host for run in self.runs if run.record.host))

    @property
    def is_profiled(self) -> bool:
        """True if a profiler slowed down one of the runs, and thereby the others."""
        return any(run.profiled for run in self.runs)

    @property
    def status(self) -> RunStatus:
        """RUNNING if any run is running, else the worst status of its runs."""
        whole = (run for run in self.runs if run.parent is None)
        states = {run.record.status for run in whole} or {self.record.status}
        return RunStatus.RUNNING if RunStatus.RUNNING in states else RunStatus.worst(states)


class _Ids:
    """Sorted ids, searchable by prefix."""

    def __init__(self, ids: Iterable[str]) -> None:
        self._ids = sorted(ids)

    def like(self, beginning: str) -> list[str]:
        first = bisect_left(self._ids, beginning)
        matches = takewhile(
            lambda run_id: run_id.startswith(beginning), islice(self._ids, first, None)
        )
        return list(matches)


@dataclass(frozen=True)
class Catalog:
    """One experiment without its samples. ``workloads`` are sorted by age, oldest first."""

    experiment: str
    workloads: tuple[WorkloadEntry, ...] = field(default=())
    selection: Selection = field(default_factory=Selection)

    @cached_property
    def runs(self) -> Mapping[str, RunEntry]:
        """Runs by id, the oldest first."""
        return {run.run_id: run for workload in self.workloads for run in workload.runs}

    @cached_property
    def workloads_by_id(self) -> Mapping[str, WorkloadEntry]:
        """Workloads by id, the oldest first."""
        return {workload.record.workload_id: workload for workload in self.workloads}

    @cached_property
    def is_about_collocation(self) -> bool:
        """Whether its workloads are compared, not its runs (`radt.analysis.collocated`)."""
        return is_about_collocation(self.selection)

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """Machines of the runs."""
        return tuple(sorted({host for workload in self.workloads for host in workload.hosts}))

    def runs_like(self, beginning: str) -> list[str]:
        """Return the ids of runs that start with the prefix."""
        return self._run_ids.like(beginning)

    def workloads_like(self, beginning: str) -> list[str]:
        """Return the ids of workloads that start with the prefix; all ids for an empty one."""
        return self._workload_ids.like(beginning)

    @cached_property
    def _run_ids(self) -> _Ids:
        return _Ids(self.runs)

    @cached_property
    def _workload_ids(self) -> _Ids:
        return _Ids(self.workloads_by_id)

    def ordered(self, run_ids: Iterable[str]) -> tuple[str, ...]:
        """Return the known ids among those given, in catalog order, without duplicates."""
        known = [self.runs[run_id] for run_id in set(run_ids) if run_id in self.runs]
        return tuple(run.run_id for run in sorted(known, key=lambda run: run.ordinal))

    def automatic(self) -> tuple[str, ...]:
        """Return the runs of the newest whole workloads, as many as there are colours.

        Workloads that have not started do not count. A newest workload with more runs is shown
        whole. Profiled workloads are shown only if there are no others, as profiling distorts
        measurements. Archived runs are not shown.
        """
        chosen: list[str] = []
        begun = [w for w in self.workloads if any(r.record.started_ns for r in w.listed)]
        begun = [w for w in begun if not w.is_profiled] or begun
        for workload in reversed(begun or self.workloads[-1:]):
            if chosen and len(chosen) + len(workload.listed) > AUTOMATIC_RUNS:
                break
            chosen.extend(run.run_id for run in workload.listed)
        return self.ordered(chosen)


def read_experiments(source: CachedStore) -> Sequence[ExperimentSummary]:
    """Return all experiments, the most recently active first.

    Raises:
        StoreError: The store cannot be read.
    """
    return source.remember("experiments", lambda reader: reader.experiments())


def read_catalog(source: CachedStore, experiment: str) -> Catalog:
    """Read an experiment, from memory if the store has not changed.

    Raises:
        StoreError: The store cannot be read.
    """

    def read(reader: StoreReader) -> Catalog:
        revisions = reader.revisions(experiment)  # before all else
        runs = reader.runs(experiment=experiment)
        workloads = {workload.workload_id: workload for workload in reader.workloads(experiment)}
        tags = read_tags(reader, experiment)
        selection = select(runs, tags)
        runs_of: dict[str, list[RunRecord]] = {}
        for record in runs:
            runs_of.setdefault(record.workload_id, []).append(record)
        in_order = sorted(workloads.values(), key=lambda w: (w.created_ns, w.label, w.workload_id))
        entries = _entries(in_order, runs_of, tags, selection, revisions)
        return Catalog(experiment, entries, selection)

    return source.remember(("catalog", experiment), read)


def _run_order(run: RunRecord) -> tuple[object, ...]:
    """Return a sort key: by letter; child runs follow their parent, in the order of their start."""
    row, child = family_of(run.letter)
    begin_ns = run.created_ns if child else 0
    return *letter_order(row), begin_ns, run.letter, run.run_id


def _entries(
    workloads: Sequence[WorkloadRecord],
    runs_of: Mapping[str, list[RunRecord]],
    tags: Mapping[str, Mapping[str, str]],
    selection: Selection,
    revisions: Mapping[str, int],
) -> tuple[WorkloadEntry, ...]:
    nothing: Mapping[str, str] = {}
    hosts_of: dict[str, set[str]] = {}
    for records in runs_of.values():
        for record in records:
            hosts_of.setdefault(record.workload, set()).add(record.host)
    entries: list[WorkloadEntry] = []
    ordinal = 0
    for index, workload in enumerate(workloads):
        records = sorted(runs_of.get(workload.workload_id, ()), key=_run_order)
        is_one = sum(PARENT not in tags.get(record.run_id, ()) for record in records) == 1
        runs: dict[str, RunEntry] = {}
        for place, record in enumerate(records):  # parents come before their children
            own = tags.get(record.run_id, nothing)
            runs[record.run_id] = RunEntry(
                record,
                workload,
                ordinal + place,
                index,
                alone=is_one and PARENT not in own,
                profiled=own.get(PROFILED, ""),
                pruned=own.get(PRUNED, ""),
                is_elsewhere_too=len(hosts_of[record.workload]) > 1,
                is_service=own.get(ROLE) == Role.SERVICE,
                parent=runs.get(own.get(PARENT, "")),
                omission=selection.reasons.get(record.run_id),
                revision=revisions.get(record.run_id, 0),
            )
        ordinal += len(runs)
        entries.append(WorkloadEntry(workload, tuple(runs.values()), index))
    return tuple(entries)


@dataclass(frozen=True, slots=True)
class Stroke:
    """Look of a line: indices of its colour and its dash pattern in `radt.frontend.theme`."""

    hue: int
    dash: int = 0


def told_apart(wanted: Iterable[Stroke]) -> list[Stroke]:
    """Return distinct strokes, as close as possible to those wanted.

    Up to eight have eight different hues. More keep their hues and differ by their dash patterns.
    """
    wanted = [Stroke(stroke.hue % HUE_COUNT, stroke.dash) for stroke in wanted]
    found: list[Stroke] = []
    for stroke in wanted:
        if len(wanted) <= HUE_COUNT:
            hues = {one.hue for one in found}
            free = ((stroke.hue + step) % HUE_COUNT for step in range(HUE_COUNT))
            hue = next(hue for hue in free if hue not in hues)
            found.append(stroke if hue == stroke.hue else Stroke(hue))
        else:
            dash = stroke.dash
            while Stroke(stroke.hue, dash) in found:
                dash += 1
            found.append(Stroke(stroke.hue, dash))
    return found


class Tints:
    """Strokes of the runs of a selection, and of their workloads.

    Raises:
        StoreError: The store cannot be read.
    """

    def __init__(self, source: CachedStore, runs: Iterable[RunEntry]) -> None:
        runs = list(runs)
        own = [
            Stroke(tint(read_catalog(source, run.record.experiment), run.run_id, run))
            for run in runs
        ]
        self._runs = dict(zip([run.run_id for run in runs], told_apart(own), strict=True))
        firsts = {run.record.workload_id: run.run_id for run in reversed(runs)}
        ids = list(dict.fromkeys(run.record.workload_id for run in runs))
        strokes = told_apart(self._runs[firsts[workload_id]] for workload_id in ids)
        self._workloads = dict(zip(ids, strokes, strict=True))

    def run(self, run: RunEntry) -> Stroke:
        """Return the stroke of a run."""
        return self._runs[run.run_id]

    def workload(self, run: RunEntry) -> Stroke:
        """Return the stroke of a run's workload: that of its first run, unless the hue is taken."""
        return self._workloads[run.record.workload_id]


def tint(catalog: Catalog, run_id: str, run: RunEntry | None = None) -> int:
    """Return a run's colour index within its experiment. Pass ``run`` if the run may be gone."""
    entry = catalog.runs.get(run_id, run)
    if entry is None:
        return 0
    if len(catalog.runs) <= HUE_COUNT:
        return entry.ordinal % HUE_COUNT
    place = 0
    if entry.workload_ordinal < len(catalog.workloads):
        place = entry.ordinal - catalog.workloads[entry.workload_ordinal].runs[0].ordinal
    return (entry.workload_ordinal + place) % HUE_COUNT
