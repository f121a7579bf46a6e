"""List what is installed for an interpreter: this one, or one that need not have radt.

This file is also the program that another interpreter runs, which may be older than ours: it
imports the standard library only, and nothing newer than Python 3.8's.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import distributions
from pathlib import Path

_HEADER = re.compile(r"^(Name|Version):[ \t]*(.*?)[ \t\r]*$", re.MULTILINE)


def installed() -> list[str]:
    """Return ``name==version`` lines, the interpreter itself first.

    Reads heads of files with an expression: parsing the whole of them takes ten times as long.
    """
    found = {}
    for one in distributions(path=[entry for entry in sys.path if entry not in ("", ".")]):
        text = one.read_text("METADATA") or one.read_text("PKG-INFO") or ""
        head = dict(_HEADER.findall(text.replace("\r\n", "\n").partition("\n\n")[0]))
        name = head.get("Name")
        if name and name.lower() not in found:  # the first on sys.path is what gets imported
            found[name.lower()] = f"{name}=={head.get('Version') or 'unknown'}"
    return ["python==" + sys.version.split()[0], *(found[name] for name in sorted(found))]


if __name__ == "__main__":
    print("\n".join(installed()))  # noqa: T201 - to whoever asks this interpreter
else:
    #: The program for another interpreter.
    LIST_PACKAGES = Path(__file__).read_text(encoding="utf-8")
