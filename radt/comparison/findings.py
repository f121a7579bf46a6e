"""What B is against A in one quantity, and what follows: better, worse, alike, or unknown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise

from radt.comparison.circumstances import Difference, differences, ended_alike
from radt.comparison.matching import Matched, matched
from radt.comparison.sides import Round, Side
from radt.report.confidence import CONFIDENCE, Effect, Scale, effect, holm, repeats_that_tell
from radt.report.estimates import Estimate
from radt.report.quantities import ABOUT, Of, Quantity
from radt.report.summary import WorkloadSummary
from radt.report.windows import DEFAULT_WINDOW, WindowSpec

#: What is compared unless something else is asked for.
DEFAULT_QUANTITIES = (
    Quantity.TIME_PER_EPOCH,
    Quantity.SAMPLES_PER_S,
    Quantity.ENERGY_PER_EPOCH,
    Quantity.GPU_MEMORY_PEAK,
    Quantity.MAKESPAN,
)
#: A change that is smaller than this, either way, is none to speak of.
MARGIN = 0.05


class Sense(StrEnum):
    """Which way is better."""

    LOWER = "lower"
    HIGHER = "higher"
    NEITHER = "neither"


_BY_UNIT = {"s": Sense.LOWER, "J": Sense.LOWER, "g": Sense.LOWER, "By": Sense.LOWER}
_SENSES = {
    Quantity.SLOWDOWN: Sense.LOWER,
    Quantity.SPEED_UP: Sense.HIGHER,
    Quantity.SAMPLES_PER_S: Sense.HIGHER,
    Quantity.SAMPLES_PER_S_OF_RUN: Sense.HIGHER,
    Quantity.TRACKER_CPU: Sense.LOWER,
}


def sense(quantity: Quantity) -> Sense:
    """Which way of a quantity is better; of load, power and traffic neither is by itself."""
    return _SENSES.get(quantity) or _BY_UNIT.get(ABOUT[quantity].unit, Sense.NEITHER)


#: With more runs there is more of them, which is neither good nor bad.
_TOTALS = (
    *(Quantity.MAKESPAN, Quantity.SERIAL, Quantity.ENERGY, Quantity.ENERGY_OF_RUNS),
    *(Quantity.CARBON, Quantity.MEMORY, Quantity.MEMORY_PEAK),
    *(Quantity.GPU_MEMORY, Quantity.GPU_MEMORY_PEAK),
)


class Verdict(StrEnum):
    """What can be said."""

    BETTER = "better"
    WORSE = "worse"
    DIFFERENT = "different"  # of what is neither better nor worse
    ALIKE = "alike"  # within the margin on either side
    EQUAL = "equal"  # to the last digit, in every repeat
    UNKNOWN = "cannot tell"


@dataclass(frozen=True, slots=True)
class Finding:
    """One quantity of one workload, of all of it or of its like runs.

    Attributes:
        workload: Its name.
        runs: The name of the like runs; empty where the workload has no others.
        quantity: What is compared.
        a: A's value.
        b: B's value.
        effect: B against A.
        verdict: What can be said.
        holds: Of a difference: also among as many comparisons as are made at once (Holm).
        repeats_wanted: How many repeats would tell a change of `MARGIN`, where it cannot be told.
    """

    workload: str
    runs: str
    quantity: Quantity
    a: Estimate
    b: Estimate
    effect: Effect
    verdict: Verdict
    holds: bool = True
    repeats_wanted: int | None = None

    @property
    def name(self) -> str:
        """The workload, and the runs where it has several kinds."""
        return f"{self.workload}, {self.runs}" if self.runs else self.workload


@dataclass(frozen=True, slots=True)
class Compared:
    """A workload on both sides: findings, and what else differs.

    ``missing`` are quantities that one side has and that could not be compared.
    """

    name: str
    findings: Sequence[Finding]
    differences: Sequence[Difference] = ()
    missing: Sequence[Quantity] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """All that ``radt compare`` found."""

    a: Side
    b: Side
    workloads: Sequence[Compared]
    only_a: Sequence[str] = ()
    only_b: Sequence[str] = ()
    confidence: float = CONFIDENCE
    window: WindowSpec = DEFAULT_WINDOW
    quantities: Sequence[Quantity] = field(default=DEFAULT_QUANTITIES)

    @property
    def findings(self) -> list[Finding]:
        """Of all workloads."""
        return [finding for one in self.workloads for finding in one.findings]

    @property
    def tested(self) -> list[Finding]:
        """Those with an interval: the comparisons of which chance makes some look different."""
        return [finding for finding in self.findings if finding.effect.interval is not None]


def compare(
    a: Side,
    b: Side,
    quantities: Sequence[Quantity] = DEFAULT_QUANTITIES,
    *,
    confidence: float = CONFIDENCE,
    window: WindowSpec = DEFAULT_WINDOW,
) -> Comparison:
    """Compare two sides, workload by workload.

    Args:
        a: What B is put against.
        b: The other one.
        quantities: Those of them that both sides have are compared.
        confidence: Of the intervals.
        window: What of each run counted in the reports of both.

    Raises:
        UsageError: One side is an experiment with several workloads and the other is not.
    """
    matching = matched(a, b)
    compared = [_compared(a, b, one, quantities, confidence) for one in matching.workloads]
    return Comparison(
        a,
        b,
        _held(compared, confidence),
        matching.only_a,
        matching.only_b,
        confidence,
        window,
        tuple(quantities),
    )


def _compared(
    a: Side, b: Side, one: Matched, quantities: Sequence[Quantity], confidence: float
) -> Compared:
    findings = list(_findings(a, b, one, quantities, confidence))
    found = {finding.quantity for finding in findings}
    missing = [
        quantity
        for quantity in quantities
        if quantity not in found
        and any(side.estimate(quantity, group) for side in (one.a, one.b) for group in side.groups)
    ]
    return Compared(one.name, findings, differences(a, b, one), missing)


def _findings(
    a: Side, b: Side, one: Matched, quantities: Sequence[Quantity], confidence: float
) -> Iterable[Finding]:
    rounds = a.rounds_of(one.a), b.rounds_of(one.b)
    in_rounds = one.a.host == one.b.host and a.store == b.store and same_rounds(*rounds)
    alike = ended_alike(one)
    for quantity in quantities:
        if ABOUT[quantity].of is not Of.RUNS:
            # What went wrong in one of them makes their work, and all it takes, another.
            if alike:
                of_a, of_b = (_of_all(side, quantity) for side in (one.a, one.b))
                if of_a is not None and of_b is not None:
                    yield _finding(one, "", quantity, of_a, of_b, in_rounds, confidence)
            continue
        for group_a, group_b in one.groups:
            of_a, of_b = group_a.values.get(quantity), group_b.values.get(quantity)
            if of_a is not None and of_b is not None:
                name = group_a.name if len(one.groups) > 1 else ""
                yield _finding(one, name, quantity, of_a, of_b, in_rounds, confidence)


def _of_all(workload: WorkloadSummary, quantity: Quantity) -> Estimate | None:
    return workload.estimate(quantity, workload.groups[0])


def same_rounds(a: Sequence[Round], b: Sequence[Round]) -> bool:
    """Whether the repeats of two workloads ran in turns: the first of both, the second of both.

    Then what drifts (temperature, neighbours) touched both of a round alike, and each repeat of one
    is paired with that of the other.
    """
    numbers = [one.number for one in a]
    if len(a) < 2 or None in numbers or len(set(numbers)) < len(numbers):
        return False
    if numbers != [one.number for one in b]:
        return False
    pairs = list(zip(a, b, strict=True))
    return all(
        max(x.started_ns, y.started_ns) < min(u.started_ns, v.started_ns)
        for (x, y), (u, v) in pairwise(pairs)
    )


def _finding(
    one: Matched,
    runs: str,
    quantity: Quantity,
    a: Estimate,
    b: Estimate,
    in_rounds: bool,
    confidence: float,
) -> Finding:
    # A repeat without a value is left out of these: then none is known to belong to another.
    paired = in_rounds and len(a.repeats) == len(one.a.workload_ids) == len(b.repeats)
    found = effect(
        a.repeats or (a.mean,),
        b.repeats or (b.mean,),
        paired=paired,
        confidence=confidence,
        references=(a.reference, b.reference),
    )
    other_work = quantity in _TOTALS and one.a.run_count != one.b.run_count
    verdict = _verdict(found, Sense.NEITHER if other_work else sense(quantity))
    wanted = repeats_that_tell(found, MARGIN) if verdict is Verdict.UNKNOWN else None
    return Finding(one.name, runs, quantity, a, b, found, verdict, True, wanted)


def _verdict(found: Effect, better: Sense) -> Verdict:
    interval = found.interval
    if interval is None:
        return Verdict.UNKNOWN
    if interval.low == interval.high == found.none:
        return Verdict.EQUAL
    is_ratio = found.scale is Scale.RATIO
    if not interval.holds(found.none):
        if better is Sense.NEITHER:
            return Verdict.DIFFERENT
        is_lower = found.value < found.none
        return Verdict.BETTER if is_lower is (better is Sense.LOWER) else Verdict.WORSE
    if is_ratio and interval.low >= 1 / (1 + MARGIN) and interval.high <= 1 + MARGIN:
        return Verdict.ALIKE
    return Verdict.UNKNOWN


def _held(compared: Sequence[Compared], confidence: float) -> list[Compared]:
    """With what Holm's adjustment leaves of the differences, over all comparisons."""
    p_values = [
        finding.effect.p_value
        for one in compared
        for finding in one.findings
        if finding.effect.p_value is not None
    ]
    adjusted = iter(holm(p_values))
    return [
        replace(
            one,
            findings=[
                finding
                if finding.effect.p_value is None
                else replace(finding, holds=next(adjusted) <= 1 - confidence)
                for finding in one.findings
            ],
        )
        for one in compared
    ]
