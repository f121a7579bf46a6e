"""What a store in Postgres does not have yet, and why, for people who ask."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sqlalchemy import Connection, text

from radt import units
from radt.replication.local import Notes
from radt.store.address import StoreAddress
from radt.store.database import ReadDatabase

_REPLICAS = text(
    "SELECT target, label, reached_ns, problem, problem_ns FROM replica ORDER BY label"
)
_WAITING = text(
    "SELECT run.ended_ns IS NOT NULL, COUNT(*), MIN(COALESCE(run.ended_ns, run.created_ns)) "
    "FROM run LEFT JOIN replicated ON replicated.target = :target "
    "AND replicated.key = run.run_id "
    "WHERE (replicated.revision IS NULL OR replicated.revision < run.revision) "
    "AND NOT EXISTS (SELECT 1 FROM pruned WHERE pruned.run_id = run.run_id) GROUP BY 1"
)


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits for one store in Postgres.

    Attributes:
        label: Its address, without passwords.
        target: Its identity; empty if it was never reached.
        ended: Runs that have ended and are not complete there.
        running: Runs that have not ended.
        since_ns: End of the run that has waited longest; None if none waits.
        reached_ns: When everything was there last, None for never.
        problem: What went wrong last; empty if it works.
        problem_ns: Since when.
    """

    label: str
    target: str
    ended: int
    running: int
    since_ns: int | None = None
    reached_ns: int | None = None
    problem: str = ""
    problem_ns: int | None = None

    @property
    def waiting(self) -> bool:
        """Whether there is anything that a working database would have by now."""
        return self.ended > 0 or bool(self.problem)

    def sentence(self) -> str:
        """One line for people; empty if nothing waits.

        ``the database postgresql://***@db/radt does not have all of 3 runs yet (since 12:04): it
        cannot be reached (connection refused). Check …. They are kept here, the next run or `radt
        sync` brings them there``.
        """
        if not self.waiting:
            return ""
        count = self.ended + self.running
        text = f"the database {self.label} does not have all of {units.plural(count, 'run')} yet"
        if not self.problem:
            return f"{text}; {'it is' if count == 1 else 'they are'} being brought there"
        they, them = ("It is", "it") if count == 1 else ("They are", "them")
        return (
            f"{text} (since {_clock(self.problem_ns)}): {self.why}. "
            f"{they} kept here, the next run or `radt sync` brings {them} there"
        )

    @property
    def why(self) -> str:
        """What went wrong, where it is plain which database is meant."""
        for name in ("the database", "the store"):
            if self.problem.startswith(f"{name} {self.label} "):
                return self.problem.replace(f"{name} {self.label}", "it", 1)
        return self.problem


def look_again(store: Path, uri: str) -> None:
    """Have every run compared with its copy in a database, as after a backup was restored there.

    Raises:
        StoreError: The store cannot be read or written.
    """
    label = str(StoreAddress.of(uri))
    notes = Notes(store, label)
    try:
        for one in backlog(store):
            if one.label == label:
                notes.forget(one.target)
    finally:
        notes.close()


def backlog(store: Path, uri: str = "") -> list[Backlog]:
    """What waits for each database that a store was brought to, and for the one that is set.

    Args:
        store: The file on this machine.
        uri: The database that is set now; empty for none.

    Raises:
        StoreError: The store cannot be read.
    """
    database = ReadDatabase(StoreAddress.of(store))
    try:
        with database.snapshot() as connection:
            found = list(_found(connection))
            label = str(StoreAddress.of(uri)) if uri else ""
            if label and label not in {one.label for one in found}:
                found.append(Backlog(label, "", *_waiting(connection, "")))
            return found
    finally:
        database.close()


def _found(connection: Connection) -> Iterator[Backlog]:
    rows = connection.execute(_REPLICAS).all()
    # Of a replicator that was started while the database was away, and knows its address only.
    blind = {label: trouble for target, label, _, *trouble in rows if target == label}
    identified = {label for target, label, *_ in rows if target != label}
    for target, label, reached_ns, *trouble in rows:
        if target == label and label in identified:
            continue
        known = "" if target == label else target
        problem, problem_ns = blind.get(label, trouble)
        yield Backlog(label, known, *_waiting(connection, known), reached_ns, problem, problem_ns)


def _waiting(connection: Connection, target: str) -> tuple[int, int, int | None]:
    ended = running = 0
    since_ns: int | None = None
    for has_ended, count, first_ns in connection.execute(_WAITING, {"target": target}):
        if has_ended:
            ended, since_ns = int(count), int(first_ns)
        else:
            running = int(count)
    return ended, running, since_ns


def _clock(time_ns: int | None) -> str:
    if time_ns is None:
        return "just now"
    at = datetime.fromtimestamp(time_ns / 1e9).astimezone()
    today = at.date() == datetime.now().astimezone().date()
    return at.strftime("%H:%M" if today else "%Y-%m-%d %H:%M")
