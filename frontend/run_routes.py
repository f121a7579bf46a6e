"""Routes of the Run page: its files and their beginnings, and parts of its log, as JSON.

The content of files is plain text in these answers, which the page puts into text nodes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any
from urllib.parse import quote

from dash import Dash
from flask import Response, request

from radt import units
from radt.errors import ArchiveError, RunNotFoundError
from radt.frontend.answers import json_answer
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.run import log
from radt.frontend.data.run.kinds import kind_of
from radt.frontend.data.run.media import (
    HEAD_BYTES,
    Sequence,
    begins_as_logged,
    is_copy,
    sequences_of,
)
from radt.frontend.data.run_files import Artifact, FilesLocation, Listing, list_artifacts
from radt.frontend.files import add_run_routes, open_any_log, open_artifact, path_asked
from radt.frontend.pages.workload_texts import files_place
from radt.home import IMAGES, TABLES
from radt.store.records import RunRecord

#: Maximum number of a run's files that the page lists or shows by step.
MAX_FILES = 20_000
#: Folders in which radt writes images, figures and tables.
_FOLDERS = (f"{IMAGES}/", f"{TABLES}/")
_MAX_QUERY = 500
_HTTP_SAME = 204


def register(app: Dash, source: CachedStore) -> None:
    """Register the routes, behind the same checks as every page."""
    answers = {"files": _files, "preview": _preview, "log": _log, "search": _search}
    add_run_routes(app, source, "run", answers)


def _files(source: CachedStore, record: RunRecord) -> Response:
    """Answer with the run's files and sequences; without content if the page already has them."""
    listing = list_artifacts(record, source.address, MAX_FILES)
    place = ""
    if record.status.ended and not any(f.place is FilesLocation.DELIVERED for f in listing.files):
        try:
            listing = _with_remote(listing, source.remote.sizes(record))
        except ArchiveError as error:
            place = str(error)
    is_here = {file.path: file.place is not FilesLocation.REMOTE for file in listing.files}

    def is_logged(path: str) -> bool:
        # Remote files are not fetched to inspect their first bytes.
        return _is_logged(source, record, path) if is_here[path] else path.startswith(_FOLDERS)

    sequences = sequences_of(is_here, is_logged)
    in_steps = {item.path for each in sequences for item in each.items if len(each.items) > 1}
    files = [
        [_encoded(file.path), units.size(file.size_bytes), kind_of(file.path)]
        for file in listing.files
        if file.path not in in_steps and not is_copy(file.path)
    ]
    content = {
        "files": files,
        "left_out": listing.left_out,
        "place": place or files_place(record, listing),
        "sequences": [_sequence(each) for each in sequences],
    }
    data = json.dumps(content)
    digest = hashlib.blake2b(data.encode(), digest_size=8).hexdigest()
    if request.args.get("known") == digest:
        return Response(status=_HTTP_SAME)
    return json_answer(content | {"digest": digest})


def _with_remote(listing: Listing, sizes: Mapping[str, int]) -> Listing:
    """Return a listing with the files that only MLflow has."""
    here = {file.path for file in listing.files}
    there = (Artifact(p, size, FilesLocation.REMOTE) for p, size in sizes.items() if p not in here)
    files = sorted((*listing.files, *there), key=lambda artifact: artifact.path)
    return Listing(tuple(files[:MAX_FILES]), listing.left_out + max(0, len(files) - MAX_FILES))


def _is_logged(source: CachedStore, record: RunRecord, path: str) -> bool:
    try:
        with open_artifact(source, record, path) as file:
            return begins_as_logged(path, file.read(HEAD_BYTES))
    except (RunNotFoundError, OSError):
        return False  # just uploaded or deleted


def _sequence(sequence: Sequence) -> dict[str, Any]:
    name = sequence.name.encode("utf-8", "replace").decode("utf-8")
    items = [[item.step, _encoded(item.path)] for item in sequence.items]
    return {"name": name, "kind": sequence.kind, "items": items}


def _encoded(path: str) -> str:
    """Return a path in its address form. Names may contain bytes that are not UTF-8."""
    return quote(os.fsencode(path), safe="/")


def _preview(source: CachedStore, record: RunRecord) -> Response:
    path = path_asked()
    with open_artifact(source, record, path) as file:
        return json_answer(source.previews.read(file, path))


def _log(source: CachedStore, record: RunRecord) -> Response:
    before, after = _place("before"), _place("after")
    try:
        with open_any_log(source, record) as file:
            part = log.part_before(file, before) if after is None else log.part_after(file, after)
    except (RunNotFoundError, ArchiveError) as error:  # not a failure: many runs have no log
        return json_answer({"missing": str(error)})
    return json_answer(asdict(part) | {"size_text": units.size(part.size)})


def _search(source: CachedStore, record: RunRecord) -> Response:
    text = request.args.get("text", "")[:_MAX_QUERY]
    with open_any_log(source, record) as file:
        found = log.search(file, text, _place("scanned") or 0, _place("lines") or 0)
    return json_answer(asdict(found))


def _place(name: str) -> int | None:
    given = request.args.get(name, "")
    return int(given) if given.isdecimal() and len(given) < 19 else None
