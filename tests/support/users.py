"""Who a test is: root may look everywhere, which other users may not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

NOBODY = 65534


@contextmanager
def as_ordinary_user() -> Iterator[None]:
    """If this process is root, look at files as another user while inside."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
