"""List the packages of an interpreter: this one, or one that may not have radt installed.

Another, possibly older interpreter runs this file as a program, so it imports the standard library
only and uses nothing newer than Python 3.8.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

_HEADER = re.compile(r"^(Name|Version):[ \t]*(.*?)[ \t\r]*$", re.MULTILINE)
#: Enough for both headers, which follow only the metadata version.
_HEAD_BYTES = 4096


def installed() -> list[str]:
    """Return ``name==version`` lines, the interpreter itself first.

    Reads the beginning of the metadata files directly, because every run of a script waits for this
    and `importlib.metadata` is several times slower. Packages inside zip files are left out.
    """
    found = {}
    for entry in sys.path:
        for name, version in _packages_in(entry) if entry not in ("", ".") else ():
            if name.lower() not in found:  # the first on sys.path is what gets imported
                found[name.lower()] = f"{name}=={version}"
    return ["python==" + sys.version.split()[0], *(found[name] for name in sorted(found))]


def _packages_in(folder: str) -> list[tuple[str, str]]:
    try:
        names = [path.name for path in Path(folder).iterdir()]
    except OSError:
        return []  # a zip file, or no such folder
    packages = []
    for name in names:
        if name.endswith(".dist-info"):
            candidates = [f"{folder}/{name}/METADATA"]
        elif name.endswith(".egg-info"):  # a folder by setuptools, a file by distutils
            candidates = [f"{folder}/{name}/PKG-INFO", f"{folder}/{name}"]
        else:
            continue
        for path in candidates:
            try:
                with Path(path).open("rb") as file:
                    head = file.read(_HEAD_BYTES).decode("utf-8", "replace")
            except OSError:
                continue
            headers = dict(_HEADER.findall(head.replace("\r\n", "\n").partition("\n\n")[0]))
            if headers.get("Name"):
                packages.append((headers["Name"], headers.get("Version") or "unknown"))
            break
    return packages


if __name__ == "__main__":
    print("\n".join(installed()))  # noqa: T201 - read by the process that started this interpreter
else:
    #: Source of the program for another interpreter.
    LIST_PACKAGES = Path(__file__).read_text(encoding="utf-8")
