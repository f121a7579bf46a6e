"""Which blocks form a segment: dynamic programming over the cuts, under a memory budget.

Two neighbouring segments are in memory at a time. The best cuts hide loading behind the passes of C
micro-batches (C·compute >= load) and, among those, hand over the fewest bytes. Atom searches for
them with backtracking (X. Wu 2023, section 3.4); the result here is the same optimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise


@dataclass(frozen=True, slots=True)
class OffloadBlock:
    """A block, or a segment of several blocks, and the cost of swapping it.

    Attributes:
        name: The module's name in the model: ``layers.3``; for a segment, the first one's and the
            last one's.
        forward_s: Duration of its forward pass for one micro-batch.
        backward_s: Duration of its backward pass for one.
        parameter_bytes: Bytes of its parameters.
        output_bytes: Bytes that a cut behind it hands over, for one micro-batch.
        load_s: Duration of loading its parameters.
        update_s: Duration of its optimiser's step and of writing back.
        update_compute_s: Duration of the step alone.
        gradient_bytes: Bytes of its gradients.
        largest_gradient_bytes: Bytes of the largest one.
        update_bytes: Bytes in memory while it is updated: parameters, gradients, states.
        kept_bytes: Bytes that a micro-batch keeps for the backward pass, besides the input.
    """

    name: str
    forward_s: float
    backward_s: float
    parameter_bytes: int
    output_bytes: int
    load_s: float
    update_s: float
    update_compute_s: float
    gradient_bytes: int
    largest_gradient_bytes: int
    update_bytes: int
    kept_bytes: int

    @classmethod
    def joined(cls, blocks: Sequence[OffloadBlock]) -> OffloadBlock:
        """Return successive blocks as one block."""
        if len(blocks) == 1:
            return blocks[0]
        return cls(
            name=f"{blocks[0].name} … {blocks[-1].name}",
            forward_s=sum(block.forward_s for block in blocks),
            backward_s=sum(block.backward_s for block in blocks),
            parameter_bytes=sum(block.parameter_bytes for block in blocks),
            output_bytes=blocks[-1].output_bytes,
            load_s=sum(block.load_s for block in blocks),
            update_s=sum(block.update_s for block in blocks),
            update_compute_s=sum(block.update_compute_s for block in blocks),
            gradient_bytes=sum(block.gradient_bytes for block in blocks),
            largest_gradient_bytes=max(block.largest_gradient_bytes for block in blocks),
            update_bytes=sum(block.update_bytes for block in blocks),
            kept_bytes=sum(block.kept_bytes for block in blocks),
        )


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory that a partition may use.

    Attributes:
        budget_bytes: The whole budget.
        fixed_bytes: Use that does not depend on the cuts: parameters used in several blocks,
            buffers.
        micro_batches: Micro-batches that go through a segment before the next one, C.
        recompute: Whether the backward pass computes a segment's activations again; otherwise those
            of all segments are kept.
    """

    budget_bytes: int
    fixed_bytes: int
    micro_batches: int
    recompute: bool


@dataclass(frozen=True, slots=True)
class _Label:
    """The best known partition of the first blocks for some amount of memory.

    Attributes:
        local_bytes: Peak of memory, without the values that all segments hand over.
        visible_us: Time of loading and updating that passes do not hide, in microseconds.
        cut_bytes: Bytes that segments hand over, per micro-batch.
        before: The partition without its last segment.
        begin: The first block of the last segment.
        end: The block behind it.
    """

    local_bytes: int
    visible_us: int
    cut_bytes: int
    before: _Label | None
    begin: int
    end: int

    @property
    def cost(self) -> tuple[int, int]:
        """Sort key; smaller is better."""
        return self.visible_us, self.cut_bytes

    def dominates(self, other: _Label) -> bool:
        """Return True if the other one is better in no respect."""
        return (
            self.local_bytes <= other.local_bytes
            and self.visible_us <= other.visible_us
            and self.cut_bytes <= other.cut_bytes
        )


class Partitioner:
    """Finds and evaluates partitions of blocks. Cuts are numbers of blocks before them.

    Args:
        blocks: In the order of their calls.
        memory: The memory to use.
    """

    def __init__(self, blocks: Sequence[OffloadBlock], memory: Memory) -> None:
        self._blocks = blocks
        self._memory = memory
        self._spans = {
            (begin, end): OffloadBlock.joined(blocks[begin:end])
            for begin in range(len(blocks))
            for end in range(begin + 1, len(blocks) + 1)
        }
        self._fixed = memory.fixed_bytes
        if not memory.recompute:
            self._fixed += memory.micro_batches * sum(block.kept_bytes for block in blocks)
        update_s = sum(block.update_s for block in blocks)
        swap_s = update_s + sum(block.load_s for block in blocks)
        #: Share of a backward pass that should hide an update; the rest should hide a load.
        self._update_share = update_s / swap_s if swap_s else 0.0

    def best(self) -> list[int] | None:
        """Return the cuts with the least cost that fit the budget; None if none do."""
        labels = self._labels(self._memory.budget_bytes)
        best = min(labels, key=lambda label: (label.cost, label.local_bytes), default=None)
        return None if best is None else _cuts(best)

    def smallest_budget(self) -> int:
        """Return the smallest budget that some partition fits."""
        return min(self._bytes(label) for label in self._labels(None))

    def cost(self, cuts: Sequence[int]) -> tuple[int, int]:
        """Return visible microseconds and bytes handed over; smaller is better."""
        return self._label(cuts).cost

    def peak_bytes(self, cuts: Sequence[int]) -> int:
        """Return the memory that cuts need, in bytes."""
        return self._bytes(self._label(cuts))

    def _label(self, cuts: Sequence[int]) -> _Label:
        ends = [*cuts, len(self._blocks)]
        label = self._first(ends[0])
        for end in ends[1:]:
            label = self._extended(label, end)
        return label

    def _labels(self, budget_bytes: int | None) -> list[_Label]:
        """Return the Pareto-optimal partitions of all blocks in the three respects."""
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
        if budget_bytes is not None and self._bytes(label) > budget_bytes:
            return
        rivals = kept.setdefault((label.begin, label.end), [])
        if not any(rival.dominates(label) for rival in rivals):
            rivals[:] = [rival for rival in rivals if not label.dominates(rival)]
            rivals.append(label)

    def _first(self, end: int) -> _Label:
        span = self._spans[0, end]
        # The next step begins when it is updated.
        return _Label(self._alone(span), _us(span.update_s), 0, None, 0, end)

    def _extended(self, label: _Label, end: int) -> _Label:
        """Return a partition with one more segment, which ends at a block."""
        one, other = self._spans[label.begin, label.end], self._spans[label.end, end]
        count = self._memory.micro_batches
        last = end == len(self._blocks)
        backward_s = other.backward_s
        if self._memory.recompute or last:  # the last one goes forward and backward at once
            backward_s += other.forward_s
        one_backward_s = one.backward_s + (one.forward_s if self._memory.recompute else 0.0)
        visible_us = (
            _us(other.load_s - count * one.forward_s)
            + _us(one.load_s - (1 - self._update_share) * count * backward_s)
            + _us(other.update_s - self._update_share * count * one_backward_s)
        )
        local = max(
            one.parameter_bytes + self._working(one) + other.parameter_bytes,
            self._passing(other) + one.parameter_bytes,
            self._passing(one) + other.update_bytes,
        )
        return _Label(
            max(label.local_bytes, local + (count + 1) * one.output_bytes, self._alone(other)),
            label.visible_us + visible_us,
            label.cut_bytes + one.output_bytes,
            label,
            label.end,
            end,
        )

    def _passing(self, span: OffloadBlock) -> int:
        """Return the bytes of a segment in its backward pass."""
        # A gradient is created before it is added to the others.
        gradients = span.gradient_bytes + span.largest_gradient_bytes
        return span.parameter_bytes + gradients + self._working(span)

    def _working(self, span: OffloadBlock) -> int:
        """Return the bytes of activations that exist only while a segment is computed."""
        return span.kept_bytes if self._memory.recompute else 0

    def _alone(self, span: OffloadBlock) -> int:
        return max(self._passing(span), span.update_bytes)

    def _bytes(self, label: _Label) -> int:
        # Without recomputing, values handed over are part of what all blocks keep.
        handed_over = label.cut_bytes if self._memory.recompute else 0
        return self._fixed + label.local_bytes + self._memory.micro_batches * handed_over


def expected_s(segments: Sequence[OffloadBlock], memory: Memory) -> float:
    """Return the expected duration of a step: passes here, loads and updates one after another.

    The order is that of the executor: during a segment's backward pass, the one behind it is
    updated and the one before it is loaded.
    """
    count, last = memory.micro_batches, len(segments) - 1
    now_s = thread_s = 0.0
    for segment, following in pairwise(segments):
        thread_s = max(thread_s, now_s) + following.load_s
        now_s = max(now_s + count * segment.forward_s, thread_s)
    for at in range(last, -1, -1):
        segment = segments[at]
        thread_s = max(thread_s, now_s)
        if at < last:
            thread_s += segments[at + 1].update_s
        if at > 0:
            thread_s += segments[at - 1].load_s
        forward_s = segment.forward_s if memory.recompute or at == last else 0.0
        now_s = max(now_s + count * (segment.backward_s + forward_s), thread_s)
    return now_s + segments[0].update_s


def coarsened(parameter_bytes: Sequence[int], most: int) -> list[int]:
    """Return the ends of groups of successive blocks, with at most ``most`` groups.

    The two neighbours with the fewest bytes in total are merged until there are few enough.
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
    """Round to microseconds, the precision of the times. Integer sums do not depend on order."""
    return max(0, round(seconds * 1e6))
