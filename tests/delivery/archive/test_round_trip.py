"""What is archived and imported is what was there, bit for bit, however it was cut up."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import radt
from radt.delivery.archive import importing, markers, write
from radt.delivery.archive.importing import import_archive
from radt.delivery.archive.manifest import PartKind
from radt.errors import ArchiveError
from radt.load import load
from radt.masking import masked
from radt.model import MarkerKind, RunStatus, Scope, SeriesKind
from radt.store.reader import StoreReader
from radt.store.records import MarkerRecord, RunRecord, Samples, SeriesBatch, SeriesRecord
from radt.store.writer import StoreWriter
from tests.delivery.archive import kit
from tests.support.stores import add_totals


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if memory were very short: many blocks, files and transactions."""
    monkeypatch.setattr(write, "BLOCK_POINTS", 7300)
    monkeypatch.setattr(write, "PART_POINTS", 7000)
    monkeypatch.setattr(importing, "_POINTS_A_TURN", 5000)


def test_a_whole_run(writer: StoreWriter, other: StoreWriter, run: RunRecord) -> None:
    kit.fill(writer)
    kit.add_rows(writer, closed=True)
    kit.end(writer)
    manifest = kit.archive(writer, run)
    assert manifest.complete
    assert sorted(part.path for part in manifest.parts) == [
        "markers-00001.parquet",
        "samples/rapl-00001.parquet",
        "samples/run-00001.parquet",
        "samples/smi-00001.parquet",
    ]

    imported = import_archive(kit.archive_folder(run), other)

    assert (imported.new, imported.complete, imported.points) == (True, True, 20_015)
    assert kit.contents(other) == kit.contents(writer)
    assert kit.loose_chunks(other) == 0
    with StoreReader(other.address) as reader:
        assert reader.runs_to_deliver(run.tracking_uri) == [], "nobody brings it to MLflow again"
        assert reader.workloads_to_deliver(run.tracking_uri) == []


def test_totals_are_archived_and_imported(
    writer: StoreWriter, other: StoreWriter, run: RunRecord
) -> None:
    kit.fill(writer)
    own = add_totals(writer, run.run_id)
    kit.end(writer)
    kit.archive(writer, run)
    folder = kit.archive_folder(run)
    import_archive(folder, other)
    totals = radt.totals(run.run_id, home=writer.path.parent)
    assert own.items() <= totals.items()
    assert totals["cpu_energy_j"] == 2
    assert radt.totals(folder) == totals
    assert radt.totals(run.run_id, home=other.path.parent) == totals
    assert "process.cpu.time" not in set(radt.load(folder)["metric"]), "totals are no curves"


def test_a_whole_run_in_many_pieces(
    writer: StoreWriter, other: StoreWriter, run: RunRecord, small_blocks: None
) -> None:
    kit.fill(writer)
    kit.add_rows(writer, closed=True)
    kit.end(writer)
    manifest = kit.archive(writer, run)
    assert len(manifest.parts) > 5
    assert import_archive(kit.archive_folder(run), other).points == 20_015
    assert kit.contents(other) == kit.contents(writer)


def test_an_archive_grows_with_its_run_and_so_does_what_was_imported(
    writer: StoreWriter, other: StoreWriter, run: RunRecord
) -> None:
    kit.fill(writer)
    kit.add_rows(writer)
    first = kit.archive(writer, run)
    folder = kit.archive_folder(run)
    written = {path: path.read_bytes() for path in folder.rglob("*.parquet")}
    assert not first.complete
    one = import_archive(folder, other)
    assert (one.new, one.complete, one.run.status) == (True, False, RunStatus.RUNNING)
    assert kit.contents(other) == kit.contents(writer)

    assert kit.archive(writer, run).parts == first.parts, "nothing new: no new part"

    kit.fill(writer)
    writer.add_series(
        [SeriesRecord(run.run_id, 9, "top", "late", "1", Scope.HOST, SeriesKind.GAUGE)]
    )
    kit.add_points(writer, 9, [1.0])
    kit.add_rows(writer, closed=True)  # the open epoch has its end now
    kit.end(writer)
    last = kit.archive(writer, run)
    assert list(last.parts[: len(first.parts)]) == list(first.parts)
    assert {path: path.read_bytes() for path in written} == written, "parts stay as they are"
    (again,) = [part for part in last.parts[len(first.parts) :] if part.kind is PartKind.MARKERS]
    assert again.rows == 1, "only the marker that changed"

    two = import_archive(folder, other)
    assert (two.new, two.complete, two.points) == (False, True, 20_016)
    assert kit.contents(other) == kit.contents(writer)


def test_importing_again_changes_nothing(
    writer: StoreWriter, other: StoreWriter, run: RunRecord
) -> None:
    kit.fill(writer)
    kit.add_rows(writer, closed=True)
    kit.end(writer)
    kit.archive(writer, run)
    import_archive(kit.archive_folder(run), other)
    before = kit.contents(other)
    again = import_archive(kit.archive_folder(run), other)
    assert (again.new, again.points) == (False, 0)
    assert kit.contents(other) == before


def test_importing_into_the_store_it_is_from_takes_nothing_back(
    writer: StoreWriter, run: RunRecord
) -> None:
    """The archive is of before: the run went on, and what it has now is not overwritten."""
    kit.fill(writer)
    kit.add_rows(writer)
    kit.archive(writer, run)
    kit.add_points(writer, 0, [4.0])
    kit.add_rows(writer, closed=True)
    before = kit.contents(writer)
    assert import_archive(kit.archive_folder(run), writer).points == 0
    assert kit.contents(writer) == before
    with StoreReader(writer.address) as reader:
        assert reader.runs_to_deliver(run.tracking_uri), "it still has to be delivered"
    kit.end(writer)
    before = kit.contents(writer)
    import_archive(kit.archive_folder(run), writer)
    assert kit.contents(writer) == before


def test_an_import_that_was_cut_off_goes_on(
    writer: StoreWriter, other: StoreWriter, run: RunRecord, small_blocks: None
) -> None:
    kit.fill(writer)
    kit.add_rows(writer, closed=True)
    kit.end(writer)
    kit.archive(writer, run)
    calls = 0
    append = other.append

    def break_off(run_id: str, batches: Sequence[SeriesBatch]) -> None:
        nonlocal calls
        calls += 1
        append(run_id, batches)
        if calls == 6:
            raise KeyboardInterrupt

    other.append = break_off  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        import_archive(kit.archive_folder(run), other)
    del other.append
    with StoreReader(other.address) as reader:
        there = sum(reader.point_counts(run.run_id).values())
        assert reader.runs() == [], "a run is listed when all of it is there"
    assert 0 < there < 20_015
    assert import_archive(kit.archive_folder(run), other).points == 20_015 - there
    assert kit.contents(other) == kit.contents(writer)


def test_two_imports_at_once_double_nothing(
    writer: StoreWriter, tmp_path: Path, run: RunRecord, small_blocks: None
) -> None:
    kit.fill(writer)
    kit.add_rows(writer, closed=True)
    kit.end(writer)
    kit.archive(writer, run)
    with StoreWriter(tmp_path / "b" / "radt.db") as one, StoreWriter(one.path) as two:
        failures: list[BaseException] = []

        def work(target: StoreWriter) -> None:
            try:
                import_archive(kit.archive_folder(run), target)
            except BaseException as error:  # noqa: BLE001 - told below
                failures.append(error)

        threads = [threading.Thread(target=work, args=(target,)) for target in (one, two)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert kit.contents(one) == kit.contents(writer)


def test_another_run_of_the_same_id_is_left_alone(
    writer: StoreWriter, other: StoreWriter, run: RunRecord, tmp_path: Path
) -> None:
    kit.fill(writer)
    kit.end(writer)
    kit.archive(writer, run)
    kit.make_run(other, tmp_path / "elsewhere")
    kit.add_points(other, 0, [17.0])
    before = kit.contents(other)
    with pytest.raises(ArchiveError, match="other values"):
        import_archive(kit.archive_folder(run), other)
    assert kit.contents(other) == before


def test_a_run_without_anything(writer: StoreWriter, other: StoreWriter, run: RunRecord) -> None:
    kit.end(writer)
    assert kit.archive(writer, run).parts == []
    import_archive(kit.archive_folder(run), other)
    assert kit.contents(other) == kit.contents(writer)


def test_a_workload_ends_with_the_last_of_its_runs(
    writer: StoreWriter, other: StoreWriter, run: RunRecord, tmp_path: Path
) -> None:
    """The first run's archive was written while the second ran."""
    second = kit.make_run(writer, tmp_path / "spool b", "f" * 32, letter="b")
    ended_ns = kit.START_NS + 5
    assert writer.end_run(run.run_id, RunStatus.FINISHED, ended_ns)
    kit.archive(writer, run)
    assert writer.end_run(second.run_id, RunStatus.OOM, ended_ns + 1)
    kit.archive(writer, second)
    assert writer.end_workload("workload1")
    for one in (run, second, run):
        import_archive(kit.archive_folder(one), other)
    assert kit.contents(other)["workloads"] == kit.contents(writer)["workloads"]


def test_no_password_gets_into_an_archive(
    writer: StoreWriter, other: StoreWriter, tmp_path: Path
) -> None:
    uri = "postgresql+psycopg2://me:hunter2@db.example.org/radt"
    run = kit.make_run(writer, tmp_path / "spool", tracking_uri=uri)
    kit.end(writer)
    kit.archive(writer, run)
    assert "hunter2" not in (kit.archive_folder(run) / "run.json").read_text()
    import_archive(kit.archive_folder(run), other)
    import_archive(kit.archive_folder(run), writer)
    with StoreReader(writer.address) as reader:
        kept = reader.run(run.run_id).tracking_uri
    assert kept == masked(uri), "the store's own address, without its password"


def test_many_markers(
    writer: StoreWriter, other: StoreWriter, run: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And as one more comes, one more is written."""
    monkeypatch.setattr(markers, "_BLOCK", 2000)
    count = 5000
    writer.put_markers(
        [
            MarkerRecord(run.run_id, no, MarkerKind.SPAN, f"span {no % 97}", no, no + 5, no)
            for no in range(count)
        ]
    )
    assert sum(part.rows for part in kit.archive(writer, run).parts) == count
    writer.put_markers([MarkerRecord(run.run_id, count, MarkerKind.SPAN, "last", 1, 2)])
    assert [part.rows for part in kit.archive(writer, run).parts] == [count, 1]
    import_archive(kit.archive_folder(run), other)
    with StoreReader(writer.address) as reader, StoreReader(other.address) as imported:
        assert imported.markers([run.run_id]) == reader.markers([run.run_id])


def test_load_reads_store_and_archive_alike(writer: StoreWriter, run: RunRecord) -> None:
    kit.fill(writer, count=200)
    kit.archive(writer, run)
    kit.fill(writer, count=200)
    kit.end(writer)
    kit.archive(writer, run)
    home, folder = writer.path.parent, kit.archive_folder(run)
    for more in ({}, {"metrics": ["gpu.power"]}, {"rates": True}):
        expected = load(run.run_id, home=home, **more)
        pd.testing.assert_frame_equal(load(folder, home=home, **more), expected)
        pd.testing.assert_frame_equal(load(str(folder), home=home, **more), expected)
    both = load([run.run_id[:8], folder / "run.json"], home=home)
    assert len(both) == 2 * len(load(run.run_id, home=home))
    assert both.columns[0] == "run_id"
    bits = load(folder, home=home, metrics="loss")["value"].to_numpy().view(np.int64)
    stored = load(run.run_id, home=home, metrics="loss")["value"].to_numpy().view(np.int64)
    assert bits.tolist() == stored.tolist()


def test_pandas_alone_reads_it(writer: StoreWriter, run: RunRecord, tmp_path: Path) -> None:
    """In a Python that does not have radt."""
    kit.fill(writer)
    kit.add_rows(writer)
    kit.end(writer)
    kit.archive(writer, run)
    program = (
        "import pandas as pd, sys, json; folder = sys.argv[1]; "
        "samples = pd.read_parquet(folder + '/samples'); "
        "one = pd.read_parquet(folder + '/samples/run-00001.parquet'); "
        "markers = pd.read_parquet(folder + '/markers-00001.parquet'); "
        "assert 'radt' not in sys.modules; "
        "power = samples[samples.metric == 'gpu.power']; "
        "print(json.dumps([len(samples), [[n, str(t)] for n, t in one.dtypes.items()], "
        "power.value.iloc[:3].tolist(), power.elapsed_s.iloc[:2].tolist(), "
        "[None if pd.isna(s) else int(s) for s in one.step], len(markers), "
        "str(markers.start.dtype)]))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program, str(kit.archive_folder(run))],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    count, dtypes, power, elapsed, steps, markers, start = json.loads(done.stdout)
    assert count == 20_015
    expected = load(run.run_id, home=writer.path.parent).dtypes
    assert dict(map(tuple, dtypes)) == {
        "series_no": "int32",
        **{name: str(dtype) for name, dtype in expected.items()},
    }
    assert power == [math.sin(0), math.sin(1), math.sin(2)]
    assert elapsed == [0.0, 77_000_001 / 1e9]
    assert steps == [0, None, 5, -5, 2**62, None, 1, 1, 1, 0, None, None]
    assert (markers, start) == (3, "datetime64[ns, UTC]")


def test_a_run_that_ends_while_it_is_imported_has_ended(
    writer: StoreWriter, run: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into the store that it is recorded in."""
    kit.fill(writer, count=10)
    kit.archive(writer, run)
    add_series = writer.add_series

    def meanwhile(series: Sequence[SeriesRecord]) -> None:
        add_series(series)
        kit.end(writer)

    monkeypatch.setattr(writer, "add_series", meanwhile)
    assert import_archive(kit.archive_folder(run), writer).points == 0
    with StoreReader(writer.address) as reader:
        assert reader.run(run.run_id).status is RunStatus.FAILED


@pytest.mark.parametrize("count", [0, 1])
def test_the_spool_may_be_lost(
    writer: StoreWriter, other: StoreWriter, run: RunRecord, count: int
) -> None:
    """Nobody knows then what was archived: all of it is written once more."""
    kit.fill(writer)
    kit.archive(writer, run)
    for path in [*kit.archive_folder(run).rglob("*")][count:]:
        if path.is_file() and path.suffix != ".parquet":
            path.unlink()
    kit.fill(writer)
    kit.add_rows(writer)
    kit.end(writer)
    kit.archive(writer, run)
    import_archive(kit.archive_folder(run), other)
    assert kit.contents(other) == kit.contents(writer)


times = st.integers(-(2**63), 2**63 - 1)
bits = st.integers(0, 2**64 - 1)
points = st.lists(st.tuples(times, bits, st.integers(-(2**63), 2**63 - 1)), max_size=8)
batches = st.lists(st.tuples(st.integers(0, 2), points, st.booleans()), max_size=6)


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(first=batches, second=batches, block=st.integers(1, 9))
def test_any_values(
    tmp_path_factory: pytest.TempPathFactory,
    first: list[tuple[int, list[tuple[int, int, int]], bool]],
    second: list[tuple[int, list[tuple[int, int, int]], bool]],
    block: int,
) -> None:
    folder = tmp_path_factory.mktemp("any")
    with (
        pytest.MonkeyPatch.context() as patch,
        StoreWriter(folder / "a" / "radt.db") as writer,
        StoreWriter(folder / "b" / "radt.db") as other,
    ):
        patch.setattr(write, "BLOCK_POINTS", block)
        patch.setattr(write, "PART_POINTS", 2 * block)
        patch.setattr(importing, "_POINTS_A_TURN", block)
        run = kit.make_run(writer, folder / "spool")
        for half in (first, second):
            for series_no, rows, with_steps in half:
                if not rows:
                    continue
                columns = list(zip(*rows, strict=True))
                samples = Samples(
                    np.array(columns[0], np.int64),
                    np.array(columns[1], np.uint64).view(np.float64),
                    np.array(columns[2], np.int64) if with_steps else None,
                )
                writer.append(run.run_id, [SeriesBatch(series_no, samples)])
            kit.archive(writer, run)
            import_archive(kit.archive_folder(run), other)
            assert kit.contents(other) == kit.contents(writer)


def test_writing_needs_no_pandas_and_says_what_became_of_each_run(
    writer: StoreWriter, run: RunRecord, tmp_path: Path
) -> None:
    """The real process; the second run's spool cannot be made, the third is not in the store."""
    kit.fill(writer)
    blocked = tmp_path / "a file"
    blocked.write_text("")
    kit.make_run(writer, blocked / "spool", "b" * 32, letter="b")
    command = [sys.executable, "-X", "importtime", "-P", "-m", "radt.delivery.archive"]
    done = subprocess.run(
        [*command, "--store", str(writer.path), "b" * 32, "c" * 32, run.run_id],
        capture_output=True,
        text=True,
        check=True,
        start_new_session=True,  # whose weight it lowers: not that of all tests
    )
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["run_id"] for one in said] == ["b" * 32, "c" * 32, run.run_id]
    assert "Not a directory" in said[0]["problem"]
    assert "no run" in said[1]["problem"]
    assert said[2]["problem"] == ""
    assert (kit.archive_folder(run) / "run.json").is_file()
    assert "pyarrow" in done.stderr
    assert re.search(r"\|\s+pandas\.core", done.stderr) is None


def test_a_damaged_chunk_is_final(writer: StoreWriter, run: RunRecord) -> None:
    kit.fill(writer)
    with writer._engine.begin() as connection:
        connection.exec_driver_sql("UPDATE chunk SET checksum = checksum + 1 WHERE series_no = 1")
    command = [sys.executable, "-P", "-m", "radt.delivery.archive", "--store", str(writer.path)]
    done = subprocess.run(
        [*command, run.run_id], capture_output=True, text=True, check=True, start_new_session=True
    )
    outcome = json.loads(done.stdout)
    assert outcome["final"]
    assert "damaged" in outcome["problem"]
    assert not (kit.archive_folder(run) / "run.json").exists()
