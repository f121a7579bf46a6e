"""``python -m docs.generator [FOLDER]``: build the site; exit code 1 if anything is wrong with it.

FOLDER, ``build/docs`` if none is given, gets ``pages`` (Markdown), ``mkdocs.yml`` and ``site``. No
network is needed, neither now nor by those who read it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import yaml

from docs.generator.check import problems
from docs.generator.offline import localise
from docs.generator.sources import ELSEWHERE, ROOT, Pages, site_path
from radt.errors import RadtError, UsageError

CONFIGURATION = "mkdocs.yml"
#: The part of the navigation that lists the experiments which come with radt.
EXPERIMENTS = "Experiments to run"


def build(folder: Path, root: Path = ROOT) -> Path:
    """Build the site of a project below a folder; returns where its first page is.

    Raises:
        UsageError: A page, a link or the navigation is wrong; all that is, in the message.
    """
    folder = folder.absolute()
    pages = Pages(folder / "pages", root)
    pages.write()
    configuration = folder / CONFIGURATION
    configuration.write_text(_configuration(pages, root), encoding="utf-8")
    shutil.rmtree(folder / "site", ignore_errors=True)
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "-f", str(configuration)],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode != 0:
        raise UsageError(f"the site was not built:\n{_said(done.stdout)}", "Fix what it names")
    localise(folder / "site")
    if wrong := list(problems(folder / "site")):
        raise UsageError("\n".join(wrong), "Fix these pages")
    return folder / "site" / "index.html"


def _said(output: str) -> str:
    """What Zensical said, without colours and without the traceback that it ends with."""
    return re.sub(r"\x1b\[[0-9;]*m", "", output).partition("Traceback")[0].strip()


def _configuration(pages: Pages, root: Path) -> str:
    """``mkdocs.yml`` with the experiments of today; every page must be in its navigation."""
    document = yaml.safe_load((root / CONFIGURATION).read_text(encoding="utf-8"))
    for section in document["nav"]:
        if EXPERIMENTS in section:
            section[EXPERIMENTS] = [site_path(source) for source in pages.experiments()]
    listed = set(_files(document["nav"]))
    if lost := {name for name in pages.written - listed if not name.startswith(f"{ELSEWHERE}/")}:
        raise UsageError(
            f"{', '.join(sorted(lost))}: in no part of the navigation", f"Add to {CONFIGURATION}"
        )
    document |= {"docs_dir": "pages", "site_dir": "site"}
    return yaml.safe_dump(document, allow_unicode=True, sort_keys=False)


def _files(entry: Any) -> list[str]:
    """The files that a part of the navigation lists."""
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [name for part in parts for name in _files(part)]


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default="build/docs")
def main(folder: Path) -> None:
    """Build the documentation site below FOLDER."""
    try:
        index = build(folder)
    except RadtError as error:
        click.echo(str(error), err=True)
        sys.exit(1)
    click.echo(f"{index}: open it in a browser")


if __name__ == "__main__":
    main()
