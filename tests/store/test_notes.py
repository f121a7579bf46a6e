"""What people say of runs: all of an edit, or none of it; nothing of radt's or MLflow's own."""

from __future__ import annotations

import pytest

from radt.errors import RunNotFoundError, UsageError
from radt.store.backend import Dialect
from radt.store.notes import Edit, RunNotes, edit_notes, read_notes
from radt.store.reader import StoreReader
from radt.store.records import SavedView
from radt.store.writer import StoreWriter
from tests.store.conftest import RUN_ID

DATABASES = (Dialect.SQLITE, Dialect.POSTGRES)


def test_an_edit_is_made_of_all_of_its_runs_or_of_none(
    writer: StoreWriter, reader: StoreReader, run_id: str
) -> None:
    before = read_notes(reader, RUN_ID)
    with pytest.raises(RunNotFoundError):
        edit_notes(writer, [RUN_ID, "none"], Edit("new", "text", {"a": "b"}, starred=True))
    assert read_notes(reader, RUN_ID) == before

    edit_notes(writer, [RUN_ID], Edit("new", "text", {"a": "b", "c": "d"}, starred=True))
    assert read_notes(reader, RUN_ID) == RunNotes("new", "text", {"a": "b", "c": "d"}, starred=True)
    edit_notes(writer, [RUN_ID], Edit(tags={"a": ""}, starred=False, archived=True))
    assert read_notes(reader, RUN_ID) == RunNotes("new", "text", {"c": "d"}, archived=True)
    assert reader.run(RUN_ID).name == "new"


@pytest.mark.parametrize(
    "edit",
    [{"name": " "}, {"text": "x" * 8001}, {"tags": {"radt.host": "other"}}, {"tags": {" ": "x"}}],
)
def test_what_cannot_be_kept_is_refused(edit: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="Expected"):
        Edit(**edit)  # type: ignore[arg-type]


def test_a_saved_view_is_replaced_by_its_name(writer: StoreWriter, reader: StoreReader) -> None:
    for address in ("/compare?s=a", "/compare?s=b"):
        writer.save_view(SavedView("best", address, 1))
    writer.save_view(SavedView("a", "/", 2))
    assert reader.saved_views() == [SavedView("a", "/", 2), SavedView("best", "/compare?s=b", 1)]
    writer.forget_view("a")
    assert [view.name for view in reader.saved_views()] == ["best"]
