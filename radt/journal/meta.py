"""Read who writes a journal."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from radt.errors import JournalError
from radt.journal.format import (
    EVENTS_FILE,
    FORMAT_VERSION,
    META_FILE,
    EventKind,
    JournalMeta,
    read_line,
)
from radt.procfs import is_shortage

log = logging.getLogger(__name__)


def read_meta(folder: Path) -> JournalMeta:
    """Return who writes a journal, from the file that says so or its copy.

    Raises:
        JournalError: Neither can be read, or a later version wrote them.
    """
    path = folder / META_FILE
    try:
        meta = JournalMeta.from_json(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        if is_shortage(error):
            raise
        copy = _copied_meta(folder)
        if copy is None:
            raise JournalError(
                f"{path} cannot be read: {error}", "The disk may be damaged"
            ) from error
        log.warning("%s is damaged: its copy is used", path)
        meta = copy
    if meta.format_version > FORMAT_VERSION:
        raise JournalError(
            f"{folder} was written by radt {meta.radt_version}, which is newer",
            "Use one version of radt for training and for collecting",
        )
    return meta


def _copied_meta(folder: Path) -> JournalMeta | None:
    try:
        with (folder / EVENTS_FILE).open("rb") as file:
            fields = read_line(file.readline().rstrip(b"\n")) or {}
        kind = fields.pop("event", "")
        return JournalMeta.from_json(fields) if kind == EventKind.META else None
    except (OSError, ValueError, TypeError):
        return None
