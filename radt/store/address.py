"""Where a store is: an SQLite file, or the schema ``radt`` of a Postgres database."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from radt.errors import UsageError
from radt.masking import masked
from radt.uris import is_postgres, with_driver


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """One of both: ``path`` of a file, or ``uri`` of a Postgres database, with psycopg2 as driver.

    Passwords need not be in the URI: libpq also takes them from ``PGPASSWORD``, from ``~/.pgpass``
    or ``PGPASSFILE``, and from the file that ``?passfile=`` names.
    """

    path: Path | None = None
    uri: str = field(default="", repr=False)

    @classmethod
    def of(cls, given: StoreAddress | Path | str) -> StoreAddress:
        """The address that a path, or a text that may be a URI, stands for.

        Raises:
            UsageError: It is a URI of something else.
        """
        if isinstance(given, StoreAddress):
            return given
        if isinstance(given, Path):
            return cls(given.absolute())
        if is_postgres(given):
            return cls(uri=with_driver(given))
        if "://" in given:
            raise UsageError(
                f"{masked(given)} is no address of a store",
                "Give a file, or a Postgres database such as postgresql://me@db.example.org/radt",
            )
        return cls(Path(given).absolute())

    @property
    def is_postgres(self) -> bool:
        return self.path is None

    def __str__(self) -> str:
        """For people: without passwords."""
        return masked(self.uri.replace("+psycopg2", "", 1)) if self.path is None else str(self.path)
