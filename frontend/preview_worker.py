"""The helper process that reads previews of files (`radt.frontend.data.run.previews`)."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys
import traceback
from dataclasses import asdict
from typing import BinaryIO

from radt.frontend.charts.logged import TEMPLATES
from radt.frontend.data.run.kinds import FileKind
from radt.frontend.data.run.preview import Preview, preview
from radt.frontend.data.run.previews import LIMIT_S, MEMORY_BYTES, OUT_OF_MEMORY

#: Maximum size of a request: more than a path and its JSON.
_ORDER_BYTES = 1 << 16


def main() -> None:
    """Answer requests of the dashboard that started this process."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with the answers
    orders = socket.socket(fileno=0)
    while True:
        line, numbers, _, _ = socket.recv_fds(orders, _ORDER_BYTES, 1)
        if not line:
            return
        while not line.endswith(b"\n"):
            line += orders.recv(_ORDER_BYTES)
        # End this process if the dashboard is gone and cannot do so.
        signal.alarm(LIMIT_S + 5)
        with os.fdopen(numbers[0], "rb") as file:
            content = _answer(file, json.loads(line)["path"])
        signal.alarm(0)
        answers.write(json.dumps({"length": len(content)}).encode() + b"\n" + content)
        answers.flush()


def _answer(file: BinaryIO, path: str) -> bytes:
    try:
        read = preview(file, path)
        templates = {"templates": TEMPLATES} if read.kind is FileKind.FIGURE else {}
        return json.dumps(asdict(read) | templates).encode()
    except MemoryError:
        # Memory may be inconsistent, so the next file gets a new process.
        os._exit(OUT_OF_MEMORY)
    except Exception as error:  # noqa: BLE001 - any library's error about one file
        traceback.print_exc(file=sys.stderr)
        reason = f"{type(error).__name__}: {error!s:.200}"
        return json.dumps(asdict(Preview(None, note=f"It cannot be read ({reason})"))).encode()


if __name__ == "__main__":
    main()
