"""Builds environments in tests: a project's folder, stand-ins for tools, packages in a folder."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from radt.environments.build import BuiltEnvironment, Launch, build
from radt.environments.spec import EnvironmentSpec, parse_environment

FAKES = Path(__file__).parents[1] / "environments" / "fakes"


@dataclass
class Workbench:
    """A project's folder and the builds made from it."""

    folder: Path
    cache: Path
    log: Path
    said: list[str] = field(default_factory=list)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def spec(self, text: str, *data: Path) -> EnvironmentSpec:
        return parse_environment(text, self.folder, {}, data)

    def build(
        self, spec: str | EnvironmentSpec, cancelled: Callable[[], bool] = lambda: False
    ) -> BuiltEnvironment:
        found = self.spec(spec) if isinstance(spec, str) else spec
        return build(found, log=self.log, say=self.said.append, cancelled=cancelled)

    def launch(self, *arguments: str, python: bool = True, **changes: object) -> Launch:
        run_dir = self.folder.parent / "radt-data" / "runs" / "r1"
        (run_dir / "journal").mkdir(parents=True, exist_ok=True)
        fields: dict[str, object] = {
            "arguments": arguments,
            "needs_python": python,
            "folder": self.folder,
            "run_id": "r1",
            "run_dir": run_dir,
            "home": run_dir.parents[1],
            "variables": {
                **os.environ,
                "RADT_RUN_ID": "r1",
                "RADT_RUN_DIR": str(run_dir),
                "RADT_HOME": str(run_dir.parents[1]),
            },
        }
        return Launch(**{**fields, **changes})  # type: ignore[arg-type]

    @property
    def built(self) -> list[Path]:
        """Folders of the cache that hold an environment, whole or not."""
        return [path for path in self.cache.glob("*") if path.is_dir() and len(path.name) == 32]


def make_wheel(folder: Path, name: str, version: str = "1.0", source: str = "") -> Path:
    """A package of one module as pip and uv install it."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": source or f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inner, text in files.items():
            archive.writestr(inner, text)
    return path


@dataclass
class Tools:
    """Stand-ins for tools that are not on this machine, first on PATH, with one memory."""

    folder: Path
    state: Path

    def install(self, fake: str, name: str = "") -> Path:
        """Put a fake (a Python file beside this one) on PATH under a name."""
        path = self.folder / (name or fake)
        source = (FAKES / f"{fake}.py").read_text(encoding="utf-8")
        python = Path(sys.executable).resolve()  # without packages, it is up at once
        path.write_text(f"#!{python} -IS\n{source}", encoding="utf-8")
        path.chmod(0o755)
        return path

    def calls(self) -> list[str]:
        """What was asked, oldest first."""
        log = self.state / "calls"
        return log.read_text(encoding="utf-8").splitlines() if log.exists() else []
