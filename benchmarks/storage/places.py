"""The measured databases: one file each in a folder, one database each in one cluster."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from enum import StrEnum
from pathlib import Path

from tests.support.postgres import Postgres


class Kind(StrEnum):
    """Kind of a store."""

    SQLITE = "SQLite"
    POSTGRES = "Postgres"


class Places:
    """A folder for files and a Postgres cluster with default settings (fsync on)."""

    def __init__(self, folder: Path, cluster: Postgres) -> None:
        self.folder = folder
        self.cluster = cluster

    def new(self, kind: Kind, name: str) -> str:
        """Return the path of a new file, or the URI of a new database."""
        if kind is Kind.SQLITE:
            return str(self.folder / f"{name}.db")
        with closing(self.cluster.connect()) as one, one.cursor() as cursor:
            cursor.execute(f'CREATE DATABASE "{name}"')
        return self.cluster.uri(name)

    def drop(self, kind: Kind, name: str) -> None:
        """Delete a database to free its space."""
        if kind is Kind.SQLITE:
            for path in self.folder.glob(f"{name}.db*"):
                path.unlink()
            return
        with closing(self.cluster.connect()) as one, one.cursor() as cursor:
            cursor.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def settle(self, kind: Kind, name: str) -> None:
        """Run the databases' background work now, so that the next measurement excludes it."""
        if kind is Kind.POSTGRES:
            with closing(self.cluster.connect(name)) as one, one.cursor() as cursor:
                cursor.execute("VACUUM ANALYZE")
                cursor.execute("CHECKPOINT")

    def relation_bytes(self, name: str, tables: tuple[str, ...]) -> int:
        """Return the size of tables with their indexes and TOAST data, before any vacuum."""
        with closing(self.cluster.connect(name)) as one, one.cursor() as cursor:
            cursor.execute(
                "SELECT SUM(pg_total_relation_size(one::regclass)) FROM unnest(%s) AS one",
                (list(tables),),
            )
            return int(cursor.fetchone()[0])


@contextmanager
def places() -> Iterator[Places]:
    """Provide temporary databases."""
    with tempfile.TemporaryDirectory(prefix="radt-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # root runs Postgres as another user
        cluster = Postgres(folder / "postgres", secrets.token_urlsafe(16))
        cluster.start()
        try:
            yield Places(folder, cluster)
        finally:
            cluster.stop()
