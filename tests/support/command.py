"""The ``radt`` command without a process of its own, whose start takes most of a short command.

For commands that only read and print. What starts processes, handles signals or ends in the middle
is called as users call it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from click.testing import CliRunner

from radt.cli import main


def printed(
    folder: Path, *arguments: str, code: int = 0, env: Mapping[str, str] | None = None
) -> str:
    """Return all that ``radt`` prints in a folder, in this process's environment and ``env``."""
    done = called(folder, {**os.environ, **(env or {})}, *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return str(done.stdout + done.stderr)


def called(
    folder: Path, env: Mapping[str, str], *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Call ``radt`` in a folder, with these variables and no others; the result is a process's."""
    threshold = gc.get_threshold()
    variables = {**dict.fromkeys(os.environ), **env}
    code = 0
    with contextlib.chdir(folder), CliRunner().isolation(env=variables) as (out, err, _):
        try:
            main(arguments)
        except SystemExit as end:
            assert isinstance(end.code, int)
            code = end.code
        finally:
            gc.set_threshold(*threshold)
        said, complaints = (stream.getvalue().decode() for stream in (out, err))
    return subprocess.CompletedProcess(arguments, code, said, complaints)
