"""Journals of version 1, which had no checksums, are read as they were."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from radt.journal.format import RECORD, EventKind, JournalMeta, RecordKind
from radt.journal.reader import Finish, JournalReader
from radt.model import RunStatus
from radt.procfs import boot_id
from tests.support.journal import Found

_SLOTS = 8192


def _line(event: EventKind, **fields: Any) -> str:
    return json.dumps({"event": event} | fields, separators=(",", ":"))


def _record(step: int, value: float, name_id: int, kind: int) -> bytes:
    return RECORD.pack(time.monotonic_ns(), step, value, name_id, kind)


def _write(journal: Path, count: int, *, dropped: int, killed: bool) -> None:
    """Write values as version 1 did, the last segment with room; its reserve stands at its end."""
    folder = journal / "7-0123abcd"
    folder.mkdir(parents=True)
    meta = JournalMeta(
        pid=2**22 + 1,  # no such process
        ppid=1,
        start_ticks=1,
        boot_id=boot_id(),
        host=os.uname().nodename,
        label="",
        main=True,
        rank=None,
        offset_ns=0,
        created_ns=time.monotonic_ns(),
        radt_version="0.9",
        format_version=1,
    )
    (folder / "meta.json").write_text(json.dumps(meta.to_json()))
    lines = [
        _line(EventKind.NAME, id=0, name="loss"),
        '{"event":"params","val',  # a full disk had room for a part of it
        _line(EventKind.PARAMS, values={"lr": "0.1"}),
        _line(EventKind.FINISH, status=RunStatus.FINISHED, reason=""),
    ]
    (folder / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
    for number, first in enumerate(range(0, count, _SLOTS)):
        steps = range(first, min(count, first + _SLOTS))
        records = [_record(step, step * 0.5, 0, RecordKind.SCALAR) for step in steps]
        records += [bytes(RECORD.size)] * (_SLOTS - len(records))
        last = steps.stop == count
        kind = (0 if killed else RecordKind.DROPPED) if last else RecordKind.VOID
        records.append(_record(0, float(dropped if last else 0), 0, kind))
        (folder / f"segment-{number:06d}.bin").write_bytes(b"".join(records))
    if not killed:
        (folder / "closed").write_bytes(b"")


@pytest.mark.parametrize("count", [300, _SLOTS, _SLOTS + 300])
@pytest.mark.parametrize("killed", [False, True])
def test_all_is_read(tmp_path: Path, count: int, killed: bool) -> None:
    _write(tmp_path / "journal", count, dropped=5, killed=killed)
    reader = JournalReader(tmp_path / "journal", {})
    found = Found(reader)
    found.read(final=True)
    assert found.steps("loss") == [*range(count)]
    assert found.values("loss") == [step * 0.5 for step in range(count)]
    assert found.dropped == 5
    assert {**found.batches[0].params} == {"lr": "0.1"}
    assert reader.finish() == Finish(RunStatus.FINISHED)
    assert not any(batch.lost or batch.lost_events for batch in found.batches)
    assert not (tmp_path / "damaged").exists()
    reader.remove_finished()
    assert not list((tmp_path / "journal").glob("7-*"))
