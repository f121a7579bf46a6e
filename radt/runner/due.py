"""What a start has to run: workloads and their repeats, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from radt.errors import UsageError
from radt.experiment.cells import did_you_mean
from radt.experiment.decision import Action, actions, first_repeat
from radt.experiment.plan import ExperimentPlan, RunPlan, WorkloadPlan
from radt.runner.options import ExperimentOptions


@dataclass(frozen=True, slots=True)
class Due:
    """One workload, to be run once: the ``repeat``-th time of ``repeats``.

    ``actions`` are by the letters of its rows.
    """

    plan: WorkloadPlan
    actions: Mapping[str, Action]
    repeat: int = 1
    repeats: int = 1

    @property
    def again(self) -> list[RunPlan]:
        """Rows that are done and run again because their workload is a unit."""
        return [run for run in self.plan.runs if self.actions[run.letter] is Action.AGAIN]


def due_workloads(plan: ExperimentPlan, options: ExperimentOptions) -> list[Due]:
    """What a start has to run: repeat after repeat, within one in the file's order.

    Rounds over the whole experiment rather than one workload N times: what drifts (temperature,
    neighbours) then touches all workloads alike.

    Raises:
        UsageError: ``only`` names a workload that is not there.
    """
    due: list[Due] = []
    for workload in _chosen(plan, options.only):
        found = actions(workload, rerun=options.rerun, repeat=options.repeat)
        if any(action.runs for action in found.values()):
            first = min(first_repeat(workload), options.repeat)
            due += [
                Due(workload, found, number, options.repeat)
                for number in range(first, options.repeat + 1)
            ]
    return sorted(due, key=lambda one: one.repeat)


def _chosen(plan: ExperimentPlan, only: Sequence[str]) -> list[WorkloadPlan]:
    if not only:
        return list(plan.workloads)
    labels = {workload.label for workload in plan.workloads}
    for label in only:
        if label not in labels:
            raise UsageError(
                f"--only {label}: there is no such workload",
                did_you_mean(label, labels) or f"Choose from {', '.join(sorted(labels))}",
            )
    return [workload for workload in plan.workloads if workload.label in only]
