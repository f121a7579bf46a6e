"""Where each workload stands, told from the statuses in the file and the runs in the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum

from radt.experiment.decision import actions, first_repeat
from radt.experiment.lock import Holder
from radt.experiment.plan import ExperimentPlan, WorkloadPlan
from radt.model import RunStatus
from radt.store.records import RunRecord

#: A workload's experiment and label.
Key = tuple[str, str]


class WorkloadState(StrEnum):
    """Where a workload stands."""

    DONE = "done"
    RUNNING = "running"
    INTERRUPTED = "interrupted"  # its runner died; the next start runs it again
    NEXT = "next"
    WAITING = "waiting"
    LEFT_OUT = "left out"  # --only names others


class Standing:
    """What the present start, or the next, has still to do.

    Args:
        plan: The file as it is now.
        holder: Who runs it; None if nobody does.
        repeat: How often each workload is wanted.
        records: What the store has of the last run of each row.
    """

    def __init__(
        self,
        plan: ExperimentPlan,
        holder: Holder | None,
        repeat: int,
        records: Mapping[Key, Sequence[RunRecord | None]],
    ) -> None:
        self._holder = holder
        self._repeat = repeat
        self._records = records
        self.since_s = None if holder is None else datetime.fromisoformat(holder.since).timestamp()
        due = [
            (number, index, key_of(one))
            for index, one in enumerate(plan.workloads)
            for number in self._numbers(one)
        ]
        #: In the runner's order: repeat after repeat, within one in the file's.
        self.left: Sequence[Key] = [key for _, _, key in sorted(due)]
        at_work = holder is not None
        running = {key_of(one) for one in plan.workloads if at_work and _runs(one)}
        self._next = next((key for key in self.left if key not in running), None)

    def state(self, workload: WorkloadPlan) -> WorkloadState:
        """Where a workload stands."""
        key = key_of(workload)
        if _runs(workload):
            at_work = self._holder is not None
            return WorkloadState.RUNNING if at_work else WorkloadState.INTERRUPTED
        if key in self.left:
            return WorkloadState.NEXT if key == self._next else WorkloadState.WAITING
        return WorkloadState.LEFT_OUT if self._left_out(workload) else WorkloadState.DONE

    def _numbers(self, workload: WorkloadPlan) -> range:
        """The repeats that are still to come, the present one included."""
        rerun = self._holder is not None and self._holder.rerun
        found = actions(workload, rerun=rerun, repeat=self._repeat)
        if self._left_out(workload) or not any(action.runs for action in found.values()):
            return range(0)
        if self._given_up(workload):
            return range(0)
        return range(min(first_repeat(workload), self._repeat), self._repeat + 1)

    def _left_out(self, workload: WorkloadPlan) -> bool:
        only = self._holder.only if self._holder is not None else ()
        return bool(only) and workload.label not in only

    def _given_up(self, workload: WorkloadPlan) -> bool:
        """Whether this start has run it and it did not finish: it will not be tried again."""
        if self.since_s is None or _runs(workload):
            return False
        return any(
            run.status is not None
            and run.status.ended
            and run.status is not RunStatus.FINISHED
            and record is not None
            and record.created_ns / 1e9 >= self.since_s
            for run, record in zip(workload.runs, self._records[key_of(workload)], strict=True)
        )


def key_of(workload: WorkloadPlan) -> Key:
    """What tells a workload from the others of its file."""
    return workload.experiment, workload.label


def _runs(workload: WorkloadPlan) -> bool:
    return any(run.status is RunStatus.RUNNING for run in workload.runs)
