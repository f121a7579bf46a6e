"""Git, as a user of this machine with a name."""

from __future__ import annotations

import subprocess
from pathlib import Path


def git(folder: Path, *arguments: str) -> str:
    """Run a command of Git in a folder and return what it prints."""
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    return subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()
