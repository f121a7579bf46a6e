"""Parameters: nested names, and Lightning's ``hparams.yaml``, whoever wrote it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import yaml

from radt.importers.below import SourceFile
from radt.importers.files import guarded
from radt.importers.source import RunFacts

#: Lightning's file of parameters.
PARAMS = "hparams.yaml"
#: Nesting of names, and of values within a parameter.
MAX_DEPTH = 50
#: What a file of parameters, and what it stands for when its aliases are replaced, may have.
_MAX_CHARS = 2**18
_STARTS = (yaml.MappingStartEvent, yaml.SequenceStartEvent)
_ENDS = (yaml.MappingEndEvent, yaml.SequenceEndEvent)


def params_in(folder: Path, root: Path) -> list[SourceFile]:
    """Return the file with parameters that Lightning writes beside its logs, if it is there."""
    path = folder / PARAMS
    return [SourceFile(root, path.relative_to(root).as_posix())] if os.path.lexists(path) else []


def read_params(file: SourceFile, facts: RunFacts) -> None:
    """Read parameters that Lightning wrote."""
    for key, value in guarded(str(file), _params(file), facts):
        facts.params[key] = value


def _params(file: SourceFile) -> Iterator[tuple[str, str]]:
    """
    Raises:
        OSError: The file cannot be read.
        ValueError: It is not text, too large, or too deep.
        yaml.YAMLError: It is not YAML.
    """
    with file.open() as stream:
        text = stream.read(_MAX_CHARS + 1).decode()
    if len(text) > _MAX_CHARS:
        raise ValueError(f"parameters of more than {_MAX_CHARS:,} characters")
    _check_aliases(text)
    data = yaml.safe_load(text)
    if isinstance(data, dict):
        yield from ((key, str(value)) for key, value in flattened(data))


def _check_aliases(text: str) -> None:
    """Check what a text stands for, before anything is made of it.

    Raises:
        ValueError: Aliases make too much of it or lead into themselves, or it is nested too deep.
        yaml.YAMLError: It is not YAML.
    """
    sizes: dict[str, int] = {}
    # Anchors and sizes of the collections that are open; the first one is the document.
    open_: list[tuple[str | None, int]] = [(None, 0)]
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, _STARTS):
            open_.append((event.anchor, 1))
            if len(open_) > MAX_DEPTH:
                raise ValueError(f"parameters nested deeper than {MAX_DEPTH}")
            continue
        if isinstance(event, _ENDS):
            anchor, size = open_.pop()
        elif isinstance(event, yaml.ScalarEvent):
            anchor, size = event.anchor, 1 + len(event.value)
        elif isinstance(event, yaml.AliasEvent):
            anchor, size = None, sizes.get(str(event.anchor), _MAX_CHARS)
        else:
            continue
        if anchor is not None:
            sizes[anchor] = size
        outer, so_far = open_.pop()
        open_.append((outer, so_far + size))
        if so_far + size > _MAX_CHARS:
            raise ValueError("aliases (*name) that stand for too much, or for themselves")


def flattened(data: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the leaves of nested dicts with their keys joined by dots.

    >>> dict(flattened({"a": {"b": 1}}))
    {'a.b': 1}
    """
    if isinstance(data, dict) and data:
        for key, value in data.items():
            yield from flattened(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, data
