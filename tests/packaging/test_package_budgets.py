"""No package grows past its budget, so that growth has to be argued for."""

from __future__ import annotations

import ast
import subprocess
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: Lines that hold code: no docstrings, comments or blank lines, so documentation costs nothing.
#: A change that needs more says why in its commit message; one that removes code lowers the limit.
LIMITS = {
    "frontend": 13_430,
    "frontend (js, css)": 6_520,
    "listeners": 4_200,
    "radt (top level)": 3_040,
    "radt/analysis": 6_500,
    "radt/cli": 4_200,
    "radt/cluster": 5_080,
    "radt/collector": 4_390,
    "radt/collocation": 2_510,
    "radt/compose": 320,
    "radt/delivery": 4_520,
    "radt/devices": 1_000,
    "radt/environments": 1_550,
    "radt/experiment": 3_620,
    "radt/importers": 2_020,
    "radt/integrations": 900,
    "radt/journal": 1_400,
    "radt/loaders": 4_020,
    "radt/render": 1_990,
    "radt/run": 3_730,
    "radt/runner": 5_810,
    "radt/store": 5_300,
    "radt/trace": 790,
    "radt/training": 6_410,
    "tests": 89_600,
}


def tracked(*patterns: str) -> list[Path]:
    """The files that git tracks, without symlinks."""
    command = ["git", "ls-files", "-z", *patterns]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = (Path(name) for name in listing.split("\0") if name)
    return [path for path in paths if (ROOT / path).is_file() and not (ROOT / path).is_symlink()]


def package_of(path: Path) -> str:
    if path.parts[0] != "radt":
        return path.parts[0]
    return "/".join(path.parts[:2]) if len(path.parts) > 2 else "radt (top level)"


def code_lines(source: str) -> int:
    lines = {
        number
        for number, line in enumerate(source.split("\n"), start=1)
        if line.strip() and not line.lstrip().startswith("#")
    }
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Constant(value=str()) | ast.JoinedStr():
                lines.update(lines_of(node))  # what looks like a comment within a string
            case (
                ast.Module(body=[ast.Expr(value=ast.Constant(value=str())) as text, *_])
                | ast.ClassDef(body=[ast.Expr(value=ast.Constant(value=str())) as text, *_])
                | ast.FunctionDef(body=[ast.Expr(value=ast.Constant(value=str())) as text, *_])
                | ast.AsyncFunctionDef(body=[ast.Expr(value=ast.Constant(value=str())) as text, *_])
            ):
                docstrings.update(lines_of(text))
    return len(lines - docstrings)


def lines_of(node: ast.expr | ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def test_a_line_of_code_is_one_that_holds_code() -> None:
    source = '"""Text."""\n\n# A reason.\nx = """two\nlines"""\n\ndef f():\n    """Text.\n    """\n'
    assert code_lines(source) == 3


def test_every_package_is_within_its_budget() -> None:
    sizes: Counter[str] = Counter()
    for path in tracked("radt/*.py", "listeners/*.py", "frontend/*.py", "tests/*.py"):
        sizes[package_of(path)] += code_lines((ROOT / path).read_text("utf-8"))
    for path in tracked("frontend/static/*.js", "frontend/static/*.css"):
        lines = (ROOT / path).read_text("utf-8").splitlines()
        sizes["frontend (js, css)"] += sum(1 for line in lines if line.strip())
    over = {
        name: f"{size} lines of code, {LIMITS.get(name, 0)} allowed"
        for name, size in sizes.items()
        if size > LIMITS.get(name, 0)
    }
    assert over == {}
    assert sizes.keys() == LIMITS.keys()
