"""Stands in for conda, mamba and micromamba: makes a prefix as they do, if it is asked rightly.

Holds state: the prefix, as a virtual environment with conda's bookkeeping, and a list of calls.
Which tool it is, its file's name says; the environment file may ask for trouble.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time
import venv

STATE = pathlib.Path(os.environ["FAKE_STATE"])


def fail(text: str, code: int = 1) -> None:
    print(text, file=sys.stderr)
    sys.exit(code)


def options(words: list[str]) -> dict[str, str]:
    found = {}
    while words:
        name = words.pop(0)
        if name in ("--prefix", "--file"):
            found[name] = words.pop(0)
        elif name == "--yes":
            found[name] = ""
        else:
            fail(f"error: unrecognized arguments: {name}", 2)
    return found


def main() -> None:
    name, words = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
    with (STATE / "calls").open("a", encoding="utf-8") as calls:
        calls.write(f"{name} {' '.join(words)}\n")
    if name == "micromamba":
        if words[:1] != ["create"]:
            fail("The following argument was not expected: " + words[0], 109)
        asked = options(words[1:])
        certain = "--yes" in asked
    else:
        if words[:2] != ["env", "create"]:
            fail("usage: env create", 2)
        asked = options(words[2:])
        if "--yes" in asked and name == "conda" and os.environ.get("FAKE_OLD_CONDA"):
            fail("conda-env: error: unrecognized arguments: --yes", 2)
        certain = bool(
            os.environ.get("CONDA_ALWAYS_YES" if name == "conda" else "MAMBA_ALWAYS_YES")
        )
    if not certain and not sys.stdin.readline():
        fail("Confirm changes: [Y/n] aborted")
    prefix, file = pathlib.Path(asked["--prefix"]), pathlib.Path(asked["--file"])
    if prefix.exists():
        fail(f"CondaValueError: prefix already exists: {prefix}")
    text = file.read_text(encoding="utf-8")
    print("Collecting package metadata (repodata.json): done", flush=True)
    if "no-such-package" in text:
        fail("ResolvePackageNotFound:\n  - no-such-package")
    if "disk-full" in text:
        fail("[Errno 28] No space left on device")
    if "wait-for-the-test" in text:
        prefix.mkdir()
        (STATE / "building~").write_text(str(os.getpid()))
        (STATE / "building~").rename(STATE / "building")  # whole or not there
        while not (STATE / "go").exists():
            time.sleep(0.02)
    if "python" in text:
        venv.create(prefix, symlinks=True, with_pip=False)
    else:
        (prefix / "bin").mkdir(parents=True)
    meta = prefix / "conda-meta"
    meta.mkdir()
    (meta / "cuda-toolkit-12.4-h5_0.json").write_text("{}")
    (meta / "state").write_text(json.dumps({"env_vars": {"FROM_FILE": "declared"}}))
    activate = prefix / "etc/conda/activate.d"
    activate.mkdir(parents=True)
    (activate / "b.sh").write_text('export GDAL_DATA="$CONDA_PREFIX/share/gdal"\necho noise\n')
    (activate / "a.sh").write_text('export LD_LIBRARY_PATH="$CONDA_PREFIX/lib:$LD_LIBRARY_PATH"\n')


main()
