"""Which tables a report has, whatever they are drawn with: on paper, in a browser, in a terminal.

The first has what answers whether collocation pays; what explains it follows, only if it was
measured. What is of a workload's devices has a line a workload, what is of its runs one for those
that are alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from radt.model import RunStatus
from radt.report.estimates import Estimate
from radt.report.formats.content import Content, Line
from radt.report.quantities import ABOUT, Of, Quantity
from radt.units import NO_VALUE

#: What answers the question, in the order of their weight.
ESSENTIAL = (
    Quantity.TIME_PER_EPOCH,
    Quantity.SLOWDOWN,
    Quantity.SAMPLES_PER_S,
    Quantity.SPEED_UP,
    Quantity.MAKESPAN,
    Quantity.SERIAL,
    Quantity.SM_ACTIVE,
    Quantity.GPU_UTILIZATION,
    Quantity.ENERGY,
)
#: How busy a device was.
ACTIVITY = (Quantity.SM_ACTIVE, Quantity.GPU_UTILIZATION)
#: Headings of what explains it.
_OF_WORKLOADS = "Workloads and their devices"
_OF_RUNS = "Processes of the runs"


def is_shared(quantity: Quantity) -> bool:
    """Whether it is of a workload or its devices, rather than of like runs."""
    return ABOUT[quantity].of is not Of.RUNS


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table: a line for each group of runs, or for each workload."""

    title: str
    lines: tuple[Line, ...]
    quantities: tuple[Quantity, ...]
    of_runs: bool

    def is_told(self, line: Line, quantity: Quantity) -> bool:
        """Whether this line says it: a workload's value stands in its first line only."""
        return line.is_first or not is_shared(quantity)

    def estimates(self, quantity: Quantity) -> list[Estimate]:
        """The values of a column."""
        return [
            found
            for line in self.lines
            if self.is_told(line, quantity) and (found := line.estimate(quantity)) is not None
        ]

    def count_text(self, line: Line) -> str:
        """How many repeats stand behind the values of a line; the most where they differ."""
        if self.of_runs:
            finished = line.group.status is RunStatus.FINISHED
            return str(line.group.repeats) if finished else NO_VALUE
        counts = [
            found.count for one in self.quantities if (found := line.estimate(one)) is not None
        ]
        return str(max(counts)) if counts else NO_VALUE


def sheets(content: Content) -> list[Sheet]:
    """The tables of a report; none where it has no workloads."""
    if not content.items:
        return []
    lines = tuple(content.lines)
    essential = tuple(one for one in ESSENTIAL if one in content.quantities)
    found = [Sheet("", lines, essential, of_runs=True)]
    rest = [one for one in content.quantities if one not in essential]
    shared = tuple(one for one in rest if is_shared(one))
    if shared:
        firsts = [line for line in lines if line.is_first]
        found.append(Sheet(_OF_WORKLOADS, _saying(firsts, shared), shared, of_runs=False))
    runs = tuple(one for one in rest if not is_shared(one))
    if runs:
        found.append(Sheet(_OF_RUNS, _saying(lines, runs), runs, of_runs=True))
    return found


def _saying(lines: Sequence[Line], quantities: Sequence[Quantity]) -> tuple[Line, ...]:
    """Those with any of the values; the first table has all, and says how runs ended."""
    found: list[Line] = []
    for line in lines:
        if any(line.estimate(one) is not None for one in quantities):
            is_first = not found or found[-1].item is not line.item
            found.append(replace(line, is_first=is_first))
    return tuple(found)
