"""Which git commit a name means: ``HEAD``, ``HEAD~1``, a branch, a tag."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_TIMEOUT_S = 10.0
#: Characters of a commit that people are shown.
SHORT = 7


def resolved(name: str, folder: Path) -> str | None:
    """The full id of the commit that a name means in the repository that holds a folder.

    None where there is no repository, no such commit, or no git.
    """
    if name.startswith("-"):  # would be an option of git's
        return None
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = answer.stdout.decode(errors="replace").strip()
    return found if answer.returncode == 0 and found else None
