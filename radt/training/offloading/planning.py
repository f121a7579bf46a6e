"""The plan of an offloaded training: its segments, C, and expected durations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from radt import units
from radt.errors import TrainingError
from radt.training.offloading.measuring import NO_CUT_BYTES
from radt.training.offloading.partition import Memory, OffloadBlock, Partitioner, expected_s

#: Numbers of micro-batches that "auto" tries.
_MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
#: "auto" takes the fewest micro-batches with at least this share of the best expected speed.
_NEARLY = 0.99


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan for training a model with more parameters than memory.

    Attributes:
        segments: In the order of their calls.
        ends: The number of blocks up to the end of each.
        accumulate: Micro-batches per step, C.
        recompute: Whether backward passes compute segments again; otherwise activations are kept.
        memory_bytes: The budget.
        peak_bytes: The part of it that the plan needs.
        parameter_bytes: Bytes of all parameters, including those that stay loaded.
        step_s: Expected duration of a step.
        resident_s: Expected duration with everything in memory.
    """

    segments: tuple[OffloadBlock, ...]
    ends: tuple[int, ...]
    accumulate: int
    recompute: bool
    memory_bytes: int
    peak_bytes: int
    parameter_bytes: int
    step_s: float
    resident_s: float

    @property
    def speed(self) -> float:
        """Expected speed, as a share of that with everything in memory."""
        return self.resident_s / self.step_s

    @property
    def loads(self) -> tuple[int, ...]:
        """Number of loads of each segment per step. The first one stays for the next step."""
        last = len(self.segments) - 1
        return tuple(
            0 if last == 0 else 1 if at in (0, last) else 2 for at in range(len(self.segments))
        )

    def __str__(self) -> str:
        """Return a table of the segments, and a summary."""
        rows: list[tuple[str, ...]] = [
            ("segment", "blocks", "bytes", "forward", "backward", "load", "update")
        ]
        for number, segment in enumerate(self.segments):
            times = (
                self.accumulate * segment.forward_s,
                self.accumulate * segment.backward_s,
                segment.load_s,
                segment.update_s,
            )
            size = units.size(segment.parameter_bytes)
            rows.append(
                (str(number), segment.name, size, *(units.duration(time) for time in times))
            )
        widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
        lines = [
            "  ".join(
                cell.ljust(width) if at < 2 else cell.rjust(width)
                for at, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        activations = "computed again" if self.recompute else "kept"
        return "\n".join(
            [
                *lines,
                f"C = {self.accumulate} micro-batches a segment, activations {activations}; "
                f"{units.size(self.peak_bytes)} of {units.size(self.memory_bytes)} "
                f"for {units.size(self.parameter_bytes)} of parameters",
                f"expected {units.duration(self.step_s)} a step, "
                f"{units.percent(self.speed)} of the speed with everything in memory",
            ]
        )


def planned(
    blocks: Sequence[OffloadBlock],
    memory_bytes: int,
    parameter_bytes: int,
    fixed_bytes: int,
    shared_bytes: int,
    input_bytes: int,
    accumulate: int | None,
    recompute: bool | None,
) -> Plan:
    """Return the plan with the fewest micro-batches that has nearly the best expected speed.

    Args:
        blocks: The blocks, as measured.
        memory_bytes: The budget.
        parameter_bytes: Bytes of all parameters.
        fixed_bytes: Bytes that are always in memory.
        shared_bytes: Gradients of parameters of several blocks, for each micro-batch.
        input_bytes: Inputs of a micro-batch.
        accumulate: Micro-batches per step; None to choose.
        recompute: Whether backward passes compute segments again; None to choose.

    Raises:
        TrainingError: No partition fits; names the smallest budget.
    """
    plans = []
    smallest_bytes = None
    ways = (False, True) if recompute is None else (recompute,)
    for count in _MICRO_BATCHES if accumulate is None else (accumulate,):
        fixed = fixed_bytes + count * (shared_bytes + input_bytes)
        some = []
        for way in ways:
            memory = Memory(memory_bytes, fixed, count, way)
            partitioner = Partitioner(blocks, memory)
            cuts = partitioner.best()
            if cuts is None:
                if smallest_bytes is None or accumulate is not None:
                    need = partitioner.smallest_budget()
                    smallest_bytes = min(need, smallest_bytes or need)
            else:
                some.append(_plan(blocks, parameter_bytes, memory, partitioner, cuts))
        if not some:
            break  # more micro-batches need more memory
        plans.append(max(some, key=lambda plan: plan.speed))
    if not plans:
        raise _too_small(blocks, memory_bytes, smallest_bytes or 0)
    best = max(plan.speed for plan in plans)
    return next(plan for plan in plans if plan.speed >= _NEARLY * best)


def _plan(
    blocks: Sequence[OffloadBlock],
    parameter_bytes: int,
    memory: Memory,
    partitioner: Partitioner,
    cuts: Sequence[int],
) -> Plan:
    ends = (*cuts, len(blocks))
    segments = tuple(OffloadBlock.joined(blocks[begin:end]) for begin, end in pairwise((0, *ends)))
    whole = OffloadBlock.joined(blocks)
    return Plan(
        segments,
        ends,
        memory.micro_batches,
        memory.recompute,
        memory.budget_bytes,
        partitioner.peak_bytes(cuts),
        parameter_bytes,
        expected_s(segments, memory),
        memory.micro_batches * (whole.forward_s + whole.backward_s) + whole.update_compute_s,
    )


def _too_small(
    blocks: Sequence[OffloadBlock], memory_bytes: int, smallest_bytes: int
) -> TrainingError:
    largest = max(blocks, key=lambda block: block.parameter_bytes)
    # Rounded up, so that the number in the message suffices.
    needed = f"{-(-smallest_bytes // 1000)}KB"
    if smallest_bytes > 10_000_000:
        needed = f"{-(-smallest_bytes // 1_000_000)}MB"
    what = f"its largest block, {largest.name}, has "
    what += f"{units.size(largest.parameter_bytes)} of parameters"
    cuts = sum(block.output_bytes < NO_CUT_BYTES for block in blocks[:-1])
    remedy = f'The smallest budget is memory="{needed}"; smaller micro-batches need less'
    if cuts == 0:
        what = "the model cannot be cut: it is one block"
        remedy += ". List smaller modules: offload(…, blocks=[model.embedding, *model.layers])"
    return TrainingError(f"offload: {units.size(memory_bytes)} are too little, {what}", remedy)
