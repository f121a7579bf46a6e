"""Encode columns of samples as bytes and decode them, bit for bit.

Each chunk stores the number of its codec, so codecs can be added but never renumbered.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from pcodec import ChunkConfig, standalone

from radt.errors import CodecError
from radt.model import NO_STEP
from radt.store.records import Samples

#: Chunks with fewer points stay raw: pcodec's headers would outweigh its savings.
MIN_POINTS_TO_COMPRESS = 16

ScalarT = TypeVar("ScalarT", bound=np.generic)

_ITEM_SIZE = 8
_CONFIG = ChunkConfig()
_INT64 = np.dtype(np.int64)
_FLOAT64 = np.dtype(np.float64)


class Codec(IntEnum):
    """Encoding of a chunk's data columns."""

    RAW = 0  # little-endian 64-bit items
    PCODEC = 1  # https://github.com/pcodec/pcodec, standalone format
    # 2 was a codec that is no longer used


class EncodedSamples(NamedTuple):
    """Data columns of a chunk; ``steps`` is None if no point has a step.

    ``checksum`` is the CRC-32 of the columns: pcodec alone accepts most flipped bits as data.
    """

    codec: int
    point_count: int
    checksum: int
    times: bytes
    values: bytes
    steps: bytes | None


def encode_raw(samples: Samples) -> EncodedSamples:
    """Encode without compression: for small chunks that will soon be compacted."""
    return _encoded(samples, Codec.RAW, _little_endian)


def encode(samples: Samples) -> EncodedSamples:
    """Encode compactly: with pcodec if it is lossless here."""
    if len(samples) < MIN_POINTS_TO_COMPRESS:
        return encode_raw(samples)
    try:
        return _encoded(samples, Codec.PCODEC, _compress)
    except CodecError:
        return encode_raw(samples)  # a failing codec must not lose samples


def _encoded(
    samples: Samples, codec: Codec, encode: Callable[[npt.NDArray[Any]], bytes]
) -> EncodedSamples:
    times, values = encode(samples.times_ns), encode(samples.values)
    steps = None if samples.steps is None else encode(samples.steps)
    return EncodedSamples(codec, len(samples), _crc(times, values, steps), times, values, steps)


def _crc(times: bytes, values: bytes, steps: bytes | None) -> int:
    return zlib.crc32(steps or b"", zlib.crc32(values, zlib.crc32(times)))


def decode(parts: Sequence[EncodedSamples]) -> Samples:
    """Return the points of all parts in sequence, with `NO_STEP` for parts without steps.

    Raises:
        CodecError: The codec is unknown or the bytes are damaged.
    """
    count = sum(part.point_count for part in parts)
    # Allocating many small arrays would cost more than the decoding itself.
    samples = Samples(
        np.empty(count, dtype=_INT64),
        np.empty(count, dtype=_FLOAT64),
        # Filled in advance, so that parts without steps need no special case.
        np.full(count, NO_STEP, dtype=_INT64)
        if any(part.steps is not None for part in parts)
        else None,
    )
    stop = 0
    for part in parts:
        start, stop = stop, stop + part.point_count
        _decode_into(part, samples[start:stop])
    return samples


def _decode_into(encoded: EncodedSamples, target: Samples) -> None:
    try:
        codec = Codec(encoded.codec)
    except ValueError as error:
        raise CodecError(
            f"a chunk is encoded with codec {encoded.codec}, which this radt does not know",
            "Use the radt that wrote it, or a newer one",
        ) from error
    if encoded.checksum != _crc(encoded.times, encoded.values, encoded.steps):
        raise _damaged("its checksum does not match")
    _decompress_into(codec, encoded.times, target.times_ns)
    _decompress_into(codec, encoded.values, target.values)
    if encoded.steps is not None:
        assert target.steps is not None
        _decompress_into(codec, encoded.steps, target.steps)


def _little_endian(column: npt.NDArray[ScalarT]) -> bytes:
    return column.astype(column.dtype.newbyteorder("<"), copy=False).tobytes()


def _compress(column: npt.NDArray[ScalarT]) -> bytes:
    """Compress a column, and decompress it again to check that no bit changed."""
    try:
        data = bytes(standalone.simple_compress(np.ascontiguousarray(column), _CONFIG))
    except (RuntimeError, TypeError) as error:
        raise CodecError(f"pcodec cannot encode a chunk: {error}") from error
    back = np.empty(len(column), dtype=column.dtype)
    _decompress_into(Codec.PCODEC, data, back)
    # Compared as integers: NaN differs from itself, and -0 equals 0.
    if not np.array_equal(back.view(np.int64), column.view(np.int64)):
        raise CodecError("pcodec does not give the same bits back")
    return data


def _decompress_into(codec: Codec, data: bytes, column: npt.NDArray[ScalarT]) -> None:
    if codec is Codec.RAW:
        size = len(column) * _ITEM_SIZE
        if len(data) != size:
            raise _damaged(f"{len(data)} bytes instead of {size}")
        column[:] = np.frombuffer(data, dtype=column.dtype.newbyteorder("<"))
        return
    try:
        progress = standalone.simple_decompress_into(data, column)
    except (RuntimeError, TypeError) as error:
        raise _damaged(str(error)) from error
    if progress.n_processed != len(column) or not progress.finished:
        raise _damaged(f"not {len(column)} points")


def _damaged(detail: str) -> CodecError:
    return CodecError(
        f"a chunk of samples is damaged: {detail}",
        "Check the disk, and restore the store from a backup if you have one",
    )
