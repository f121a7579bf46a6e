"""Power cuts: the state of a data folder at one instant, opened after a restart of the machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import struct
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from radt.home import Home
from radt.journal.format import META_FILE, JournalMeta
from radt.model import SOFTWARE
from radt.store.place import NOTE_FILE
from radt.store.reader import StoreReader
from tests.support.waiting import stands_still, wait_until

#: No machine has it.
OTHER_BOOT = "00000000-0000-4000-8000-000000000000"


@contextmanager
def frozen(pids: Iterable[int]) -> Iterator[None]:
    """Nobody of these moves: what is on the disk is of one instant, as at a power cut."""
    stopped = list(pids)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    for pid in stopped:
        wait_until(partial(stands_still, pid), "it is stopped")
    try:
        yield
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


def cut_off(home: Path, copy: Path, pids: Iterable[int]) -> Home:
    """A copy of a data folder as a restart of the machine at this instant would leave it."""
    with frozen(pids):
        shutil.copytree(home, copy)
    for meta in copy.glob(f"runs/*/journal/*/{META_FILE}"):
        told = JournalMeta.from_json(json.loads(meta.read_text()))
        meta.write_text(json.dumps(replace(told, boot_id=OTHER_BOOT).to_json()))
    (copy / NOTE_FILE).write_bytes(os.fsencode(copy))  # after a restart it is where it was
    return Home(copy)


def unsettled(store: Path) -> int:
    """From where on a write-ahead log may not be on the disk.

    What SQLite has begun to move into the file was synchronised before: no power cut tears that.
    (https://www.sqlite.org/walformat.html#the_wal_index_file_format)
    """
    index = store.with_name(f"{store.name}-shm").read_bytes()
    (attempted,) = struct.unpack_from("=I", index, 128)
    (page_bytes,) = struct.unpack_from("=H", index, 14)
    return 32 + int(attempted) * (24 + (65536 if page_bytes == 1 else int(page_bytes)))


def check_store(path: Path) -> None:
    """The file is sound, every chunk decodes to what its header says, and accounts are true."""
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    with closing(StoreReader(path)) as reader:
        for run in reader.runs():
            ids = [run.run_id]
            counts: dict[str, list[int]] = {}
            for summary in reader.summary(ids):
                samples = reader.samples(run.run_id, summary.series.series_no)
                finite = samples.values[np.isfinite(samples.values)]
                assert summary.count == len(samples)
                assert (summary.first_ns, summary.last_ns) == (
                    samples.times_ns[0],
                    samples.times_ns[-1],
                )
                assert (summary.minimum, summary.maximum) == (finite.min(), finite.max())
                assert summary.mean is not None
                assert np.isclose(summary.mean, finite.mean())
                counts.setdefault(summary.series.listener, []).append(summary.count)
            for ledger in reader.ledger(ids):
                assert ledger.expected == ledger.received + ledger.missed
                stored = counts.get(ledger.listener, [0])
                if ledger.listener == SOFTWARE:
                    assert ledger.received == sum(stored)
                elif ledger.listener == "top":  # the system's load is in every reading
                    assert ledger.received == max(stored)
                else:
                    assert ledger.received >= max(stored)
