"""Deliverers: started, told, restarted, ended. MLflow itself is tested with the tracking part."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from collector_kit import wait_for

from radt.collector import delivery
from radt.collector.delivery import Deliverer, Deliverers, Destination, DestinationKind
from radt.collector.protocol import Registration, delivery_env
from radt.processes import Backoff
from radt.store.writer import StoreWriter
from tests.support.users import as_ordinary_user

#: Writes down what it is told, and ends when told to or at the end of its input.
_SCRIPT = """
import os, sys
out = open(sys.argv[1], "a", buffering=1)
out.write("start %s %s\\n" % (os.environ["RADT_TRACKING_URI"], os.environ.get("MLFLOW_X")))
for line in sys.stdin:
    out.write("news\\n")
    if os.path.exists(sys.argv[1] + ".die"):
        os.remove(sys.argv[1] + ".die")
        sys.exit(7)
out.write("end\\n")
"""

STORE = Path("radt.db")


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is there, in the folder of the test."""
    monkeypatch.chdir(tmp_path)
    STORE.touch()


@dataclass(frozen=True, slots=True)
class _Recorded(Destination):
    record: str = ""

    def command(self) -> list[str]:
        return [sys.executable, "-c", _SCRIPT, self.record]


class Recorded:
    """A deliverer and what its processes wrote."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.deliverer = Deliverer(_Recorded(STORE, "http://u:pw@host", record=str(path)))

    @property
    def lines(self) -> list[str]:
        return self._path.read_text().splitlines() if self._path.exists() else []

    def die(self) -> None:
        Path(f"{self._path}.die").touch()


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    monkeypatch.setattr(Backoff, "next_s", lambda *_: 0.05)
    return Recorded(tmp_path / "record")


def test_news_and_the_end(recorded: Recorded) -> None:
    deliverer = recorded.deliverer
    deliverer.ensure({})
    wait_for(lambda: recorded.lines == ["start http://u:pw@host None", "news"])
    deliverer.notify()
    wait_for(lambda: recorded.lines.count("news") == 2)
    deliverer.close()
    wait_for(lambda: deliverer.check() or deliverer.gone)
    assert recorded.lines[-1] == "end"
    deliverer.notify()
    assert not deliverer.running, "it was let go"


def test_a_dead_one_is_started_again_and_told(recorded: Recorded) -> None:
    deliverer = recorded.deliverer
    recorded.die()
    deliverer.ensure({})
    wait_for(lambda: deliverer.check() or deliverer.problem)
    assert "exited with code 7" in deliverer.problem
    wait_for(lambda: deliverer.check() or recorded.lines.count("news") == 2)
    assert len([line for line in recorded.lines if line.startswith("start")]) == 2
    assert not deliverer.problem
    deliverer.kill()
    assert deliverer.gone


def test_a_store_that_has_moved_is_not_delivered_from_where_it_was(recorded: Recorded) -> None:
    deliverer = recorded.deliverer
    recorded.die()
    deliverer.ensure({})
    STORE.rename("moved.db")
    wait_for(lambda: deliverer.check() or deliverer.gone)
    assert len([line for line in recorded.lines if line.startswith("start")]) == 1


def test_a_store_that_is_about_to_be_made_is_delivered(recorded: Recorded) -> None:
    """A script begins while its collector starts."""
    STORE.unlink()
    recorded.deliverer.ensure({})
    wait_for(lambda: recorded.lines == ["start http://u:pw@host None", "news"])
    recorded.deliverer.kill()


def test_another_environment_needs_another_process(recorded: Recorded) -> None:
    deliverer = recorded.deliverer
    deliverer.ensure({})
    wait_for(lambda: "news" in recorded.lines)
    deliverer.ensure({"MLFLOW_X": "1"})
    wait_for(lambda: deliverer.check() or "start http://u:pw@host 1" in recorded.lines)
    assert "end" in recorded.lines, "the first was let finish"
    deliverer.ensure({"MLFLOW_X": "1"})
    deliverer.ensure({})
    wait_for(lambda: recorded.lines.count("news") >= 3)
    assert len([line for line in recorded.lines if line.startswith("start")]) == 2
    deliverer.kill()


def test_news_for_the_next_process_are_brought_though_it_is_closed(recorded: Recorded) -> None:
    deliverer = recorded.deliverer
    deliverer.ensure({})
    wait_for(lambda: "news" in recorded.lines)
    deliverer.ensure({"MLFLOW_X": "1"})  # for that the first one has to end
    deliverer.close()
    wait_for(lambda: deliverer.check() or deliverer.gone)
    # Where the first one had ended before it was closed, the second was told as usual.
    told = [line for line in recorded.lines if line != "news"]
    assert told[-2:] == ["start http://u:pw@host 1", "end"]


def test_one_that_does_not_read_does_not_hold_up_the_collector(tmp_path: Path) -> None:
    @dataclass(frozen=True, slots=True)
    class Deaf(Destination):
        def command(self) -> list[str]:
            return [sys.executable, "-c", "import time; time.sleep(600)"]

    deliverer = Deliverer(Deaf(tmp_path, ""))
    deliverer.ensure({})
    for _ in range(100_000):
        deliverer.notify()  # a pipe holds 65,536 bytes: a blocking write would hang here
    deliverer.kill()
    assert deliverer.gone


class Machine:
    """Says whether a run is on."""

    busy = True

    def __call__(self) -> bool:
        return self.busy


def test_what_nobody_waits_for_waits_for_the_runs(tmp_path: Path) -> None:
    machine, record = Machine(), tmp_path / "record"
    deliverer = Deliverer(_Recorded(STORE, "uri", record=str(record)), 3600.0, machine)
    deliverer.ensure({})
    deliverer.notify()
    deliverer.check()
    assert not deliverer.running
    machine.busy = False
    deliverer.check()
    wait_for(lambda: record.exists() and "news" in record.read_text())
    machine.busy = True
    deliverer.notify()
    deliverer.close()
    wait_for(lambda: deliverer.check() or deliverer.gone)
    assert record.read_text().splitlines() == ["start uri None", "news", "end"], "told once"


def test_what_waited_long_enough_is_uploaded_beside_a_run(tmp_path: Path) -> None:
    deliverer = Deliverer(_Recorded(STORE, "uri", record=str(tmp_path / "record")), 0.2, Machine())
    deliverer.ensure({})
    assert not deliverer.running
    wait_for(lambda: deliverer.check() or deliverer.running)
    deliverer.kill()


def test_the_end_of_the_collector_uploads_what_waits(tmp_path: Path) -> None:
    record = tmp_path / "record"
    deliverer = Deliverer(_Recorded(STORE, "uri", record=str(record)), 3600.0, Machine())
    deliverer.ensure({})
    deliverer.close()
    wait_for(lambda: deliverer.check() or deliverer.gone)
    assert record.read_text().splitlines() == ["start uri None", "end"]


def test_who_waits_gets_a_process_that_gives_way_to_nobody(tmp_path: Path) -> None:
    machine, record = Machine(), tmp_path / "record"
    deliverer = Deliverer(_Recorded(STORE, "uri", record=str(record)), 3600.0, machine)
    deliverer.ensure({})
    deliverer.flush()
    wait_for(lambda: record.exists() and "news" in record.read_text())
    first = deliverer.pid
    assert first is not None
    assert b"--give-way-s" not in Path(f"/proc/{first}/cmdline").read_bytes()
    deliverer.flush()
    wait_for(lambda: record.read_text().count("news") == 2)
    assert deliverer.pid == first, "it is quick enough"
    deliverer.kill()

    deliverer = Deliverer(_Recorded(STORE, "uri", record=str(record)), 0.01, machine)
    deliverer.ensure({})
    wait_for(lambda: deliverer.check() or deliverer.running)
    nice = deliverer.pid
    # Its arguments appear a moment after it has become another program.
    wait_for(lambda: b"--give-way-s" in Path(f"/proc/{nice}/cmdline").read_bytes())
    deliverer.flush()
    assert deliverer.pid not in (None, nice)
    deliverer.kill()


def test_the_uri_is_in_no_argument() -> None:
    destination = Destination(Path("/x/radt.db"), "http://user:secret@host")
    assert "secret" not in " ".join(destination.command())


def test_a_run_has_a_deliverer_for_each_place_it_goes_to() -> None:
    everything = Deliverers()
    both = Registration("a", "/x/radt.db", "/x", tracking_uri="sqlite:///m.db", store_uri="pg://x")
    found = everything.of(both)
    assert len(found) == 2
    assert everything.of(both) == found
    assert everything.of(Registration("b", "/x/radt.db", "/x", store_uri="pg://x")) == found[1:]
    assert everything.of(Registration("c", "/x/radt.db", "/x")) == []


def test_a_new_password_makes_no_second_deliverer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two would upload everything twice; the newest password is the one that counts."""
    record = tmp_path / "record"
    monkeypatch.setattr(
        Destination, "command", lambda self: [sys.executable, "-c", _SCRIPT, str(record)]
    )
    everything = Deliverers()

    def registration(run_id: str, uri: str) -> Registration:
        return Registration(run_id, str(tmp_path / "radt.db"), "/x", tracking_uri=uri)

    # A run that was found in its folder, which has no password, waits for one that has.
    found = registration("found", "http://***@host")
    everything.ensure(found)
    assert everything.of(found) == []

    everything.ensure(registration("a", "http://me:old@host"))
    wait_for(lambda: record.exists() and "news" in record.read_text())
    everything.ensure(registration("b", "http://you:new@host"))
    everything.ensure(found)
    wait_for(lambda: everything.check() or "start http://you:new@host" in record.read_text())
    (one,) = {
        deliverer
        for run in (found, registration("a", "http://me:old@host"))
        for deliverer in everything.of(run)
    }
    lines = record.read_text().splitlines()
    assert lines.index("end") < lines.index("start http://you:new@host None")
    assert everything.of(registration("c", "http://other")) != [one]
    everything.kill()


def test_postgres_is_let_go_after_mlflow_whose_ids_it_gets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "record"
    script = (
        "import os, sys\n"
        "way = 'postgres' if 'RADT_STORE_URI' in os.environ else 'mlflow'\n"
        "sys.stdin.read()\n"
        "open(sys.argv[1], 'a').write(way + '\\n')\n"
    )
    monkeypatch.delenv("RADT_STORE_URI", raising=False)
    monkeypatch.setattr(
        Destination, "command", lambda self: [sys.executable, "-c", script, str(record)]
    )
    everything = Deliverers()
    store = tmp_path / "radt.db"
    for deliverer in everything.of(
        Registration("a", str(store), "/x", tracking_uri="sqlite:///m.db", store_uri="pg://x")
    ):
        deliverer.ensure({})
    assert len(everything.pids) == 2

    everything.release(store)

    wait_for(lambda: everything.check() or not everything.pids)
    assert record.read_text().split() == ["mlflow", "postgres"]


def test_an_idle_collector_waits_as_long_as_uploads_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much there is to upload; without progress, the next collector has the rest."""
    script = "import time\nwhile True: time.sleep(1)"
    monkeypatch.setattr(Destination, "command", lambda _: [sys.executable, "-c", script])
    now_s = 1000.0
    monkeypatch.setattr(delivery, "time", SimpleNamespace(monotonic=lambda: now_s))
    path, run = tmp_path / "new.db", "run"
    everything = Deliverers()
    with StoreWriter(path) as writer:
        everything.ensure(Registration(run, str(path), "/x", tracking_uri="http://host"))
        assert not everything.close(120)
        for count in range(1, 4):
            now_s += 100
            writer.mark_delivered(run, {0: count})
            assert not everything.close(120), "it progresses"
        now_s += 100
        writer.mark_artifacts(run, ["a"])
        assert not everything.close(120)
        now_s += 121
        assert everything.close(120), "it has stalled"
        everything.ensure(Registration(run, str(path), "/x", tracking_uri="http://host"))
        assert not everything.close(120), "a run has been there since"
    everything.kill()


def test_the_database_is_in_no_argument_either() -> None:
    uri = "postgresql://u:secret@host/d"
    destination = Destination(Path("/x/radt.db"), uri, DestinationKind.POSTGRES)
    assert "secret" not in " ".join(destination.command())
    assert destination.environment() == {"RADT_STORE_URI": "postgresql://u:secret@host/d"}


def test_what_libpq_takes_from_its_surroundings_goes_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pass").touch()
    given = {"PGPASSFILE": "pass", "PGSSLROOTCERT": "system", "PGUSER": "me", "PATH": "/bin"}
    assert delivery_env(given) == {
        "PGPASSFILE": str(tmp_path / "pass"),
        "PGSSLROOTCERT": "system",
        "PGUSER": "me",
    }
    Path("closed").mkdir(mode=0o000)
    with as_ordinary_user():
        delivered = delivery_env({"PGSSLCERT": "closed/certificate"})
    assert delivered == {"PGSSLCERT": str(tmp_path / "closed" / "certificate")}
