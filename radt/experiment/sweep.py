"""Sweeps: YAML files that hold one run and the values its parameters are to take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from radt.experiment.devices import Machine
from radt.experiment.plan import ExperimentPlan
from radt.experiment.status import StatusSink
from radt.listeners.api import Registry


@dataclass(frozen=True, slots=True)
class SweepFile:
    """A sweep as it was read; ``shown`` is for messages."""

    path: Path
    shown: str
    raw: bytes

    @property
    def repeat(self) -> int:
        """How often the file wants every workload."""
        raise NotImplementedError

    @classmethod
    def read(cls, path: Path | str) -> SweepFile:
        """Read a file; what is wrong with its content is said by `plan`."""
        raise NotImplementedError

    def plan(self, machine: Machine, registry: Registry) -> ExperimentPlan:
        """What the file asks for on this machine with these listeners."""
        raise NotImplementedError

    def writer(self) -> StatusSink:
        """Writes statuses of this file's runs; the caller holds its lock."""
        raise NotImplementedError
