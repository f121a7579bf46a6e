"""What goes into a codec comes out bit for bit, or an error does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from pcodec import standalone

from radt.errors import CodecError
from radt.store import codec
from radt.store.codec import Codec, EncodedSamples, decode, encode, encode_raw
from radt.store.records import Samples

INT64 = st.integers(-(2**63), 2**63 - 1)
ENCODERS = pytest.mark.parametrize("encoder", [encode, encode_raw])
Encoder = Callable[[Samples], EncodedSamples]


@st.composite
def any_samples(draw: st.DrawFn) -> Samples:
    """Any 64 bits in every column: all NaN payloads, both zeros and infinities, all integers."""
    count = draw(st.integers(1, 200))
    column = npst.arrays(np.int64, count, elements=INT64, fill=INT64)
    return Samples(
        draw(column),
        draw(column).view(np.float64),
        draw(st.none() | column),
    )


def assert_same_bits(one: Samples, other: Samples) -> None:
    assert one.times_ns.dtype == other.times_ns.dtype == np.int64
    assert one.values.dtype == other.values.dtype == np.float64
    assert one.times_ns.tobytes() == other.times_ns.tobytes()
    assert one.values.tobytes() == other.values.tobytes()
    assert (one.steps is None) == (other.steps is None)
    if one.steps is not None and other.steps is not None:
        assert one.steps.tobytes() == other.steps.tobytes()


@ENCODERS
@given(samples=any_samples())
@settings(max_examples=60, deadline=None)
def test_every_codec_is_bit_exact(encoder: Encoder, samples: Samples) -> None:
    encoded = encoder(samples)
    assert_same_bits(decode([encoded]), samples)


SPECIAL = np.array(
    [
        0x7FF8000000000001,  # NaN with payload, signalling NaN, negative NaN
        0x7FF0000000000001,
        0xFFF8DEADBEEF0000,
        0x8000000000000000,  # -0, 0, smallest and largest subnormal
        0x0000000000000000,
        0x0000000000000001,
        0x000FFFFFFFFFFFFF,
        0x7FF0000000000000,  # inf, -inf, largest
        0xFFF0000000000000,
        0x7FEFFFFFFFFFFFFF,
    ],
    dtype=np.uint64,
).view(np.float64)


def test_special_values_are_compressed_and_come_back() -> None:
    values = np.tile(SPECIAL, 360)
    extremes = np.array([-(2**63), 2**63 - 1], dtype=np.int64)
    samples = Samples(np.tile(extremes, 1800), values, np.arange(3600, dtype=np.int64))
    encoded = encode(samples)
    assert encoded.codec is Codec.PCODEC
    assert_same_bits(decode([encoded]), samples)


def test_slices_and_strides_are_encoded_like_copies() -> None:
    times = np.arange(400, dtype=np.int64)[::4]
    samples = Samples(times, np.arange(400, dtype=np.float64)[::-4], times)
    encoded = encode(samples)
    assert encoded.codec is Codec.PCODEC
    assert_same_bits(decode([encoded]), samples)


@pytest.mark.parametrize("failure", ["raises", "changes a bit"])
def test_when_pcodec_fails_samples_are_kept_raw(
    monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    real, called_with = standalone.simple_compress, []

    def broken(column: np.ndarray, config: object) -> bytes:
        called_with.append(column.copy())
        if failure == "raises":
            raise RuntimeError("pco error: on purpose")
        return real(column + 1, config)

    monkeypatch.setattr(codec.standalone, "simple_compress", broken)
    samples = Samples(np.arange(100, dtype=np.int64), np.arange(100, dtype=np.float64))
    encoded = encode(samples)
    assert len(called_with) == 1
    assert np.array_equal(called_with[0], samples.times_ns)
    assert encoded.codec is Codec.RAW
    assert_same_bits(decode([encoded]), samples)


@ENCODERS
@pytest.mark.parametrize("column", ["times", "values", "steps"])
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_a_flipped_bit_is_noticed(encoder: Encoder, column: str, data: st.DataObject) -> None:
    count = np.arange(100, dtype=np.int64)
    encoded = encoder(Samples(count, np.sin(count), count))
    damaged = bytearray(getattr(encoded, column))
    bit = data.draw(st.integers(0, len(damaged) * 8 - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CodecError, match="damaged"):
        decode([encoded._replace(**{column: bytes(damaged)})])


@ENCODERS
@pytest.mark.parametrize("change", ["shorter", "longer", "empty"])
def test_bytes_of_the_wrong_length_are_refused_even_with_a_right_checksum(
    encoder: Encoder, change: str
) -> None:
    count = np.arange(100, dtype=np.int64)
    encoded = encoder(Samples(count, np.sin(count)))
    if change == "shorter":
        wrong = encoded._replace(values=encoded.values[:-3])
    elif change == "longer":
        wrong = encoded._replace(point_count=101)
    else:
        wrong = encoded._replace(values=b"")
    with pytest.raises(CodecError, match="damaged"):
        decode([wrong._replace(checksum=codec._crc(wrong.times, wrong.values, wrong.steps))])


def test_a_codec_of_the_future_is_named() -> None:
    encoded = encode(Samples(np.arange(100, dtype=np.int64), np.zeros(100)))
    with pytest.raises(CodecError, match=r"codec 99.*newer"):
        decode([encoded._replace(codec=99)])


def test_regular_samples_cost_little() -> None:
    """One reading a second with a jittering clock and a noisy value of three digits."""
    random = np.random.default_rng(1)
    times = np.arange(3600, dtype=np.int64) * 1_000_000_000 + random.integers(0, 200_000, 3600)
    values = np.round(60 + random.normal(0, 5, 3600)) / 100
    encoded = encode(Samples(times, values))
    assert len(encoded.times) + len(encoded.values) < 4 * 3600
