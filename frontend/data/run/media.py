"""Images, figures, tables and texts of a run by name and step, derived from artifact paths.

A file ``FOLDER/step-N.SUFFIX`` is step N of a sequence, whatever program wrote it
(`radt.run.media`). MLflow's ``log_image`` with a key writes
``images/NAME+step+N+timestamp+T+ID.png`` (earlier versions ``%`` for ``+``), with ``~`` (earlier
``#``) for ``/`` in the name, and a smaller copy, which is not shown. Its ``log_table`` and
``log_figure`` accept any name, so their files are recognised by their first bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from radt.frontend.data.run.kinds import FileKind, kind_of
from radt.home import IMAGES, TABLES

#: Number of bytes that `begins_as_logged` needs.
HEAD_BYTES = 4096
#: First bytes of a table written by MLflow's or radt's ``log_table``.
_TABLE_BEGINS = b'{"columns":'

_STEP = re.compile(r"(?P<name>.+)/step-(?P<step>-?\d{1,19})(?P<suffix>\.[^./]+)")
_MLFLOW = re.compile(
    r"images/(?P<name>[^/]+?)[+%]step[+%](?P<step>-?\d{1,19})[+%]timestamp[+%](?P<time>\d+)"
    r"[+%](?P<copy>[0-9a-f-]+)(?P<suffix>\.png|[+%]compressed\.webp)"
)
#: Folders of radt's own files, whose pictures belong to a profile or an archive.
_OWN = ("profiles/", "radt/", "environment/")
#: Kinds of which only some files are shown.
_SOME = (FileKind.JSON, FileKind.FIGURE)


@dataclass(frozen=True, slots=True)
class MediaFile:
    """A file of a sequence. ``step`` is None if it has none."""

    step: int | None
    path: str


@dataclass(frozen=True, slots=True)
class Sequence:
    """Files of one name and kind, by step."""

    name: str
    kind: FileKind
    items: tuple[MediaFile, ...]


def sequences_of(paths: Iterable[str], is_logged: Callable[[str], bool]) -> list[Sequence]:
    """Return the sequences that the script logged, those with steps first; skip other files.

    ``is_logged`` returns True for a JSON file with a table, and for an HTML file with a figure.
    """
    found: dict[tuple[str, str], dict[int | None, str]] = {}
    for path in sorted(paths):
        if path.startswith(_OWN):
            continue
        if match := _MLFLOW.fullmatch(path):
            if match["suffix"] == ".png":  # sorted by time: the last file of a step counts
                name = f"{IMAGES}/{match['name'].replace('~', '/').replace('#', '/')}"
                found.setdefault((name, ".png"), {})[int(match["step"])] = path
        elif match := _STEP.fullmatch(path):
            found.setdefault((match["name"], match["suffix"]), {})[int(match["step"])] = path
        elif kind_of(path) is FileKind.IMAGE or (kind_of(path) in _SOME and is_logged(path)):
            name, _, suffix = path.rpartition(".")
            found.setdefault((name, f".{suffix}"), {})[None] = path
    sequences = [_sequence(name, suffix, by_step) for (name, suffix), by_step in found.items()]
    return sorted(sequences, key=lambda each: (each.items[-1].step is None, each.name, each.kind))


def begins_as_logged(path: str, head: bytes) -> bool:
    """Return True if a JSON file begins like a table, or an HTML file like a plotly figure."""
    return head.startswith(_TABLE_BEGINS) if kind_of(path) is FileKind.JSON else b"Plotly" in head


def is_copy(path: str) -> bool:
    """Return True if the file is MLflow's smaller copy of an image."""
    match = _MLFLOW.fullmatch(path)
    return match is not None and match["suffix"] != ".png"


def _sequence(name: str, suffix: str, by_step: dict[int | None, str]) -> Sequence:
    kind = kind_of(f"x{suffix}")
    for folder in (IMAGES, TABLES):
        if name.startswith(f"{folder}/"):
            name = name.removeprefix(f"{folder}/")
            kind = FileKind.TABLE if folder == TABLES else kind
            break
    ordered = sorted(by_step, key=lambda step: (step is not None, step or 0))
    return Sequence(name, kind, tuple(MediaFile(step, by_step[step]) for step in ordered))
