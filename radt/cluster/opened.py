"""Where an experiment file runs, and its open submission. Light: every start imports it.

A hidden file beside the experiment file names its submission, from before the first job is
submitted until all of it is settled. It is found with any data folder and any settings, so that no
run is started twice.
"""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from radt.cluster.attempt import put
from radt.cluster.settings import ClusterSettings, all_clusters
from radt.cluster.spool import Spool
from radt.errors import ClusterError, UsageError
from radt.experiment.files import table_path
from radt.home import Home
from radt.procfs import name_of_uid
from radt.setting_values import find_settings
from radt.settings import ON, Settings

if TYPE_CHECKING:
    from radt.runner.executor import Executor


def executor_of(values: Settings, file: Path | None = None) -> Executor:
    """Return the executor that ``on`` names.

    Args:
        values: The settings.
        file: The experiment file to start, None for a plan only. It cannot be run here while its
            jobs are on a cluster.

    Raises:
        UsageError: There is no such cluster, one of its settings is invalid, or the file has an
            open submission.
        ClusterError: It may have one; see `open_submission`.
    """
    cluster = ClusterSettings.chosen(values)
    if cluster is None:
        if file is not None:
            refuse_open_submission(file)
        from radt.runner.schedule import LocalExecutor  # imports are slow: load only what is used

        return LocalExecutor()
    from radt.cluster.executor import SlurmExecutor

    return SlurmExecutor(values[ON], cluster)


def open_submission(file: Path, home: Home | None = None) -> Spool | None:
    """Return the unsettled submission of an experiment file; None if there is none.

    Args:
        file: The experiment file.
        home: The data folder to continue with; None for the submission's own.

    Raises:
        ClusterError: It cannot be read: it belongs to another user, or is missing.
        UsageError: It belongs to another data folder.
    """
    mark = _mark_beside(file)
    try:
        owner = mark.stat().st_uid
        if owner != os.getuid():  # other users cannot read what that user's jobs report
            raise ClusterError(
                f"{file} was submitted to a cluster by {name_of_uid(owner)}, and that is not "
                "settled yet",
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
    if spool.is_closed or not is_of_file:  # not this file's: a copy was made with its hidden file
        return None
    theirs = spool.submission.home
    if home is not None and os.path.realpath(theirs) != os.path.realpath(home.path):
        raise UsageError(
            f"{_open(file, spool)}, with the data folder {theirs}",
            f"Run {_command(file, spool)} --home {shlex.quote(theirs)} to go on with it",
        )
    return spool


def open_submissions(home: Home) -> list[Spool]:
    """Return the user's unsettled submissions of all files, oldest first within each folder.

    Searches the folders of all clusters in the working folder's settings.

    Raises:
        ClusterError: One of them cannot be read.
        OSError: The same.
    """
    folders = {ClusterSettings().submissions(home.path)}
    with suppress(UsageError):  # invalid cluster settings must not affect users without a cluster
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
    """Return True if its file names it; otherwise its submitter was killed before marking it."""
    try:
        marked = _mark_beside(Path(spool.submission.file)).read_text(encoding="utf-8")
    except OSError:
        return False
    return os.path.realpath(marked) == os.path.realpath(spool.path)


def _folders_in(folder: Path) -> list[Path]:
    """Return the user's own folders; none if nothing was submitted, or others own the folder."""
    try:
        return sorted(path for path in folder.iterdir() if path.lstat().st_uid == os.getuid())
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


def refuse_open_submission(file: Path) -> None:
    """Refuse to run a file here whose jobs are on a cluster.

    Raises:
        UsageError: It has an open submission.
        ClusterError: It may have one; see `open_submission`.
    """
    if (spool := open_submission(file)) is not None:
        raise UsageError(
            _open(file, spool),
            f"Run {_command(file, spool)} to go on with it, or radt stop {shlex.quote(str(file))} "
            "to cancel it",
        )


def mark_open(spool: Spool) -> None:
    """Make a submission known to others, by a hidden file beside its experiment file.

    Raises:
        ClusterError: The file cannot be written.
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
