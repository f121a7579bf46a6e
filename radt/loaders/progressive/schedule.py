"""Which sample is trained at which size, and in which batch: pure functions of seed and epoch.

T. Robroek, *Resourceful Learning*, chapter 6: images are in size buckets, the batch grows with the
inverse area of its images, and after each epoch a share of all samples moves up one size.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

import numpy as np

from radt.errors import LoaderError
from radt.loaders.plan import permutation

#: Second part of the key of random choices, so that an epoch's two permutations differ.
_ORDER, _UPGRADE = 0, 1


class Strategy(StrEnum):
    """Which samples an epoch has."""

    #: All samples, each at its own size; sizes change from batch to batch.
    MIXED = "mixed"
    #: The samples of the smallest size that has any; sizes change only between epochs.
    EXHAUSTIVE = "exhaustive"


class Select(StrEnum):
    """Which samples of the smallest size move up first."""

    RANDOM = "random"
    #: Those with the smallest loss, which have the least to teach at this size.
    LOSS = "loss"


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """Samples that all ranks train together at one size."""

    size: int
    indices: np.ndarray

    def part(self, rank: int, world_size: int) -> np.ndarray:
        """Return the samples of one rank. Parts differ by at most one sample."""
        return np.array_split(self.indices, world_size)[rank]


@dataclass(frozen=True, slots=True)
class Schedule:
    """The parameters that determine sizes and batches.

    Args:
        size: Edge of the largest images, in pixels, with which training ends.
        min_size: Edge of the smallest images, in pixels, with which it begins.
        step: Pixels between two sizes.
        batch_size: Samples in a batch at ``size``, of each rank.
        upgrade_rate: Share of all samples that moves up one size after each epoch.
        strategy: Which samples an epoch has.
        select: Which samples move up first.
        seed: Seed of the random choices.
        world_size: Number of ranks that share an epoch's samples.

    Raises:
        LoaderError: The numbers are inconsistent.
    """

    size: int
    min_size: int
    step: int
    batch_size: int
    upgrade_rate: float
    strategy: Strategy = Strategy.MIXED
    select: Select = Select.RANDOM
    seed: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.min_size <= self.size:
            raise LoaderError(
                f"expected sizes from min_size up to size, got {self.min_size} to {self.size}",
                "Give a min_size of 1 to size",
            )
        if self.step < 1 or (self.size - self.min_size) % self.step:
            raise LoaderError(
                f"steps of {self.step} pixels do not lead from {self.min_size} to {self.size}",
                "Give a step that divides size - min_size",
            )
        if self.largest > np.iinfo(np.uint8).max:
            raise LoaderError(f"expected up to 256 sizes, got {self.largest + 1}", "Raise step")
        if self.batch_size < 1 or self.world_size < 1:
            raise LoaderError(
                f"expected batch_size and world_size of 1 or more, got {self.batch_size} and "
                f"{self.world_size}"
            )
        if not 0 < self.upgrade_rate <= 1:
            raise LoaderError(
                f"expected an upgrade_rate above 0 and up to 1, got {self.upgrade_rate}",
                "0.25 moves a quarter of the samples up after each epoch",
            )
        if self.select is Select.LOSS and self.world_size > 1:
            raise LoaderError(
                "select='loss' works with one rank only: each rank knows its own losses and would "
                "plan other batches",
                "Use select='random'",
            )

    @property
    def largest(self) -> int:
        """The step of samples that have reached ``size``."""
        return (self.size - self.min_size) // self.step

    def size_at(self, step: int) -> int:
        """Return the edge in pixels of images at a step, from 0 for the smallest."""
        return self.min_size + step * self.step

    @property
    def sizes(self) -> tuple[int, ...]:
        """Edges of images in pixels, from the smallest to the largest."""
        return tuple(self.size_at(step) for step in range(self.largest + 1))

    def batch_at(self, size: int) -> int:
        """Return a full batch's size: as many pixels as at the largest edge, or slightly fewer."""
        return self.batch_size * self.size**2 // size**2

    def upgrades(self, samples: int, epoch: int) -> int:
        """Return the number of samples that move up after an epoch.

        Fractions of a sample add up over epochs: 25 % leads through six steps in 24 epochs,
        whatever the number of samples.
        """
        rate = Fraction(self.upgrade_rate).limit_denominator(1_000_000) * samples
        return int((epoch + 1) * rate) - int(epoch * rate)


def upgraded(
    schedule: Schedule, steps: np.ndarray, epoch: int, losses: np.ndarray | None = None
) -> np.ndarray:
    """Return the steps of all samples after an epoch; the lowest move up first.

    Args:
        schedule: Sizes, share and seed.
        steps: Step of each sample in the epoch, uint8.
        epoch: From 0.
        losses: Last loss of each sample, NaN if unknown. Without losses, samples of one size are
            chosen at random.
    """
    rank = permutation(len(steps), schedule.seed, epoch, _UPGRADE)
    keys = (rank, steps) if losses is None else (rank, losses, steps)
    first = np.lexsort(keys)[: schedule.upgrades(len(steps), epoch)]
    after = steps.copy()
    after[first] = np.minimum(after[first] + 1, schedule.largest)
    return after


def planned(schedule: Schedule, steps: np.ndarray, epoch: int) -> list[PlannedBatch]:
    """Return the batches of an epoch in order.

    Samples are drawn in random order and collected by size. A batch is complete when it is full;
    the rest of each size follows at the end. No rank gets a batch of one sample, which batch
    normalisation cannot train, unless ``batch_size`` is 1: a rest that is too small takes samples
    from the batch before it; a size with too few samples joins the next larger one, or else the
    next smaller.

    Args:
        schedule: Sizes, batches and seed.
        steps: Step of each sample in this epoch, uint8.
        epoch: From 0.
    """
    world = schedule.world_size
    least = min(2, schedule.batch_size) * world
    trained = _joined(steps, least)
    order = permutation(len(steps), schedule.seed, epoch, _ORDER)
    gathered: list[tuple[int, PlannedBatch]] = []
    for step in np.flatnonzero(np.bincount(trained)):
        size = schedule.size_at(int(step))
        places = np.flatnonzero(trained[order] == step)
        lengths = batch_lengths(len(places), schedule.batch_at(size) * world, least)
        ends = np.cumsum(lengths)
        for begin, end in zip(ends - lengths, ends, strict=True):
            is_rest = end == len(places) and end - begin < schedule.batch_at(size) * world
            sent_at = len(order) if is_rest else int(places[end - 1])
            gathered.append((sent_at, PlannedBatch(size, order[places[begin:end]])))
        if schedule.strategy is Strategy.EXHAUSTIVE:
            break
    gathered.sort(key=lambda one: one[0])  # stable, so rests are ordered by size
    return [batch for _, batch in gathered]


def batch_lengths(samples: int, most: int, least: int) -> np.ndarray:
    """Divide samples into batches of ``most``, with a rest of ``least`` or more at the end.

    A rest that is too small is filled up from the batch before it. If that cannot spare them
    (``most`` < 2 · ``least`` - 1), the rest joins it, and this one batch exceeds ``most``.
    """
    full, rest = divmod(samples, most)
    lengths = [most] * full + [rest] * (rest > 0)
    if 0 < rest < least and full:
        missing = least - rest
        lengths[-2:] = [most - missing, least] if most - missing >= least else [most + rest]
    return np.array(lengths, dtype=np.int64)


def _joined(steps: np.ndarray, least: int) -> np.ndarray:
    """Move samples of a size that has fewer than ``least`` to the next size with any."""
    counts = np.bincount(steps)
    joined = steps.copy()
    for step in np.flatnonzero(counts):
        if counts[step] >= least:
            continue
        above = np.flatnonzero(counts[step + 1 :]) + step + 1
        below = np.flatnonzero(counts[:step])
        if len(above) or len(below):
            target = above[0] if len(above) else below[-1]
            joined[joined == step] = target
            counts[target] += counts[step]
            counts[step] = 0
    return joined
