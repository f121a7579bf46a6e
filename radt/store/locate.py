"""Choose which store to read, for all commands and for `radt.load`.

Runs are recorded into the file of a data folder and, with a Postgres store (``RADT_STORE_URI``),
copied there, next to the runs of other machines. A run is read from the nearest store: first the
file, which has the newest values and needs no network, then Postgres. ``--home`` and
``--store-uri`` restrict the search to the given stores. A dashboard shows the store with the most
machines: Postgres if configured (`ShownStore`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from radt.errors import RunNotFoundError, StoreError
from radt.home import NO_POSTGRES, Home
from radt.masking import is_postgres, with_driver
from radt.paths import start_folder
from radt.settings import DASHBOARD_LOAD_URI, HOME, STORE_URI, TRACKING_URI, Setting, Settings
from radt.store.backend import StoreAddress
from radt.store.reader import StoreReader
from radt.store.records import RunRecord


@dataclass(frozen=True, slots=True)
class Places:
    """Stores to read from, nearest first.

    ``file`` is None if only Postgres was requested; ``shared`` is None if only the file was
    requested or no Postgres store is configured. ``is_chosen``: the user named them for this call.
    """

    file: StoreAddress | None
    shared: StoreAddress | None = None
    is_chosen: bool = False

    @classmethod
    def of(cls, home: Path | str | None = None, store_uri: str | None = None) -> Places:
        """Return the stores for the data folder and the Postgres store that the user named.

        Raises:
            UsageError: The URI is not one of a Postgres database, or the settings file is invalid.
        """
        given: dict[Setting[Any], str | None] = {STORE_URI: store_uri}
        given[HOME] = None if home is None else str(home)
        settings = Settings.of(start_folder(), given)
        file = StoreAddress.of(Home(settings[HOME]).store_path)
        if home is not None and store_uri is None:
            return cls(file, is_chosen=True)
        tracking_uri = settings[TRACKING_URI]
        shared_uri = with_driver(tracking_uri) if is_postgres(tracking_uri) else ""
        uri = settings[STORE_URI] or shared_uri
        shared = StoreAddress.of(uri) if uri not in ("", NO_POSTGRES) else None
        if home is None and store_uri is not None and shared is not None:
            return cls(None, shared, is_chosen=True)
        return cls(file, shared, is_chosen=home is not None)

    @property
    def stores(self) -> tuple[StoreAddress, ...]:
        """Return the stores, nearest first."""
        return tuple(store for store in (self.file, self.shared) if store is not None)

    @property
    def existing(self) -> tuple[StoreAddress, ...]:
        """Return the stores, nearest first, without a missing file if Postgres remains."""
        is_there = self.file is None or self.file.path is None or self.file.path.exists()
        return self.stores if is_there or self.shared is None else (self.shared,)

    def __str__(self) -> str:
        """Return a text for messages: ``/data/radt.db or postgresql://db.example.org/radt``."""
        return " or ".join(map(str, self.stores))


@dataclass(frozen=True, slots=True)
class ShownStore:
    """The store that a dashboard shows, and the source it may import from while it runs.

    ``import_from`` is MLflow's server, database or folder; empty for none. ``import_into`` is the
    same store, opened with a role that can write to it.
    """

    store: StoreAddress
    import_from: str = field(default="", repr=False)
    import_into: StoreAddress | None = None

    @classmethod
    def of(
        cls,
        home: Path | str | None = None,
        store_uri: str | None = None,
        tracking_uri: str | None = None,
    ) -> ShownStore:
        """Return the store with the most machines: Postgres if configured, else the local file.

        A given tracking URI is imported into the data folder's file, or into the given Postgres
        store. The MLflow server of the settings is imported into a Postgres store if the settings
        name a role that can write there (``RADT_DASHBOARD_LOAD_URI``).

        Args:
            home: The data folder that the user named.
            store_uri: The Postgres store that the user named.
            tracking_uri: MLflow's server, database or folder that the user named.

        Raises:
            UsageError: A URI or the settings file is invalid.
        """
        places = Places.of(home, store_uri)
        if tracking_uri is not None:
            uri = Settings.of(Path.cwd(), {TRACKING_URI: tracking_uri})[TRACKING_URI].rstrip("/")
            store = places.stores[-1] if store_uri is not None else places.file
            assert store is not None
            return cls(store, uri)
        store = places.stores[-1]
        if store.is_postgres:
            settings = Settings.of(Path.cwd())
            uri = settings[TRACKING_URI].rstrip("/")
            into = settings[DASHBOARD_LOAD_URI]
            if into not in ("", NO_POSTGRES) and uri.lower().startswith(("http://", "https://")):
                return cls(store, uri, StoreAddress.of(into))
        return cls(store)


class Readers:
    """Opens stores on demand. Not thread-safe.

    Use it as a context manager; it owns its readers and closes them at the end.
    """

    def __init__(self, places: Places) -> None:
        self.places = places
        self._stack = ExitStack()
        self._open: dict[StoreAddress, StoreReader] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def find_run(self, given: str) -> tuple[StoreReader, RunRecord]:
        """Return the run with the given id (radt's or MLflow's) or id prefix, and its store.

        Raises:
            RunNotFoundError: No store has the run, the nearest store with a match has several, or
                fewer than 4 characters were given.
            StoreError: A store that may have it cannot be read.
        """
        for reader in self.nearest_first():
            if reader.matching_runs(given):
                return reader, reader.find_run(given)
        raise RunNotFoundError(f"no run matches '{given}' in {self.places}", _remedy(self.places))

    def nearest_first(self) -> Iterator[StoreReader]:
        """Yield readers of the stores, nearest first, opening each only when it is needed.

        Raises:
            StoreError: The next store cannot be read.
        """
        for address in self.places.existing:
            yield self._reader(address)

    def _reader(self, address: StoreAddress) -> StoreReader:
        """Return the store's reader.

        Raises:
            StoreError: The store cannot be read. If it is one of several, the message says so.
        """
        if address not in self._open:
            try:
                reader = StoreReader(address)
            except StoreError as error:
                if address == self.places.stores[0]:
                    raise
                raise type(error)(
                    f"not in {self.places.file}, and {error.message}", error.remedy
                ) from error
            self._open[address] = self._stack.enter_context(reader)
        return self._open[address]


def _remedy(places: Places) -> str:
    if places.shared is None and not places.is_chosen:
        return "`radt ls` lists the runs; --store-uri looks in a team's Postgres store"
    return "`radt ls` lists the runs"
