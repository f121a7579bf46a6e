"""A batch as bytes and JSON, and back."""

from __future__ import annotations

import pickle
import sys
from collections import namedtuple
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from radt.errors import LoaderError
from radt.loaders.layout import LaidOut, Packed
from tests.loaders.test_batches import STRUCTURES, Make, described, structures

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


def packed(batch: Any) -> Packed:
    laid_out = LaidOut(batch)
    slot = memoryview(bytearray(b"\xaa" * (laid_out.nbytes + 64)))
    return Packed.in_slot(slot, laid_out.write_described(slot))


def passed_on(batch: Any) -> Any:
    return packed(batch).read()


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
    assert_same(packed(batch).copy(), batch)


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
    written = packed([torch.zeros(4), np.zeros(4)])
    views, copies = written.read(), written.copy()
    written.buffer[: written.tensor_bytes] = b"\x01" * written.tensor_bytes
    assert all((view != 0).all() for view in views)
    assert all((copy == 0).all() for copy in copies)


@structures
def test_any_structure_is_passed_on_with_its_class_and_attributes(make: Make) -> None:
    if make is STRUCTURES["read-only mapping"]:
        pytest.skip("pickle refuses a mappingproxy")
    batch = make(torch.tensor([[1, 2]]), torch.tensor(3.5))
    written = packed(batch)
    if make is STRUCTURES["BatchEncoding"]:  # its own pickling leaves something out
        batch = pickle.loads(pickle.dumps(batch))
    assert described(written.copy()) == described(written.read()) == described(batch)


class Opaque:
    """No structure, with tensors in it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def test_other_leaves_are_passed_on_and_tensors_in_them_are_views() -> None:
    records = np.array([(1, 2.5)], dtype="i4,f8")
    batch = [b"bytes", {1, 2}, 2 + 3j, np.float32(1.5), records, torch.eye(3).to_sparse()]
    got = passed_on({1.5: batch, "opaque": Opaque(torch.ones(2))})
    assert got[1.5][:4] == batch[:4]
    assert type(got[1.5][3]) is np.float32
    assert np.array_equal(got[1.5][4], records)
    assert torch.equal(got[1.5][5].to_dense(), torch.eye(3))
    written = packed(Opaque(torch.zeros(2)))
    opaque = written.read()
    written.buffer[: written.tensor_bytes] = b"\x01" * written.tensor_bytes
    assert (opaque.tensor != 0).all()


def test_a_class_of_the_script_is_found_where_that_is_main(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the server, which imports it, the script is a module of its file's name."""
    in_server, script = ModuleType("train"), ModuleType("__main__")
    for module in (in_server, script):
        vars(module)["Pair"] = namedtuple("Pair", "x y", module=module.__name__)  # noqa: PYI024
    script.__file__ = "/folder/train.py"
    monkeypatch.setitem(sys.modules, "train", in_server)
    written = packed(in_server.Pair(torch.ones(2), 1))
    monkeypatch.delitem(sys.modules, "train")
    monkeypatch.setitem(sys.modules, "__main__", script)
    assert type(written.read()) is script.Pair


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([1, {"a": (x for x in [1])}], r"batch\[1\]\['a'\], a generator, .* cannot pickle"),
        ({"x": (torch.ones(1), lambda: 1)}, r"batch\['x'\]\[1\], a function, cannot be shared"),
        (torch.empty(3, device="meta"), "batch, a Tensor, .* on the device meta"),
    ],
)
def test_what_no_process_can_be_sent_is_refused_by_its_place(batch: Any, message: str) -> None:
    with pytest.raises(LoaderError, match=message) as raised:
        LaidOut(batch)
    assert raised.value.remedy
