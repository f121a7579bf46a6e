"""One definition of a batch: any structure of tensors and other leaves."""

from __future__ import annotations

import subprocess
import sys
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from radt.loaders.batches import leaves, mapped, mapped_leaves, moved, tensors_of
from radt.loaders.shared.rebatch import cut, joined

Pair = namedtuple("Pair", "x y")  # noqa: PYI024


class Encoding(UserDict[str, Any]):
    """Like ``transformers.BatchEncoding``: a mapping with more to it than its items."""

    def __init__(self, data: dict[str, Any], note: str = "") -> None:
        super().__init__(data)
        self.note = note

    def __getattr__(self, name: str) -> Any:
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None


class Own(MutableMapping[str, Any]):
    """A mapping whose shallow copy shares its items."""

    def __init__(self, items: dict[str, Any]) -> None:
        self.items_ = dict(items)

    def __getitem__(self, key: str) -> Any:
        return self.items_[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.items_[key] = value

    def __delitem__(self, key: str) -> None:
        del self.items_[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.items_)

    def __len__(self) -> int:
        return len(self.items_)


class Rows(list[Any]):
    """A list with an attribute."""

    note = ""


@dataclass
class Sample:
    x: Any
    y: Any
    calls: int = 0

    def __post_init__(self) -> None:
        self.calls += 1


@dataclass(frozen=True, slots=True)
class Frozen:
    x: Any
    y: Any


def _rows(x: Any, y: Any) -> Rows:
    rows = Rows([x, y])
    rows.note = "kept"
    return rows


def _default(x: Any, y: Any) -> dict[str, Any]:
    return defaultdict(list, x=x, y=y)


def _encoding(x: Any, y: Any) -> Any:
    from transformers import BatchEncoding  # takes long

    return BatchEncoding({"x": x, "y": y})


def _model_output(x: Any, y: Any) -> Any:
    from transformers.modeling_outputs import BaseModelOutput

    return BaseModelOutput(last_hidden_state=x, hidden_states=(y,))


Make = Callable[[Any, Any], Any]
STRUCTURES: dict[str, Make] = {
    "dict": lambda x, y: {"x": x, "y": y},
    "int keys": lambda x, y: {0: x, (1, "y"): y},
    "list": lambda x, y: [x, y],
    "tuple": lambda x, y: (x, y),
    "named tuple": Pair,
    "OrderedDict": lambda x, y: OrderedDict(x=x, y=y),
    "defaultdict": _default,
    "UserDict": lambda x, y: Encoding({"x": x, "y": y}, note="kept"),
    "BatchEncoding": _encoding,
    "ModelOutput": _model_output,
    "mapping": lambda x, y: Own({"x": x, "y": y}),
    "read-only mapping": lambda x, y: MappingProxyType({"x": x, "y": y}),
    "list with attributes": _rows,
    "dataclass": Sample,
    "frozen dataclass": Frozen,
    "nested": lambda x, y: [{"a": Pair(Frozen(x, "text"), None)}, (Encoding({"y": y}),)],
}
structures = pytest.mark.parametrize("make", STRUCTURES.values(), ids=STRUCTURES.keys())


def described(value: Any) -> Any:
    """Return what a batch consists of, with classes and attributes, as values to compare."""
    if isinstance(value, torch.Tensor):
        return ("tensor", value.tolist(), str(value.device))
    if isinstance(value, (list, tuple)):
        return (type(value), [described(part) for part in value], getattr(value, "note", None))
    if isinstance(value, MappingProxyType):
        return (type(value), described(dict(value)))
    if hasattr(value, "__dict__"):
        items = list(value.items()) if hasattr(value, "items") else None
        return (type(value), described(items), described(vars(value)))
    if isinstance(value, dict):
        return (type(value), [(key, described(part)) for key, part in value.items()])
    if isinstance(value, Frozen):
        return (type(value), described(value.x), described(value.y))
    return value


@structures
def test_each_tensor_is_replaced_and_the_rest_stays(make: Make) -> None:
    batch = make(torch.tensor([1, 2]), torch.tensor(3))
    before = described(batch)
    doubled = mapped(batch, lambda tensor: tensor * 2)
    assert described(doubled) == described(make(torch.tensor([2, 4]), torch.tensor(6)))
    assert described(batch) == before
    assert [tensor.tolist() for tensor in tensors_of(doubled)] == [[2, 4], 6]
    assert mapped(batch, lambda tensor: tensor) is batch


@structures
def test_a_batch_is_moved_and_one_that_is_there_stays_the_object(make: Make) -> None:
    batch = make(torch.ones(2), torch.ones(3))
    there = moved(batch, "meta")
    assert type(there) is type(batch)
    assert [(t.device.type, t.shape) for t in tensors_of(there)] == [("meta", (2,)), ("meta", (3,))]
    assert [t.device.type for t in tensors_of(batch)] == ["cpu", "cpu"]
    assert moved(batch, torch.device("cpu")) is batch


@pytest.mark.parametrize(
    "leaf", [None, 1, 0.5, "text", b"bytes", np.ones(2), {1, 2}, range(3), object(), Pair, Sample]
)
def test_anything_else_is_a_leaf_and_stays(leaf: Any) -> None:
    batch = {"x": torch.ones(1), "leaf": leaf}
    assert list(leaves(batch))[1] is leaf
    assert moved(batch, "meta")["leaf"] is leaf
    assert mapped_leaves(batch, lambda value: value is leaf) == {"x": False, "leaf": True}


def test_a_leaf_that_can_move_itself_does() -> None:
    class Graph:
        device = torch.device("cpu")

        def to(self, device: torch.device) -> Graph:
            graph = Graph()
            graph.device = device
            return graph

    assert moved([Graph()], "meta")[0].device == torch.device("meta")


def test_a_packed_sequence_keeps_its_batch_sizes_on_the_cpu() -> None:
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    (there,) = moved([packed], "meta")
    assert isinstance(there, PackedSequence)
    assert (there.data.device.type, there.batch_sizes.device.type) == ("meta", "cpu")


def test_only_copies_from_pinned_memory_to_a_gpu_do_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, bool]] = []

    def to(tensor: torch.Tensor, device: torch.device, *, non_blocking: bool) -> torch.Tensor:
        asked.append((device.type, non_blocking))
        return tensor

    monkeypatch.setattr(torch.Tensor, "to", to)
    pageable, pinned = torch.ones(1), torch.ones(2)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: len(tensor) == 2)
    moved([pageable, pinned], "cuda:0")
    moved([pageable, pinned], "cpu")
    assert asked == [("cuda", False), ("cuda", True), ("cpu", False), ("cpu", False)]


def test_importing_the_definition_imports_no_torch() -> None:
    code = "import radt.loaders.batches, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@structures
def test_a_batch_of_any_structure_is_cut_and_joined(make: Make) -> None:
    batch = make(torch.arange(8).reshape(4, 2), np.arange(4))
    pieces = [cut(batch, 0, 1), cut(batch, 1, 4)]
    assert [type(piece) for piece in pieces] == [type(batch)] * 2
    rows = [[leaf.tolist() for leaf in leaves(piece) if hasattr(leaf, "shape")] for piece in pieces]
    assert rows == [[[[0, 1]], [0]], [[[2, 3], [4, 5], [6, 7]], [1, 2, 3]]]
    whole = joined(pieces)
    assert type(whole) is type(batch)
    assert [leaf.tolist() for leaf in leaves(whole) if hasattr(leaf, "shape")] == [
        [[0, 1], [2, 3], [4, 5], [6, 7]],
        [0, 1, 2, 3],
    ]
