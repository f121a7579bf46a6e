"""Experiment files: read once, checked as a whole, statuses written back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from radt.experiment.check import check_table
from radt.experiment.devices import Machine
from radt.experiment.plan import ExperimentPlan
from radt.experiment.raw import RawFile
from radt.experiment.row import Place
from radt.experiment.status import StatusWriter
from radt.experiment.table import Table, parse_table
from radt.listeners.api import Registry


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
        file = RawFile.read(path, "CSV")
        # Bytes that are not UTF-8 become lone surrogates, so that each can be reported in place.
        text = file.content.decode(errors="surrogateescape")
        return cls(file.path, file.shown, file.content, parse_table(text))

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
