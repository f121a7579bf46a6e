"""Routes of a run's files: its log, its artifacts, its trace.

They pass the same checks as every page (`radt.frontend.auth`), are attachments that browsers
neither show nor run, and are sent from the open file by the server's own thread, so that a slow
download of gigabytes does not delay other visitors. Other sites' pages cannot start a download.

The Run page shows pictures, sounds and films (``view``): only as their media type, which browsers
must not second-guess, and in a sandbox, so that a script in an SVG does not run even if somebody
opens its address. Any other content of a file reaches the page as text in JSON
(`radt.frontend.run_routes`).
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO
from urllib.parse import parse_qs, quote, urlencode

from dash import Dash
from flask import Response, request
from werkzeug.wsgi import FileWrapper, wrap_file

from radt.errors import RadtError, RunNotFoundError, StoreError
from radt.frontend.addresses import address
from radt.frontend.answers import content_disposition, text_answer
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.run.images import too_large
from radt.frontend.data.run.kinds import MEDIA_TYPES, suffix_of
from radt.frontend.data.run.previews import BusyError
from radt.frontend.data.run_files import folders_of, open_below, spool_of
from radt.home import RunDir
from radt.store.backend import StoreAddress
from radt.store.records import RunRecord
from radt.trace.build import MAX_POINTS, write_trace

log = logging.getLogger(__name__)

_OUTPUT_LOG = RunDir(Path()).output_log.name
_HTTP_REFUSED, _HTTP_MISSING, _HTTP_UNSHOWN, _HTTP_FAILED, _HTTP_BUSY = 403, 404, 415, 500, 503
_TEXT = "text/plain; charset=utf-8"
_BINARY = "application/octet-stream"
#: An SVG may have inline styles; nothing is loaded or run.
_IN_SANDBOX = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox"
# Creating the trace of a long run takes a core for seconds, and disk space for its file.
_tracing = threading.Lock()


def artifact_address(run_id: str, path: str) -> str:
    """Return the address of an artifact."""
    return address(
        f"files/{quote(run_id, safe='')}/artifact", urlencode({"path": os.fsencode(path)})
    )


def trace_address(run_id: str) -> str:
    """Return the address of a run's trace for ui.perfetto.dev."""
    return address(f"files/{quote(run_id, safe='')}/trace")


#: Answers a request about a run.
RunAnswer = Callable[[CachedStore, RunRecord], Response]


def register(app: Dash, source: CachedStore) -> None:
    """Register the routes of logs, artifacts, views and traces."""
    answers = {"log": _log, "artifact": _artifact, "view": _view, "trace": _trace}
    add_run_routes(app, source, "files", answers)


def add_run_routes(
    app: Dash, source: CachedStore, folder: str, answers: Mapping[str, RunAnswer]
) -> None:
    """Add routes ``FOLDER/RUN/NAME``, behind the same checks as every page."""

    def handler(answer: RunAnswer) -> Callable[[str], Response]:
        def handle(run_id: str) -> Response:
            return _refused() or _answered(lambda: answer(source, source.reader.run(run_id)))

        return handle

    # Dash's route matches all other paths; these are more specific, so they take precedence.
    for name, answer in answers.items():
        path = f"/{folder}/<run_id>/{name}"
        app.server.add_url_rule(path, f"radt-{folder}-{name}", handler(answer))


def path_asked() -> str:
    """Return the path as the file system stores it. Names may contain bytes that are not UTF-8."""
    query = request.query_string.decode("ascii", "replace")
    query_fields = parse_qs(
        query, keep_blank_values=True, errors="surrogateescape", max_num_fields=8
    )
    return query_fields.get("path", [""])[0]


def _refused() -> Response | None:
    """Refuse requests caused by other sites, such as links and images."""
    if request.headers.get("Sec-Fetch-Site", "none") in ("same-origin", "none"):
        return None
    return text_answer("Only the dashboard's own pages may load files.", _HTTP_REFUSED)


def _answered(make: Callable[[], Response]) -> Response:
    try:
        return make()
    except RunNotFoundError as error:
        return text_answer(str(error), _HTTP_MISSING)
    except BusyError as error:
        return _busy(str(error), 1)
    except RadtError as error:
        return text_answer(
            str(error), _HTTP_BUSY if isinstance(error, StoreError) else _HTTP_FAILED
        )
    except OSError as error:
        log.warning("a file could not be read: %s", error)
        return text_answer(f"The file cannot be read: {error.strerror}.", _HTTP_FAILED)


def open_log(record: RunRecord, store: StoreAddress) -> BinaryIO:
    """Open a run's log in its spool, or in MLflow's artifacts if they are on this machine.

    Raises:
        RunNotFoundError: The log is not on this machine.
    """
    spool = spool_of(record, store)
    folders = [] if spool is None else [spool.path]
    folders += [folder.path for folder in folders_of(record, store)]
    for folder in folders:
        try:
            return open_below(folder, _OUTPUT_LOG)
        except RunNotFoundError:
            continue
    raise RunNotFoundError(
        f"the output of run {record.run_id[:12]} is not on this machine",
        f"It is on {record.host}" if record.host else None,
    )


def _log(source: CachedStore, record: RunRecord) -> Response:
    name = f"{_stem(record)}-{_OUTPUT_LOG}"
    return _sent(open_any_log(source, record), name, _TEXT)


def open_artifact(source: CachedStore, record: RunRecord, path: str) -> BinaryIO:
    """Open an artifact in a run's spool, in local MLflow artifacts, or as a copy from MLflow.

    Raises:
        RunNotFoundError: There is no such file, or it is not accessible from here.
        ArchiveError: MLflow cannot be reached.
    """
    folders = folders_of(record, source.address)
    for folder in folders:
        with suppress(RunNotFoundError):
            return open_below(folder.path, path)
    if source.remote.is_there(record):
        return source.remote.open(record, path)
    if folders:
        return open_below(folders[0].path, path)  # raises with the reason
    raise RunNotFoundError(
        f"the artifacts of run {record.run_id[:12]} are not on this machine",
        f"They are on {record.host}" if record.host else None,
    )


def open_any_log(source: CachedStore, record: RunRecord) -> BinaryIO:
    """Open a run's log on this machine, or a copy of MLflow's.

    Raises:
        RunNotFoundError: The log is not accessible from here.
        ArchiveError: MLflow cannot be reached.
    """
    try:
        return open_log(record, source.address)
    except RunNotFoundError:
        if not source.remote.is_there(record):
            raise
        return source.remote.open(record, _OUTPUT_LOG)


def _artifact(source: CachedStore, record: RunRecord) -> Response:
    path = path_asked()
    file = open_artifact(source, record, path)
    return _sent(file, path.rpartition("/")[2], _BINARY)


def _view(source: CachedStore, record: RunRecord) -> Response:
    path = path_asked()
    media_type = MEDIA_TYPES.get(suffix_of(path))
    if media_type is None:
        raise RunNotFoundError("only pictures, sounds and films are shown", "Download the file")
    file = open_artifact(source, record, path)
    if reason := too_large(file, media_type):
        file.close()
        return text_answer(f"{reason}. Download it to see it.", _HTTP_UNSHOWN)
    status = os.fstat(file.fileno())
    # Werkzeug's wrapper supports range requests, which players send.
    response = Response(FileWrapper(file), mimetype=media_type, direct_passthrough=True)
    response.content_length = status.st_size
    response.headers["Content-Security-Policy"] = _IN_SANDBOX
    response.headers["Cache-Control"] = "private, no-cache"
    response.set_etag(f"{status.st_mtime_ns:x}-{status.st_size:x}")
    response.call_on_close(file.close)
    response.make_conditional(request, accept_ranges=True, complete_length=status.st_size)
    return response


def _trace(source: CachedStore, record: RunRecord) -> Response:
    if not _tracing.acquire(blocking=False):
        return _busy("Another trace is being created. Try again in a few seconds.", 5)
    try:
        with tempfile.TemporaryDirectory(prefix="radt-trace-") as folder:
            path = Path(folder) / "trace.json.gz"
            write_trace(
                source.reader,
                record,
                path,
                max_points=MAX_POINTS,
                folder_of=lambda run: _folder(run, source.address),
            )
            file = path.open("rb")  # stays readable after it is deleted
    finally:
        _tracing.release()
    return _sent(file, f"{_stem(record)}.trace.json.gz", "application/gzip")


def _folder(run: RunRecord, store: StoreAddress) -> Path | None:
    """Return a run's folder for its trace; never a path that is only in the store."""
    spool = spool_of(run, store)
    return None if spool is None else spool.path


def _stem(record: RunRecord) -> str:
    """Return ``three-b-1f2e3d4c``, to distinguish the files of several runs in one folder."""
    words = (record.workload, record.letter, record.run_id[:8])
    return "-".join(word for word in words if word)


def _sent(file: BinaryIO, name: str, mimetype: str) -> Response:
    size_bytes = os.fstat(file.fileno()).st_size
    response = Response(
        wrap_file(request.environ, file), mimetype=mimetype, direct_passthrough=True
    )
    # If the log grows meanwhile, send it up to its current size.
    response.content_length = size_bytes
    response.headers["Content-Disposition"] = content_disposition(name)
    response.headers["Content-Security-Policy"] = "default-src 'none'; sandbox"
    response.headers["Cache-Control"] = "no-store"
    response.call_on_close(file.close)
    return response


def _busy(message: str, again_s: int) -> Response:
    response = text_answer(message, _HTTP_BUSY)
    response.headers["Retry-After"] = str(again_s)
    return response
