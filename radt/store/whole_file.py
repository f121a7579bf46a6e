"""Write files that appear completely or not at all.

A separate module, because processes that must not import pandas write files too.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from radt.errors import UsageError


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield an empty file beside ``path`` that replaces it if the block succeeds.

    Raises:
        UsageError: The file cannot be written.
    """
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            umask = os.umask(0)
            os.umask(umask)
            temporary.chmod(0o666 & ~umask)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror or error}",
            "Give another file with -o, or free some disk space",
        ) from error
