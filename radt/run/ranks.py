"""Waits for the other ranks of distributed training that write into the same run."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from radt.journal.format import CLOSED_FILE, META_FILE, JournalMeta
from radt.procfs import start_ticks

_POLL_S = 0.02


def wait_for_ranks(journal: Path, timeout_s: float) -> None:
    """Return when all ranks have closed their journals or ended, or when the time is over."""
    deadline = time.monotonic() + timeout_s
    while any(_writing(folder) for folder in journal.glob("*-*")):
        if time.monotonic() >= deadline:
            return
        time.sleep(_POLL_S)


def _writing(folder: Path) -> bool:
    try:
        meta = JournalMeta.from_json(json.loads((folder / META_FILE).read_bytes()))
    except (OSError, ValueError, TypeError):
        return False
    if meta.rank is None or not meta.main or meta.pid == os.getpid():
        return False
    return not (folder / CLOSED_FILE).exists() and start_ticks(meta.pid) == meta.start_ticks
