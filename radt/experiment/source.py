"""What a runner needs of an experiment, whatever the kind of its file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from radt.errors import ExperimentError, Problem
from radt.experiment.devices import Machine
from radt.experiment.file import ExperimentFile
from radt.experiment.plan import ExperimentPlan
from radt.experiment.status import StatusSink
from radt.listeners.api import Registry

_CSV_SUFFIX = ".csv"
_SWEEP_SUFFIXES = (".yaml", ".yml")
#: What the name of an experiment file ends with, in lower case.
EXPERIMENT_SUFFIXES = (_CSV_SUFFIX, *_SWEEP_SUFFIXES)


class ExperimentSource(Protocol):
    """A file that holds an experiment, as it was read.

    ``shown`` is what to call it in messages; ``repeat`` how often the file wants every workload.
    """

    @property
    def path(self) -> Path: ...

    @property
    def shown(self) -> str: ...

    @property
    def repeat(self) -> int: ...

    def plan(self, machine: Machine, registry: Registry) -> ExperimentPlan:
        """What it asks for on this machine with these listeners.

        Raises:
            ExperimentError: With every problem of the file.
        """

    def writer(self) -> StatusSink:
        """Where the statuses of the plan's runs go; the caller holds the file's lock.

        Raises:
            StatusError: The file cannot be read or written.
        """


def is_experiment(path: Path | str) -> bool:
    """Whether a file of this name is an experiment, not a program."""
    return os.fspath(path).lower().endswith(EXPERIMENT_SUFFIXES)


def open_source(path: Path | str) -> ExperimentSource:
    """Read an experiment file; what is wrong with its content is said by its ``plan``.

    Raises:
        ExperimentError: It cannot be read, or is no kind of experiment file.
    """
    shown = os.fspath(path)
    if shown.lower().endswith(_CSV_SUFFIX):
        return ExperimentFile.read(path)
    if shown.lower().endswith(_SWEEP_SUFFIXES):
        # Here, because the parser is needed for sweeps alone.
        from radt.experiment.sweep import SweepFile

        return SweepFile.read(path)
    raise ExperimentError(
        shown,
        [Problem("this is no experiment file", f"Name it {' or '.join(EXPERIMENT_SUFFIXES)}")],
    )
