"""Imports run one way, and what must be light stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BASE = frozenset(
    {"errors", "units", "model", "home", "clock", "masking", "nvml", "params", "procfs"}
    | {
        "durations",
        "packages",
        "settings",
        "setting_values",
        "settings_file",
        "uris",
        "backoff",
        "lifeline",
    }
)
#: What each part may import, besides itself. ARCHITECTURE.md shows the picture.
ALLOWED: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "model": frozenset({"errors"}),
    "units": frozenset(),
    "masking": frozenset(),
    "params": frozenset(),
    "durations": frozenset({"errors"}),
    "packages": frozenset(),
    "settings_file": frozenset({"errors"}),
    "setting_values": frozenset({"durations", "errors", "masking", "uris"}),
    "settings": frozenset({"errors", "masking", "setting_values", "settings_file"}),
    "uris": frozenset(),
    "backoff": frozenset(),
    "lifeline": frozenset(),
    "home": frozenset({"errors", "settings", "uris"}),
    "clock": frozenset({"errors", "home", "procfs"}),
    "nvml": frozenset(),
    "procfs": frozenset(),
    "schemas": frozenset(),
    "listeners": frozenset({"model", "errors", "nvml", "procfs", "home"}),
    "store": BASE | {"schemas"},
    "journal": BASE | {"store"},
    "collocation": BASE,
    "environments": BASE,
    "experiment": BASE | {"listeners", "collocation", "environments"},
    "archive": BASE | {"store"},
    "replication": BASE | {"store"},
    "stack": BASE | {"store"},
    "tracking": BASE | {"store", "archive"},
    "collector": BASE | {"store", "journal", "listeners"},
    "report": BASE | {"store"},
    "advice": BASE | {"store", "report", "experiment", "collocation", "listeners"},
    "comparison": BASE | {"store", "report"},
    "load": BASE | {"store", "archive"},
    "trace": BASE | {"store", "journal"},
    "run": BASE | {"journal", "collector", "tracking", "store"},
    "runner": BASE
    | {"experiment", "collector", "tracking", "store", "collocation", "environments"}
    | {"listeners", "report", "replication"},
    "selftest": BASE | {"store", "collector", "collocation", "listeners", "report"},
    "api": BASE | {"runner", "experiment", "listeners"},
    # The System page says what the machine, its collector and what it brings elsewhere are at.
    "frontend": BASE
    | {"store", "archive", "tracking", "report", "trace"}
    | {"collector", "collocation", "replication"},
    "cli": BASE
    | {
        "runner",
        "experiment",
        "collector",
        "comparison",
        "tracking",
        "store",
        "report",
        "load",
        "trace",
    }
    | {"listeners", "frontend", "collocation", "environments"}
    | {"advice", "archive", "replication", "selftest", "stack"},
    "__main__": frozenset({"cli"}),
    "__init__": frozenset({"run", "load", "api"}),
}


def modules() -> Iterator[tuple[str, Path]]:
    """Every module of the package with the part it belongs to."""
    for path in sorted((ROOT / "radt").glob("*.py")):
        yield path.stem, path
    for folder in sorted((ROOT / "radt").iterdir()):
        if folder.is_dir() and (folder / "__init__.py").exists():
            for path in sorted(folder.resolve().rglob("*.py")):
                yield folder.name, path


def imported_parts(path: Path) -> Iterator[tuple[str, int]]:
    """The parts of radt that a module imports, anywhere in it, with the line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            names = [node.module]
            if node.module == "radt":
                names = [f"radt.{alias.name}" for alias in node.names]
        for name in names:
            if name.startswith("radt."):
                yield name.split(".")[1], node.lineno


@pytest.mark.parametrize(("part", "path"), list(modules()), ids=lambda value: str(value))
def test_imports_run_one_way(part: str, path: Path) -> None:
    wrong = [
        f"{path}:{line}: {part} imports {imported}"
        for imported, line in imported_parts(path)
        if imported not in ALLOWED[part] | {part} and not imported.startswith("__")
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "module", ["radt", "radt.run", "radt.journal.writer", "radt.collector.client"]
)
def test_what_scripts_import_needs_the_standard_library_only(module: str) -> None:
    program = (  # what `.pth` files of other packages load is there before
        f"import sys; before = set(sys.modules); import {module}; "
        "print(*{name.split('.')[0] for name in set(sys.modules) - before} "
        "- set(sys.stdlib_module_names) - {'radt', '__main__'})"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True
    )
    foreign = {name for name in done.stdout.split() if not name.startswith(("_", "sitecustomize"))}
    assert foreign == set()
