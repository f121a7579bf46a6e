"""Random choices as pure functions of a seed, an epoch and an index.

Every process gets the same answer, whatever was drawn before. A loader resumes in the middle of an
epoch by planning the epoch again and skipping what it already returned.
"""

from __future__ import annotations

import numpy as np


def generator(seed: int, *key: int) -> np.random.Generator:
    """Return a generator that depends only on the seed and the key."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, *key))))


def permutation(count: int, seed: int, *key: int) -> np.ndarray:
    """Return 0 to ``count`` - 1 in random order, as int64."""
    return generator(seed, *key).permutation(count)
