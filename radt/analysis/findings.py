"""Compare A with B: each quantity is better, worse, alike or inconclusive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise

from radt.analysis.estimates import (
    CONFIDENCE,
    Effect,
    EffectScale,
    Estimate,
    Reached,
    effect,
    holm,
    repeats_to_detect,
)
from radt.analysis.matching import Difference, MatchedWorkload, differences, ended_alike, match
from radt.analysis.operands import Operand, Start
from radt.analysis.quantities import Direction, Quantity, Subject
from radt.analysis.series_quantities import AnyQuantity, SeriesQuantity
from radt.analysis.summaries import GroupSummary
from radt.analysis.window_spec import DEFAULT_WINDOW, WindowSpec

#: Quantities to compare by default.
DEFAULT_QUANTITIES = (
    Quantity.TIME_PER_EPOCH,
    Quantity.SAMPLES_PER_S,
    Quantity.ENERGY_PER_EPOCH,
    Quantity.GPU_MEMORY_PEAK,
    Quantity.MAKESPAN,
)
#: A relative change below this counts as none.
MARGIN = 0.05


#: Sums over runs, which grow with the number of runs, so that neither direction is better.
_TOTALS = (
    *(Quantity.MAKESPAN, Quantity.SERIAL, Quantity.ENERGY, Quantity.ENERGY_OF_RUNS),
    *(Quantity.CARBON, Quantity.MEMORY, Quantity.MEMORY_OF_ALL, Quantity.MEMORY_PEAK),
    Quantity.PSS,
    *(Quantity.GPU_MEMORY, Quantity.GPU_MEMORY_PEAK),
    *(Quantity.CPU_TIME, Quantity.RSS_PEAK, Quantity.IO_READ, Quantity.IO_WRITTEN),
)


class Verdict(StrEnum):
    """The result of a comparison."""

    BETTER = "better"
    WORSE = "worse"
    DIFFERENT = "different"  # neither direction is better
    ALIKE = "alike"  # within the margin
    EQUAL = "equal"  # all digits, in every repeat
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A condition of ``time_to`` that some runs of A or B never met.

    Attributes:
        quantity: The quantity.
        runs: The name of the like runs; empty if the workload has one kind.
        a: Number of A's runs that met it; None if they lack the metric.
        b: Likewise for B.
    """

    quantity: SeriesQuantity
    runs: str
    a: Reached | None
    b: Reached | None

    @property
    def is_in_b(self) -> bool:
        """Return whether a run of B never met it."""
        return self.b is None or not self.b.is_all

    @property
    def text(self) -> str:
        """Return ``reached by 5 of 5 runs of A, 3 of 5 runs of B``."""
        sides = (("A", self.a), ("B", self.b))
        return "reached by " + ", ".join(
            f"{reached.text if reached else 'no run'} of {name}" for name, reached in sides
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """One quantity of one workload, or of a group of like runs.

    Attributes:
        workload: Its name.
        runs: The name of the like runs; empty if the workload has one kind.
        quantity: The quantity compared.
        a: A's value.
        b: B's value.
        effect: B against A.
        verdict: The result.
        holds: A difference also holds after Holm's adjustment to all comparisons.
        repeats_wanted: If inconclusive, the number of repeats that would detect a change of
            `MARGIN`.
        shortfall: Runs without a value, which make it inconclusive; None if all have one.
    """

    workload: str
    runs: str
    quantity: AnyQuantity
    a: Estimate
    b: Estimate
    effect: Effect
    verdict: Verdict
    holds: bool = True
    repeats_wanted: int | None = None
    shortfall: Shortfall | None = None

    @property
    def name(self) -> str:
        """Return the workload's name, with that of the runs if it has several kinds."""
        return f"{self.workload}, {self.runs}" if self.runs else self.workload


@dataclass(frozen=True, slots=True)
class ComparedWorkload:
    """A workload of A and B: findings and other differences.

    ``missing`` are quantities that only A or only B has. ``missing_runs`` names, for the other
    quantities, like runs that only A or only B has a value of. ``shortfalls`` are conditions of
    ``time_to`` that some runs never met.
    """

    name: str
    findings: Sequence[Finding]
    differences: Sequence[Difference] = ()
    missing: Sequence[AnyQuantity] = ()
    shortfalls: Sequence[Shortfall] = ()
    missing_runs: Mapping[AnyQuantity, Sequence[str]] = field(default_factory=dict)

    def without(self, quantity: AnyQuantity) -> list[str]:
        """Return the names of the workload or its like runs whose quantity is missing."""
        if quantity in self.missing:
            return [self.name]
        return [f"{self.name}, {runs}" for runs in self.missing_runs.get(quantity, ())]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of ``radt compare``."""

    a: Operand
    b: Operand
    workloads: Sequence[ComparedWorkload]
    only_a: Sequence[str] = ()
    only_b: Sequence[str] = ()
    confidence: float = CONFIDENCE
    window: WindowSpec = DEFAULT_WINDOW
    quantities: Sequence[AnyQuantity] = field(default=DEFAULT_QUANTITIES)

    @property
    def findings(self) -> list[Finding]:
        """Return the findings of all workloads."""
        return [finding for workload in self.workloads for finding in workload.findings]

    @property
    def tested(self) -> list[Finding]:
        """Return the findings with an interval, some of which differ by chance."""
        return [finding for finding in self.findings if finding.effect.interval is not None]


def compare(
    a: Operand,
    b: Operand,
    quantities: Sequence[AnyQuantity] = DEFAULT_QUANTITIES,
    *,
    confidence: float = CONFIDENCE,
    window: WindowSpec = DEFAULT_WINDOW,
) -> Comparison:
    """Compare B with the reference A, workload by workload, in the quantities that both have.

    The default quantities include the CPU of all runs if a service does some of their work.

    `confidence` is that of the intervals, `window` that of both reports.

    Raises:
        UsageError: A or B is an experiment with several workloads and the other is not.
    """
    matching = match(a, b)
    served = any(pair.a.is_served or pair.b.is_served for pair in matching.workloads)
    if served and tuple(quantities) == DEFAULT_QUANTITIES:
        quantities = (*quantities, Quantity.CPU_OF_ALL)
    compared = [_compared(a, b, matched, quantities, confidence) for matched in matching.workloads]
    return Comparison(
        a,
        b,
        _adjusted(compared, confidence),
        matching.only_a,
        matching.only_b,
        confidence,
        window,
        tuple(quantities),
    )


def _compared(
    a: Operand,
    b: Operand,
    matched: MatchedWorkload,
    quantities: Sequence[AnyQuantity],
    confidence: float,
) -> ComparedWorkload:
    findings = list(_findings(a, b, matched, quantities, confidence))
    shortfalls = [
        shortfall
        for quantity in quantities
        for groups in matched.groups
        if (shortfall := _shortfall(matched, groups, quantity)) is not None
    ]
    unmet = {shortfall.quantity for shortfall in shortfalls}
    measured = {finding.quantity for finding in findings}
    missing = [
        quantity
        for quantity in quantities
        if quantity not in measured
        and (
            quantity in unmet
            or any(
                workload.estimate(quantity, group)
                for workload in (matched.a, matched.b)
                for group in workload.groups
            )
        )
    ]
    return ComparedWorkload(
        matched.name,
        findings,
        differences(a, b, matched),
        missing,
        shortfalls,
        {quantity: _missing_runs(matched, quantity) for quantity in measured},
    )


def _missing_runs(matched: MatchedWorkload, quantity: AnyQuantity) -> list[str]:
    """Return the names of like runs without a value in A or B."""
    if quantity.info.subject is not Subject.RUNS:
        return []
    pairs = [
        pair[0].name
        for pair in matched.groups
        if any(quantity in group.values or quantity in group.reached for group in pair)
        and not all(quantity in group.values for group in pair)
    ]
    return [*pairs, *(group.name for group in matched.unpaired if quantity in group.values)]


def _shortfall(
    matched: MatchedWorkload, groups: tuple[GroupSummary, GroupSummary], quantity: AnyQuantity
) -> Shortfall | None:
    if not isinstance(quantity, SeriesQuantity):
        return None
    a, b = (group.reached.get(quantity) for group in groups)
    if all(reached is None or reached.is_all for reached in (a, b)):
        return None
    return Shortfall(quantity, groups[0].name if len(matched.groups) > 1 else "", a, b)


def _findings(
    a: Operand,
    b: Operand,
    matched: MatchedWorkload,
    quantities: Sequence[AnyQuantity],
    confidence: float,
) -> Iterable[Finding]:
    in_turns = (
        matched.a.host == matched.b.host
        and a.store == b.store
        and ran_in_turns(a.starts_of(matched.a), b.starts_of(matched.b))
    )
    same_work = ended_alike(matched)
    for quantity in quantities:
        if quantity.info.subject is not Subject.RUNS:
            if same_work:
                of_a, of_b = matched.a.values.get(quantity), matched.b.values.get(quantity)
                if of_a is not None and of_b is not None:
                    yield _finding(matched, "", quantity, of_a, of_b, in_turns, confidence)
            continue
        for group_a, group_b in matched.groups:
            of_a, of_b = group_a.values.get(quantity), group_b.values.get(quantity)
            if of_a is not None and of_b is not None:
                name = group_a.name if len(matched.groups) > 1 else ""
                finding = _finding(matched, name, quantity, of_a, of_b, in_turns, confidence)
                yield _limited(finding, _shortfall(matched, (group_a, group_b), quantity))


def _limited(finding: Finding, shortfall: Shortfall | None) -> Finding:
    """Return a finding, made inconclusive if its means exclude runs without a value."""
    if shortfall is None:
        return finding
    return replace(
        finding,
        effect=replace(finding.effect, interval=None, p_value=None),
        verdict=Verdict.INCONCLUSIVE,
        repeats_wanted=None,
        shortfall=shortfall,
    )


def ran_in_turns(a: Sequence[Start], b: Sequence[Start]) -> bool:
    """Return True if repeats ran in turns: the first of both workloads, the second of both, …

    Drift (temperature, neighbours) then affects both repeats of a round alike, so they are paired.
    """
    numbers = [start.number for start in a]
    if len(a) < 2 or None in numbers or len(set(numbers)) < len(numbers):
        return False
    if numbers != [start.number for start in b]:
        return False
    pairs = list(zip(a, b, strict=True))
    return all(
        max(x.started_ns, y.started_ns) < min(u.started_ns, v.started_ns)
        for (x, y), (u, v) in pairwise(pairs)
    )


def _finding(
    matched: MatchedWorkload,
    runs: str,
    quantity: AnyQuantity,
    a: Estimate,
    b: Estimate,
    in_turns: bool,
    confidence: float,
) -> Finding:
    # Estimates omit repeats without a value, so the rest cannot be paired.
    paired = in_turns and len(a.repeats) == len(matched.a.workload_ids) == len(b.repeats)
    change = effect(
        a.repeats or (a.mean,),
        b.repeats or (b.mean,),
        paired=paired,
        confidence=confidence,
        references=(a.reference, b.reference),
    )
    other_work = quantity in _TOTALS and matched.a.run_count != matched.b.run_count
    verdict = _verdict(change, Direction.NEITHER if other_work else quantity.info.direction)
    wanted = repeats_to_detect(change, MARGIN) if verdict is Verdict.INCONCLUSIVE else None
    return Finding(matched.name, runs, quantity, a, b, change, verdict, True, wanted)


def _verdict(change: Effect, better: Direction) -> Verdict:
    interval = change.interval
    if interval is None:
        return Verdict.INCONCLUSIVE
    if interval.low == interval.high == change.none:
        return Verdict.EQUAL
    if not interval.holds(change.none):
        if better is Direction.NEITHER:
            return Verdict.DIFFERENT
        is_lower = change.value < change.none
        return Verdict.BETTER if is_lower is (better is Direction.LOWER) else Verdict.WORSE
    is_ratio = change.scale is EffectScale.RATIO
    if is_ratio and interval.low >= 1 / (1 + MARGIN) and interval.high <= 1 + MARGIN:
        return Verdict.ALIKE
    return Verdict.INCONCLUSIVE


def _adjusted(compared: Sequence[ComparedWorkload], confidence: float) -> list[ComparedWorkload]:
    """Return workloads whose findings have Holm's adjustment over all comparisons."""
    p_values = [
        finding.effect.p_value
        for workload in compared
        for finding in workload.findings
        if finding.effect.p_value is not None
    ]
    adjusted = iter(holm(p_values))
    return [
        replace(
            workload,
            findings=[
                finding
                if finding.effect.p_value is None
                else replace(finding, holds=next(adjusted) <= 1 - confidence)
                for finding in workload.findings
            ],
        )
        for workload in compared
    ]
