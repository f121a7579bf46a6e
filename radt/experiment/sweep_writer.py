"""Writes statuses into the ``status:`` of a sweep that its user may be editing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from radt.errors import ExperimentError, Problem, StatusError
from radt.experiment.plan import letter
from radt.experiment.rewriting import SharedFile
from radt.experiment.status import RowStatus, merged, one_line
from radt.experiment.sweep_document import Document, parse_document
from radt.experiment.sweep_edit import EntryEdit, with_seed, with_statuses
from radt.experiment.sweep_entry import RunNumber, StatusEntry
from radt.experiment.sweep_groups import SweepRun, recorded
from radt.experiment.sweep_spec import STATUS, keys_of, read_entries
from radt.model import RunStatus


@dataclass(frozen=True, slots=True)
class _Known:
    """A run as planned: its number, its arguments and the runs of its workload."""

    run: SweepRun
    params: str
    mates: tuple[int, ...]


class SweepWriter:
    """Keeps the statuses of a sweep; safe from several threads.

    Every write reads the file again, so that edits made meanwhile stay. A run is found by its
    parameters. The caller holds the `ExperimentLock` of the file.

    Args:
        path: The file; a symbolic link is followed, not replaced.
        workloads: The runs as planned.
        fixed: The arguments that all runs have.
        seed: To be written into the file, so that the next start draws the same runs; None if it
            has one, or needs none.

    Raises:
        StatusError: The file cannot be read or, for the seed, written.
    """

    def __init__(
        self,
        path: Path,
        workloads: Sequence[Sequence[SweepRun]],
        fixed: str,
        seed: int | None = None,
    ) -> None:
        self._file = SharedFile(path)
        self._fixed = fixed
        self._lock = threading.Lock()
        self._pending: dict[int, RowStatus] = {}
        self._known = {
            run.position: _Known(run, joined(fixed, run), tuple(mate.position for mate in workload))
            for workload in workloads
            for run in workload
        }
        self._combinations = [known.run.combination for known in self._known.values()]
        if seed is not None:
            self._rewrite(lambda document: with_seed(document, seed))

    def set_many(self, statuses: Mapping[int, RowStatus]) -> None:
        """Write the statuses of several runs at once, by the lines they were planned at.

        Raises:
            StatusError: The file cannot be written or is not a sweep just now; what was to be
                written goes with the next call.
        """
        with self._lock:
            for line in statuses:
                if line not in self._known:
                    raise StatusError(f"{self._file.path} had no run {line} when it was read")
            for line, status in statuses.items():
                self._pending[line] = merged(self._pending.get(line), status)
            self._write()

    def flush(self) -> None:
        """Write what could not be written before; nothing happens if all was.

        Raises:
            StatusError: See `set_many`.
        """
        with self._lock:
            if self._pending:
                self._write()

    def _write(self) -> None:
        self._rewrite(self._with_pending)
        self._pending.clear()

    def _with_pending(self, document: Document) -> str:
        there = self._entries(document)
        known = recorded(there.values(), self._combinations, self._fixed)
        entries: dict[int, StatusEntry] = {}
        for position, one in self._known.items():
            entry = known.entries.get(one.run.combination.key)
            if entry is not None:
                entries[position] = entry
        wanted = self._wanted(entries)
        edits = _numbered(wanted, entries, there)
        changed = with_statuses(document, edits)
        self._verify(changed, edits)
        return changed

    def _wanted(self, entries: Mapping[int, StatusEntry]) -> dict[int, StatusEntry]:
        """Entries to be written, by position, with the numbers they should have.

        The other runs of a workload go with each, as scheduled if nothing is known of them: they
        must be found together by the next start, whatever becomes of this one. So must runs that
        were in another workload before.
        """
        moved = (
            position
            for position, entry in entries.items()
            if entry.number.workload != self._known[position].run.number.workload
        )
        mates = (mate for position in self._pending for mate in self._known[position].mates)
        wanted: dict[int, StatusEntry] = {}
        for position in sorted({*self._pending, *mates, *moved}):
            known, earlier = self._known[position], entries.get(position)
            status = self._pending.get(position)
            text = earlier.status if earlier is not None else RunStatus.SCHEDULED.value
            run_id = earlier.run_id if earlier is not None else ""
            if status is not None:
                text = one_line(status.text)
                run_id = run_id if status.run_id is None else one_line(status.run_id)
            wanted[position] = StatusEntry(known.run.number, text, run_id, known.params)
        return wanted

    def _entries(self, document: Document) -> dict[str, StatusEntry]:
        """What is in the file now, by the keys as they are written."""
        problems: list[Problem] = []
        status = keys_of(document.root, problems).get(STATUS)
        entries = {str(entry.number): entry for entry in read_entries(status, problems)}
        if problems:
            raise self._in_disorder(problems[0])
        return entries

    def _verify(self, text: str, edits: Iterable[EntryEdit]) -> None:
        """See that a text says what it was made to say, before it takes the file's place."""
        there = self._entries(self._parse(text))
        for edit in edits:
            if str(there.get(edit.key, "")) != edit.text:
                raise self._in_disorder(Problem(f"there is no room for {edit.key} in {STATUS}"))

    def _rewrite(self, change: Callable[[Document], str]) -> None:
        self._file.rewrite(
            lambda content: change(self._parse(content.decode(errors="surrogateescape"))).encode()
        )

    def _parse(self, text: str) -> Document:
        try:
            return parse_document(str(self._file.path), text)
        except ExperimentError as error:
            raise self._in_disorder(error.problems[0]) from error

    def _in_disorder(self, problem: Problem) -> StatusError:
        where = f", line {problem.line}" if problem.line is not None else ""
        return self._file.in_disorder(f"{where}: {problem.cause}")


def joined(fixed: str, run: SweepRun) -> str:
    """All arguments of a run as one text, those first that all runs have."""
    return f"{fixed} {run.combination.params}".strip()


def _numbered(
    wanted: Mapping[int, StatusEntry],
    entries: Mapping[int, StatusEntry],
    there: Mapping[str, StatusEntry],
) -> list[EntryEdit]:
    """The edits that bring the wanted entries into the file.

    Args:
        wanted: With the numbers they should have, by position.
        entries: What the file has of the same runs.
        there: All that the file has, by key.
    """
    old_keys = {
        position: str(entries[position].number) for position in wanted if position in entries
    }
    taken = set(there) - set(old_keys.values())
    edits: list[EntryEdit] = []
    for position, entry in wanted.items():
        number = entry.number
        free = (RunNumber(number.workload, letter(index)) for index in count())
        while str(number) in taken:  # by an entry of a run that the sweep does not have any more
            number = next(free)
        taken.add(str(number))
        old = old_keys.get(position)
        entry = replace(entry, number=number)
        if old is None or str(there[old]) != str(entry) or old != str(number):
            edits.append(EntryEdit(old, str(number), str(entry)))
    return edits
