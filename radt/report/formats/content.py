"""What a report says, whatever it is written as."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from radt.report.estimates import Estimate
from radt.report.quantities import Quantity
from radt.report.summary import GroupSummary, Report, WorkloadSummary, left_out_text
from radt.units import NO_VALUE, plural


@dataclass(frozen=True, slots=True)
class Item:
    """A workload of a report: ``name`` as it is shown, its groups in the order they are shown."""

    experiment: str
    name: str
    summary: WorkloadSummary
    groups: tuple[GroupSummary, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a table: like runs of a workload, of whose lines it is the first or not."""

    item: Item
    group: GroupSummary
    is_first: bool

    def estimate(self, quantity: Quantity) -> Estimate | None:
        return self.item.summary.estimate(quantity, self.group)


@dataclass(frozen=True, slots=True)
class Content:
    """A report, ready to be written.

    Attributes:
        reports: What it was made of, one an experiment.
        items: Its workloads, in order.
        quantities: What tables have as columns, in order.
    """

    reports: tuple[Report, ...]
    items: tuple[Item, ...]
    quantities: tuple[Quantity, ...]

    @classmethod
    def of(cls, report: Report) -> Content:
        """All of one experiment."""
        with_host = len({workload.host for workload in report.workloads}) > 1
        return cls(
            (report,),
            tuple(
                Item(
                    report.experiment,
                    workload_name(workload, with_host=with_host),
                    workload,
                    tuple(workload.groups),
                )
                for workload in report.workloads
            ),
            report.quantities,
        )

    @property
    def title(self) -> str:
        """The names of the experiments."""
        return ", ".join(report.experiment for report in self.reports)

    @property
    def window(self) -> str:
        """In words."""
        return self.reports[0].window.text if self.reports else ""

    @property
    def lines(self) -> list[Line]:
        """All lines of a table that has one for each group."""
        return [
            Line(item, group, place == 0)
            for item in self.items
            for place, group in enumerate(item.groups)
        ]

    @property
    def notes(self) -> tuple[str, ...]:
        """What has to be known besides the numbers, in sentences."""
        return tuple(dict.fromkeys(self._notes()))

    @property
    def tracker(self) -> tuple[str, ...]:
        """What recording cost, one a report that knows it."""
        return tuple(f"Tracker: {text}." for one in self.reports if (text := one.tracker.text))

    def _notes(self) -> Iterator[str]:
        for report in self.reports:
            if report.open:
                yield f"{plural(report.open, 'run')} not ended yet."
            if report.left_out:
                yield f"{left_out_text(report.left_out)}."
        for line in self.lines:
            if line.group.shortage is not None:
                yield f"{line.item.name}, {line.group.status}: {line.group.shortage.text}."
        for report in self.reports:
            yield from report.footnotes
        for item in self.items:
            for run in item.summary.energy.runs:
                if run.method:
                    yield f"est.: {run.method}."
        yield from self.tracker

    def estimates(self, quantity: Quantity) -> list[Estimate]:
        """All values of a column, those of a workload's devices once for each of its lines."""
        return [found for line in self.lines if (found := line.estimate(quantity)) is not None]


def workload_name(workload: WorkloadSummary, *, with_host: bool) -> str:
    """Its label, and the machine where it takes that to tell it from others."""
    label = workload.label
    if label == NO_VALUE and len(workload.groups) == 1:
        label = workload.groups[0].name  # a script that was run by itself
    return " ".join(part for part in (label, workload.host if with_host else "") if part)


def runs_text(group: GroupSummary) -> str:
    """``3 × cnn-small``."""
    alike = len({run.name for run in group.runs}) == 1
    count = f"{len(group.runs)} × " if len(group.runs) > 1 and alike else ""
    return f"{count}{group.name}"


def reasons_of(group: GroupSummary) -> Sequence[str]:
    """Why its runs did not finish, as far as is known, each reason once."""
    return tuple(dict.fromkeys(run.run.end_reason for run in group.runs if run.run.end_reason))


def visible(text: str) -> str:
    """A name without what would steer a terminal, or break a line."""
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )
