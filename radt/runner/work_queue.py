"""The workloads that a start on this machine still has to run, in their order."""

from __future__ import annotations

from collections.abc import Sequence

from radt.experiment.plan import RunPlan, WorkloadKey
from radt.runner.auto import AutoGroups
from radt.runner.context import RunnerContext
from radt.runner.options import PendingWorkload, Work
from radt.runner.progress import WorkloadProgress


class WorkQueue:
    """What is left of the work of a start. Rows of ``auto`` are grouped when the first is due.

    Args:
        context: The context of the start.
        work: Its work.
    """

    def __init__(self, context: RunnerContext, work: Work) -> None:
        self._context = context
        self._work = work
        self._left = list(work.pending)
        #: By experiment.
        self._groups: dict[str, AutoGroups] = {}
        self._group_size = 1

    def __bool__(self) -> bool:
        return bool(self._left)

    @property
    def keys(self) -> Sequence[WorkloadKey]:
        """Return what is left, as if all further groups were as large as the last one."""
        rows = [each.plan.key for each in self._left if each.plan.is_auto]
        others = [each.plan.key for each in self._left if not each.plan.is_auto]
        return [*others, *rows[:: self._group_size]]

    def next_row(self) -> PendingWorkload:
        """Return the next workload of the file; a row of ``auto`` by itself."""
        return self._left.pop(0)

    def next(self) -> PendingWorkload:
        """Return the next workload to run.

        Raises:
            StoreError: A group cannot be chosen, as the store cannot be read.
            UsageError: The same, for the settings file.
        """
        first = self._left[0]
        if not first.plan.is_auto:
            return self._left.pop(0)
        waiting = [
            each
            for each in self._left
            if each.plan.is_auto
            and each.plan.experiment == first.plan.experiment
            and each.repeat == first.repeat
        ]
        group = self._auto(first).form(waiting)
        lines = {run.line for run in group.plan.runs}
        placed = [each for each in waiting if each.plan.runs[0].line in lines]
        self._left = [each for each in self._left if each not in placed]
        self._group_size = len(placed)
        return group

    def put_back(self, group: PendingWorkload, progress: WorkloadProgress) -> Sequence[RunPlan]:
        """Put rows that are to run again alone at the front, and return them."""
        groups = self._groups.get(group.plan.experiment)
        if groups is None or not group.grouped_by:
            return []
        rows = groups.failed_together(group, progress)
        lines = {row.line for row in rows}
        self._left[:0] = [
            each
            for each in self._work.pending
            if each.repeat == group.repeat and each.plan.runs[0].line in lines
        ]
        return rows

    def _auto(self, pending: PendingWorkload) -> AutoGroups:
        name = pending.plan.experiment
        if name not in self._groups:
            context = self._context
            self._groups[name] = AutoGroups(
                self._work, name, context.machine, context.reader, context.resume_options
            )
        return self._groups[name]
