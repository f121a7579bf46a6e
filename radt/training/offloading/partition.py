"""Which blocks form a segment: dynamic programming over the cuts, under a budget of memory.

Two neighbouring segments are in memory at a time. The best cuts hide loading behind the passes of
C micro-batches (C·compute >= load) and, among those, hand over the fewest bytes. Atom searches for
them with backtracking (X. Wu 2023, section 3.4); the result here is the same optimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from radt.training.segments import Block


@dataclass(frozen=True, slots=True)
class OffloadBlock:
    """A block with what swapping it costs; the bytes of its output are those of a cut behind it.

    Attributes:
        block: Its passes' durations for one micro-batch, and its bytes.
        load_s: Duration of loading its parameters.
        update_s: Duration of its optimiser's step and of writing back.
        gradient_bytes: Bytes of its gradients.
        largest_gradient_bytes: Bytes of the largest one.
        update_bytes: Bytes in memory while it is updated: parameters, gradients, states.
        kept_bytes: Bytes that a micro-batch keeps for the backward pass, besides the input.
    """

    block: Block
    load_s: float
    update_s: float
    gradient_bytes: int
    largest_gradient_bytes: int
    update_bytes: int
    kept_bytes: int


@dataclass(frozen=True, slots=True)
class Memory:
    """What a partition may use.

    Attributes:
        budget_bytes: All of it.
        fixed_bytes: What is there whatever the cuts: parameters used in several blocks, buffers.
        micro_batches: Micro-batches that go through a segment before the next one, C.
        recompute: Whether the backward pass computes a segment's activations again; otherwise those
            of all segments are kept.
    """

    budget_bytes: int
    fixed_bytes: int
    micro_batches: int
    recompute: bool


@dataclass(frozen=True, slots=True, order=True)
class Cost:
    """What a partition costs: the smaller one is better.

    Attributes:
        visible_us: Time of loading and updating that passes do not hide, in microseconds.
        cut_bytes: Bytes that segments hand over, a micro-batch.
    """

    visible_us: int
    cut_bytes: int


@dataclass(frozen=True, slots=True)
class _Span:
    """The blocks of one segment, summed."""

    parameters: int
    gradients: int
    update: int
    working: int
    output: int
    forward_s: float
    backward_s: float
    load_s: float
    update_s: float


@dataclass(frozen=True, slots=True)
class _Label:
    """The best known partition of the first blocks for some memory."""

    local_bytes: int
    cost: Cost
    before: _Label | None
    begin: int
    end: int

    def dominates(self, other: _Label) -> bool:
        """Whether the other one is better in nothing."""
        return (
            self.local_bytes <= other.local_bytes
            and self.cost.visible_us <= other.cost.visible_us
            and self.cost.cut_bytes <= other.cost.cut_bytes
        )


class Partitioner:
    """Finds and evaluates partitions of blocks; cuts are numbers of blocks before them.

    Args:
        blocks: In the order of their calls.
        memory: What may be used.
    """

    def __init__(self, blocks: Sequence[OffloadBlock], memory: Memory) -> None:
        self._blocks = blocks
        self._memory = memory
        self._spans = {
            (begin, end): self._span(blocks[begin:end])
            for begin in range(len(blocks))
            for end in range(begin + 1, len(blocks) + 1)
        }
        self._fixed = memory.fixed_bytes
        if not memory.recompute:
            self._fixed += memory.micro_batches * sum(block.kept_bytes for block in blocks)
        update_s = sum(block.update_s for block in blocks)
        swap_s = update_s + sum(block.load_s for block in blocks)
        #: Share of a backward pass that is to hide an update; the rest is to hide a load.
        self._update_share = update_s / swap_s if swap_s else 0.0

    def best(self) -> list[int] | None:
        """Return the cuts with the least cost that fit the budget; None if none do."""
        labels = self._labels(self._memory.budget_bytes)
        best = min(labels, key=lambda label: (label.cost, label.local_bytes), default=None)
        return None if best is None else _cuts(best)

    def smallest_budget(self) -> int:
        """Return the bytes with which some partition fits."""
        return min(self._bytes(label.local_bytes, label.cost) for label in self._labels(None))

    def cost(self, cuts: Sequence[int]) -> Cost:
        """Return the cost of cuts."""
        return self._label(cuts).cost

    def peak_bytes(self, cuts: Sequence[int]) -> int:
        """Return the bytes that cuts need."""
        label = self._label(cuts)
        return self._bytes(label.local_bytes, label.cost)

    def _label(self, cuts: Sequence[int]) -> _Label:
        ends = [*cuts, len(self._blocks)]
        label = self._first(ends[0])
        for end in ends[1:]:
            label = self._extended(label, end)
        return label

    def _labels(self, budget_bytes: int | None) -> list[_Label]:
        """Return the partitions of all blocks of which none is better in all three respects."""
        count = len(self._blocks)
        kept: dict[tuple[int, int], list[_Label]] = {}
        for end in range(1, count + 1):
            self._keep(kept, self._first(end), budget_bytes)
        for begin in range(1, count):
            for start in range(begin):
                for label in kept.get((start, begin), ()):
                    for end in range(begin + 1, count + 1):
                        self._keep(kept, self._extended(label, end), budget_bytes)
        return [label for start in range(count) for label in kept.get((start, count), ())]

    def _keep(
        self, kept: dict[tuple[int, int], list[_Label]], label: _Label, budget_bytes: int | None
    ) -> None:
        if budget_bytes is not None and self._bytes(label.local_bytes, label.cost) > budget_bytes:
            return
        rivals = kept.setdefault((label.begin, label.end), [])
        if not any(rival.dominates(label) for rival in rivals):
            rivals[:] = [rival for rival in rivals if not label.dominates(rival)]
            rivals.append(label)

    def _first(self, end: int) -> _Label:
        span = self._spans[0, end]
        cost = Cost(_us(span.update_s), 0)  # the next step begins when it is updated
        return _Label(self._alone(span), cost, None, 0, end)

    def _extended(self, label: _Label, end: int) -> _Label:
        """Return a partition with one more segment, which ends at a block."""
        one, other = self._spans[label.begin, label.end], self._spans[label.end, end]
        count = self._memory.micro_batches
        last = end == len(self._blocks)
        backward_s = other.backward_s
        if self._memory.recompute or last:  # the last one goes forward and backward in one visit
            backward_s += other.forward_s
        one_backward_s = one.backward_s + (one.forward_s if self._memory.recompute else 0.0)
        visible_us = (
            _us(other.load_s - count * one.forward_s)
            + _us(one.load_s - (1 - self._update_share) * count * backward_s)
            + _us(other.update_s - self._update_share * count * one_backward_s)
        )
        local = max(
            one.parameters + one.working + other.parameters,
            self._passing(other) + one.parameters,
            self._passing(one) + other.update,
        )
        return _Label(
            max(label.local_bytes, local + (count + 1) * one.output, self._alone(other)),
            Cost(label.cost.visible_us + visible_us, label.cost.cut_bytes + one.output),
            label,
            label.end,
            end,
        )

    def _passing(self, span: _Span) -> int:
        """Return the bytes of a segment in its backward pass."""
        return span.parameters + span.gradients + span.working

    def _alone(self, span: _Span) -> int:
        return max(self._passing(span), span.update)

    def _bytes(self, local_bytes: int, cost: Cost) -> int:
        # Without recomputing, what is handed over is part of what all blocks keep.
        handed_over = cost.cut_bytes if self._memory.recompute else 0
        return self._fixed + local_bytes + self._memory.micro_batches * handed_over

    def _span(self, blocks: Sequence[OffloadBlock]) -> _Span:
        largest = max(block.largest_gradient_bytes for block in blocks)
        kept = sum(block.kept_bytes for block in blocks) if self._memory.recompute else 0
        return _Span(
            parameters=sum(block.block.parameter_bytes for block in blocks),
            # One is made before it is added to the others.
            gradients=sum(block.gradient_bytes for block in blocks) + largest,
            update=sum(block.update_bytes for block in blocks),
            working=kept,
            output=blocks[-1].block.output_bytes,
            forward_s=sum(block.block.forward_s for block in blocks),
            backward_s=sum(block.block.backward_s for block in blocks),
            load_s=sum(block.load_s for block in blocks),
            update_s=sum(block.update_s for block in blocks),
        )


def expected_s(blocks: Sequence[OffloadBlock], cuts: Sequence[int], memory: Memory) -> float:
    """Return the expected duration of a step: passes here, loads and updates one after another.

    The order is that of the executor: while a segment goes backward, the one behind it is updated
    and the one before it is loaded.
    """
    count = memory.micro_batches
    spans = [blocks[begin:end] for begin, end in pairwise([0, *cuts, len(blocks)])]
    forward_s = [count * sum(block.block.forward_s for block in span) for span in spans]
    backward_s = [count * sum(block.block.backward_s for block in span) for span in spans]
    load_s = [sum(block.load_s for block in span) for span in spans]
    update_s = [sum(block.update_s for block in span) for span in spans]
    last = len(spans) - 1
    now_s = thread_s = 0.0
    for at in range(last):
        thread_s = max(thread_s, now_s) + load_s[at + 1]
        now_s = max(now_s + forward_s[at], thread_s)
    for at in range(last, -1, -1):
        thread_s = max(thread_s, now_s)
        if at < last:
            thread_s += update_s[at + 1]
        if at > 0:
            thread_s += load_s[at - 1]
        now_s += backward_s[at] + (forward_s[at] if memory.recompute or at == last else 0.0)
        now_s = max(now_s, thread_s)
    return now_s + update_s[0]


def coarsened(parameter_bytes: Sequence[int], most: int) -> list[int]:
    """Return the ends of groups of successive blocks, at most as many as asked.

    The two neighbours with the fewest bytes together become one, until there are few enough.
    """
    sizes = list(parameter_bytes)
    counts = [1] * len(sizes)
    while len(sizes) > most:
        at = min(range(len(sizes) - 1), key=lambda at: sizes[at] + sizes[at + 1])
        sizes[at : at + 2] = [sizes[at] + sizes[at + 1]]
        counts[at : at + 2] = [counts[at] + counts[at + 1]]
    return list(accumulate(counts))


def _cuts(label: _Label) -> list[int]:
    cuts: list[int] = []
    while label.before is not None:
        cuts.append(label.begin)
        label = label.before
    return cuts[::-1]


def _us(seconds: float) -> int:
    """Whole microseconds: measured times are no more exact, and sums do not depend on order."""
    return max(0, round(seconds * 1e6))
