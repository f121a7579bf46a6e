"""The environment that is there already: radt's own interpreter."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from radt.environments.launch import BuiltEnvironment, Launch
from radt.environments.spec import EnvironmentSpec


@dataclass(frozen=True, slots=True)
class LocalEnvironment(BuiltEnvironment):
    """Nothing to build, nothing to set."""

    spec: EnvironmentSpec
    interpreter: Path | None = Path(sys.executable)
    packages: str = ""

    def command(self, launch: Launch) -> list[str]:
        return [*([sys.executable] if launch.needs_python else []), *launch.arguments]

    def variables(self, launch: Launch) -> dict[str, str]:
        """Nothing, unless the program may look for a Python where there is none."""
        path = launch.variables.get("PATH", os.defpath)
        if launch.needs_python or shutil.which("python", path=path):
            return {}
        return {"PATH": f"{path}{os.pathsep}{Path(sys.executable).parent}"}
