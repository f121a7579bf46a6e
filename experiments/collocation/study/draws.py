"""Random numbers of a sample from its number alone, the same on any machine and in any process.

A generator would have to be sent to each worker of a loader and brought to the right place; a hash
of (seed, sample, feature) needs neither, and whole batches are drawn at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# SplitMix64: Steele, Lea, Flood, Fast Splittable Pseudorandom Number Generators, 2014.
_STEP = 0x9E3779B97F4A7C15
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_MASK = 2**64 - 1
_BITS = 53  # of a double's fraction


def uniform(seed: int, samples: NDArray[np.int64], feature: int) -> NDArray[np.float64]:
    """A number in [0, 1) for each sample.

    Args:
        seed: Of the data set.
        samples: Numbers of the samples.
        feature: Which of the numbers that a sample has.
    """
    start = _mixed(np.array([(seed * _STEP + feature) & _MASK], dtype=np.uint64))
    with np.errstate(over="ignore"):  # modulo 2**64 is meant
        mixed = _mixed(start + samples.astype(np.uint64) * np.uint64(_STEP))
    return (mixed >> np.uint64(64 - _BITS)).astype(np.float64) * 2.0**-_BITS


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        words = (words ^ (words >> np.uint64(30))) * _FIRST
        words = (words ^ (words >> np.uint64(27))) * _SECOND
    mixed: NDArray[np.uint64] = words ^ (words >> np.uint64(31))
    return mixed
