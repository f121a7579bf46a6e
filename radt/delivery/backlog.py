"""Data that is not yet in MLflow and Postgres, and the reasons."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sqlalchemy import Connection, text

from radt import units
from radt.delivery.postgres.local import due_runs
from radt.delivery.problems import (
    MLFLOW,
    POSTGRES,
    CurrentProblem,
    current_problem,
    failing_addresses,
)
from radt.masking import masked
from radt.store.backend import StoreAddress
from radt.store.reader import StoreReader
from radt.store.writer import StoreWriter

#: Earlier versions of radt also recorded databases that were never reached, by their address.
_REPLICAS = text("SELECT target, label, reached_ns FROM replica WHERE target <> label ORDER BY 2")


@dataclass(frozen=True, slots=True)
class Backlog:
    """Runs that are incomplete at one destination.

    Attributes:
        kind: `MLFLOW` or `POSTGRES`.
        address: Address of the destination, without passwords.
        ended: Number of runs that have ended.
        running: Number of runs that have not ended.
        since_ns: End of the run that has waited longest; None if none waits.
        problem: The last failure; empty if delivery works.
        problem_ns: Start of the failures.
        is_minor: The problem only concerns archives of running runs, which nobody waits for.
        workloads: MLflow: number of ended workloads that are still open there, besides the runs.
        identity: Postgres: identity of the database; empty if it was never reached.
        reached_ns: Postgres: when it was last complete; None for never.
    """

    kind: str
    address: str
    ended: int
    running: int
    since_ns: int | None = None
    problem: str = ""
    problem_ns: int | None = None
    is_minor: bool = False
    workloads: int = 0
    identity: str = ""
    reached_ns: int | None = None

    @property
    def left(self) -> int:
        """Return the number of ended runs, else of ended workloads, that are not complete."""
        return self.ended or self.workloads

    @property
    def complete(self) -> bool:
        """Return whether all ended runs have arrived; False before the first connection."""
        failing = self.problem and not self.is_minor
        return not (self.left or failing) and (self.kind == MLFLOW or bool(self.identity))

    @property
    def waiting(self) -> bool:
        """Return whether the destination would have more data by now if it had worked."""
        return self.ended > 0 or bool(self.problem)

    def sentence(self) -> str:
        """Return a sentence about the backlog; empty if nothing waits.

        ``3 runs are not complete in MLflow at http://mlflow:5000 (since 12:04): no connection:
        connection refused. They stay on this machine; the next run or `radt sync` uploads them``.
        """
        if not self.waiting:
            return ""
        single = self.ended + self.running == 1
        runs = units.plural(self.ended + self.running, "run")
        name = f"MLflow at {self.address}" if self.kind == MLFLOW else f"database {self.address}"
        start = f"{runs} {'is' if single else 'are'} not complete in {name}"
        if not self.problem:
            return f"{start} yet; the upload is running"
        stay, them = ("It stays", "it") if single else ("They stay", "them")
        return (
            f"{start} (since {_clock(self.problem_ns)}): {self.short_problem}. "
            f"{stay} on this machine; the next run or `radt sync` uploads {them}"
        )

    @property
    def short_problem(self) -> str:
        """Return the problem without the address, for use beside it."""
        for name in ("the database", "the store"):
            if self.problem.startswith(f"{name} {self.address} "):
                return self.problem.replace(f"{name} {self.address}", "it", 1)
        return self.problem


def backlogs(store: Path, uri: str = "") -> list[Backlog]:
    """Return the backlog of every destination of a store on this machine.

    Args:
        store: The file of the store.
        uri: The configured database; empty for none.

    Raises:
        StoreError: The store cannot be read.
    """
    with StoreReader(store) as reader:
        to_mlflow = mlflow_backlogs(reader)
    return [*to_mlflow, *postgres_backlogs(store, uri)]


# -- MLflow ---------------------------------------------------------------------------------------


def mlflow_backlogs(reader: StoreReader) -> list[Backlog]:
    """Return the backlog of each MLflow; complete ones are left out.

    Raises:
        StoreError: The store cannot be read.
    """
    uris = dict.fromkeys(
        workload.tracking_uri for workload in reader.workloads() if workload.tracking_uri
    )
    backlogs = [_mlflow_backlog(reader, uri) for uri in uris]
    return [
        backlog for backlog in backlogs if backlog.waiting or backlog.running or backlog.workloads
    ]


def _mlflow_backlog(reader: StoreReader, uri: str) -> Backlog:
    runs = reader.runs_to_deliver(uri)
    workloads = reader.workloads_to_deliver(uri)
    ended = [run for run in runs if run.status.ended]
    current = CurrentProblem()
    if (runs or workloads) and reader.address.path is not None:
        current = current_problem(reader.address.path, MLFLOW, uri)
    return Backlog(
        MLFLOW,
        masked(uri),
        len(ended),
        len(runs) - len(ended),
        since_ns=min((run.ended_ns or run.created_ns for run in ended), default=None),
        problem=current.text,
        problem_ns=current.since_ns,
        is_minor=current.is_minor,
        workloads=sum(workload.ended_ns is not None for workload in workloads),
    )


# -- Postgres -------------------------------------------------------------------------------------


def postgres_backlogs(store: Path, uri: str = "") -> list[Backlog]:
    """Return the backlogs of the databases that the store was copied to, and of the configured one.

    Args:
        store: The file of the store.
        uri: The configured database; empty for none.

    Raises:
        StoreError: The store cannot be read.
    """
    with StoreReader(store) as reader, reader.snapshot() as connection:
        replicas = {label: (target, at) for target, label, at in connection.execute(_REPLICAS)}
        addresses = [*replicas, *failing_addresses(store, POSTGRES)]
        addresses += [str(StoreAddress.of(uri))] if uri else []
        return [
            _postgres_backlog(connection, store, address, *replicas.get(address, ("", None)))
            for address in dict.fromkeys(addresses)
        ]


def compare_again(store: Path, uri: str) -> None:
    """Compare every run with its copy in a database again, for example after restoring a backup.

    Raises:
        StoreError: The store cannot be read or written.
    """
    address, known = str(StoreAddress.of(uri)), postgres_backlogs(store)
    with StoreWriter(store) as writer:
        for backlog in known:
            if backlog.address == address:
                writer.replicate_again(backlog.identity)


def _postgres_backlog(
    connection: Connection, store: Path, address: str, identity: str, reached_ns: int | None
) -> Backlog:
    current, due = current_problem(store, POSTGRES, address), due_runs(connection, identity)
    ended = [run for run in due if run.ended]
    return Backlog(
        POSTGRES,
        address,
        len(ended),
        len(due) - len(ended),
        since_ns=min((run.since_ns for run in ended), default=None),
        problem=current.text,
        problem_ns=current.since_ns,
        identity=identity,
        reached_ns=reached_ns,
    )


def _clock(time_ns: int | None) -> str:
    if time_ns is None:
        return "just now"
    at = datetime.fromtimestamp(time_ns / 1e9).astimezone()
    today = at.date() == datetime.now().astimezone().date()
    return at.strftime("%H:%M" if today else "%Y-%m-%d %H:%M")
