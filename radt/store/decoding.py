"""Chunks of one series into columns, without a copy on the way."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from radt.model import NO_STEP
from radt.store.chunks import ChunkData, sliced
from radt.store.codec import decode_into
from radt.store.records import Samples


def decoded(chunks: Sequence[ChunkData]) -> Samples:
    """The points of all chunks, one after the other; `NO_STEP` where only others have steps.

    Raises:
        CodecError: A chunk is damaged.
    """
    count = sum(chunk.point_count for chunk in chunks)
    samples = Samples(
        np.empty(count, dtype=np.int64),
        np.empty(count, dtype=np.float64),
        # Filled before, so that chunks without steps need no care.
        np.full(count, NO_STEP, dtype=np.int64)
        if any(chunk.step_data is not None for chunk in chunks)
        else None,
    )
    stop = 0
    for chunk in chunks:
        start, stop = stop, stop + chunk.point_count
        decode_into(chunk.encoded, chunk.checksum, sliced(samples, start, stop))
    return samples
