"""A process that has no free file descriptor."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_descriptors() -> Iterator[None]:
    """All threads of this process can open nothing meanwhile: look at results afterwards."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    first = os.open("/dev/null", os.O_RDONLY)
    resource.setrlimit(resource.RLIMIT_NOFILE, (first + 1, before[1]))
    try:
        while True:
            try:
                taken.append(os.dup(first))
            except OSError:
                break
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for descriptor in (first, *taken):
            os.close(descriptor)
