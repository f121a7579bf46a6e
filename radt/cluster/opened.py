"""The open submissions of an experiment file. Light: every start looks for them."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path

from radt.cluster.settings import ClusterSettings, all_clusters
from radt.cluster.spool import Spool, open_submissions
from radt.errors import UsageError
from radt.experiment.files import table_path
from radt.home import Home
from radt.setting_values import find_settings


def submissions_of(file: Path | None, home: Home) -> list[Spool]:
    """Return the open submissions of an experiment file, in the folder of any of its clusters.

    Without a file, those of all files, in the folders of the clusters of the working folder.

    Raises:
        ClusterError: One of them cannot be read.
    """
    folders = {ClusterSettings().submissions(home.path)}
    with suppress(UsageError):  # a cluster's settings do not matter to who runs without it
        beside = Path.cwd() if file is None else file.absolute().parent
        for cluster in all_clusters(find_settings(beside)):
            folders.add(cluster.submissions(home.path))
    table = None if file is None else table_path(file)
    return [spool for folder in sorted(folders) for spool in open_submissions(folder, table)]


def refuse_open_submissions(file: Path, home: Home) -> None:
    """Refuse to run a file here that a cluster is at.

    Raises:
        UsageError: It is.
    """
    if spools := submissions_of(file, home):
        on, shown = spools[0].submission.engine, shlex.quote(str(file))
        raise UsageError(
            f"{file} was submitted to {on}, and that is not settled yet",
            f"Run radt {shown} --on {on} to go on with it, or radt stop {shown} to cancel it",
        )
