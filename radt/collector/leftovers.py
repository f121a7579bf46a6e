"""What the machine's last restart cut off: its runs are ended and their journals read to the end.

A worker that dies is followed by one that remembers its runs; a restart of the machine takes that
memory with it. The store then goes on saying that the runs are running, and what they logged last
lies in their journals. The same is done for runs that ended while nobody read their journals.
"""

from __future__ import annotations

import logging
import os
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import text

from radt.clock import Clock
from radt.collector.intake import JournalIntake, JournalPart
from radt.collector.ledger import ListenerState
from radt.collector.routing import Numbering
from radt.collector.runs import RunStates
from radt.home import Home, runtime_dir
from radt.journal.format import LABELS_FOLDER
from radt.journal.reader import JournalReader
from radt.model import RunStatus
from radt.procfs import boot_id
from radt.store.reader import StoreReader
from radt.store.records import RunRecord, SeriesRecord
from radt.store.writer import StoreWriter

log = logging.getLogger(__name__)

REASON = "the machine was restarted"
_NOT_DELIVERED = text("UPDATE run SET delivery_done_ns = NULL WHERE run_id = :run_id")


@dataclass(frozen=True, slots=True)
class Drained:
    """What `drain_leftovers` found and did; runs by their ids.

    ``ended`` are runs that a restart had cut off, ``drained`` those whose journals held something
    that the store did not have, ``points`` how many values that were. ``unknown`` are journals of
    runs that the store does not know (a script that the collector could not be asked to record):
    they stay. ``failed`` are runs whose journals could not be read or stored, with the reason; they
    stay too, and are tried again.
    """

    ended: tuple[str, ...] = ()
    drained: tuple[str, ...] = ()
    points: int = 0
    unknown: tuple[str, ...] = ()
    failed: dict[str, str] = field(default_factory=dict)


def drain_leftovers(home: Home) -> Drained:
    """Bring what earlier runs of this machine left in their journals into the store of a folder.

    For `radt sync` and the like; the collector does the same by itself when it opens a store. Safe
    beside a collector and other calls: runs that are being recorded are left alone, and what was
    read is stored in one transaction with how far it was read, so that nothing comes twice. Then
    the journals are removed. Ends runs of before the last boot of this machine. Runs of other
    machines that use the folder are left to them.

    Raises:
        StoreError: There is no store, or it cannot be written.
    """
    reader = StoreReader(home.store_path)
    try:
        with StoreWriter(home.store_path) as writer:
            return drain(writer, reader, Clock.for_machine(), home)
    finally:
        reader.close()


def drain(writer: StoreWriter, reader: StoreReader, clock: Clock, home: Home) -> Drained:
    """`drain_leftovers`, with a store that is open. One run's trouble does not keep the others."""
    states = RunStates(runtime_dir() / "runs")
    boot_ns = clock.now_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    with_journals = {run_id for run_id in _with_journals(home) if not states.has(run_id)}
    runs = {run.run_id: run for run in reader.runs(run_ids=sorted(with_journals))}
    unknown = sorted(with_journals - runs.keys())
    runs |= {run.run_id: run for run in reader.unended_runs()}
    runs = {
        run_id: run
        for run_id, run in runs.items()
        # Of a run of another machine nobody here can tell whether it goes on.
        if run.host == platform.node() and not states.has(run_id)
    }
    ended: list[str] = []
    drained: list[str] = []
    points = 0
    failed: dict[str, str] = {}
    for run_id, run in runs.items():
        try:
            leftover = _Leftover(run, home, writer, reader, clock)
            if not leftover.is_over(boot_ns):
                continue
            found = leftover.drain()
            leftover.end()
            if found.anything:
                leftover.deliver_again()
            leftover.discard()
        # A damaged journal or a full disk must not keep the store from being used.
        except Exception as error:
            log.exception("what run %s left behind is not in the store yet", run_id)
            failed[run_id] = str(error)
        else:
            points += found.points
            if run.ended_ns is None:
                ended.append(run_id)
            if found.anything:
                drained.append(run_id)
            if leftover.unreadable:
                failed[run_id] = f"unreadable: {', '.join(sorted(leftover.unreadable))}"
    return Drained(tuple(ended), tuple(drained), points, tuple(unknown), failed)


@dataclass(slots=True)
class _Found:
    points: int = 0
    anything: bool = False


class _Leftover:
    """One run that nobody records."""

    def __init__(
        self, run: RunRecord, home: Home, writer: StoreWriter, reader: StoreReader, clock: Clock
    ) -> None:
        self._run = run
        self._writer = writer
        self._reader = reader
        self._journals = JournalReader(home.run_dir(run.run_id).journal, reader.cursors(run.run_id))
        metas = self._journals.metas()
        self._boots = {meta.boot_id for meta in metas}
        # Times of another boot are of another clock: what its processes went by stands there.
        offsets_ns = [meta.offset_ns for meta in metas if meta.boot_id != boot_id()]
        self._clock = Clock(offsets_ns[0]) if offsets_ns else clock
        self._numbering = Numbering(
            run.run_id, reader.series([run.run_id]), reader.markers([run.run_id])
        )
        self._intake = JournalIntake(
            run.run_id, self._journals, self._numbering, self._clock, reader, home.store_path
        )

    def is_over(self, boot_ns: int) -> bool:
        """Whether nothing is written any more, by anybody.

        A run that nobody has ended is over if it is of an earlier boot. Its journals know; without
        any its time must do, which a clock that was set since may put on the wrong side.
        """
        if self._journals.being_written:
            return False
        if self._run.ended_ns is not None:
            return True
        if self._boots:
            return boot_id() not in self._boots
        return self._run.created_ns < boot_ns

    def drain(self) -> _Found:
        """Store what the journals hold beyond what is stored.

        Raises:
            JournalError: They are not what they should be.
            StoreError: The store cannot be written.
        """
        found = _Found()
        more = True
        while more:
            with self._writer.transaction():
                # Nobody else can write now: who drained before has left word how far.
                if not self._journals.stands_at(self._reader.cursors(self._run.run_id)):
                    break
                part = self._intake.read(final=True)
                series = self._numbering.new_series()
                self._write(part, series)
            self._numbering.stored(series)
            found.points += part.update.points
            found.anything = found.anything or bool(part.batches or part.markers)
            more = part.more
        return found

    def _write(self, part: JournalPart, series: Sequence[SeriesRecord]) -> None:
        run_id, writer = self._run.run_id, self._writer
        writer.add_series(series)
        writer.append(run_id, part.batches)
        writer.put_markers(part.markers)
        if part.ledger is not None:
            writer.put_ledger(part.ledger)
        if part.params:
            writer.put_params(run_id, part.params)
        if part.tags:
            writer.put_tags(run_id, part.tags)
        writer.put_cursors(run_id, part.cursors)

    def end(self) -> None:
        """End the run, unless it has ended, and what of it is open; then all of it is sealed."""
        run, writer = self._run, self._writer
        last_ns = self._last_sign_ns()
        with writer.transaction():
            writer.put_markers(self._intake.close_open(last_ns))
            if run.ended_ns is None:
                log.warning("run %s: %s", run.run_id, REASON)
                status, reason = self._outcome()
                writer.end_run(run.run_id, status, last_ns, reason=reason)
                for ledger in self._reader.ledger([run.run_id]):
                    if ledger.state in (ListenerState.RUNNING, ListenerState.OPENING):
                        writer.put_ledger(
                            replace(ledger, state=str(ListenerState.ENDED), reason=REASON)
                        )
                writer.end_workload(run.workload_id)
        writer.seal(run.run_id)

    def deliver_again(self) -> None:
        """Have what came now brought to MLflow, for which the run may have been done with."""
        with self._writer.rewriting(self._run.run_id) as connection:
            connection.execute(_NOT_DELIVERED, {"run_id": self._run.run_id})

    def discard(self) -> None:
        """Remove the journals."""
        self._intake.discard()

    @property
    def unreadable(self) -> frozenset[str]:
        """Journals that could not be read."""
        return self._journals.unreadable

    def _outcome(self) -> tuple[RunStatus, str]:
        """What the script said, if it came to its end."""
        said = self._intake.finish
        return (RunStatus.KILLED, REASON) if said is None else (said.status, said.reason)

    def _last_sign_ns(self) -> int:
        """When the run was last heard of."""
        run = self._run
        times_ns = [summary.last_ns for summary in self._reader.summary([run.run_id])]
        times_ns += [
            marker.start_ns if marker.end_ns is None else marker.end_ns
            for marker in self._reader.markers([run.run_id])
        ]
        known_ns = run.ended_ns or run.started_ns or run.created_ns
        return max([known_ns, *times_ns])


def _with_journals(home: Home) -> Iterator[str]:
    """Runs whose folder holds a journal; most have been read, and hold none."""
    for folder in (home.path / "runs").glob("*/journal"):
        try:
            names = os.listdir(folder)  # noqa: PTH208 - of ten thousand runs
            if any(name != LABELS_FOLDER and name[0] != "." for name in names):
                yield folder.parent.name
        except OSError:
            continue  # it goes just now, or is none
