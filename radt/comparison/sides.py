"""What ``radt compare A B`` compares: finds what A and B name, in the nearest store that has it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Self

from radt.comparison.commits import SHORT, resolved
from radt.comparison.naming import Reading, experiments_in, readings
from radt.comparison.narrowed import NarrowedReader
from radt.errors import UsageError
from radt.report.summary import Report, WorkloadSummary, left_out_text, read_report
from radt.report.windows import WindowSpec
from radt.store.locate import Places, Readers
from radt.store.reader import MIN_PREFIX, StoreReader
from radt.store.records import RunRecord
from radt.units import plural

COMMIT_TAG = "radt.git.commit"
REPEAT_TAG = "radt.repeat"
_RUN_ID = re.compile(rf"[0-9a-f-]{{{MIN_PREFIX},}}", re.IGNORECASE)
_COMMIT = re.compile(rf"[0-9a-f]{{{MIN_PREFIX},40}}", re.IGNORECASE)
_SHOWN = 5


class Kind(StrEnum):
    """What a user named."""

    EXPERIMENT = "experiment"
    WORKLOAD = "workload"
    RUN = "run"


@dataclass(frozen=True, slots=True)
class Round:
    """One start of a workload: which repeat of its series it is, and when it was started."""

    number: int | None
    started_ns: int


@dataclass(frozen=True, slots=True)
class Side:
    """A or B.

    Attributes:
        text: What it is, in words.
        kind: What was named.
        workloads: What is compared of it.
        rounds: The starts of each workload, by its ids.
        tags: Of the runs that stand for its rows, by run.
        params: Likewise.
        store: Where it was found.
        experiment: Its name.
        commit: That it was narrowed to; empty if it was not.
        footnotes: What is poor about its measurements.
    """

    text: str
    kind: Kind
    workloads: Sequence[WorkloadSummary]
    rounds: Mapping[str, Round]
    tags: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    params: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    store: str = ""
    experiment: str = ""
    commit: str = ""
    footnotes: Sequence[str] = ()

    def rounds_of(self, workload: WorkloadSummary) -> list[Round]:
        """Its starts, in the order of its repeats."""
        return [self.rounds[one] for one in workload.workload_ids if one in self.rounds]


class _NotHereError(Exception):
    """This store does not have it, another one may."""

    def __init__(self, error: UsageError) -> None:
        super().__init__(str(error))
        self.error = error


class Finder:
    """Finds sides; a report that both need is made once. Use it as a context manager.

    Args:
        places: Where may be read.
        window: What of each run counts.
        folder: Commits are looked up in the repository that holds it.
    """

    def __init__(self, places: Places, window: WindowSpec, folder: Path) -> None:
        self._places = places
        self._window = window
        self._folder = folder
        self._stack = ExitStack()
        self._readers = Readers(places)
        self._reports: dict[tuple[str, str, frozenset[str] | None], Report] = {}

    def __enter__(self) -> Self:
        self._stack.enter_context(self._readers)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def find(self, given: str) -> Side:
        """What a text names: an experiment, a workload of one, a run.

        Raises:
            UsageError: Nothing that has ended, or several things.
            StoreError: A store cannot be read.
        """
        problem: UsageError | None = None
        known: dict[str, None] = {}
        for reader in self._readers.nearest_first():
            names = [one.name for one in reader.experiments()]
            known |= dict.fromkeys(names)
            for experiment in experiments_in(given, names):
                try:
                    return self._of_experiment(reader, given, experiment)
                except _NotHereError as missing:
                    problem = problem or missing.error
            if _RUN_ID.fullmatch(given) and reader.matching_runs(given):
                return self._of_run(reader, reader.find_run(given))
        raise problem or self._unknown(given, list(known))

    def _unknown(self, given: str, known: Sequence[str]) -> UsageError:
        near = difflib.get_close_matches(re.split("[/@]", given)[0], known, 1)
        listed = ", ".join(known[:_SHOWN]) + (", …" if len(known) > _SHOWN else "")
        return UsageError(
            f"{given!r} names no experiment and no run in {self._places}",
            f"Did you mean {near[0]!r}?" if near else f"Experiments there: {listed or 'none yet'}",
        )

    def _of_experiment(self, reader: StoreReader, given: str, experiment: str) -> Side:
        runs = reader.runs(experiment=experiment)
        labels = dict.fromkeys(run.workload for run in runs if run.workload)
        problem: _NotHereError | None = None
        for reading in readings(given, experiment, labels):
            try:
                return self._of_reading(reader, reading, runs)
            except _NotHereError as missing:
                problem = problem or missing
        if problem is not None:
            raise problem
        wanted = given[len(experiment) + 1 :]
        near = difflib.get_close_matches(wanted, labels, 1)
        listed = ", ".join(list(labels)[:_SHOWN]) + (", …" if len(labels) > _SHOWN else "")
        raise _NotHereError(
            UsageError(
                f"{experiment!r} has no workload {wanted!r}",
                f"Did you mean {f'{experiment}/{near[0]}'!r}?"
                if near
                else f"Its workloads: {listed or 'none with a name'}",
            )
        )

    def _of_reading(self, reader: StoreReader, reading: Reading, runs: Sequence[RunRecord]) -> Side:
        host, commit = self._narrowing(reader, reading, runs)
        seen = None if commit is None else _starts_at(reader, reading.experiment, runs, commit)
        report = self._report(reader, reading.experiment, seen)
        workloads = [
            one
            for one in report.workloads
            if reading.label in (None, one.label) and host in ("", one.host)
        ]
        text = _text(reading, host, commit)
        if not workloads:
            raise _NotHereError(_nothing(text, report))
        kind = Kind.EXPERIMENT if reading.label is None else Kind.WORKLOAD
        if kind is Kind.WORKLOAD and len(workloads) > 1:
            hosts = [one.host for one in workloads]
            raise UsageError(
                f"{text} ran on several machines: {', '.join(hosts)}",
                f"Name one: '{reading.experiment}/{reading.label}@{hosts[-1]}'",
            )
        if len(workloads) < len(report.workloads):
            starts = {start for one in workloads for start in one.workload_ids}
            some = frozenset(run.run_id for run in runs if run.workload_id in starts)
            report = self._report(reader, reading.experiment, some)
        return self._side(reader, text, kind, workloads, runs, commit or "", report.footnotes)

    def _of_run(self, reader: StoreReader, run: RunRecord) -> Side:
        text = f"run {run.run_id[:8]} ({run.name})"
        # A run that was named is wanted, whatever slowed it down.
        report = self._report(reader, run.experiment, frozenset([run.run_id]), profiled=True)
        if not report.workloads:
            raise UsageError(
                f"{text} is {run.status}: there is nothing to compare yet",
                "`radt status` says what runs",
            )
        return self._side(reader, text, Kind.RUN, report.workloads, [run], "", report.footnotes)

    def _side(
        self,
        reader: StoreReader,
        text: str,
        kind: Kind,
        workloads: Sequence[WorkloadSummary],
        runs: Sequence[RunRecord],
        commit: str,
        footnotes: Sequence[str],
    ) -> Side:
        experiment = runs[0].experiment
        standing = [
            row.run.run_id for one in workloads for group in one.groups for row in group.runs
        ]
        return Side(
            text,
            kind,
            workloads,
            _rounds(runs, reader.tagged(REPEAT_TAG, experiment)),
            reader.tags_of(standing),
            reader.params_of(standing),
            str(reader.address),
            experiment,
            commit,
            footnotes,
        )

    def _report(
        self,
        reader: StoreReader,
        experiment: str,
        seen: frozenset[str] | None,
        *,
        profiled: bool = False,
    ) -> Report:
        key = (str(reader.address), experiment, seen)
        if key not in self._reports:
            if seen is None:
                self._reports[key] = read_report(reader, experiment, window=self._window)
            else:
                with NarrowedReader(reader, seen) as narrowed:
                    self._reports[key] = read_report(
                        narrowed, experiment, profiled=profiled, window=self._window
                    )
        return self._reports[key]

    def _narrowing(
        self, reader: StoreReader, reading: Reading, runs: Sequence[RunRecord]
    ) -> tuple[str, str | None]:
        """The machine, empty for any, and the commit, None for any, that are asked for."""
        host, commit = "", None
        hosts = {run.host for run in runs}
        for name in reading.narrowed:
            if name in hosts:
                host = name
            else:
                commit = self._commit(reader, reading, name, hosts)
        return host, commit

    def _commit(
        self, reader: StoreReader, reading: Reading, name: str, hosts: Iterable[str]
    ) -> str:
        found = dict.fromkeys(reader.tagged(COMMIT_TAG, reading.experiment).values())
        if _COMMIT.fullmatch(name):
            matching = [one for one in found if one.startswith(name.lower())]
            if len(matching) > 1:
                raise UsageError(
                    f"several commits of {reading.experiment!r} begin with {name!r}: "
                    + ", ".join(one[:12] for one in matching[:_SHOWN]),
                    "Give more characters",
                )
            if matching:
                return matching[0]
        commit = resolved(name, self._folder)
        if commit in found:
            assert commit is not None
            return commit
        what = (
            f"at {name!r}, which is commit {commit[:SHORT]}"
            if commit
            else f"at {name!r}, which is no machine and no commit that is known here"
        )
        commits = ", ".join(one[:SHORT] for one in list(found)[-_SHOWN:]) or "none"
        machines = ", ".join(sorted(filter(None, hosts))) or "none"
        raise _NotHereError(
            UsageError(
                f"no run of {reading.experiment!r} was recorded {what}",
                f"Commits there: {commits}; machines: {machines}",
            )
        )


def _starts_at(
    reader: StoreReader, experiment: str, runs: Sequence[RunRecord], commit: str
) -> frozenset[str]:
    """The runs of workloads of which a row's script was at the commit."""
    commits = reader.tagged(COMMIT_TAG, experiment)
    starts = {run.workload_id for run in runs if commits.get(run.run_id) == commit}
    return frozenset(run.run_id for run in runs if run.workload_id in starts)


def _rounds(runs: Sequence[RunRecord], repeats: Mapping[str, str]) -> dict[str, Round]:
    """The starts of workloads by their id."""
    found: dict[str, Round] = {}
    for run in runs:
        number = repeats.get(run.run_id, "").partition("/")[0]
        known = found.get(run.workload_id)
        found[run.workload_id] = Round(
            int(number) if number.isdecimal() else None,
            run.created_ns if known is None else min(known.started_ns, run.created_ns),
        )
    return found


def _text(reading: Reading, host: str, commit: str | None) -> str:
    name = reading.experiment + ("" if reading.label is None else f"/{reading.label}")
    where = f" on {host}" if host else ""
    if commit is None:
        return f"{name}{where}"
    asked = next(one for one in reading.narrowed if one != host)
    is_id = commit.startswith(asked.lower())
    return f"{name}{where} at {commit[:SHORT]}" + ("" if is_id else f" ({asked})")


def _nothing(text: str, report: Report) -> UsageError:
    reasons = []
    if report.open:
        reasons.append(f"{plural(report.open, 'run')} of {report.experiment!r} still to end")
    if report.left_out:
        reasons.append(left_out_text(report.left_out))
    return UsageError(
        f"{text} has no run that ended" + (f" ({'; '.join(reasons)})" if reasons else ""),
        f"`radt report {report.experiment}` shows what there is",
    )
