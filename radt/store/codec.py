"""Encode columns of samples as bytes and decode them, bit for bit.

Each chunk stores the number of its codec, so codecs can be added but never renumbered.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from pcodec import ChunkConfig, standalone

from radt.errors import CodecError
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


@dataclass(frozen=True, slots=True)
class EncodedSamples:
    """Data columns of a chunk; ``steps`` is None if no point has a step."""

    codec: Codec
    count: int
    times: bytes
    values: bytes
    steps: bytes | None

    @property
    def checksum(self) -> int:
        """Return the CRC-32 of the columns: pcodec alone accepts most flipped bits as data."""
        return zlib.crc32(self.steps or b"", zlib.crc32(self.values, zlib.crc32(self.times)))


def encode_raw(samples: Samples) -> EncodedSamples:
    """Encode without compression: for small chunks that will soon be compacted."""
    steps = samples.steps
    return EncodedSamples(
        Codec.RAW,
        len(samples),
        _little_endian(samples.times_ns),
        _little_endian(samples.values),
        None if steps is None else _little_endian(steps),
    )


def encode(samples: Samples) -> EncodedSamples:
    """Encode compactly: with pcodec if it is lossless here."""
    if len(samples) < MIN_POINTS_TO_COMPRESS:
        return encode_raw(samples)
    steps = samples.steps
    try:
        return EncodedSamples(
            Codec.PCODEC,
            len(samples),
            _compress(samples.times_ns),
            _compress(samples.values),
            None if steps is None else _compress(steps),
        )
    except CodecError:
        return encode_raw(samples)  # a failing codec must not lose samples


def decode(encoded: EncodedSamples, checksum: int) -> Samples:
    """Return the samples of a chunk, in the order they were written.

    Raises:
        CodecError: The codec is unknown or the bytes are damaged.
    """
    target = Samples(
        np.empty(encoded.count, dtype=_INT64),
        np.empty(encoded.count, dtype=_FLOAT64),
        None if encoded.steps is None else np.empty(encoded.count, dtype=_INT64),
    )
    decode_into(encoded, checksum, target)
    return target


def decode_into(encoded: EncodedSamples, checksum: int, target: Samples) -> None:
    """Decode into existing contiguous columns of the chunk's length.

    Allocating many small arrays would cost more than the decoding itself. If the chunk has no
    steps, those of ``target`` stay unchanged.

    Raises:
        CodecError: The codec is unknown or the bytes are damaged.
    """
    try:
        codec = Codec(encoded.codec)
    except ValueError as error:
        raise CodecError(
            f"a chunk is encoded with codec {encoded.codec}, which this radt does not know",
            "Use the radt that wrote it, or a newer one",
        ) from error
    if encoded.checksum != checksum:
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
