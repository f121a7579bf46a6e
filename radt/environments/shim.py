"""Makes radt importable in environments that lack it, and nothing else of what radt runs on.

A folder on ``PYTHONPATH`` that holds one link, ``radt``, to the installed package. So the journal
is always written by the version that reads it. What scripts import of radt needs the standard
library only (tests/packaging holds that).
"""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path

import radt
from radt.errors import EnvironmentBuildError


def package_folder() -> Path:
    """Where this radt is installed."""
    return Path(radt.__file__).resolve().parent


def outside_links(package: Path) -> dict[str, Path]:
    """Parts of the package that are links to folders outside of it, by name.

    There are some in an editable install, for parts that stand at the top of the repository.
    """
    return {
        entry.name: entry.resolve()
        for entry in sorted(package.iterdir())
        if entry.is_symlink() and not entry.resolve().is_relative_to(package)
    }


def importable_folder(base: Path) -> Path:
    """The folder for ``PYTHONPATH``, made in ``base`` if it is not there.

    Raises:
        EnvironmentBuildError: It cannot be made.
    """
    package = package_folder()
    digest = hashlib.sha256(os.fsencode(package)).hexdigest()[:16]
    folder = base / f"import-{digest}"
    link = folder / "radt"
    try:
        if not link.exists():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh = folder / f".{secrets.token_hex(4)}"
            fresh.symlink_to(package)
            fresh.replace(link)  # whole or not there: other radts do the same
    except OSError as error:
        raise EnvironmentBuildError(
            f"{folder} cannot be made: {error.strerror}",
            "Make room there, or look at its permissions",
        ) from error
    return folder


def with_first(first: str, rest: str | None) -> str:
    """A search path with an entry in front; an empty rest adds nothing (it would mean '.')."""
    return f"{first}{os.pathsep}{rest}" if rest else first
