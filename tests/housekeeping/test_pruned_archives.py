"""Archives of runs that were pruned: they stay as they are, and bring back what they hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from radt.delivery.archive import importing
from radt.delivery.archive.importing import import_archive
from radt.delivery.archive.manifest import Manifest
from radt.delivery.archive.spool import ArchiveSpool
from radt.delivery.archive.write import PrunedError, write_archive
from radt.errors import ArchiveError
from radt.home import RunDir
from radt.store.check import check_deep
from radt.store.pruning import Keep, candidates, prune_run
from radt.store.reader import StoreReader
from radt.store.writer import StoreWriter
from radt.tags import PRUNED

PutRun = Callable[..., str]


@pytest.fixture
def spool(tmp_path: Path) -> ArchiveSpool:
    return ArchiveSpool.of(RunDir(tmp_path / "spool"))


@pytest.fixture
def archived(reader: StoreReader, put_run: PutRun, spool: ArchiveSpool) -> str:
    """A run and its archive."""
    run_id = put_run(points=1000)
    archive(reader, run_id, spool)
    return run_id


def archive(reader: StoreReader, run_id: str, spool: ArchiveSpool) -> Manifest:
    with spool.locked():
        return write_archive(reader, run_id, spool)


def everything(reader: StoreReader, run_id: str) -> list[Any]:
    """What the store says of a run, bit for bit."""
    numbers = [one.series_no for one in reader.series([run_id])]
    samples = [reader.points_after(run_id, number, 0, 10_000) for number in numbers]
    return [
        reader.run(run_id),
        reader.tags(run_id),
        reader.params(run_id),
        reader.markers([run_id]),
        reader.ledger([run_id]),
        [one.times_ns.tobytes() + one.values.tobytes() for one in samples],
    ]


def pruned_rows(reader: StoreReader) -> list[str]:
    with reader.snapshot() as connection:
        return list(connection.execute(text("SELECT kept FROM pruned")).scalars())


@pytest.mark.parametrize("keep", Keep)
def test_it_brings_the_run_back_bit_for_bit(
    keep: Keep, archived: str, writer: StoreWriter, reader: StoreReader, spool: ArchiveSpool
) -> None:
    before = everything(reader, archived)
    prune_run(reader, writer, archived, keep)
    import_archive(spool.path, writer)
    assert everything(reader, archived)[1:] == before[1:]
    assert PRUNED not in reader.tags(archived)
    assert pruned_rows(reader) == []
    assert list(check_deep(reader)) == []
    # It may be pruned once more.
    assert [one.run_id for one in candidates(reader, 2**62, Keep.SUMMARIES)] == [archived]


def test_an_import_that_was_cut_off_is_taken_up_again(
    archived: str,
    writer: StoreWriter,
    reader: StoreReader,
    spool: ArchiveSpool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = everything(reader, archived)
    prune_run(reader, writer, archived, Keep.SUMMARIES)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(importing, "forget_pruned", stop)
    with pytest.raises(KeyboardInterrupt):
        import_archive(spool.path, writer)
    assert pruned_rows(reader) == [Keep.NOTHING], "nobody takes it for whole"
    monkeypatch.undo()
    import_archive(spool.path, writer)
    assert everything(reader, archived) == before
    assert pruned_rows(reader) == []


def test_an_archive_of_less_takes_nothing_away(
    writer: StoreWriter, reader: StoreReader, put_run: PutRun, spool: ArchiveSpool
) -> None:
    run_id = put_run(points=1000, ended_ns=None)
    archive(reader, run_id, spool)
    put_run(points=1000)  # as many again: what came after the archive
    prune_run(reader, writer, run_id, Keep.SUMMARIES)
    left = everything(reader, run_id)
    with pytest.raises(ArchiveError, match=r"of the 6,006 points .* before it was thinned"):
        import_archive(spool.path, writer)
    assert everything(reader, run_id) == left
    assert pruned_rows(reader) == [Keep.SUMMARIES]


def test_an_archive_is_never_written_over_with_what_is_left(
    archived: str, writer: StoreWriter, reader: StoreReader, spool: ArchiveSpool
) -> None:
    manifest = spool.manifest_file.read_bytes()
    prune_run(reader, writer, archived, Keep.SUMMARIES)
    with pytest.raises(PrunedError, match="was pruned"):
        archive(reader, archived, spool)
    assert spool.manifest_file.read_bytes() == manifest
