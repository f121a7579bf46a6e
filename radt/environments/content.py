"""What a build depends on, as a hash: files, and the files and local packages that they name."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
from pathlib import Path

#: ``-r other.txt``, ``-c constraints.txt``, ``-e ../package`` and their long forms.
_OPTION = re.compile(
    r"(?P<option>-r|-c|-e|--requirement|--constraint|--editable)(?:\s*=\s*|\s+|(?<=-[rce]))"
    r"(?P<value>.+)"
)
_COMMENT = re.compile(r"(^|\s)#.*$")
_FILE_URL = re.compile(r"file:(?://(?:localhost)?)?(?P<path>/[^\s#;]*)")
#: Folders that are made from others.
_SKIPPED = frozenset(
    {".git", ".venv", "__pycache__", "build", "dist", ".mypy_cache", ".ruff_cache"}
)


class Content:
    """Collects what an environment is made of. The order in which things are added matters."""

    def __init__(self, kind: str) -> None:
        self._hash = hashlib.sha256()
        self._seen: set[Path] = set()
        # Environments of one home folder may be for machines of different kinds.
        self.add("kind", kind, sys.platform, platform.machine(), *platform.libc_ver())

    def add(self, *parts: str) -> None:
        """Take texts in."""
        self._hash.update(repr(parts).encode("utf-8", "surrogateescape"))

    def add_own_python(self) -> None:
        """The interpreter that runs radt, as what an environment is based on."""
        self.add("python", sys.base_prefix, platform.python_version(), sys.version)

    def add_file(self, path: Path) -> None:
        """The bytes of a file; that it is missing counts too, its reader will complain."""
        try:
            self.add("file", hashlib.sha256(path.read_bytes()).hexdigest())
        except OSError as error:
            self.add("no file", str(path), str(error.errno))

    def add_requirements(self, path: Path) -> None:
        """A requirements file and all that it refers to on this machine."""
        if path in self._seen:
            return
        self._seen.add(path)
        self.add_file(path)
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return
        self.add_requirement_lines(text, path.parent)

    def add_requirement_lines(self, text: str, folder: Path) -> None:
        """Lines as in a requirements file; ``folder`` is what relative paths start from."""
        self.add("lines", text)
        for line in text.replace("\\\n", " ").splitlines():
            requirement = _COMMENT.sub("", line).strip()
            if option := _OPTION.fullmatch(requirement):
                path = folder / option["value"].strip().strip("\"'")
                if option["option"] in ("-e", "--editable"):
                    self.add("editable", str(path.resolve()))  # its sources are used as they are
                else:
                    self.add_requirements(path)
            elif url := _FILE_URL.search(requirement):
                self._add_package(Path(url["path"]))
            elif requirement.startswith((".", "/")):
                self._add_package(folder / re.split(r"[;\[]|\s#", requirement)[0].strip())

    def _add_package(self, path: Path) -> None:
        """A package's file, or a folder with its sources: names, sizes and times of change."""
        if not path.is_dir():
            self.add_file(path)
            return
        self.add("folder", str(path.resolve()))
        for parent, folders, files in os.walk(path):
            folders[:] = sorted(
                name for name in folders if name not in _SKIPPED and not name.endswith(".egg-info")
            )
            for name in sorted(files):
                try:
                    status = os.lstat(os.path.join(parent, name))  # noqa: PTH118 - os.walk's own
                except OSError:
                    continue  # gone between the two calls
                self.add(parent, name, str(status.st_size), str(status.st_mtime_ns))

    def key(self) -> str:
        """A name for a folder: two contents with the same one are the same."""
        return self._hash.hexdigest()[:32]
