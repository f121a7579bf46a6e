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
import zstandard
from pcodec import ChunkConfig, standalone

from radt.errors import CodecError
from radt.store.records import Samples

#: Chunks with fewer points stay raw: pcodec's headers would outweigh its savings.
MIN_POINTS_TO_COMPRESS = 16

ScalarT = TypeVar("ScalarT", bound=np.generic)

_ITEM_SIZE = 8
_ZSTD_LEVEL = 9
_CONFIG = ChunkConfig()
_INT64 = np.dtype(np.int64)
_FLOAT64 = np.dtype(np.float64)


class Codec(IntEnum):
    """Encoding of a chunk's data columns."""

    RAW = 0  # little-endian 64-bit items
    PCODEC = 1  # https://github.com/pcodec/pcodec, standalone format
    SHUFFLED_ZSTD = 2  # bytes transposed by significance, then zstd


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
    """Encode compactly: with pcodec if it is lossless here, else with zstd."""
    if len(samples) < MIN_POINTS_TO_COMPRESS:
        return encode_raw(samples)
    try:
        return encode_with(Codec.PCODEC, samples)
    except CodecError:
        # A failing codec must not lose samples: zstd takes any bytes.
        return encode_with(Codec.SHUFFLED_ZSTD, samples)


def encode_with(codec: Codec, samples: Samples) -> EncodedSamples:
    """Encode with one codec, and decode again to check that no bit changed.

    Raises:
        CodecError: The codec failed or changed a bit.
    """
    if codec is Codec.RAW:
        return encode_raw(samples)
    steps = samples.steps
    return EncodedSamples(
        codec,
        len(samples),
        _compress(codec, samples.times_ns),
        _compress(codec, samples.values),
        None if steps is None else _compress(codec, steps),
    )


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


def _compress(codec: Codec, column: npt.NDArray[ScalarT]) -> bytes:
    contiguous = np.ascontiguousarray(column)
    compress = _pcodec_compress if codec is Codec.PCODEC else _zstd_compress
    data = compress(contiguous)
    back = np.empty(len(column), dtype=column.dtype)
    _decompress_into(codec, data, back)
    # Compared as integers: NaN differs from itself, and -0 equals 0.
    if not np.array_equal(back.view(np.int64), column.view(np.int64)):
        raise CodecError(f"{codec.name} does not give the same bits back")
    return data


def _pcodec_compress(column: npt.NDArray[ScalarT]) -> bytes:
    try:
        return bytes(standalone.simple_compress(column, _CONFIG))
    except (RuntimeError, TypeError) as error:
        raise CodecError(f"pcodec cannot encode a chunk: {error}") from error


def _zstd_compress(column: npt.NDArray[ScalarT]) -> bytes:
    rows = np.frombuffer(_little_endian(column), dtype=np.uint8).reshape(-1, _ITEM_SIZE)
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(rows.T.tobytes())


def _decompress_into(codec: Codec, data: bytes, column: npt.NDArray[ScalarT]) -> None:
    if codec is Codec.PCODEC:
        _pcodec_decompress_into(data, column)
        return
    size = len(column) * _ITEM_SIZE
    raw = data
    if codec is Codec.SHUFFLED_ZSTD:
        try:
            raw = zstandard.ZstdDecompressor().decompress(data, max_output_size=size)
        except zstandard.ZstdError as error:
            raise _damaged(str(error)) from error
    if len(raw) != size:
        raise _damaged(f"{len(raw)} bytes instead of {size}")
    if codec is Codec.SHUFFLED_ZSTD:
        raw = np.frombuffer(raw, dtype=np.uint8).reshape(_ITEM_SIZE, -1).T.tobytes()
    column[:] = np.frombuffer(raw, dtype=column.dtype.newbyteorder("<"))


def _pcodec_decompress_into(data: bytes, column: npt.NDArray[ScalarT]) -> None:
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
