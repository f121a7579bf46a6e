"""Ask Git about the repository of a folder, without changing the repository."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from radt.processes import run_command

_TIMEOUT_S = 10.0
#: Variables that would make Git look at another repository.
_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY")


def repository_of(folder: Path) -> Path | None:
    """Return the ``.git`` of the folder or of the nearest folder above it; None without one."""
    folder = folder.resolve()
    candidates = (place / ".git" for place in (folder, *folder.parents))
    return next((place for place in candidates if os.path.lexists(place)), None)


def ask_git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Git in a folder, without changing anything in its repository.

    Git refuses repositories of other users, because their settings could name programs to run. A
    repository of root or of the folder's owner is accepted nevertheless, as in containers: the
    programs in the folder are run anyway.

    Raises:
        OSError: The folder does not exist, or Git is not installed.
        subprocess.TimeoutExpired: Git does not respond.
    """
    environment = {key: text for key, text in os.environ.items() if key not in _VARIABLES}
    # Without optional locks, a status never disturbs the user's own Git commands.
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    # Without fsmonitor: a repository's own settings could make it start a daemon.
    settings = ["-c", "core.fsmonitor=false"]
    repository = repository_of(folder)
    if repository is not None and repository.lstat().st_uid in (folder.stat().st_uid, 0):
        settings += ["-c", "safe.directory=*"]
    return run_command(["git", *settings, *arguments], _TIMEOUT_S, cwd=folder, env=environment)


#: Rows of one workload are prepared within this time and share one reading.
_FRESH_S = 2.0


@dataclass(frozen=True, slots=True)
class GitState:
    """Git state of a folder; ``commit`` is None outside a repository and before the first commit.

    ``dirty`` counts changes of tracked files only, as ``git describe --dirty`` does.
    """

    commit: str | None = None
    dirty: bool = False
    problem: str | None = None


_git_states: dict[Path, tuple[float, GitState]] = {}


def read_git(folder: Path) -> GitState:
    """Return commit and dirtiness of the repository that holds ``folder``."""
    known = _git_states.get(folder)
    if known is not None and time.monotonic() - known[0] < _FRESH_S:
        return known[1]
    state = _ask_git(folder)
    _git_states[folder] = (time.monotonic(), state)
    return state


def _ask_git(folder: Path) -> GitState:
    if folder.is_dir() and repository_of(folder) is None:
        return GitState()
    try:
        answer = ask_git(folder, "status", "--porcelain=v2", "--branch", "--untracked-files=no")
    except FileNotFoundError as error:
        missing = "git is not installed" if error.filename == "git" else f"no folder {folder}"
        return GitState(problem=f"the git commit is unknown: {missing}")
    except (OSError, subprocess.TimeoutExpired) as error:
        return GitState(problem=f"the git commit is unknown: {error}")
    if answer.returncode != 0:
        complaint = " ".join(answer.stderr.split())
        if "not a git repository" in complaint:
            return GitState()
        return GitState(problem=f"the git commit is unknown: {complaint}")
    lines = answer.stdout.splitlines()
    commits = [line.split()[-1] for line in lines if line.startswith("# branch.oid ")]
    commit = commits[0] if commits and commits[0] != "(initial)" else None
    return GitState(commit, dirty=any(not line.startswith("#") for line in lines))
