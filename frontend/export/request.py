"""Requests for files: parsing, limits, file names, and the charts that they mean."""

from __future__ import annotations

import re
import threading
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self, TypeVar
from urllib.parse import quote, urlencode

from radt.errors import UsageError
from radt.frontend.data.metrics import automatic_metrics, quantities
from radt.frontend.data.source import Source
from radt.frontend.data.spec import ChartSpec, Pick, with_slots
from radt.frontend.helper import BusyError
from radt.frontend.selection import Selection
from radt.frontend.view import View

DATA_PATH = "/export/data"
PICTURE_PATH = "/export/picture"
VIEW_PATH = "/export/view"
MAX_COLUMNS = 6

EnumT = TypeVar("EnumT", bound=StrEnum)


class Share(StrEnum):
    """The items of the menu."""

    LINK = "link"
    PYTHON = "python"
    VIEW = "view"
    SHOWN = "shown"  # the data as drawn
    FULL = "full"  # every sample
    PICTURE = "picture"


class FileFormat(StrEnum):
    """Kinds of files."""

    CSV = "csv"
    PARQUET = "parquet"
    PNG = "png"
    SVG = "svg"
    PDF = "pdf"

    @property
    def mime(self) -> str:
        return _MIME[self]


_MIME = {
    FileFormat.CSV: "text/csv; charset=utf-8",
    FileFormat.PARQUET: "application/vnd.apache.parquet",
    FileFormat.PNG: "image/png",
    FileFormat.SVG: "image/svg+xml",
    FileFormat.PDF: "application/pdf",
}
DATA_FORMATS = (FileFormat.CSV, FileFormat.PARQUET)
PICTURE_FORMATS = (FileFormat.PNG, FileFormat.SVG, FileFormat.PDF)


@dataclass(frozen=True, slots=True)
class Asked:
    """A requested file.

    ``chart`` is a place in the view's charts, None for all; ``columns`` is how many charts stand
    side by side in a picture of all, None to derive it from their number.
    """

    view: View
    of: Share
    format: FileFormat
    chart: int | None = None
    columns: int | None = None

    @property
    def address(self) -> str:
        """The address of the file, without host."""
        query = self.view.to_query()
        pairs: list[tuple[str, str]] = [("format", self.format.value)]
        if self.of is not Share.PICTURE:
            pairs.insert(0, ("of", self.of.value))
        if self.chart is not None:
            pairs.append(("chart", str(self.chart)))
        if self.columns is not None:
            pairs.append(("columns", str(self.columns)))
        path = PICTURE_PATH if self.of is Share.PICTURE else DATA_PATH
        return f"{path}?{query}{'&' if query else ''}{urlencode(pairs)}"

    @classmethod
    def data(cls, query: str, single: Mapping[str, str]) -> Self:
        """Parse an address of `DATA_PATH`.

        Raises:
            UsageError: A parameter is not valid.
        """
        of = _one_of((Share.SHOWN, Share.FULL), "of", single.get("of", Share.SHOWN.value))
        file_format = _one_of(DATA_FORMATS, "format", single.get("format", FileFormat.CSV.value))
        return cls(View.from_query(query), of, file_format, _place(single))

    @classmethod
    def picture(cls, query: str, single: Mapping[str, str]) -> Self:
        """Parse an address of `PICTURE_PATH`.

        Raises:
            UsageError: A parameter is not valid.
        """
        file_format = _one_of(PICTURE_FORMATS, "format", single.get("format", FileFormat.PNG.value))
        columns = _count(single, "columns", MAX_COLUMNS)
        return cls(
            View.from_query(query), Share.PICTURE, file_format, _place(single), columns or None
        )


def _one_of(allowed: tuple[EnumT, ...], name: str, given: str) -> EnumT:
    for choice in allowed:
        if choice.value == given:
            return choice
    choices = ", ".join(choice.value for choice in allowed)
    raise UsageError(f"'{given[:40]}' is not a {name} of this file", f"Use one of: {choices}")


def _place(single: Mapping[str, str]) -> int | None:
    return _count(single, "chart", 999)


def _count(single: Mapping[str, str], name: str, largest: int) -> int | None:
    text = single.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 4 or int(text) > largest:
        raise UsageError(
            f"{name}={text[:40]} is not a number up to {largest}", "Leave it out for all"
        )
    return int(text)


#: Simultaneous downloads, in total and per address; the dashboard stays responsive meanwhile.
MAX_DOWNLOADS = 4
MAX_DOWNLOADS_EACH = 2


class Turnstile:
    """Limits simultaneous exports, in total and per visitor. Thread-safe."""

    def __init__(self, most: int = MAX_DOWNLOADS, most_each: int = MAX_DOWNLOADS_EACH) -> None:
        self._most = most
        self._most_each = most_each
        self._inside: Counter[str] = Counter()
        self._lock = threading.Lock()

    def enter(self, visitor: str) -> Pass:
        """Take a place; the caller must call `Pass.leave`.

        Raises:
            BusyError: Too many are inside.
        """
        with self._lock:
            if self._inside[visitor] >= self._most_each:
                raise BusyError(
                    f"{self._most_each} files are already being downloaded by you",
                    "Try again when one of them is complete",
                )
            if self._inside.total() >= self._most:
                raise BusyError(
                    f"{self._most} files are already being created for others",
                    "Try again in a minute",
                )
            self._inside[visitor] += 1
        return Pass(self, visitor)

    def left(self, visitor: str) -> None:
        """Free the place of a `Pass`."""
        with self._lock:
            self._inside[visitor] -= 1
            if not self._inside[visitor]:
                del self._inside[visitor]


class Pass:
    """A place in the `Turnstile`. `leave` may be called more than once."""

    def __init__(self, turnstile: Turnstile, visitor: str) -> None:
        self._turnstile = turnstile
        self._visitor = visitor
        self._lock = threading.Lock()
        self._is_inside = True

    def leave(self) -> None:
        """Free the place."""
        with self._lock:
            was_inside, self._is_inside = self._is_inside, False
        if was_inside:
            self._turnstile.left(self._visitor)


_UNSAFE = re.compile(r"[^\w.+-]+")
_MAX_LENGTH = 80


def file_name(words: Iterable[str], suffix: str) -> str:
    """Return ``radt-quickstart-loss.csv``: words joined, without characters invalid in a name."""
    cleaned = [_UNSAFE.sub("-", unicodedata.normalize("NFC", word)).strip("-._") for word in words]
    stem = "-".join(word for word in ("radt", *cleaned) if word)[:_MAX_LENGTH].rstrip("-._")
    return f"{stem}.{suffix}"


def content_disposition(name: str) -> str:
    """Return the header that makes a browser save a file under a name (RFC 6266)."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode("ascii")
    plain = _UNSAFE.sub("-", plain)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"


def pinned(source: Source, view: View, selection: Selection) -> View:
    """Return the view with explicit picks and charts.

    Raises:
        StoreError: The store cannot be read.
    """
    picks = view.picks
    if picks is None:
        picks = tuple(
            Pick.run(run.record.experiment, run.run_id) for run in selection.runs.values()
        )
    return replace(view, picks=picks, charts=charts_of(source, view, selection))


def charts_of(source: Source, view: View, selection: Selection) -> tuple[ChartSpec, ...]:
    """Return the charts of a view, in order; by default those that the dashboard chooses.

    Raises:
        StoreError: The store cannot be read.
    """
    if view.charts is not None:
        return view.charts
    available = quantities(source, tuple(selection.runs))
    return with_slots(tuple(ChartSpec(metric) for metric in automatic_metrics(available)))
