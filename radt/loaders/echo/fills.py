"""Which samples an echoing epoch decodes and uses, and when: pure functions of seed and epoch.

A *fill* is a group of fresh samples that are in the buffer at the same time. Each is used
``repeats`` times, and the uses of one fill are shuffled together. Fills alternate between the two
halves of the buffer: while one is used, the next is decoded, evenly spread over the uses. The first
fill of an epoch, and the missing samples of a resumed epoch, are decoded on first use.

Every worker plans by itself, and all get the same plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from radt.loaders.plan import permutation

#: Keys of `radt.loaders.plan` below (seed, epoch), whose own permutation is the epoch's order.
_USES_OF_A_FILL = 1
AUGMENTATION = 2


@dataclass(frozen=True, slots=True)
class Sizes:
    """Settings that all epochs of a loader share.

    Args:
        samples: Length of the dataset.
        batch_size: Samples in a batch.
        buffer: Fresh samples in a fill.
        seed: Seed of all random choices.
        drop_last: Whether an incomplete last batch is left out.
    """

    samples: int
    batch_size: int
    buffer: int
    seed: int
    drop_last: bool

    def batches(self, repeats: int) -> int:
        """Return the number of batches of an epoch."""
        uses = self.samples * repeats
        return uses // self.batch_size if self.drop_last else -(-uses // self.batch_size)

    @property
    def slots(self) -> int:
        """Number of samples in the buffer: two fills, or the whole dataset if that is one fill."""
        return self.samples if self.samples <= self.buffer else 2 * self.buffer


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch, or the rest of one.

    Args:
        number: Number of the epoch, from 0.
        repeats: How often each sample is used.
        first_batch: First batch of the rest. Earlier ones were returned before a state was loaded.
    """

    number: int
    repeats: int
    first_batch: int


@dataclass(frozen=True, slots=True)
class Action:
    """Decode a sample, use it, or both.

    Args:
        fill: Number of the fill in the epoch.
        place: Index of the sample in the fill.
        index: Index of the sample in the dataset.
        use: Number of this use of the sample in the epoch, from 0; None to decode for later uses.
        decode: Whether the sample is decoded here.
        counted: Whether that is its first decoding of the epoch; a resumed epoch decodes again.
        uses_left: Number of remaining uses of the sample in this rest of the epoch, including this
            one.
        after: Fill whose sample must be used up before this one takes its place in the buffer; None
            if the place is free.
    """

    fill: int
    place: int
    index: int
    use: int | None
    decode: bool
    counted: bool
    uses_left: int
    after: int | None


@dataclass(frozen=True, slots=True)
class Fill:
    """The uses of a fill.

    Args:
        first_use: Position of its first use in the epoch.
        indices: Dataset index of each place.
        places: Place of each use, in order.
        uses: Number of each use among those of its sample, from 0.
    """

    first_use: int
    indices: np.ndarray
    places: np.ndarray
    uses: np.ndarray

    def uses_before(self, position: int) -> np.ndarray:
        """Return, for each place, the number of its uses before a position in the epoch."""
        given = max(0, position - self.first_use)
        return np.bincount(self.places[:given], minlength=len(self.indices))


class EpochPlan:
    """The actions of each batch of an epoch, in an order that all workers together can follow.

    No action waits for a later one: samples are decoded before their uses, and a fill takes the
    places of the fill before the last one, whose decodings and uses are all earlier. Workers that
    each perform their own batches in order can therefore never block each other.
    """

    def __init__(self, sizes: Sizes, epoch: Epoch) -> None:
        self._sizes, self._epoch = sizes, epoch
        self._order = permutation(sizes.samples, sizes.seed, epoch.number)
        # Without repeats there is nothing to shuffle, so the epoch is a single fill.
        self._fill_size = sizes.buffer if epoch.repeats > 1 else max(1, sizes.samples)
        self._start = epoch.first_batch * sizes.batch_size
        self._fill = lru_cache(maxsize=4)(self._make_fill)
        self._uses_before_start = lru_cache(maxsize=4)(
            lambda number: self._fill(number).uses_before(self._start)
        )

    def actions(self, batch: int) -> Iterator[Action]:
        """Yield the actions of a batch, with uses in the order of the batch."""
        uses = len(self._order) * self._epoch.repeats
        begin = batch * self._sizes.batch_size
        for position in range(begin, min(begin + self._sizes.batch_size, uses)):
            number = position // (self._fill_size * self._epoch.repeats)
            yield from self._ahead(number, position)
            yield self._use(number, position)

    def _make_fill(self, number: int) -> Fill:
        indices = self._order[number * self._fill_size : (number + 1) * self._fill_size]
        count, repeats = len(indices), self._epoch.repeats
        if repeats == 1:
            places = np.arange(count)
        else:
            key = (self._epoch.number, _USES_OF_A_FILL, number)
            places = permutation(count * repeats, self._sizes.seed, *key) % count
        uses = np.empty_like(places)
        uses[np.argsort(places, kind="stable")] = np.tile(np.arange(repeats), count)
        return Fill(number * self._fill_size * repeats, indices, places, uses)

    def _ahead(self, number: int, position: int) -> Iterator[Action]:
        """Yield the actions that decode parts of the next fill before a use of this one."""
        following = (number + 1) * self._fill_size
        count = min(self._fill_size, len(self._order) - following)
        if count <= 0:
            return
        fill, repeats = self._fill(number), self._epoch.repeats
        at, uses = position - fill.first_use, len(fill.places)
        for place in range(-(-at * count // uses), -(-(at + 1) * count // uses)):
            index = int(self._order[following + place])
            yield Action(
                fill=number + 1,
                place=place,
                index=index,
                use=None,
                decode=True,
                counted=True,
                uses_left=repeats,
                after=self._before(number + 1, place),
            )

    def _use(self, number: int, position: int) -> Action:
        fill = self._fill(number)
        at = position - fill.first_use
        place, use = int(fill.places[at]), int(fill.uses[at])
        given = int(self._uses_before_start(number)[place])
        first_here = use == given
        return Action(
            fill=number,
            place=place,
            index=int(fill.indices[place]),
            use=use,
            decode=first_here and not self._is_ahead(number, place),
            counted=use == 0 and number == 0,
            uses_left=self._epoch.repeats - use,
            after=self._before(number, place) if first_here else None,
        )

    def _before(self, number: int, place: int) -> int | None:
        """Return the fill whose sample occupies the place in the buffer before that of a fill."""
        before = number - 2
        if before < 0:
            return None
        left = self._epoch.repeats - int(self._uses_before_start(before)[place])
        # Samples decoded only for their last use are not kept.
        return before if left > (0 if self._is_ahead(before, place) else 1) else None

    def _is_ahead(self, number: int, place: int) -> bool:
        """Return True if this rest of the epoch decodes a sample during the previous fill."""
        if number == 0:
            return False
        before = self._fill(number - 1)
        position = before.first_use + place * len(before.places) // len(self._fill(number).indices)
        return position >= self._start
