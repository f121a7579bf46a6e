"""Find the operands of ``radt compare A B``, in the nearest store that has them.

In an operand such as ``study/three@gpu-01``, names may contain ``/`` and ``@`` themselves.
"""

from __future__ import annotations

import difflib
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Self

from radt.analysis.report import Report, read_report
from radt.analysis.selection import counts_text
from radt.analysis.series_quantities import KnownSeries, SeriesQuantity
from radt.analysis.summaries import WorkloadSummary
from radt.analysis.window_spec import WindowSpec
from radt.errors import UsageError
from radt.git import ask_git
from radt.store.locate import Places, Readers
from radt.store.reader import MIN_PREFIX, StoreReader
from radt.store.records import RunRecord
from radt.tags import GIT_COMMIT, REPEAT

_RUN_ID = re.compile(rf"[0-9a-f-]{{{MIN_PREFIX},}}", re.IGNORECASE)
_COMMIT = re.compile(rf"[0-9a-f]{{{MIN_PREFIX},40}}", re.IGNORECASE)
_SHOWN = 5


class OperandKind(StrEnum):
    """Kind of an operand."""

    EXPERIMENT = "experiment"
    WORKLOAD = "workload"
    RUN = "run"


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a workload: its number in the series of repeats, and its time."""

    number: int | None
    started_ns: int


@dataclass(frozen=True, slots=True)
class Operand:
    """A or B.

    Attributes:
        text: Its name in messages.
        kind: What the user named.
        workloads: The workloads to compare.
        starts: Their starts, by workload id.
        tags: Tags of the runs that represent its rows, by run.
        params: Parameters of these runs.
        store: The store where it was found.
        experiment: Its experiment's name.
        commit: The requested commit; empty without one.
        footnotes: Footnotes of its report.
        series: The requested quantities of series in its report.
    """

    text: str
    kind: OperandKind
    workloads: Sequence[WorkloadSummary]
    starts: Mapping[str, Start]
    tags: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    params: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    store: str = ""
    experiment: str = ""
    commit: str = ""
    footnotes: Sequence[str] = ()
    series: KnownSeries = field(default_factory=KnownSeries)

    def starts_of(self, workload: WorkloadSummary) -> list[Start]:
        """Return the starts of a workload, in the order of its repeats."""
        return [
            self.starts[workload_id]
            for workload_id in workload.workload_ids
            if workload_id in self.starts
        ]


class _NotFoundError(UsageError):
    """This store lacks the operand; another one may have it."""


class OperandFinder:
    """Finds operands. A report that A and B share is read once. Use it as a context manager.

    Args:
        places: The stores to read.
        window: The part of each run that counts.
        folder: Commits are looked up in its repository.
        series: Quantities of series to read as well.
    """

    def __init__(
        self,
        places: Places,
        window: WindowSpec,
        folder: Path,
        series: Sequence[SeriesQuantity] = (),
    ) -> None:
        self._places = places
        self._window = window
        self._folder = folder
        self._series = tuple(series)
        self._readers = Readers(places)
        self._reports: dict[tuple[str, str, frozenset[str] | None], Report] = {}

    def __enter__(self) -> Self:
        self._readers.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        self._readers.__exit__(*details)

    def find(self, given: str) -> Operand:
        """Return the experiment, workload or run that a text names.

        Raises:
            UsageError: Nothing of that name has ended, or several match.
            StoreError: A store cannot be read.
        """
        problem: UsageError | None = None
        known: dict[str, None] = {}
        for reader in self._readers.nearest_first():
            names = [experiment.name for experiment in reader.experiments()]
            known |= dict.fromkeys(names)
            for experiment in experiments_in(given, names):
                runs = reader.runs(experiment=experiment)
                labels = dict.fromkeys(run.workload for run in runs if run.workload)
                parses = list(parsed_operands(given, experiment, labels))
                for parsed in parses:
                    try:
                        return self._of_parsed(reader, parsed, runs)
                    except _NotFoundError as missing:
                        problem = problem or missing
                if not parses:
                    problem = problem or _unknown_workload(given, experiment, labels)
            if _RUN_ID.fullmatch(given) and reader.matching_runs(given):
                return self._of_run(reader, reader.find_run(given))
        raise problem or self._unknown(given, list(known))

    def _unknown(self, given: str, known: Sequence[str]) -> UsageError:
        near = difflib.get_close_matches(re.split("[/@]", given)[0], known, 1)
        return UsageError(
            f"{given!r} is neither an experiment nor a run in {self._places}",
            f"Did you mean {near[0]!r}?" if near else f"Experiments: {_first(known) or 'none yet'}",
        )

    def _of_parsed(
        self, reader: StoreReader, parsed: ParsedOperand, runs: Sequence[RunRecord]
    ) -> Operand:
        host, commit = self._narrowing(reader, parsed, runs)
        seen = None if commit is None else _starts_at(reader, parsed.experiment, runs, commit)
        report = self._report(reader, parsed.experiment, seen)
        workloads = [
            workload
            for workload in report.workloads
            if parsed.label in (None, workload.label) and host in ("", workload.host)
        ]
        text = _text(parsed, host, commit)
        if not workloads:
            wanted = [
                run.run_id
                for run in runs
                if parsed.label in (None, run.workload) and host in ("", run.host)
            ]
            raise _NotFoundError(
                f"{text} has no run that ended ({counts_text([report.selection.among(wanted)])})",
                f"Run `radt report {report.experiment}`",
            )
        kind = OperandKind.EXPERIMENT if parsed.label is None else OperandKind.WORKLOAD
        if kind is OperandKind.WORKLOAD and len(workloads) > 1:
            hosts = [workload.host for workload in workloads]
            raise UsageError(
                f"{text} ran on several machines: {', '.join(hosts)}",
                f"Name one: '{parsed.experiment}/{parsed.label}@{hosts[-1]}'",
            )
        if len(workloads) < len(report.workloads):
            starts = {start for workload in workloads for start in workload.workload_ids}
            kept = frozenset(run.run_id for run in runs if run.workload_id in starts)
            report = self._report(reader, parsed.experiment, kept)
        return self._operand(reader, text, kind, workloads, runs, commit or "", report)

    def _of_run(self, reader: StoreReader, run: RunRecord) -> Operand:
        text = f"run {run.run_id[:8]} ({run.name})"
        # Even if a profiler slowed it down, or it is archived.
        report = self._report(reader, run.experiment, frozenset([run.run_id]), is_named=True)
        if not report.workloads:
            raise UsageError(
                f"{text} is {run.status} and cannot be compared yet",
                "Run `radt status`",
            )
        return self._operand(reader, text, OperandKind.RUN, report.workloads, [run], "", report)

    def _operand(
        self,
        reader: StoreReader,
        text: str,
        kind: OperandKind,
        workloads: Sequence[WorkloadSummary],
        runs: Sequence[RunRecord],
        commit: str,
        report: Report,
    ) -> Operand:
        experiment = runs[0].experiment
        run_ids = [
            row.run.run_id
            for workload in workloads
            for group in workload.groups
            for row in group.runs
        ]
        return Operand(
            text,
            kind,
            workloads,
            _starts(runs, reader.tagged(REPEAT, experiment)),
            reader.tags_of(run_ids),
            reader.params_of(run_ids),
            str(reader.address),
            experiment,
            commit,
            report.footnotes,
            report.series,
        )

    def _report(
        self,
        reader: StoreReader,
        experiment: str,
        seen: frozenset[str] | None,
        *,
        is_named: bool = False,
    ) -> Report:
        key = (str(reader.address), experiment, seen)
        if key not in self._reports:
            self._reports[key] = read_report(
                reader,
                experiment,
                profiled=is_named,
                archived=is_named,
                window=self._window,
                series=self._series,
                only=seen,
            )
        return self._reports[key]

    def _narrowing(
        self, reader: StoreReader, parsed: ParsedOperand, runs: Sequence[RunRecord]
    ) -> tuple[str, str | None]:
        """Return the requested machine (empty for any) and commit (None for any)."""
        host, commit = "", None
        hosts = {run.host for run in runs}
        for name in parsed.narrowed:
            if name in hosts:
                host = name
            else:
                commit = self._commit(reader, parsed, name, hosts)
        return host, commit

    def _commit(
        self, reader: StoreReader, parsed: ParsedOperand, name: str, hosts: Iterable[str]
    ) -> str:
        recorded = dict.fromkeys(reader.tagged(GIT_COMMIT, parsed.experiment).values())
        if _COMMIT.fullmatch(name):
            matching = [commit for commit in recorded if commit.startswith(name.lower())]
            if len(matching) > 1:
                raise UsageError(
                    f"several commits of {parsed.experiment!r} begin with {name!r}: "
                    + ", ".join(commit[:12] for commit in matching[:_SHOWN]),
                    "Give more characters",
                )
            if matching:
                return matching[0]
        commit = resolve_commit(name, self._folder)
        if commit in recorded:
            assert commit is not None
            return commit
        meaning = f"commit {commit[:SHORT_COMMIT]}" if commit else "no known machine or commit"
        commits = ", ".join(commit[:SHORT_COMMIT] for commit in list(recorded)[-_SHOWN:]) or "none"
        machines = ", ".join(sorted(filter(None, hosts))) or "none"
        raise _NotFoundError(
            f"no run of {parsed.experiment!r} was recorded at {name!r} ({meaning})",
            f"Recorded commits: {commits}; machines: {machines}",
        )


def _unknown_workload(given: str, experiment: str, labels: Iterable[str]) -> UsageError:
    wanted, known = given[len(experiment) + 1 :], list(labels)
    near = difflib.get_close_matches(wanted, known, 1)
    return UsageError(
        f"{experiment!r} has no workload {wanted!r}",
        f"Did you mean {f'{experiment}/{near[0]}'!r}?"
        if near
        else f"Its workloads: {_first(known) or 'none with a name'}",
    )


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")


def _starts_at(
    reader: StoreReader, experiment: str, runs: Sequence[RunRecord], commit: str
) -> frozenset[str]:
    """Return the runs of workloads in which the script of a row was at the commit."""
    commits = reader.tagged(GIT_COMMIT, experiment)
    starts = {run.workload_id for run in runs if commits.get(run.run_id) == commit}
    return frozenset(run.run_id for run in runs if run.workload_id in starts)


def _starts(runs: Sequence[RunRecord], repeats: Mapping[str, str]) -> dict[str, Start]:
    """Return the starts of workloads by their id."""
    starts: dict[str, Start] = {}
    for run in runs:
        number = repeats.get(run.run_id, "").partition("/")[0]
        known = starts.get(run.workload_id)
        starts[run.workload_id] = Start(
            int(number) if number.isdecimal() else None,
            run.created_ns if known is None else min(known.started_ns, run.created_ns),
        )
    return starts


def _text(parsed: ParsedOperand, host: str, commit: str | None) -> str:
    name = parsed.experiment + ("" if parsed.label is None else f"/{parsed.label}")
    where = f" on {host}" if host else ""
    if commit is None:
        return f"{name}{where}"
    requested = next(name for name in parsed.narrowed if name != host)
    is_id = commit.startswith(requested.lower())
    return f"{name}{where} at {commit[:SHORT_COMMIT]}" + ("" if is_id else f" ({requested})")


#: Separates machines and commits, but not within ``HEAD@{1}``, one name in git.
_AT = re.compile(r"@(?!\{)")


@dataclass(frozen=True, slots=True)
class ParsedOperand:
    """One way to read an operand. ``narrowed`` are names of machines or commits.

    ``label`` is None for the whole experiment.
    """

    experiment: str
    label: str | None = None
    narrowed: tuple[str, ...] = ()


def experiments_in(text: str, names: Iterable[str]) -> list[str]:
    """Return the experiments that a text may begin with, longest name first."""
    return _beginnings(text, names, "/@")


def parsed_operands(text: str, experiment: str, labels: Iterable[str]) -> Iterator[ParsedOperand]:
    """Yield the ways to read a text that begins with an experiment's name, the likeliest first.

    `labels` are those of the experiment's workloads.
    """
    rest = text[len(experiment) :]
    if not rest.startswith("/"):
        yield ParsedOperand(experiment, None, _narrowed(rest))
        return
    rest = rest[1:]
    for label in _beginnings(rest, labels, "@"):
        yield ParsedOperand(experiment, label, _narrowed(rest[len(label) :]))


def _beginnings(text: str, names: Iterable[str], separators: str) -> list[str]:
    """Return the names that equal a text, or its part before a separator, longest first."""
    matching = [
        name
        for name in names
        if name and text.startswith(name) and text[len(name) :][:1] in ("", *separators)
    ]
    return sorted(matching, key=len, reverse=True)


def _narrowed(rest: str) -> tuple[str, ...]:
    parts: Sequence[str] = _AT.split(rest)[1:]
    return tuple(part for part in parts if part)


#: Characters of a commit in messages.
SHORT_COMMIT = 7


def resolve_commit(name: str, folder: Path) -> str | None:
    """Return the full id of a commit (``HEAD~1``, a branch, a tag) in the repository of a folder.

    Return None without a repository, such a commit, or git.
    """
    if name.startswith("-"):  # git would parse it as an option
        return None
    try:
        answer = ask_git(folder, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    except (OSError, subprocess.TimeoutExpired):
        return None
    commit = answer.stdout.strip()
    return commit if answer.returncode == 0 and commit else None
