"""A store on this machine, a database that it is brought to, and a link between them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from radt.delivery.postgres.replicator import Replicator
from radt.delivery.postgres.run_copy import Pace
from radt.delivery.problems import POSTGRES, current_problem, failing_addresses
from radt.errors import StoreError
from radt.store.backend import StoreAddress
from radt.store.writer import StoreWriter
from tests.support.bench import wait_until
from tests.support.links import Link
from tests.support.postgres import Postgres
from tests.support.stores import differences

#: Everything is due whenever it is looked at.
AT_ONCE = Pace(samples_s=1e-6, texts_s=1e-6, look_s=1e-6, look_share=1e6)
DEADLINE_S = 180.0


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "home of 'Zoë'" / "radt.db"


@pytest.fixture
def writer(store: Path) -> Iterator[StoreWriter]:
    with StoreWriter(store) as writer:
        yield writer


@pytest.fixture
def link(postgres: Postgres) -> Iterator[Link]:
    with Link(postgres.port) as link:
        yield link


@pytest.fixture
def by_link(database: str, postgres: Postgres, link: Link) -> str:
    """The database's URI, by way of the link."""
    return through(database, postgres.port, link)


def through(uri: str, port: int, link: Link) -> str:
    return uri.replace(f":{port}/", f":{link.port}/")


def persistent(replicator: Replicator, tries: int = 500) -> None:
    """Turn until all is there, whatever fails meanwhile."""
    for _ in range(tries):
        try:
            replicator.turn(everything=True)
        except StoreError:
            continue
        if not replicator.left:
            return
    raise AssertionError("it does not come to an end")


@pytest.fixture
def replicators(store: Path) -> Iterator[Callable[..., Replicator]]:
    """Makes replicators, of the store unless another one is given."""
    made: list[Replicator] = []

    def make(uri: str, store: Path = store, pace: Pace = AT_ONCE) -> Replicator:
        made.append(Replicator(store, StoreAddress.of(uri), pace))
        return made[-1]

    yield make
    for one in made:
        one.close()


@dataclass
class Processes:
    """``python -m radt.delivery.postgres``, as the collector starts it."""

    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, store: Path, uri: str, interval_s: float = 0.1) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "radt.delivery.postgres", "--store", str(store)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"RADT_STORE_URI": uri, "RADT_REPLICATION_S": str(interval_s)},
            cwd="/",
            bufsize=0,
        )
        self.started.append(process)
        return process

    @staticmethod
    def notify(process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        process.stdin.write(b"\n")

    @staticmethod
    def tell_to_finish(process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None  # `communicate` would flush it

    @staticmethod
    def finish(process: subprocess.Popen[bytes]) -> None:
        """Let it bring the rest; it must succeed and have said nothing outside its log."""
        _, said = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, said) == (0, b""), log_text()


@pytest.fixture
def processes() -> Iterator[Processes]:
    processes = Processes()
    yield processes
    for one in processes.started:
        one.kill()
        one.wait()


def problem_of(store: Path) -> str:
    """Return what is recorded about the databases of a store."""
    failing = failing_addresses(store, POSTGRES)
    return " ".join(current_problem(store, POSTGRES, address).text for address in failing)


def log_text() -> str:
    """What replicators have logged."""
    folder = Path(os.environ["RADT_RUNTIME_DIR"])
    return "".join(path.read_text() for path in sorted(folder.glob("replicate-*.log")))


def wait_same(original: Path, copy: str) -> None:
    """Until the copy has all that the original has."""
    seen: list[str] = []

    def same() -> bool:
        try:
            seen[:] = differences(original, copy)
        except StoreError as error:  # not there yet, or down
            seen[:] = [str(error)]
        return not seen

    try:
        wait_until(same, "the same", DEADLINE_S)
    except AssertionError:
        raise AssertionError(f"{seen[:3]}\n{log_text()}") from None
