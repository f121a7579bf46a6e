"""What a report says of runs and workloads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from radt.model import RunStatus
from radt.report.baselines import Baseline
from radt.report.energy import WorkloadEnergy
from radt.report.estimates import Estimate
from radt.report.quantities import ABOUT, Of, Quantity
from radt.report.shortage import MemoryShortage
from radt.store.records import RunRecord


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One row of a workload: its run, the newest that finished, and how many repeats did.

    ``profiled`` says which profiler it ran under, or beside. ``name`` tells it from others of the
    experiment.
    """

    run: RunRecord
    name: str
    repeats: int
    profiled: str = ""

    @property
    def status(self) -> RunStatus:
        """FINISHED if one repeat did."""
        return RunStatus.FINISHED if self.repeats else self.run.status


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """The like runs of a workload together: mean of their times, sum of their throughput and CPU.

    ``values`` has what was measured of them. Runs that did not finish have a group of their own,
    without numbers; its ``status`` says how they ended. ``baseline`` is what `slowdown` is against;
    ``shortage`` what is known of the memory that ran out.
    """

    name: str
    runs: Sequence[RunSummary]
    status: RunStatus
    values: Mapping[Quantity, Estimate] = field(default_factory=dict)
    baseline: Baseline | None = None
    shortage: MemoryShortage | None = None

    @property
    def repeats(self) -> int:
        """How many times each of them finished, at least."""
        return min(run.repeats for run in self.runs)

    def mean(self, quantity: Quantity) -> float | None:
        """A value; None where it was not measured."""
        estimate = self.values.get(quantity)
        return None if estimate is None else estimate.mean

    @property
    def time_per_epoch_s(self) -> float | None:
        return self.mean(Quantity.TIME_PER_EPOCH)

    @property
    def slowdown(self) -> float | None:
        """Time per epoch over that of the same run alone, None without one."""
        return self.mean(Quantity.SLOWDOWN)

    @property
    def samples_per_s(self) -> float | None:
        return self.mean(Quantity.SAMPLES_PER_S)

    @property
    def cpu_cores(self) -> float | None:
        """CPU time per time of their process trees."""
        return self.mean(Quantity.CPU)


@dataclass(frozen=True, slots=True)
class WorkloadSummary:
    """One workload in numbers.

    ``values`` has what is no single run's: of the devices that it used, of all its runs as one.

    ``workload_id`` is that of the newest start that stands for it; ``workload_ids`` are all.
    ``is_adjusted`` says that its runs trained more or fewer epochs than alone, and ``SERIAL`` is
    what as many epochs take alone.
    """

    label: str
    groups: Sequence[GroupSummary]
    energy: WorkloadEnergy
    host: str = ""
    values: Mapping[Quantity, Estimate] = field(default_factory=dict)
    workload_ids: tuple[str, ...] = ()
    is_adjusted: bool = False

    @property
    def run_count(self) -> int:
        return sum(len(group.runs) for group in self.groups)

    @property
    def workload_id(self) -> str:
        return self.workload_ids[-1]

    def estimate(self, quantity: Quantity, group: GroupSummary) -> Estimate | None:
        """A value of one of its groups, or of all of it, whose ever it is."""
        return (group.values if ABOUT[quantity].of is Of.RUNS else self.values).get(quantity)
