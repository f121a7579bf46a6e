"""What can go wrong with a store is said with a remedy, and harms nothing that was written."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from radt.errors import RunNotFoundError, SchemaTooNewError, StoreError
from radt.model import RunStatus
from radt.store import sqlite
from radt.store.migrations import latest_version
from radt.store.reader import StoreReader
from radt.store.records import RunRecord, Samples, SeriesBatch
from radt.store.writer import StoreWriter


def noise(count: int) -> Samples:
    values = np.random.default_rng(count).random(count)
    return Samples(np.arange(count, dtype=np.int64), values)


def limit_pages(writer: StoreWriter, pages: int) -> None:
    with writer._engine.connect() as connection:
        now = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {now + pages}")


def test_a_full_disk_is_said_and_what_was_written_stays(
    writer: StoreWriter, reader: StoreReader, run_id: str
) -> None:
    writer.append(run_id, [SeriesBatch(0, noise(100))])
    limit_pages(writer, 8)
    with pytest.raises(StoreError, match="no room left") as caught, writer.transaction():
        writer.put_tags(run_id, {"half": "done"})
        writer.append(run_id, [SeriesBatch(0, noise(100_000))])
    assert caught.value.remedy is not None
    assert "disk space" in caught.value.remedy
    assert len(reader.samples(run_id, 0)) == 100
    assert reader.tags(run_id) == {}
    limit_pages(writer, 100_000)
    writer.append(run_id, [SeriesBatch(0, noise(100_000))])
    assert len(reader.samples(run_id, 0)) == 100_100


def test_a_file_size_limit_of_the_system_is_an_error_too(
    writer: StoreWriter, reader: StoreReader, run_id: str
) -> None:
    """The kernel's own refusal, as with a quota: not SQLite's."""
    code = """
import resource, signal, sys
import numpy as np
from radt.errors import StoreError
from radt.store.records import Samples, SeriesBatch
from radt.store.writer import StoreWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with StoreWriter(sys.argv[1]) as writer:
    writer.put_tags(sys.argv[2], {"before": "yes"})
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
    try:
        million = Samples(np.arange(10**6), np.random.rand(10**6))
        writer.append(sys.argv[2], [SeriesBatch(0, million)])
    except StoreError as error:
        print(error.message, "|", error.remedy)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    writer.put_tags(sys.argv[2], {"after": "yes"})
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(writer.path), run_id],
        capture_output=True,
        text=True,
        check=True,
        timeout=180,
    )
    assert "radt.db" in done.stdout
    assert "disk" in done.stdout.partition("|")[2]
    assert reader.tags(run_id) == {"before": "yes", "after": "yes"}
    assert len(reader.samples(run_id, 0)) == 0


def test_a_store_of_a_later_radt_is_refused_and_left_alone(writer: StoreWriter) -> None:
    future = latest_version() + 1
    with sqlite3.connect(writer.path) as connection:
        connection.execute(
            "INSERT INTO schema_version VALUES (?, 'future', 0, 'radt 9')", (future,)
        )
    connection.close()
    for kind in (StoreWriter, StoreReader):
        with pytest.raises(SchemaTooNewError, match=rf"version {future}.*Upgrade radt"):
            kind(writer.path)


def test_a_reader_does_not_create_anything(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no store.*Run an experiment first"):
        StoreReader(tmp_path / "nowhere" / "radt.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [StoreWriter, StoreReader])
def test_a_file_that_is_no_database_is_refused_and_left_alone(
    tmp_path: Path, kind: type[StoreWriter]
) -> None:
    path = tmp_path / "radt.db"
    path.write_text("my holiday diary\n" * 100)
    with pytest.raises(StoreError, match="not a radt store"):
        kind(path)
    assert path.read_text() == "my holiday diary\n" * 100


@pytest.mark.parametrize("kind", [StoreWriter, StoreReader])
def test_some_other_database_is_refused_and_left_alone(
    tmp_path: Path, kind: type[StoreWriter]
) -> None:
    path = tmp_path / "radt.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE runs (id)")
    connection.close()
    with pytest.raises(StoreError, match="not a radt store"):
        kind(path)
    with sqlite3.connect(path) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master").fetchall()
        mode = connection.execute("PRAGMA journal_mode").fetchone()
    connection.close()
    assert tables == [("runs",)]
    assert mode == ("delete",)


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot be created.*RADT_HOME"):
        StoreWriter(tmp_path / "file" / "radt.db")


def test_a_store_that_is_a_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be opened"):
        StoreWriter(tmp_path)


def test_a_busy_store_is_an_error_with_a_remedy_after_a_while(
    writer: StoreWriter, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.05)
    with StoreWriter(writer.path) as impatient, writer.transaction():
        writer.put_tags(run_id, {"a": "b"})
        with pytest.raises(StoreError, match=r"has been busy.*Another program holds it"):
            impatient.put_tags(run_id, {"c": "d"})


def test_a_transaction_is_all_or_nothing(
    writer: StoreWriter, reader: StoreReader, run_id: str
) -> None:
    with pytest.raises(ValueError, match="on purpose"), writer.transaction():
        writer.put_tags(run_id, {"a": "1"})
        with writer.transaction():
            writer.put_tags(run_id, {"b": "1"})
        raise ValueError("on purpose")
    assert reader.tags(run_id) == {}
    with writer.transaction():
        writer.put_tags(run_id, {"a": "1"})
        with writer.transaction():
            writer.put_tags(run_id, {"b": "1"})
        assert reader.tags(run_id) == {}
    assert reader.tags(run_id) == {"a": "1", "b": "1"}


def test_an_error_caught_within_a_transaction_still_undoes_it(
    writer: StoreWriter, reader: StoreReader, run_id: str
) -> None:
    with pytest.raises(StoreError, match="was undone"), writer.transaction():
        writer.put_tags(run_id, {"a": "1"})
        with pytest.raises(StoreError, match="no series 9"):
            writer.append(run_id, [SeriesBatch(9, noise(1))])
    assert reader.tags(run_id) == {}
    writer.put_tags(run_id, {"a": "2"})
    assert reader.tags(run_id) == {"a": "2"}


def test_series_declared_in_an_undone_transaction_are_not_remembered(
    writer: StoreWriter, reader: StoreReader, run_id: str
) -> None:
    known = reader.series([run_id])[0]
    with pytest.raises(KeyboardInterrupt), writer.transaction():
        writer.add_series([type(known)("other", 0, *_rest(known))])
        raise KeyboardInterrupt
    with pytest.raises(StoreError, match="no series 0"):
        writer.append("other", [SeriesBatch(0, noise(1))])


def _rest(series: object) -> tuple[object, ...]:
    return tuple(
        getattr(series, name)
        for name in ("listener", "metric", "unit", "scope", "kind", "entity", "interval_s")
    )


def test_unknown_runs_and_fields_are_errors(
    writer: StoreWriter, reader: StoreReader, run_id: str
) -> None:
    with pytest.raises(RunNotFoundError, match="no run nobody"):
        writer.update_run("nobody", status=RunStatus.RUNNING)
    with pytest.raises(RunNotFoundError, match="no run nobody"):
        writer.end_run("nobody", RunStatus.FINISHED, 1)
    with pytest.raises(RunNotFoundError, match="no workload nothing"):
        writer.update_workload("nothing", barrier_ns=1)
    for fields in ({"colour": "red"}, {"run_id": "x"}, {"delivery_done_ns": 1}):
        with pytest.raises(TypeError, match="cannot be updated"):
            writer.update_run(run_id, **fields)
    with pytest.raises(TypeError, match="cannot be stored"):
        writer.update_run(run_id, name=object())
    with pytest.raises(RunNotFoundError, match="no run nobody"):
        reader.run("nobody")
    with pytest.raises(RunNotFoundError, match="no workload nothing"):
        reader.workload("nothing")


def test_a_closed_writer_says_so(writer: StoreWriter, run_id: str) -> None:
    writer.close()
    writer.close()
    with pytest.raises(StoreError, match="is closed"):
        writer.put_tags(run_id, {"a": "b"})


def test_text_that_is_no_unicode_is_kept_readable(
    writer: StoreWriter, reader: StoreReader, run_record: Callable[..., RunRecord]
) -> None:
    """Paths may hold any bytes; Python shows those as lone surrogates, which no database takes."""
    hostile = "a'b\"c;\n--\t%s :x é 日本 \udcff \0"
    writer.put_run(run_record(name=hostile, experiment=hostile, command=hostile))
    writer.put_params("r", {hostile: hostile})
    writer.put_tags("r", {hostile: hostile})
    shown = "a'b\"c;\n--\t%s :x é 日本 \\udcff \\x00"
    (run,) = reader.runs()
    assert (run.name, run.experiment, run.command) == (shown, shown, shown)
    assert reader.params("r") == reader.tags("r") == {shown: shown}
    assert [summary.name for summary in reader.experiments()] == [shown]
