"""Reports as the page shows them: of an experiment or of what is picked, in order, coloured."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from radt.frontend.catalog import read_catalog
from radt.frontend.chosen import latest_experiment
from radt.frontend.foreign.joint import JointReader
from radt.frontend.picks import Pick, PickKind
from radt.frontend.report.choices import BY_NAME, BY_ORDER, BY_WORKLOAD, Choices
from radt.frontend.source import Source
from radt.frontend.tints import tint
from radt.frontend.view import View
from radt.report.formats.content import Content, Item, workload_name
from radt.report.quantities import Quantity
from radt.report.summary import GroupSummary, Memory, Report, WorkloadSummary, read_report
from radt.report.windows import WindowSpec
from radt.store.reader import StoreReader

#: Experiments of which is remembered what did not change.
_REMEMBERED = 8


@dataclass(frozen=True, slots=True)
class Entry:
    """A workload in a report.

    Attributes:
        experiment: Its experiment.
        summary: Its numbers.
        tints: The places of its runs' colours, by the runs' ids.
        prefix: The experiment's name where there are several.
        with_host: Whether it takes the machine to tell it.
    """

    experiment: str
    summary: WorkloadSummary
    tints: Mapping[str, int]
    prefix: str = ""
    with_host: bool = False

    @property
    def name(self) -> str:
        """The workload's label, with experiment and machine where it takes them."""
        name = workload_name(self.summary, with_host=self.with_host)
        return f"{self.prefix} {name}" if self.prefix else name

    @property
    def tint(self) -> int:
        """The place of its colour: that of its first run."""
        runs = [row.run for group in self.summary.groups for row in group.runs]
        first = min(runs, key=lambda run: (len(run.letter), run.letter))
        return self.tints.get(first.run_id, 0)

    def tint_of(self, group: GroupSummary) -> int:
        """The place of the colour of like runs: that of the first of them."""
        return self.tints.get(group.runs[0].run.run_id, 0)

    @property
    def pick(self) -> Pick:
        return Pick.workload(self.experiment, self.summary.workload_id)


@dataclass(frozen=True, slots=True)
class Shown:
    """What the page shows.

    Attributes:
        experiments: Whose.
        reports: Theirs, whole.
        entries: The workloads, in the order that was chosen.
        quantities: What is measured of any of them.
        columns: Those that the table has.
        left_out: Runs that a profiler slowed down.
        open: Runs that run or wait.
        window: What of each run counts.
        foreign: Runs that are read from MLflow; they have no epochs.
        remote: Runs that a server has and that are not loaded.
    """

    experiments: tuple[str, ...]
    reports: tuple[Report, ...]
    entries: tuple[Entry, ...]
    quantities: tuple[Quantity, ...]
    columns: tuple[Quantity, ...]
    left_out: int
    open: int
    window: str
    foreign: int = 0
    remote: int = 0

    @property
    def run_count(self) -> int:
        return sum(entry.summary.run_count for entry in self.entries)

    @property
    def with_repeats(self) -> bool:
        return any(group.repeats > 1 for one in self.entries for group in one.summary.groups)


def read_shown(source: Source, view: View) -> Shown:
    """What a view shows of its experiment, or of what is picked.

    Raises:
        NothingRecordedError: There is no experiment.
        ListingError, TrackingError: As `radt.frontend.chosen.choose`.
        StoreError: The store cannot be read.
    """
    choices = Choices.of(view.options)
    picks = view.picks if choices.picked and view.picks else None
    if picks is None:
        names: tuple[str, ...] = (view.experiment or latest_experiment(source),)
    else:
        names = tuple(dict.fromkeys(pick.experiment for pick in picks))
    reports = tuple(
        _read(source, name, profiled=choices.profiled, window=choices.window) for name in names
    )
    entries = [
        entry
        for report in reports
        for entry in _entries(source, report, prefix=report.experiment if len(names) > 1 else "")
        if picks is None or _is_picked(entry, picks)
    ]
    kept = [entry.summary for entry in entries]
    quantities = Report("", kept).quantities
    return Shown(
        names,
        reports,
        tuple(sorted_entries(entries, choices)),
        quantities,
        choices.shown(quantities),
        sum(report.left_out for report in reports),
        sum(report.open for report in reports),
        reports[0].window.text if reports else "",
        *_not_in(source, names, picks),
    )


def content_of(shown: Shown, choices: Choices, *, with_all: bool = False) -> Content:
    """What is shown, ready to be written; ``with_all`` with what no column was chosen for."""
    return Content(
        shown.reports,
        tuple(
            Item(entry.experiment, entry.name, entry.summary, tuple(sorted_groups(entry, choices)))
            for entry in shown.entries
        ),
        shown.quantities if with_all else shown.columns,
    )


def _not_in(
    source: Source, experiments: tuple[str, ...], picks: tuple[Pick, ...] | None
) -> tuple[int, int]:
    """Runs that no report has: those that MLflow alone has, and those that are not loaded."""

    def count(reader: StoreReader) -> tuple[int, int]:
        foreign = remote = 0
        for name in experiments:
            for workload in read_catalog(source, name).workloads:
                for run in workload.runs:
                    ids = (run.run_id, workload.record.workload_id)
                    if picks is not None and not any(_means(pick, name, *ids) for pick in picks):
                        continue
                    if run.remote is not None:
                        remote += 1
                    elif isinstance(reader, JointReader) and reader.is_foreign(run.run_id):
                        foreign += 1
        return foreign, remote

    return source.remember(("not in reports", experiments, picks), count)


def _means(pick: Pick, experiment: str, run_id: str, workload_id: str) -> bool:
    if pick.experiment != experiment:
        return False
    given = run_id if pick.kind is PickKind.RUN else workload_id
    return given.startswith(pick.id)  # of an experiment: empty


def sorted_entries(entries: Iterable[Entry], choices: Choices) -> list[Entry]:
    """In the order that was chosen; what has no value comes last either way.

    A workload stands where the first of its groups does: the smallest going up, else the largest.
    """
    in_order = list(entries)
    if choices.sort == BY_ORDER:
        return in_order
    if choices.sort in (BY_WORKLOAD, BY_NAME):
        return sorted(
            in_order,
            key=lambda one: _natural(
                one.name if choices.sort == BY_WORKLOAD else one.summary.groups[0].name
            ),
            reverse=choices.is_descending,
        )
    quantity = Quantity(choices.sort)
    best = max if choices.is_descending else min
    values = [
        [
            estimate.mean
            for group in entry.summary.groups
            if (estimate := entry.summary.estimate(quantity, group)) is not None
        ]
        for entry in in_order
    ]
    known = [(best(found), place) for place, found in enumerate(values) if found]
    # Python sorts stably, so equal ones stay in the order of the experiment.
    known.sort(key=lambda pair: -pair[0] if choices.is_descending else pair[0])
    unknown = [place for place, found in enumerate(values) if not found]
    return [in_order[place] for _, place in known] + [in_order[place] for place in unknown]


def sorted_groups(entry: Entry, choices: Choices) -> Sequence[GroupSummary]:
    """The groups of a workload, sorted likewise."""
    groups = list(entry.summary.groups)
    if choices.sort not in list(Quantity):
        return groups
    quantity = Quantity(choices.sort)

    def key(group: GroupSummary) -> tuple[bool, float]:
        estimate = entry.summary.estimate(quantity, group)
        if estimate is None:
            return True, 0.0
        return False, -estimate.mean if choices.is_descending else estimate.mean

    return sorted(groups, key=key)


_Asked = tuple[str, bool, WindowSpec]
_memories: WeakKeyDictionary[Source, OrderedDict[_Asked, Memory]] = WeakKeyDictionary()
_lock = threading.Lock()


def _read(source: Source, experiment: str, *, profiled: bool, window: WindowSpec) -> Report:
    key = (experiment, profiled, window)
    with _lock:
        memories = _memories.setdefault(source, OrderedDict())
        memory = memories.setdefault(key, Memory())
        memories.move_to_end(key)
        while len(memories) > _REMEMBERED:
            memories.popitem(last=False)
    return source.remember(
        ("report", *key),
        lambda reader: read_report(
            reader, experiment, profiled=profiled, window=window, memory=memory
        ),
    )


def _entries(source: Source, report: Report, *, prefix: str) -> Iterable[Entry]:
    tints = source.remember(
        ("tints", report.experiment), lambda _: _tints(source, report.experiment)
    )
    with_host = len({workload.host for workload in report.workloads}) > 1
    for workload in report.workloads:
        yield Entry(
            report.experiment,
            workload,
            tints,
            prefix,
            with_host,
        )


def _tints(source: Source, experiment: str) -> dict[str, int]:
    catalog = read_catalog(source, experiment)
    return {run_id: tint(catalog, run_id) for run_id in catalog.runs}


def _is_picked(entry: Entry, picks: Iterable[Pick]) -> bool:
    run_ids = [run.run.run_id for group in entry.summary.groups for run in group.runs]
    for pick in picks:
        if pick.experiment != entry.experiment:
            continue
        if pick.kind is PickKind.EXPERIMENT:
            return True
        ids = run_ids if pick.kind is PickKind.RUN else entry.summary.workload_ids
        if any(one.startswith(pick.id) for one in ids):
            return True
    return False


def _natural(text: str) -> tuple[tuple[bool, float, str], ...]:
    """``run 2`` comes before ``run 10``."""
    parts: list[tuple[bool, float, str]] = []
    word = ""
    for character in text.casefold():
        if word and character.isdecimal() != word[-1].isdecimal():
            parts.append(_part(word))
            word = ""
        word += character
    return (*parts, _part(word)) if word else tuple(parts)


def _part(word: str) -> tuple[bool, float, str]:
    return (False, float(word), "") if word[0].isdecimal() else (True, 0.0, word)
