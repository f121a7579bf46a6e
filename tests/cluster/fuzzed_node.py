"""A first node in a process with 500 MB of memory, which greets and hears whoever comes.

It prints its port, and exits with 70 if one of its threads fails.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
from contextlib import suppress
from typing import Any

from radt.cluster.firstnode import FirstNode
from radt.cluster.node import NodeStop
from radt.errors import ClusterError
from radt.peers import Reception, listening

SECRET = "of the attempt"
MEMORY_BYTES = 500 << 20


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    threading.excepthook = failed
    listener = listening("127.0.0.1")
    reception = Reception(listener, SECRET, greeted, failed)
    print(listener.getsockname()[1], flush=True)
    sys.stdin.read()
    reception.close()


def greeted(connection: Any) -> None:
    attempt: Any = None
    node = FirstNode(attempt, {}, 2, NodeStop(), str)
    with suppress(ClusterError):  # this node cannot run the job, it says
        node._take(connection)


def failed(reason: Any) -> None:
    if isinstance(reason, threading.ExceptHookArgs):
        threading.__excepthook__(reason)
    print(reason, file=sys.stderr, flush=True)
    os._exit(70)


if __name__ == "__main__":
    main()
