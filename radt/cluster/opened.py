"""The open submission of an experiment file. Light: every start looks for it.

A hidden file beside the experiment file says where it is, from before its first job is submitted
until all of it is settled: with any data folder and any settings it is found, and runs go on once.
"""

from __future__ import annotations

import os
import pwd
import shlex
from contextlib import suppress
from pathlib import Path

from radt.cluster.settings import ClusterSettings, all_clusters
from radt.cluster.spool import Spool, put
from radt.errors import ClusterError, UsageError
from radt.experiment.files import table_path
from radt.home import Home
from radt.setting_values import find_settings


def open_submission(file: Path, home: Home | None = None) -> Spool | None:
    """Return the submission of an experiment file that is not settled; None if there is none.

    Args:
        file: The experiment file.
        home: The data folder that it is to be gone on with; None for its own.

    Raises:
        ClusterError: It cannot be read: it is another user's, or not there.
        UsageError: It is another data folder's.
    """
    mark = _mark_beside(file)
    try:
        owner = mark.stat().st_uid
        if owner != os.getuid():  # others cannot read what that user's jobs say
            raise ClusterError(
                f"{file} was submitted to a cluster by {_user(owner)}, and that is not settled yet",
                f"Wait for it, or copy the file. If it was given up, remove {mark}",
            )
        folder = Path(mark.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        spool = Spool(folder)
    except ClusterError as error:
        raise ClusterError(
            f"{file} was submitted to a cluster, and {error.message}",
            f"{error.remedy}. If its jobs are gone for good, remove {mark}",
        ) from error
    is_of_file = os.path.realpath(spool.submission.file) == os.path.realpath(table_path(file))
    if spool.is_closed or not is_of_file:  # a copy, with what lay beside the file
        return None
    theirs = spool.submission.home
    if home is not None and os.path.realpath(theirs) != os.path.realpath(home.path):
        raise UsageError(
            f"{_open(file, spool)}, with the data folder {theirs}",
            f"Run {_command(file, spool)} --home {shlex.quote(theirs)} to go on with it",
        )
    return spool


def open_submissions(home: Home) -> list[Spool]:
    """Return the user's unsettled submissions of all files, in the folders of all clusters of the
    working folder's settings, the oldest of each folder first.

    Raises:
        ClusterError: One of them cannot be read.
        OSError: The same.
    """
    folders = {ClusterSettings().submissions(home.path)}
    with suppress(UsageError):  # a cluster's settings do not matter to who runs without it
        folders |= {
            cluster.submissions(home.path) for cluster in all_clusters(find_settings(Path.cwd()))
        }
    spools = [
        Spool(path)
        for folder in sorted(folders)
        for path in _folders_in(folder)
        if (path / "submission.json").exists() and not (path / "closed").exists()
    ]
    return [spool for spool in spools if _is_marked(spool) or spool.requests()]


def _is_marked(spool: Spool) -> bool:
    """Whether a start of its file finds it; else its submitter was killed before it was to."""
    try:
        marked = _mark_beside(Path(spool.submission.file)).read_text(encoding="utf-8")
    except OSError:
        return False
    return os.path.realpath(marked) == os.path.realpath(spool.path)


def _folders_in(folder: Path) -> list[Path]:
    """Return the user's own folders; none where nothing was submitted, or others keep it."""
    try:
        return sorted(path for path in folder.iterdir() if path.lstat().st_uid == os.getuid())
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


def refuse_open_submission(file: Path) -> None:
    """Refuse to run a file here that a cluster is at.

    Raises:
        UsageError: It is.
        ClusterError: It may be; see `open_submission`.
    """
    if (spool := open_submission(file)) is not None:
        raise UsageError(
            _open(file, spool),
            f"Run {_command(file, spool)} to go on with it, or radt stop {shlex.quote(str(file))} "
            "to cancel it",
        )


def mark_open(spool: Spool) -> None:
    """Have others find a submission by its experiment file.

    Raises:
        ClusterError: They could not.
    """
    mark = _mark_beside(Path(spool.submission.file))
    try:
        put(mark, str(spool.path.absolute()))
    except OSError as error:
        raise ClusterError(
            f"cannot write {mark}: {error.strerror}; nothing was submitted",
            f"Check that you may write into {mark.parent}, and that there is room",
        ) from error


def close(spool: Spool) -> None:
    """Note that all of a submission is settled.

    Raises:
        OSError: It cannot be written; the submission is still open.
    """
    spool.close()
    _mark_beside(Path(spool.submission.file)).unlink(missing_ok=True)


def _mark_beside(file: Path) -> Path:
    target = Path(os.path.realpath(table_path(file)))
    return target.with_name(f".{target.name}.radt-submission")


def _open(file: Path, spool: Spool) -> str:
    return (
        f"{file} was submitted to {spool.submission.engine}, and that is not settled yet: "
        f"{spool.path}"
    )


def _command(file: Path, spool: Spool) -> str:
    return f"radt {shlex.quote(str(file))} --on {spool.submission.engine}"


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
