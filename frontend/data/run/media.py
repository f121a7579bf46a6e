"""Images, figures, tables and texts of a run by name and step, found by the paths of its artifacts.

A file ``FOLDER/step-N.SUFFIX`` is step N of a sequence, whoever wrote it (`radt.run.media`).
MLflow's ``log_image`` with a key writes ``images/NAME+step+N+timestamp+T+ID.png`` (earlier versions
``%`` for ``+``), with ``~`` (earlier ``#``) for ``/`` in the name, beside a smaller copy, which is
not shown. Its ``log_table`` and ``log_figure`` write any name, so those files are known by how they
begin.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from radt.frontend.data.run.kinds import Kind, kind_of
from radt.home import IMAGES, TABLES

#: Enough of a file for `begins_as_logged`.
HEAD_BYTES = 4096
#: How a table begins that MLflow's or radt's ``log_table`` wrote.
_TABLE_BEGINS = b'{"columns":'

_STEP = re.compile(r"(?P<name>.+)/step-(?P<step>-?\d{1,19})(?P<suffix>\.[^./]+)")
_MLFLOW = re.compile(
    r"images/(?P<name>[^/]+?)[+%]step[+%](?P<step>-?\d{1,19})[+%]timestamp[+%](?P<time>\d+)"
    r"[+%](?P<copy>[0-9a-f-]+)(?P<suffix>\.png|[+%]compressed\.webp)"
)
#: Folders of radt's own files: pictures in them belong to a profile or an archive.
_OWN = ("profiles/", "radt/", "environment/")
#: Kinds of which only some files are shown.
_SOME = (Kind.JSON, Kind.FIGURE)


@dataclass(frozen=True, slots=True)
class Item:
    """A file of a sequence; ``step`` None if it has none."""

    step: int | None
    path: str


@dataclass(frozen=True, slots=True)
class Sequence:
    """Files of one name and kind, by step."""

    name: str
    kind: Kind
    items: tuple[Item, ...]


def sequences_of(paths: Iterable[str], is_logged: Callable[[str], bool]) -> list[Sequence]:
    """Return what the script logged by name, those with steps first; other files are left out.

    ``is_logged`` tells whether a file in JSON is a table, and one in HTML a figure.
    """
    found: dict[tuple[str, str], dict[int | None, str]] = {}
    for path in sorted(paths):
        if path.startswith(_OWN):
            continue
        if match := _MLFLOW.fullmatch(path):
            if match["suffix"] == ".png":  # by time: the last of a step counts
                name = f"{IMAGES}/{match['name'].replace('~', '/').replace('#', '/')}"
                found.setdefault((name, ".png"), {})[int(match["step"])] = path
        elif match := _STEP.fullmatch(path):
            found.setdefault((match["name"], match["suffix"]), {})[int(match["step"])] = path
        elif kind_of(path) is Kind.IMAGE or (kind_of(path) in _SOME and is_logged(path)):
            name, _, suffix = path.rpartition(".")
            found.setdefault((name, f".{suffix}"), {})[None] = path
    sequences = [_sequence(name, suffix, by_step) for (name, suffix), by_step in found.items()]
    return sorted(sequences, key=lambda each: (each.items[-1].step is None, each.name, each.kind))


def begins_as_logged(path: str, head: bytes) -> bool:
    """Return whether a file in JSON begins as a table, or one in HTML as a figure of plotly."""
    return head.startswith(_TABLE_BEGINS) if kind_of(path) is Kind.JSON else b"Plotly" in head


def is_copy(path: str) -> bool:
    """Return whether MLflow wrote the file as a smaller copy of an image."""
    match = _MLFLOW.fullmatch(path)
    return match is not None and match["suffix"] != ".png"


def _sequence(name: str, suffix: str, by_step: dict[int | None, str]) -> Sequence:
    kind = kind_of(f"x{suffix}")
    for folder in (IMAGES, TABLES):
        if name.startswith(f"{folder}/"):
            name = name.removeprefix(f"{folder}/")
            kind = Kind.TABLE if folder == TABLES else kind
            break
    ordered = sorted(by_step, key=lambda step: (step is not None, step or 0))
    return Sequence(name, kind, tuple(Item(step, by_step[step]) for step in ordered))
