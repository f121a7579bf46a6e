"""Imports run one way, and what must be light stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BASE = frozenset(
    {"errors", "units", "model", "home", "clock", "masking", "params", "procfs"}
    | {
        "packages",
        "parts",
        "run_name",
        "settings",
        "setting_values",
        "files",
        "processes",
        "descriptors",
        "beneath",
        "lifetime",
        "technique_metrics",
        "paths",
        "peers",
        "provenance",
        "tags",
        "usage",
        "git",
    }
)
#: What each part may import, besides itself. ARCHITECTURE.md shows the picture.
ALLOWED: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "lazy": frozenset({"errors"}),
    "model": frozenset({"errors"}),
    "units": frozenset({"errors"}),
    "masking": frozenset(),
    "params": frozenset(),
    "parts": frozenset({"units"}),
    "run_name": frozenset({"params"}),
    "packages": frozenset(),
    "setting_values": frozenset({"errors", "masking", "paths", "units"}),
    "settings": frozenset({"errors", "masking", "paths", "setting_values"}),
    "files": frozenset({"errors"}),
    "processes": frozenset({"files", "home", "procfs"}),
    "descriptors": frozenset(),
    "beneath": frozenset(),
    "paths": frozenset({"errors"}),
    "peers": frozenset(),
    "tags": frozenset(),
    "usage": frozenset({"files"}),
    "technique_metrics": frozenset(),
    "home": frozenset({"errors", "masking", "paths", "settings"}),
    "clock": frozenset({"errors", "files", "home", "procfs"}),
    "git": frozenset({"processes"}),
    "provenance": frozenset({"devices", "git", "packages", "processes", "tags"}),
    "lifetime": frozenset({"procfs", "settings"}),
    "procfs": frozenset(),
    "schemas": frozenset(),
    "listeners": frozenset({"model", "errors", "files", "processes", "procfs", "home"})
    | {"devices"},
    "store": BASE | {"schemas"},
    "journal": BASE | {"store"},
    "collocation": BASE | {"devices"},
    "environments": BASE,
    "devices": frozenset({"errors", "procfs", "units"}),
    "experiment": BASE | {"devices", "listeners", "collocation", "environments"},
    "delivery": BASE | {"lazy", "store"},
    # Of `experiment` only its reader of CSV.
    "importers": BASE | {"store", "delivery", "experiment"},
    "compose": BASE | {"store"},
    "collector": BASE | {"lazy", "store", "journal", "listeners", "collocation"},
    "analysis": BASE | {"store", "devices", "experiment", "collocation", "listeners"},
    "render": BASE | {"store", "analysis"},
    "load": BASE | {"store", "delivery"},
    "trace": BASE | {"store"},
    "run": BASE | {"journal", "collector", "devices", "store"},
    "integrations": frozenset({"delivery", "errors", "home", "journal", "run"}),
    "loaders": frozenset({"errors", "clock", "devices", "files", "home", "lazy"})
    | {"processes", "run", "units"},
    "training": frozenset({"errors", "clock", "home", "lazy", "loaders", "run", "units", "paths"})
    | {"files", "peers", "processes", "procfs"},
    "runner": BASE
    | {"experiment", "collector", "delivery", "store", "collocation", "environments"}
    | {"devices", "listeners", "analysis", "render"},
    "cluster": BASE
    | {"runner", "experiment", "delivery", "store", "collector"}
    | {"collocation", "devices", "listeners"},
    "selftest": BASE | {"store", "collector", "collocation", "listeners", "analysis"},
    "api": BASE | {"runner", "devices", "experiment", "listeners", "collocation", "cluster"},
    # The System page says what the machine, its collector and what it brings elsewhere are at.
    "frontend": BASE
    | {"store", "delivery", "importers", "analysis", "render", "trace"}
    | {"collector", "collocation"},
    "cli": BASE
    | {
        "analysis",
        "runner",
        "experiment",
        "collector",
        "delivery",
        "importers",
        "store",
        "render",
        "load",
        "trace",
    }
    | {"listeners", "frontend", "collocation", "devices", "environments"}
    | {"selftest", "compose", "cluster"},
    "mlflow_plugin": frozenset({"run"}),
    "__main__": frozenset({"cli"}),
    "__init__": frozenset({"run", "load", "api", "integrations"}),
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


def test_imports_run_one_way() -> None:
    wrong = [
        f"{path}:{line}: {part} imports {imported}"
        for part, path in modules()
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


def test_the_runner_starts_and_reports_without_what_takes_long_to_import() -> None:
    program = (
        "import sys; import radt.cli.run, radt.runner.start; "
        "print({'mlflow', 'numpy', 'pandas', 'sqlalchemy', 'torch'} & set(sys.modules)); "
        "import radt.analysis.report, radt.render.report; "
        "print({'mlflow', 'pandas', 'pyarrow', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\nset()\n"


DASHBOARD = ROOT / "frontend"


def run_time_imports(path: Path) -> Iterator[str]:
    """The modules that a module imports when it runs: not those for type checkers only."""
    skipped: set[ast.AST] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            skipped |= {inner for part in node.body for inner in ast.walk(part)}
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", sorted((DASHBOARD / "data").rglob("*.py")), ids=lambda p: p.name)
def test_what_reads_for_the_dashboard_knows_neither_charts_nor_pages(path: Path) -> None:
    barred = ("radt.frontend.charts", "radt.frontend.pages", "radt.frontend.export")
    assert [name for name in run_time_imports(path) if name.startswith(barred)] == []


def test_charts_of_the_dashboard_read_nothing() -> None:
    """Neither they nor what they import reach a store's reader or a page."""
    waiting = sorted((DASHBOARD / "charts").glob("*.py"))
    seen: dict[Path, str] = {path: path.name for path in waiting}
    wrong = []
    while waiting:
        path = waiting.pop()
        for name in run_time_imports(path):
            if name.startswith(("radt.store.reader", "radt.frontend.pages", "dash")):
                wrong.append(f"{seen[path]} imports {name}")
            imported = ROOT / "radt" / f"{'/'.join(name.split('.')[1:])}.py"
            if name.startswith("radt.frontend.") and imported.is_file():
                imported = DASHBOARD / imported.relative_to(ROOT / "radt" / "frontend")
                if imported not in seen:
                    seen[imported] = f"{seen[path]}, {imported.name}"
                    waiting.append(imported)
    assert wrong == []


def test_modules_that_scripts_use_have_no_import_cycle() -> None:
    """Also counting what is imported within functions and for type checkers only."""
    folder = ROOT / "radt" / "run"
    graph = {
        path.stem: {
            node.module.removeprefix("radt.run.")
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("radt.run.")
        }
        for path in folder.glob("*.py")
        if path.stem != "__init__"
    }
    assert len(graph) > 15
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))
