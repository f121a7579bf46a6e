"""A batch as bytes and JSON, and back."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from radt.errors import LoaderError
from radt.loaders import layout
from radt.loaders.layout import LaidOut, Layout

_DTYPES = [
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
    *(torch.uint16, torch.float8_e4m3fn),
]
shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype, shape = draw(st.sampled_from(_DTYPES)), draw(shapes)
    size = torch.empty(shape, dtype=dtype).nbytes
    data = draw(st.binary(min_size=size, max_size=size))
    if dtype is torch.bool:
        data = bytes(byte % 2 for byte in data)
    if not size:
        return torch.empty(shape, dtype=dtype)
    tensor = torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)
    if draw(st.booleans()):
        tensor = tensor.permute(draw(st.permutations(range(tensor.ndim))))
    return tensor[::2] if tensor.ndim and draw(st.booleans()) else tensor


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    dtype = draw(st.sampled_from(["u1", "<i8", ">f4", "?", "U3", "M8[s]"]))
    return np.zeros(draw(shapes), dtype)


values = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text() | st.floats()
batches = st.recursive(
    tensors() | arrays() | values,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text() | st.integers(-5, 5), inner, max_size=3),
    ),
    max_leaves=6,
)


def passed_on(batch: Any, function: Any = layout.read) -> Any:
    laid_out = LaidOut(batch)
    memory = memoryview(bytearray(b"\xaa" * (laid_out.layout.nbytes + 64)))
    laid_out.write(memory)
    return function(Layout.from_json(laid_out.layout.to_json()), memory)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_same(got: Any, want: Any) -> None:
    assert type(got) is type(want)
    if isinstance(want, torch.Tensor):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        assert bits(got) == bits(want)
    elif isinstance(want, np.ndarray):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        assert got.tobytes() == want.tobytes()
    elif isinstance(want, dict):
        assert list(got) == list(want)
        for key in want:
            assert_same(got[key], want[key])
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want)
        for left, right in zip(got, want, strict=True):
            assert_same(left, right)
    else:
        assert got == want or (want != want and got != got)


@given(batches)
def test_what_is_read_is_what_was_written(batch: Any) -> None:
    assert_same(passed_on(batch), batch)
    assert_same(passed_on(batch, layout.copy), batch)


@given(tensors())
def test_strides_stay_as_a_clone_would_have_them(tensor: torch.Tensor) -> None:
    assert passed_on(tensor).stride() == tensor.clone().stride()


def test_channels_last_stays_channels_last() -> None:
    tensor = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert passed_on(tensor).is_contiguous(memory_format=torch.channels_last)


def test_a_tensor_that_requires_gradients_is_data() -> None:
    got = passed_on(torch.ones(3, requires_grad=True))
    assert not got.requires_grad
    assert got.tolist() == [1, 1, 1]


def test_read_gives_views_and_copy_does_not() -> None:
    laid_out = LaidOut([torch.zeros(4), np.zeros(4)])
    memory = memoryview(bytearray(laid_out.layout.nbytes))
    views = layout.read(laid_out.layout, memory)
    copies = layout.copy(laid_out.layout, memory)
    memory[:] = b"\x01" * len(memory)
    assert all((view != 0).all() for view in views)
    assert all((copy == 0).all() for copy in copies)


Pair = namedtuple("Pair", "x y")  # noqa: PYI024


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([1, {"a": object()}], r"batch\[1\]\['a'\] is a object"),
        (Pair(1, 2), "batch is a Pair"),
        ({1.5: 2}, "the key 1.5 of batch"),
        ((np.array([object()]),), r"batch\[0\] is an array of object"),
        (torch.eye(3).to_sparse(), "batch is a sparse or quantized tensor"),
        (torch.empty(3, device="meta"), "move them to the device in the script"),
        (b"bytes", "batch is a bytes"),
    ],
)
def test_anything_else_is_refused_by_its_place(batch: Any, message: str) -> None:
    with pytest.raises(LoaderError, match=message) as raised:
        LaidOut(batch)
    assert raised.value.remedy
