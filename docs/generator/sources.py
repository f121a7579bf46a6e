"""The pages of the site as Markdown: those of ``docs``, and those that they lead to elsewhere.

Links stay relative in the files, so that GitHub follows them. What lies outside of ``docs`` (a
script, the schema, an experiment's README) becomes a page of its own, and links are changed.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from docs.generator import markdown
from docs.generator.columns import columns_reference
from docs.generator.commands import command_reference
from docs.generator.exit_codes import errors_reference
from docs.generator.metrics import metrics_reference, technique_metrics_reference
from docs.generator.python_api import api_reference, listener_api_reference
from docs.generator.quantities import (
    quantities_reference,
    report_files_reference,
    series_quantities_reference,
)
from docs.generator.settings import cluster_reference, settings_reference, variables_reference
from radt.errors import UsageError

ROOT = Path(__file__).parents[2]
DOCS = "docs"
#: What ``<!-- generated: NAME -->`` stands for.
GENERATED: Mapping[str, Callable[[], str]] = {
    "commands": command_reference,
    "settings": settings_reference,
    "variables": variables_reference,
    "cluster": cluster_reference,
    "columns": columns_reference,
    "metrics": metrics_reference,
    "technique-metrics": technique_metrics_reference,
    "quantities": quantities_reference,
    "series-quantities": series_quantities_reference,
    "report-files": report_files_reference,
    "python": api_reference,
    "listener-api": listener_api_reference,
    "errors": errors_reference,
}
#: Pages from elsewhere that have a place in the navigation.
PLACED = {
    "ARCHITECTURE.md": "explanation/architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
#: Where the rest of them go.
ELSEWHERE = "source"
LANGUAGES = {".py": "python", ".json": "json", ".toml": "toml", ".yaml": "yaml", ".sql": "sql"}

_PLACEHOLDER = re.compile(r"^<!-- generated: ([a-z-]+) -->$", re.MULTILINE)
_LINK = re.compile(r"(?<!\\)(\]\()([^)\s#]+)?(#[^)\s]*)?(\))")
_FENCE = re.compile(r"^(```|~~~)")
_EXTERNAL = re.compile(r"^[a-z]+:")
_HIDDEN = ("__pycache__", ".egg-info")


class Pages:
    """Writes the pages into a folder, from where the site is built."""

    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        self._folder = folder
        self._root = root
        self._waiting: list[str] = []
        self._known: set[str] = set()
        #: Pages by their place in the site.
        self.written: set[str] = set()

    def write(self) -> None:
        """All of them, in the place of what is there.

        Raises:
            UsageError: A page links to what is not there, or asks for what nothing generates.
        """
        shutil.rmtree(self._folder, ignore_errors=True)
        for path in sorted((self._root / DOCS).rglob("*")):
            relative = path.relative_to(self._root).as_posix()
            if path.is_file() and "/generator/" not in relative:
                self._wanted(relative)
        for name in [*PLACED, *self.experiments()]:
            if (self._root / name).exists():
                self._wanted(name)
        while self._waiting:
            self._write(self._waiting.pop())

    def experiments(self) -> list[str]:
        """READMEs of the experiments that come with radt."""
        found = sorted((self._root / "experiments").glob("*/README.md"))
        return [path.relative_to(self._root).as_posix() for path in found]

    def _wanted(self, source: str) -> None:
        if source not in self._known:
            self._known.add(source)
            self._waiting.append(source)

    def _write(self, source: str) -> None:
        path, target = self._root / source, self._folder / site_path(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.suffix == ".md":
            self.written.add(site_path(source))
        if path.is_dir():
            target.write_text(self._folder_page(path), encoding="utf-8")
        elif source.endswith(".md"):
            target.write_text(self._page(source, path.read_text("utf-8")), encoding="utf-8")
        elif source.startswith(f"{DOCS}/"):
            shutil.copyfile(path, target)
        else:
            target.write_text(self._file_page(path), encoding="utf-8")

    def _page(self, source: str, text: str) -> str:
        filled = _PLACEHOLDER.sub(lambda found: self._generated(source, found[1]), text)
        if not source.startswith((f"{DOCS}/", "experiments/")) and source not in PLACED:
            filled = f"---\nsearch:\n  exclude: true\n---\n{filled}"
        return "".join(self._linked(source, filled))

    def _generated(self, source: str, name: str) -> str:
        try:
            return GENERATED[name]()
        except KeyError:
            raise UsageError(
                f"{source} asks for {name!r}, which nothing generates",
                f"There is {', '.join(GENERATED)}",
            ) from None

    def _linked(self, source: str, text: str) -> Iterator[str]:
        """The lines of a page with its links changed."""
        fenced = False
        for line in text.splitlines(keepends=True):
            if _FENCE.match(line.strip()):
                fenced = not fenced
            yield line if fenced else _LINK.sub(lambda found: self._link(source, found), line)

    def _link(self, source: str, found: re.Match[str]) -> str:
        opening, target, anchor, closing = found.groups()
        if not target or _EXTERNAL.match(target):
            return found[0]
        meant = os.path.normpath((PurePosixPath(source).parent / target).as_posix())
        if not (self._root / meant).exists():
            raise UsageError(f"{source} links to {target}, which is not there", "Fix the link")
        self._wanted(meant)
        start = PurePosixPath(site_path(source)).parent
        return f"{opening}{os.path.relpath(site_path(meant), start)}{anchor or ''}{closing}"

    def _file_page(self, path: Path) -> str:
        relative = path.relative_to(self._root).as_posix()
        return f"# {relative}\n\n{_shown(path)}\n"

    def _folder_page(self, folder: Path) -> str:
        relative = folder.relative_to(self._root).as_posix()
        parts = [f"# {relative}"]
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not any(part in str(path) for part in _HIDDEN):
                parts += [f"## {path.relative_to(folder).as_posix()}", _shown(path)]
        return "\n\n".join(parts) + "\n"


def site_path(source: str) -> str:
    """Where a file of the project stands among the pages."""
    if source in PLACED:
        return PLACED[source]
    parts = PurePosixPath(source).parts
    if parts[0] == DOCS:
        return "/".join(parts[1:])
    if parts[0] == "experiments" and parts[2:] == ("README.md",):
        return f"experiments/{parts[1]}.md"
    return f"{ELSEWHERE}/{source}" if source.endswith(".md") else f"{ELSEWHERE}/{source}.md"


def _shown(path: Path) -> str:
    text = path.read_text(encoding="utf-8").rstrip("\n")
    return markdown.fenced(text, LANGUAGES.get(path.suffix, "text"))
