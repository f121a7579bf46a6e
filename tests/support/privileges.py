"""What this test run may do on its machine: root of an unprivileged container is no real root."""

from __future__ import annotations

import os
import subprocess
from functools import cache

import pytest


@cache
def _may_make(*namespaces: str) -> bool:
    # Where all tests have to run, they fail instead of being skipped.
    if os.environ.get("RADT_TEST_DOCKER") == "required":
        return True
    command = ["unshare", *namespaces, "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def may_mount() -> bool:
    """Whether disks can be mounted, and machines of a cluster have networks of their own."""
    return os.geteuid() == 0 and _may_make("--mount", "--net")


#: Why what needs it is skipped.
MOUNTS = "only root outside of unprivileged containers may mount"
needs_mounts = pytest.mark.skipif(not may_mount(), reason=MOUNTS)
needs_user_namespaces = pytest.mark.skipif(
    not _may_make("--user", "--net"), reason="users may not make namespaces here"
)
