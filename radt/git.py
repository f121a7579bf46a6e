"""Ask Git about the repository of a folder."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_TIMEOUT_S = 10.0
#: These would make Git look at another repository than the folder's.
_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY")


def repository_of(folder: Path) -> Path | None:
    """Return the folder's repository, which the folder or one above it has; None without any."""
    folder = folder.resolve()
    candidates = (place / ".git" for place in (folder, *folder.parents))
    return next((place for place in candidates if os.path.lexists(place)), None)


def ask_git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run Git in a folder, without changing anything in its repository.

    Git refuses repositories of other users, whose settings could name programs to run. A repository
    whose owner also owns the folder is asked nevertheless, as in a container: the folder's programs
    run anyway.

    Raises:
        OSError: There is no folder, or Git is not installed.
        subprocess.TimeoutExpired: Git does not answer.
    """
    environment = {key: text for key, text in os.environ.items() if key not in _VARIABLES}
    # Without optional locks, a status never disturbs the user's own Git commands.
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    # Without fsmonitor: a repository's own settings could make it start a daemon.
    settings = ["-c", "core.fsmonitor=false"]
    repository = repository_of(folder)
    if repository is not None and repository.lstat().st_uid in (folder.stat().st_uid, 0):
        settings += ["-c", "safe.directory=*"]
    return subprocess.run(
        ["git", *settings, *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
