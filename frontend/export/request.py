"""Requests for files: parsing, limits, file names, and the charts that they refer to."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from typing import Self, TypeVar
from urllib.parse import urlencode

from radt.errors import UsageError
from radt.frontend.addresses import address
from radt.frontend.answers import CSV_MIME
from radt.frontend.data.run.previews import BusyError
from radt.frontend.view import View

DATA_PATH = "export/data"
VIEW_PATH = "export/view"

EnumT = TypeVar("EnumT", bound=StrEnum)


class Share(StrEnum):
    """The items of the menu."""

    LINK = "link"
    PYTHON = "python"
    VIEW = "view"
    SHOWN = "shown"  # the data as drawn
    FULL = "full"  # every sample


class FileFormat(StrEnum):
    """Kinds of files."""

    CSV = "csv"
    PARQUET = "parquet"

    @property
    def mime(self) -> str:
        return _MIME[self]


_MIME = {
    FileFormat.CSV: CSV_MIME,
    FileFormat.PARQUET: "application/vnd.apache.parquet",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A requested file. ``chart`` is an index into the view's charts, None for all."""

    view: View
    of: Share
    format: FileFormat
    chart: int | None = None

    @property
    def address(self) -> str:
        """The address of the file."""
        query = self.view.to_query()
        pairs = [("of", self.of.value), ("format", self.format.value)]
        if self.chart is not None:
            pairs.append(("chart", str(self.chart)))
        return address(DATA_PATH, f"{query}{'&' if query else ''}{urlencode(pairs)}")

    @classmethod
    def data(cls, query: str, single: Mapping[str, str]) -> Self:
        """Parse an address of `DATA_PATH`.

        Raises:
            UsageError: A parameter is not valid.
        """
        of = _one_of((Share.SHOWN, Share.FULL), "of", single.get("of", Share.SHOWN.value))
        file_format = _one_of(
            tuple(FileFormat), "format", single.get("format", FileFormat.CSV.value)
        )
        return cls(View.from_query(query), of, file_format, _place(single))


def _one_of(allowed: tuple[EnumT, ...], name: str, given: str) -> EnumT:
    for choice in allowed:
        if choice.value == given:
            return choice
    choices = ", ".join(choice.value for choice in allowed)
    raise UsageError(f"'{given[:40]}' is not a {name} of this file", f"Use one of: {choices}")


def _place(single: Mapping[str, str]) -> int | None:
    text = single.get("chart")
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 3:
        raise UsageError(f"chart={text[:40]} is not a number up to 999", "Leave it out for all")
    return int(text)


#: Maximum number of simultaneous downloads, in total and per address, so that the dashboard stays
#: responsive.
MAX_DOWNLOADS = 4
MAX_DOWNLOADS_EACH = 2


class Turnstile:
    """Limits simultaneous exports, in total and per visitor. Thread-safe."""

    def __init__(self, most: int = MAX_DOWNLOADS, most_each: int = MAX_DOWNLOADS_EACH) -> None:
        self._most = most
        self._most_each = most_each
        self._inside: Counter[str] = Counter()
        self._lock = threading.Lock()

    def enter(self, visitor: str) -> ExitStack:
        """Take a place. Closing the returned stack frees it.

        Raises:
            BusyError: All places are taken.
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
        place = ExitStack()
        place.callback(self._leave, visitor)
        return place

    def _leave(self, visitor: str) -> None:
        with self._lock:
            self._inside[visitor] -= 1
            if not self._inside[visitor]:
                del self._inside[visitor]
