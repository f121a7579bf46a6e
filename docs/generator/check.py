"""What is wrong with a built site: links that lead nowhere, files that come from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: Attributes by which a browser fetches something by itself.
_FETCHED = {
    ("script", "src"),
    ("img", "src"),
    ("iframe", "src"),
    ("source", "src"),
    ("video", "src"),
    ("audio", "src"),
    ("object", "data"),
}
#: Links that fetch nothing.
_PASSIVE = {"canonical", "alternate", "next", "prev", "author", "license", "edit", "generator"}
_CSS_URL = re.compile(r"""url\(\s*['"]?(https?:)?//|@import\s+['"](https?:)?//""")


@dataclass
class Page(HTMLParser):
    """What a page of the site refers to."""

    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids.update(values[name] for name in ("id", "name") if name in values)
        self.fetched += [
            values[name] for element, name in _FETCHED if element == tag and name in values
        ]
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and not _PASSIVE & set(values.get("rel", "").split()):
            self.fetched.append(values.get("href", ""))


def problems(site: Path) -> Iterator[str]:
    """One sentence for each thing that is wrong with the site."""
    pages = {path: _read(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        where = path.relative_to(site).as_posix()
        for address in page.fetched:
            if _is_elsewhere(address):
                yield f"{where} fetches {address}"
            elif not address.startswith("data:") and not _target(path, address, site).exists():
                yield f"{where} needs {address}, which is not there"
        for address in page.links:
            if _is_elsewhere(address):
                continue
            target, anchor = _target(path, address, site), urlsplit(address).fragment
            if not target.exists():
                yield f"{where} links to {address}, which is not there"
            elif anchor and target in pages and unquote(anchor) not in pages[target].ids:
                yield f"{where} links to {address}, where {target.name} has no such place"
    for path in sorted(site.rglob("*.css")):
        if _CSS_URL.search(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(site).as_posix()} fetches from elsewhere"


def _read(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def _is_elsewhere(address: str) -> bool:
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme in ("http", "https", "mailto")


def _target(page: Path, address: str, site: Path) -> Path:
    path = unquote(urlsplit(address).path)
    if not path:
        return page
    start = site if path.startswith("/") else page.parent
    found = (start / path.lstrip("/")).resolve()
    return found / "index.html" if found.is_dir() else found
