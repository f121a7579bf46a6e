"""Names that all rows of one workload share, and no row of another workload."""

from __future__ import annotations

import hashlib
import json
import os

from radt.home import HOME_VARIABLE, runtime_dir

_VARIABLES = (HOME_VARIABLE, "RADT_EXPERIMENT", "RADT_WORKLOAD")


def scoped(name: str) -> str:
    """Return a hash of a name and its user, data folder, runtime folder and workload."""
    scope = [name, str(os.getuid()), str(runtime_dir().resolve())]
    scope += [os.environ.get(variable, "") for variable in _VARIABLES]
    return hashlib.sha256(json.dumps(scope).encode()).hexdigest()[:32]
