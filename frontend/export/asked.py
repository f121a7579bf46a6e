"""What somebody wants to take away, as its address says.

``/export/data?s=…&c=…&of=shown&format=csv&chart=0``: the parameters of a view
(`radt.frontend.view`), and those of the file. ``chart`` is the place of a chart in the view's
list, from 0; without it all charts are meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Self, TypeVar
from urllib.parse import urlencode

from radt.errors import UsageError
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
    SHOWN = "shown"  # data as they are drawn
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
    """A file that is asked for.

    ``chart`` is a place in the view's charts, None for all; ``columns`` is how many charts stand
    side by side in a picture of all, None for what fits their number.
    """

    view: View
    of: Share
    format: FileFormat
    chart: int | None = None
    columns: int | None = None

    @property
    def address(self) -> str:
        """The address to get it from, without host."""
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
        """From an address of `DATA_PATH`.

        Raises:
            UsageError: A parameter makes no sense.
        """
        of = _one_of((Share.SHOWN, Share.FULL), "of", single.get("of", Share.SHOWN.value))
        file_format = _one_of(DATA_FORMATS, "format", single.get("format", FileFormat.CSV.value))
        return cls(View.from_query(query), of, file_format, _place(single))

    @classmethod
    def picture(cls, query: str, single: Mapping[str, str]) -> Self:
        """From an address of `PICTURE_PATH`.

        Raises:
            UsageError: A parameter makes no sense.
        """
        file_format = _one_of(PICTURE_FORMATS, "format", single.get("format", FileFormat.PNG.value))
        columns = _count(single, "columns", MAX_COLUMNS)
        return cls(
            View.from_query(query), Share.PICTURE, file_format, _place(single), columns or None
        )


def _one_of(allowed: tuple[EnumT, ...], name: str, given: str) -> EnumT:
    for one in allowed:
        if one.value == given:
            return one
    choices = ", ".join(one.value for one in allowed)
    raise UsageError(f"'{given[:40]}' is no {name} of this file", f"There are: {choices}")


def _place(single: Mapping[str, str]) -> int | None:
    return _count(single, "chart", 999)


def _count(single: Mapping[str, str], name: str, largest: int) -> int | None:
    text = single.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 4 or int(text) > largest:
        raise UsageError(f"{name}={text[:40]} is no number up to {largest}", "Leave it out for all")
    return int(text)
