"""Which bars a chart of a quantity has, whatever it is drawn with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from radt.model import RunStatus
from radt.report.estimates import Estimate
from radt.report.formats.content import Content, Item, runs_text
from radt.report.formats.tables import is_shared
from radt.report.quantities import Quantity
from radt.report.summary import WorkloadSummary

#: Collocation as experiment files have it: neighbours share the device as it is.
_NAIVE = "-"


class Way(StrEnum):
    """How runs share a device; the order is that of legends and colours."""

    NAIVE = "naive"
    MPS = "MPS"
    MIG = "MIG"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class ChartBar:
    """A bar; without ``estimate`` the word for how the runs ended."""

    item: Item
    label: str
    runs: str
    status: RunStatus
    run_count: int
    estimate: Estimate | None
    way: Way

    @property
    def degree(self) -> int:
        """How many runs share the hardware."""
        return self.item.summary.run_count


def way_of(workload: WorkloadSummary) -> Way:
    """How the runs of a workload share their device."""
    ways = {_way(run.run.collocation) for group in workload.groups for run in group.runs}
    return ways.pop() if len(ways) == 1 else Way.MIXED


def _way(collocation: str) -> Way:
    if collocation in (_NAIVE, ""):
        return Way.NAIVE
    # 3g.20gb+MPS is an instance first of all: that is what separates it from its neighbours.
    return Way.MPS if collocation.upper().startswith("MPS") else Way.MIG


def chart_bars(content: Content, quantity: Quantity) -> list[ChartBar]:
    """Bars by degree of collocation, then by way of sharing; none that say nothing."""
    items = sorted(
        content.items,
        key=lambda item: (item.summary.run_count, list(Way).index(way_of(item.summary))),
    )
    return [bar for item in items for bar in _bars(item, quantity)]


def _bars(item: Item, quantity: Quantity) -> Iterable[ChartBar]:
    way = way_of(item.summary)
    if is_shared(quantity):
        statuses = {group.status for group in item.groups}
        estimate = item.summary.estimate(quantity, item.groups[0])
        if estimate is not None or RunStatus.FINISHED not in statuses:
            runs = ", ".join(map(runs_text, item.groups))
            yield ChartBar(
                *(item, item.name, runs, RunStatus.worst(statuses)),
                *(item.summary.run_count, estimate, way),
            )
        return
    several = len({group.name for group in item.groups}) > 1
    for group in item.groups:
        finished = group.status is RunStatus.FINISHED
        estimate = group.values.get(quantity) if finished else None
        if estimate is not None or (not finished and quantity is not Quantity.SLOWDOWN):
            yield ChartBar(
                item,
                f"{item.name} {group.name}" if several else item.name,
                runs_text(group),
                group.status,
                len(group.runs),
                estimate,
                way,
            )


def blocks_of(degrees: Sequence[int]) -> list[tuple[int, int]]:
    """From and to of places with the same degree that follow each other."""
    blocks: list[tuple[int, int]] = []
    for place, degree in enumerate(degrees):
        if blocks and degrees[blocks[-1][0]] == degree:
            blocks[-1] = (blocks[-1][0], place + 1)
        else:
            blocks.append((place, place + 1))
    return blocks
