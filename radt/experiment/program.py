"""What a run executes: a Python script, a module, any executable, an MLproject folder."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class ProgramKind(StrEnum):
    """How a program is started."""

    SCRIPT = "script"  # python FILE
    MODULE = "module"  # python -m MODULE
    EXECUTABLE = "executable"  # FILE
    PROJECT = "project"  # the main entry point of MLflow's MLproject file in FOLDER


@dataclass(frozen=True, slots=True)
class Program:
    """What a run executes, and where.

    ``path`` is absolute: the script, the executable, the project's folder; for a module the folder
    it is imported from. ``module`` is empty unless ``kind`` is MODULE.
    """

    kind: ProgramKind
    path: Path
    module: str = ""

    @property
    def folder(self) -> Path:
        """Where it runs: the working directory."""
        in_it = self.kind in (ProgramKind.MODULE, ProgramKind.PROJECT)
        return self.path if in_it else self.path.parent

    @property
    def is_python(self) -> bool:
        """Whether an interpreter runs it, which the environment provides."""
        return self.kind in (ProgramKind.SCRIPT, ProgramKind.MODULE)

    @property
    def label(self) -> str:
        """What people call it."""
        match self.kind:
            case ProgramKind.MODULE:
                return self.module
            case ProgramKind.PROJECT:
                return self.path.name
        return self.path.stem
