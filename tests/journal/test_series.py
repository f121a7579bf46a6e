"""Series that say more of themselves than a name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from radt.errors import UsageError
from radt.journal.format import RECORD_BYTES, SEGMENT_BYTES
from radt.journal.reader import JournalReader
from radt.journal.values import JournalSeries
from radt.journal.writer import JournalWriter
from radt.model import Scope, SeriesKind
from tests.support.journal import Found

SERIES = JournalSeries(
    "torch", "torch.memory.retries", "1", Scope.PROCESS, SeriesKind.COUNTER, "cuda:1", "how"
)


def test_name_says_everything() -> None:
    assert JournalSeries.from_name(SERIES.name) == SERIES
    bare = JournalSeries("steps", "step.time", "s", Scope.RUN)
    assert JournalSeries.from_name(bare.name) == bare


@pytest.mark.parametrize(
    "name",
    [
        *("loss", "a/b", "unnamed 3", "x" + SERIES.name, SERIES.name + "\x1fmore"),
        SERIES.name.replace("process", "rack"),  # of a later version
    ],
)
def test_other_names_are_plain(name: str) -> None:
    assert JournalSeries.from_name(name) is None


def test_scripts_cannot_use_such_names(writer: JournalWriter) -> None:
    with pytest.raises(UsageError, match="cannot be printed"):
        writer.scalar(SERIES.name, 1.0)


def test_values_reach_the_reader_with_their_series(writer: JournalWriter, found: Found) -> None:
    """Across segments too, amid what the script logs."""
    count = 2 * SEGMENT_BYTES // RECORD_BYTES
    for number in range(count):
        writer.sample(SERIES.name, number / 2, number)
    writer.scalar("loss", 1.5)
    writer.sample(SERIES.name, 7.0)
    writer.close()
    found.read(final=True)
    columns = [column for batch in found.batches for column in batch.scalars]
    assert {(c.name, c.series) for c in columns} == {(SERIES.metric, SERIES), ("loss", None)}
    assert found.values(SERIES.metric) == [*(n / 2 for n in range(count)), 7.0]
    assert found.steps(SERIES.metric)[:-1] == [*range(count)]


def test_series_survive_a_change_of_reader(
    writer: JournalWriter, found: Found, folder: Path
) -> None:
    writer.sample(SERIES.name, 1.0)
    found.read()
    writer.sample(SERIES.name, 2.0)
    later = Found(JournalReader(folder, found.cursors))
    later.read()
    (column,) = later.batches[0].scalars
    assert (column.series, list(column.values)) == (SERIES, [2.0])


def test_forked_child_has_series_of_its_own(writer: JournalWriter, found: Found) -> None:
    writer.sample(SERIES.name, 1.0)
    pid = os.fork()
    if pid == 0:
        writer.sample(SERIES.name, 2.0)
        os._exit(0)
    os.waitpid(pid, 0)
    found.read(final=True)
    assert found.values(SERIES.metric) == [1.0]
    assert found.values(SERIES.metric, "child 1") == [2.0]


def test_after_the_end_values_are_dropped_and_said(
    writer: JournalWriter, warnings: list[str]
) -> None:
    writer.sample(SERIES.name, 1.0)
    writer.close()
    writer.sample(SERIES.name, 2.0)
    assert len(warnings) == 1
