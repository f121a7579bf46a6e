"""Previews of files, read by helper processes: at most two at once, with limits.

A file can make a library decode far more than it holds. What goes beyond a limit ends the helper,
not the dashboard, and the page says which limit it was.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import BinaryIO

from radt import units
from radt.frontend.data.run.preview import Preview
from radt.frontend.helper import EndedError, HelperKind, Helpers

#: Memory that a helper may have for its data; 110 MB are those of its libraries.
MEMORY_BYTES = 400 * 2**20
#: Seconds for one preview. The helper ends itself a little later, if nobody has ended it.
LIMIT_S = 20
_COUNT = 2
_KIND = HelperKind(
    "radt.frontend.preview_worker",
    LIMIT_S,
    # Without these, threads and their arenas would count as its memory.
    environ={"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"},
)


class Previews:
    """Reads previews. Thread-safe."""

    def __init__(self) -> None:
        self.helpers = Helpers(_KIND, _COUNT, 0, "Other files are being read")

    def read(self, file: BinaryIO, path: str) -> bytes:
        """Return a `Preview` in JSON.

        Raises:
            BusyError: Others are being read.
        """
        order = json.dumps({"path": path}).encode() + b"\n"
        try:
            return self.helpers.ask(order, file)[1]
        except EndedError as error:
            limit = (
                f"longer than {LIMIT_S} s"
                if error.took_too_long
                else f"more than {units.size(MEMORY_BYTES)} of memory"
            )
            note = f"Not shown: reading it takes {limit}"
            return json.dumps(asdict(Preview(None, note=note))).encode()

    def close(self) -> None:
        """End the helpers."""
        self.helpers.close()
