"""The way to Postgres, which sees both stores: nothing lies in between."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from radt.delivery.postgres.replicator import Replicator
from radt.errors import RadtError, StoreError
from radt.store.backend import StoreAddress
from tests.copy.ways import Files, Way
from tests.delivery.postgres.conftest import AT_ONCE

_TRIES = 20


class NoFiles(Files):
    """What lies in between."""

    def __init__(self) -> None: ...

    def all(self) -> dict[str, bytes]:
        return {}


@dataclass
class PostgresWay(Way):
    """The replicator, each time a new one, as after a kill."""

    files: Files = field(default_factory=NoFiles)
    uri: str = field(kw_only=True)
    keeps_files = False

    @property
    def there(self) -> Any:
        return self.uri

    def send(self) -> None:
        """Do nothing: it is taken from the source."""

    def take(self) -> None:
        address = StoreAddress.of(self.uri)
        with closing(Replicator(self.lab.home.store_path, address, AT_ONCE)) as replicator:
            for _ in range(_TRIES):
                try:
                    replicator.turn(everything=True)
                except StoreError:
                    continue  # another one writes the same runs
                if not replicator.left:
                    return
            problem = next(iter(replicator._problems.problems.values()))
        raise RadtError(problem.text)
