"""Experiment files: read once, checked as a whole, statuses written back."""

from __future__ import annotations

import codecs
import os
from dataclasses import dataclass
from pathlib import Path

from radt.errors import ExperimentError, Problem
from radt.experiment.atomic import read_version
from radt.experiment.check import check_table
from radt.experiment.devices import Machine
from radt.experiment.plan import ExperimentPlan
from radt.experiment.row import Place
from radt.experiment.status import StatusWriter
from radt.experiment.table import Table, parse_table
from radt.listeners.api import Registry

_ZIP = b"PK\x03\x04"  # what every .xlsx and .ods begins with


@dataclass(frozen=True, slots=True)
class ExperimentFile:
    """A file as it was read: ``raw`` bytes and the table in them; ``shown`` is for messages."""

    path: Path
    shown: str
    raw: bytes
    table: Table

    @property
    def repeat(self) -> int:
        """How often the file wants every workload; a table does not say."""
        return 1

    @classmethod
    def read(cls, path: Path | str) -> ExperimentFile:
        """Read a file; what is wrong with its content is said by `plan`.

        Raises:
            ExperimentError: It cannot be read, or is no text at all.
        """
        shown = os.fspath(path)
        absolute = Path(path).absolute()
        try:
            raw = read_version(absolute).content
        except FileNotFoundError:
            raise ExperimentError(
                shown, [Problem("there is no such file", "Check the path")]
            ) from None
        except OSError as error:
            cause = f"it cannot be read: {error.strerror}"
            raise ExperimentError(shown, [Problem(cause, "Check the path and its mode")]) from error
        if problem := _not_text(raw):
            raise ExperimentError(shown, [problem])
        # Bytes that are not UTF-8 become lone surrogates, so that each can be reported in place.
        return cls(absolute, shown, raw, parse_table(raw.decode(errors="surrogateescape")))

    def plan(self, machine: Machine, registry: Registry) -> ExperimentPlan:
        """What the file asks for on this machine with these listeners.

        Raises:
            ExperimentError: With every problem of the file.
            UsageError: The settings file that holds for it cannot be used.
        """
        place = Place.beside(self.path, machine, registry)
        return check_table(self.path, self.shown, self.table, place)

    def writer(self) -> StatusWriter:
        """Writes statuses of this file's rows; the caller holds its lock."""
        return StatusWriter(self.path, self.table)


def _not_text(raw: bytes) -> Problem | None:
    if raw.startswith(_ZIP):
        return Problem("this is a workbook, not CSV", "Save it as CSV UTF-8")
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return Problem("this is UTF-16 text", "Save it in UTF-8 (Excel: CSV UTF-8)")
    return None
