"""The bytes of an experiment file, if they are text at all."""

from __future__ import annotations

import codecs
import os
from dataclasses import dataclass
from pathlib import Path

from radt.errors import ExperimentError, Problem
from radt.experiment.atomic import read_version

_ZIP = b"PK\x03\x04"  # what every .xlsx and .ods begins with


@dataclass(frozen=True, slots=True)
class RawFile:
    """A file as it was read; ``shown`` is what to call it in messages."""

    path: Path
    shown: str
    content: bytes

    @classmethod
    def read(cls, path: Path | str, kind: str) -> RawFile:
        """Read a file.

        Args:
            path: The file.
            kind: What it should be, for messages: CSV, YAML.

        Raises:
            ExperimentError: It cannot be read, or is no text at all.
        """
        shown = os.fspath(path)
        absolute = Path(path).absolute()
        try:
            content = read_version(absolute).content
        except FileNotFoundError:
            raise ExperimentError(
                shown, [Problem("there is no such file", "Check the path")]
            ) from None
        except OSError as error:
            cause = f"it cannot be read: {error.strerror}"
            raise ExperimentError(shown, [Problem(cause, "Check the path and its mode")]) from error
        if content.startswith(_ZIP):
            problem = Problem(f"this is a workbook, not {kind}", f"Save it as {kind} in UTF-8")
            raise ExperimentError(shown, [problem])
        if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            problem = Problem("this is UTF-16 text", "Save it in UTF-8")
            raise ExperimentError(shown, [problem])
        return cls(absolute, shown, content)

    @property
    def text(self) -> str:
        """Bytes that are not UTF-8 are lone surrogates, so that each can be reported in place."""
        return self.content.decode(errors="surrogateescape")
