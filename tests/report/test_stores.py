"""Reports of a Postgres store, of several machines, and which store a command reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import radt
from radt.analysis.quantities import Quantity
from radt.analysis.report import read_report
from radt.analysis.selection import Omission
from radt.analysis.series_quantities import parse_series_quantity
from radt.cli import report, trace
from radt.errors import RunNotFoundError, StoreError, UsageError
from radt.model import MarkerKind, RunStatus
from radt.render.report import energy_table, summary_table
from radt.render.terminal import table_lines
from radt.store.backend import StoreAddress
from radt.store.locate import Places, Readers, ShownStore
from radt.store.records import LedgerRecord, MarkerRecord, RunRecord
from radt.tags import CLUSTER_HARDWARE, PROFILED, PROFILED_BESIDE, PRUNED
from tests.report.test_summary import Study

NOWHERE = "postgresql://me:secret@127.0.0.1:1/radt"


def record_all(study: Study) -> None:
    """Workloads of every kind."""
    study.run("solo", "a", [9.0, 2.0, 2.0], energy_j=(1000.0, 1500.0))
    for number, seconds in enumerate((4.0, 6.0)):
        tags = {"radt.series": "s"}
        study.run("pair", "a", [1.0, seconds], workload_id=f"p{number}", tags=tags)
        study.run("pair", "b", [1.0, seconds], workload_id=f"p{number}", tags=tags)
    study.run("broken", "a", [1.0], status=RunStatus.OOM)
    study.run("slow", "a", [1.0, 8.0], tags={PROFILED: "nsys"})
    study.run("slow", "b", [1.0, 4.0], tags={PROFILED_BESIDE: "a"})
    study.run("", "a", [1.0, 3.0], workload_id="lone")
    first, second = (f"{number:032x}" for number in (2, 3))
    study.writer.update_workload("p0", start_skew_ns=50_000_000)
    study.writer.put_ledger(LedgerRecord(first, "top", 1.0, 1000, 10, 990, 5_000_000))
    study.writer.put_tags(first, {"radt.git.commit": "a" * 40, PRUNED: "summaries"})
    study.writer.put_tags(second, {"radt.git.commit": "b" * 40})
    restarted = MarkerRecord(first, 50, MarkerKind.EVENT, "listener top restarted", 1)
    study.writer.put_markers([restarted])


def find(run: str, places: Places | None = None) -> tuple[StoreAddress, RunRecord]:
    """The store in which a run is found, and the run."""
    with Readers(places or Places.of()) as readers:
        reader, record = readers.find_run(run)
        return reader.address, record


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A data folder, of a user who said nothing else."""
    folder = tmp_path / "radt-data"
    folder.mkdir()
    return folder


def command(name: str, *arguments: str) -> str:
    """What a command prints; it must succeed."""
    done = CliRunner().invoke(report.command if name == "report" else trace.command, arguments)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


def test_a_report_of_postgres_is_that_of_the_file(home: Path, database: str) -> None:
    file, team = Study(home / "radt.db"), Study(database)
    for study in (file, team):
        record_all(study)
    names = (
        *("last(samples_per_s)", "p95(samples_per_s)", "mean(samples_per_s)"),
        "time_to(samples_per_s>=100)",
    )
    options = {"series": tuple(map(parse_series_quantity, names))}
    for profiled in (False, True):
        remote = read_report(team.reader, "study", profiled=profiled, **options)
        local_file = read_report(file.reader, "study", profiled=profiled, **options)
        assert (remote.workloads, remote.series) == (local_file.workloads, local_file.series)
        assert [one.unit for one in remote.series.quantities] == ["", "", "", "s"]
        assert all(one in remote.workloads[0].groups[0].values for one in options["series"])
        assert remote.footnotes == local_file.footnotes
    for words in ("apart: pair 50.0 ms", "Samples are missing", "Commits differ", "restarted"):
        assert words in " ".join(remote.footnotes)
    assert read_report(team.reader, "study").selection.count(Omission.PROFILED) == 2
    assert not energy_table(read_report(team.reader, "study").workloads).rows
    local = command("report", "study", "--home", str(home))
    assert command("report", "study", "--store-uri", database) == local
    assert "9 runs, 6 count: 2 profiled, 1 OOM" in local
    profiled = command("report", "study", "--profiled", "--store-uri", database)
    assert "net (nsys)" in profiled
    team.reader.close()
    team.writer.close()


def test_machines_are_not_compared_with_each_other(home: Path) -> None:
    study = Study(home / "radt.db")
    for host, factor in (("gpu-01", 1.0), ("gpu-02", 10.0)):
        study.run("solo", "a", [1.0, 2.0 * factor], workload_id=f"s{host}", host=host)
        for letter in "ab":
            study.run("pair", letter, [1.0, 6.0 * factor], workload_id=f"p{host}", host=host)
    study.run("solo", "a", [1.0, 3.0], workload_id="other", host="gpu-03")
    found = {(one.host, one.label): one.groups[0] for one in study.summarise()}
    assert len(found) == 5
    assert [found[host, "pair"].mean(Quantity.SLOWDOWN) for host in ("gpu-01", "gpu-02")] == [
        3.0,
        3.0,
    ]
    assert found["gpu-02", "pair"].mean(Quantity.TIME_PER_EPOCH) == 60.0
    lines = [line.plain for line in table_lines(summary_table(study.summarise()), 80)]
    assert lines[:2] == [
        "  workload  machine  runs     took  time/epoch  vs solo  samples/s    cpu",
        "  solo      gpu-01   net         –      2.00 s        –        100   50 %",
    ]


def test_nodes_with_the_same_hardware_are_compared_and_it_is_said(home: Path) -> None:
    study = Study(home / "radt.db")
    large, small = {CLUSTER_HARDWARE: "64 CPUs, 512 GB"}, {CLUSTER_HARDWARE: "8 CPUs, 32 GB"}
    # Jobs get any GPU of their node, too.
    for host, seconds, devices in (("gpu-01", 2.0, "0"), ("gpu-02", 2.2, "1")):
        on = {"host": host, "devices": devices}
        study.run(host, "a", [1.0, seconds], workload_id=f"s{host}", tags=large, **on)
    for host, seconds, tags in (("gpu-01", 6.0, large), ("gpu-03", 6.3, large), ("s", 9.0, small)):
        for letter in "ab":
            label = f"pair {host}"
            study.run(label, letter, [1.0, seconds], workload_id=label, host=host, tags=tags)
    found = read_report(study.reader, "study")
    slowdowns = {
        one.host: one.groups[0].values.get(Quantity.SLOWDOWN)
        for one in found.workloads
        if one.label.startswith("pair")
    }
    own, other = slowdowns["gpu-01"], slowdowns["gpu-03"]
    assert own is not None
    assert own.mean == 3.0
    assert own.interval is None
    assert other is not None
    assert other.mean == pytest.approx(3.0)
    assert len(other.reference) == 2
    assert slowdowns["s"] is None
    assert [note for note in found.footnotes if "same hardware" in note] == [
        "Compared with runs alone on gpu-02, a node with the same hardware: pair gpu-03 on gpu-03."
    ]


def test_a_workload_that_went_to_another_node_is_one(home: Path) -> None:
    study = Study(home / "radt.db")
    large, small = {CLUSTER_HARDWARE: "64 CPUs"}, {CLUSTER_HARDWARE: "8 CPUs"}
    killed = RunStatus.KILLED
    study.run("w", "a", [1.0, 2.0], workload_id="1", host="n1", tags=large, status=killed)
    study.run("w", "a", [1.0, 2.0], workload_id="2", host="n2", tags=large)
    study.run("w", "a", [1.0, 2.0], workload_id="3", host="n3", tags=small)
    assert [one.host for one in study.summarise()] == ["n2", "n3"]


def test_the_nearest_store_that_has_a_run_is_read(
    home: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, team = Study(home / "radt.db"), Study(database)
    file.run("here", "a", [1.0, 2.0])
    for label in ("here", "there"):
        team.run(label, "a", [1.0, 2.0], host="gpu-01")
    here, there = f"{1:032x}", f"{2:032x}"
    monkeypatch.setenv("RADT_STORE_URI", database)
    address, record = find(here)
    assert (address.path, record.host) == (home / "radt.db", "")
    address, record = find(there)
    assert (address.is_postgres, record.host) == (True, "gpu-01")
    with Readers(Places.of()) as readers:
        found = [readers.find_run(run)[0].address.is_postgres for run in (here, there)]
    assert found == [False, True]
    # What the user names is the only place.
    assert find(here, Places.of(store_uri=database))[1].host == "gpu-01"
    with pytest.raises(RunNotFoundError) as caught:
        find(there, Places.of(home))
    assert str(home / "radt.db") in caught.value.message
    assert "postgresql" not in caught.value.message
    assert len(radt.load(there)) == len(radt.load(here)) > 0
    assert command("trace", there, "-o", str(home / "a.json")).startswith(str(home / "a.json"))
    with (
        Readers(Places.of(store_uri=database)) as readers,
        pytest.raises(RunNotFoundError, match=r"several runs match '0000'"),
    ):
        readers.find_run("0000")
    for study in (file, team):
        study.reader.close()
        study.writer.close()


def test_where_was_looked_is_said(
    home: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Study(home / "radt.db").writer.close()
    Study(database).writer.close()
    monkeypatch.setenv("RADT_STORE_URI", database)
    with pytest.raises(RunNotFoundError) as caught:
        find("abcdef")
    assert caught.value.message.startswith(
        f"no run matches 'abcdef' in {home / 'radt.db'} or postgresql://***@"
    )
    with pytest.raises(RunNotFoundError, match="too short"):
        find("abc")
    said = CliRunner().invoke(report.command, ["nothing"])
    assert isinstance(said.exception, UsageError)
    assert "radt.db or postgresql://***@" in said.exception.message


def test_a_store_that_is_away_is_told_from_a_run_that_is_not_there(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Study(home / "radt.db")
    study.run("here", "a", [1.0, 2.0])
    monkeypatch.setenv("RADT_STORE_URI", NOWHERE)
    find(f"{1:032x}")  # the file has it: nobody asks further
    with pytest.raises(StoreError) as caught:
        find("abcdef")
    assert caught.value.message.startswith(f"not in {home / 'radt.db'}, and the database ")
    assert "secret" not in str(caught.value)


def test_a_missing_file_is_passed_over_where_there_is_another_store(
    home: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    team = Study(database)
    team.run("there", "a", [1.0, 2.0])
    with pytest.raises(StoreError, match="there is no store"):
        find(f"{1:032x}")
    monkeypatch.setenv("RADT_STORE_URI", database)
    assert find(f"{1:032x}")[0].is_postgres
    assert not (home / "radt.db").exists()
    team.reader.close()
    team.writer.close()


def test_what_a_dashboard_shows(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = home / "radt.db"
    assert ShownStore.of().store.path == file
    monkeypatch.setenv("RADT_TRACKING_URI", "http://mlflow.example.org/")
    # A team's server is not imported unasked.
    assert (ShownStore.of().store.path, ShownStore.of().import_from) == (file, "")
    monkeypatch.setenv("RADT_STORE_URI", NOWHERE)
    assert ShownStore.of().store.is_postgres
    assert ShownStore.of().import_from == ""
    monkeypatch.setenv("RADT_DASHBOARD_LOAD_URI", NOWHERE.replace("me:", "writer:"))
    view = ShownStore.of()
    assert view.import_from == "http://mlflow.example.org"
    assert view.import_into is not None
    assert "writer" in view.import_into.uri
    assert "writer" not in view.store.uri + repr(view)
    assert ShownStore.of(home="elsewhere").store.path == Path("elsewhere").absolute() / "radt.db"
    assert ShownStore.of(home="elsewhere", store_uri=NOWHERE).store.is_postgres
    asked = ShownStore.of(tracking_uri="https://other.example.org")
    assert (asked.store.path, asked.import_from) == (file, "https://other.example.org")
    both = ShownStore.of(store_uri=NOWHERE, tracking_uri="http://a")
    assert (both.store.is_postgres, both.import_from) == (True, "http://a")
    database = ShownStore.of(tracking_uri="postgresql://me:secret@db/x")
    assert database.store.path == file
    assert "secret" in database.import_from
    assert "secret" not in repr(database)
    monkeypatch.delenv("RADT_STORE_URI")
    monkeypatch.setenv("RADT_TRACKING_URI", NOWHERE)
    assert ShownStore.of().store.is_postgres  # MLflow's database holds the store, too
    with pytest.raises(UsageError, match="not the address of a Postgres database"):
        ShownStore.of(store_uri="http://db")
