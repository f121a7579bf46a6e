"""The interface of executors, which run workloads: on this machine, or on a cluster.

A start (`radt.runner.start`) asks an executor for the pending work of a file, and to run it. Other
processes follow it through a `radt.runner.watch.Watcher`. See also `radt.cluster.executor`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from radt.devices.machine import Machine
from radt.experiment.status import StatusSink
from radt.runner.context import RunnerContext
from radt.runner.options import StartOptions, Work
from radt.runner.outcome import ExperimentOutcome


class Executor(Protocol):
    """Runs workloads. Each object is for one start.

    Rows are checked against ``machine``. If ``outlives_start``, its jobs continue when the start
    that submitted them ends.
    """

    machine: Machine
    outlives_start: bool

    def plan(self, path: Path, options: StartOptions) -> Work:
        """Return the pending work of a file; nothing is changed.

        Raises:
            ExperimentError: The file has problems, or a workload cannot run there.
            ClusterError: The cluster is not available.
        """

    def begin(self, path: Path, options: StartOptions, say: Callable[[str], None]) -> Work:
        """Return the pending work for a start that holds the experiment's lock.

        If jobs of an earlier start are still running, nothing is pending and ``source`` is None:
        `resume` continues with them.

        Args:
            say: Called with messages about leftovers of dead runners and their removal.
        """

    def resume(self, context: RunnerContext, work: Work) -> Work:
        """Follow the jobs of an earlier start to their end; return the work pending after it."""

    def where(self, work: Work) -> str:
        """Return a description of where it runs, for people."""

    def run(
        self, context: RunnerContext, work: Work, statuses: StatusSink | None
    ) -> ExperimentOutcome:
        """Run the pending work and return how all of it ended.

        A failure to record runs or to write the file becomes the outcome's ``problem``.

        Args:
            statuses: Writes them into the experiment file; None for a program.
        """
