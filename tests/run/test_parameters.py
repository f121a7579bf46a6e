"""Configurations of the usual libraries become parameters; what cannot be read is named."""

from __future__ import annotations

import argparse
import enum
import itertools
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import numpy
import pandas
import pydantic
import pydantic.v1
import pytest
from absl import flags
from ml_collections import ConfigDict, FrozenConfigDict
from omegaconf import OmegaConf

from radt.frontend.data.cached_store import CachedStore
from radt.frontend.search.find import find
from radt.run import notices
from radt.run.parameters import first_level, read_parameters
from radt.store.backend import StoreAddress
from tests.run.conftest import Alone, Joined

NESTED = {"opt.lr": "0.1", "opt.decay": "None"}


class Schedule(enum.Enum):
    COSINE = 1


class Mode(enum.StrEnum):
    FAST = "fast"


@dataclass(slots=True)
class Slots:
    lr: float = 0.1
    decay: float | None = None


@dataclass
class Data:
    opt: Slots = field(default_factory=Slots)


@attrs.define
class Attrs:
    opt: Slots = attrs.field(factory=Slots)


class Named(NamedTuple):
    opt: Slots


class Pydantic(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    opt: Slots = Slots()


class PydanticV1(pydantic.v1.BaseModel):
    opt: dict[str, Any] = {"lr": 0.1, "decay": None}


class PlainSlots:
    __slots__ = ("_hidden", "decay", "lr")

    def __init__(self) -> None:
        self.lr, self.decay, self._hidden = 0.1, None, 1


class Plain:
    """With a constant, an attribute, a method, and a property that must not be called."""

    seed = 3

    def __init__(self) -> None:
        self.opt = PlainSlots()
        self._hidden = 1

    @property
    def model(self) -> str:
        raise RuntimeError("this would load a model")

    def method(self) -> None:
        pass


class Constants:
    opt = types.SimpleNamespace(lr=0.1, decay=None)


class WithText:
    """A nested object that has a text of its own, such as a device or a layer."""

    def __init__(self) -> None:
        self.weights = [0.0]

    def __repr__(self) -> str:
        return "cuda:0"


def _flags(*arguments: str) -> flags.FlagValues:
    defined = flags.FlagValues()
    flags.DEFINE_float("lr", 0.1, "", flag_values=defined, short_name="l")
    flags.DEFINE_enum_class("schedule", Schedule.COSINE, Schedule, "", flag_values=defined)
    flags.DEFINE_string("log_dir", "", "", flag_values=defined, module_name="absl.logging")
    flags.DEFINE_list("sizes", ["1", "2"], "", flag_values=defined)
    if arguments:
        defined(arguments)
    return defined


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is said, each once."""
    said: list[str] = []
    monkeypatch.setattr(notices, "say", said.append)
    monkeypatch.setattr(notices, "_told", set())
    yield said


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (argparse.Namespace(opt=argparse.Namespace(lr=0.1, decay=None)), NESTED),
        (types.SimpleNamespace(opt={"lr": 0.1, "decay": None}), NESTED),
        (Data(), NESTED),
        (Slots(), {"lr": "0.1", "decay": "None"}),
        (Attrs(), NESTED),
        (Named(Slots()), NESTED),
        (Pydantic.model_validate({"more": 1}), {**NESTED, "more": "1"}),
        (PydanticV1(), NESTED),
        (ConfigDict({"opt": {"lr": 0.1, "decay": None}}), NESTED),
        (FrozenConfigDict({"opt": {"lr": 0.1, "decay": None}}), NESTED),
        (
            OmegaConf.create({"base": 0.1, "opt": {"lr": "${base}"}}),
            {"base": "0.1", "opt.lr": "0.1"},
        ),
        (OmegaConf.structured(Data), NESTED),
        (
            _flags("train", "--l=0.5"),
            {"lr": "0.5", "schedule": "COSINE", "sizes": "['1', '2']"},
        ),
        (Plain(), {"seed": "3", **NESTED}),
        (PlainSlots(), {"lr": "0.1", "decay": "None"}),
        (Constants, NESTED),
        (Constants(), NESTED),
        (pandas.Series({"lr": 0.1, "n": 3}), {"lr": "0.1", "n": "3.0"}),
        ([("lr", 0.1), ("decay", None)], {"lr": "0.1", "decay": "None"}),
        (zip(["lr"], [0.1], strict=True), {"lr": "0.1"}),
        (None, {}),
        ((), {}),
        ({}, {}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_kinds_of_configurations(
    config: object, expected: dict[str, str], warnings: list[str]
) -> None:
    assert read_parameters(config) == expected
    assert warnings == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Schedule.COSINE, {"x": "COSINE"}),
        (Mode.FAST, {"x": "fast"}),
        (Path("a/b"), {"x": "a/b"}),
        ([Path("a"), Schedule.COSINE, (1, 2)], {"x": "['a', 'COSINE', (1, 2)]"}),
        (OmegaConf.create([1, [2, 3]]), {"x": "[1, [2, 3]]"}),
        (
            [{"size": 8}, 2, Slots()],
            {"x.0.size": "8", "x.1": "2", "x.2.lr": "0.1", "x.2.decay": "None"},
        ),
        ([[Data()]], {f"x.0.0.{name}": text for name, text in NESTED.items()}),
        ({}, {"x": "{}"}),
        ([], {"x": "[]"}),
        ({"a": {1: "one"}}, {"x.a.1": "one"}),
        (" text\n", {"x": " text\n"}),
        (Plain(), {"x.seed": "3", "x.opt.lr": "0.1", "x.opt.decay": "None"}),
        (WithText(), {"x": "cuda:0"}),
        (numpy.array([0.5, 2]), {"x": "[0.5 2. ]"}),
        (pandas.Series({"a": 1}), {"x": "a    1\ndtype: int64"}),
        (len, {"x": "<built-in function len>"}),
        (pydantic.SecretStr("hidden"), {"x": "**********"}),
    ],
)
def test_nested_values_and_their_texts(
    value: object, expected: dict[str, str], warnings: list[str]
) -> None:
    assert read_parameters({"x": value}) == expected
    assert warnings == []


def _cycle() -> dict[str, Any]:
    config: dict[str, Any] = {"lr": 0.1}
    config["again"] = {"inside": config}
    return config


def _endless() -> dict[str, Any]:
    class Endless:
        def __init__(self, more: int) -> None:
            if more:
                self.next = Endless(more - 1)

    return {"lr": 0.1, "first": Endless(30)}


class Raises(dict[str, Any]):
    def __getitem__(self, name: str) -> Any:
        if name == "bad":
            raise RuntimeError("no such thing\nat all")
        return super().__getitem__(name)


class NoText:
    def __repr__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("config", "left", "message"),
    [
        (Raises(lr=0.1, bad=1), "lr", "'bad' is not recorded: RuntimeError: no such thing"),
        ({"lr": 0.1, "bad": NoText()}, "lr", "'bad' is not recorded: ValueError: no text"),
        (_cycle(), "lr", "'again.inside' is not recorded: it contains itself"),
        (_endless(), "lr", "is not recorded: it is nested more than 20 levels deep"),
        (
            OmegaConf.create({"lr": 0.1, "opt": {"name": "???"}}),
            "lr",
            "'opt.name' is not recorded: MissingMandatoryValue",
        ),
        (
            OmegaConf.create({"lr": 0.1, "opt": "${nothing}"}),
            "lr",
            "'opt' is not recorded: InterpolationKeyError",
        ),
        ({"lr": 0.1, "": 2}, "lr", "'' is not recorded: the name of a parameter is empty"),
        ({"lr": 0.1, "a": {"b" * 250: 1}}, "lr", "has 252 characters"),
        ({"lr": 1, "a": {"b": 1}, "a.b": 2}, "lr a.b", "'a.b' has two values: '2' is recorded"),
        (_flags(), "", "parameters are not recorded: absl has not parsed the flags yet"),
        (PlainSlots, "", "expected a dictionary or an object with attributes, got <class"),
        ("c.yaml", "", "expected a dictionary or an object with attributes, got 'c.yaml'"),
        (7, "", "expected a dictionary or an object with attributes, got 7"),
        ([{"a": 1, "b": 2}], "", "expected a dictionary or an object with attributes, got [{"),
    ],
)
def test_what_cannot_be_read_is_named_and_the_rest_recorded(
    config: object, left: str, message: str, warnings: list[str]
) -> None:
    assert " ".join(read_parameters(config)) == left
    assert len(warnings) == 1
    assert message in warnings[0]
    assert "\n" not in warnings[0]


def test_an_object_that_leads_to_everything_ends(warnings: list[str]) -> None:
    class Node:
        def __init__(self) -> None:
            self.number = 1

    nodes = [Node() for _ in range(12)]
    for node, other in itertools.product(nodes, nodes):
        setattr(node, f"to_{nodes.index(other)}", other)
    assert 0 < len(read_parameters(nodes[0])) <= 10_000
    assert len(warnings) == 22  # twenty by name
    assert warnings[-1] == "only the first 10,000 parameters of an object are recorded"


def test_values_of_the_first_level_are_kept_as_they_are(warnings: list[str]) -> None:
    data = Data()
    assert first_level(data) == {"opt": data.opt}
    assert first_level(OmegaConf.create({"a": "???", "b": 1})) == {"b": 1}
    assert len(warnings) == 1


CONFIG = """\
import dataclasses, radt
@dataclasses.dataclass(slots=True)
class Opt:
    lr: float = {lr}
@dataclasses.dataclass
class Config:
    opt: Opt = dataclasses.field(default_factory=Opt)
class Broken:
    def __repr__(self): raise ValueError
"""


@pytest.mark.parametrize(
    "line",
    [
        "radt.Run(params=Config()).__enter__()",
        "radt.init(config=Config())",
        "radt.init().config.update(Config())",
        "radt.init().config.opt = Opt()",
        "radt.init().log_params(Config())",
        "radt.init().log_param('opt', Opt())",
    ],
)
def test_every_way_takes_them(joined: Joined, line: str) -> None:
    _, err = joined.run(CONFIG.format(lr=0.1) + line)
    assert joined.found().batches[0].params == {"opt.lr": "0.1"}
    assert err == ""


def test_runs_of_scripts_and_their_children_are_found_by_nested_parameters(alone: Alone) -> None:
    source = CONFIG + (
        "with radt.Run('big', params=Config()) as run:\n"
        "    run.child('small', Config(Opt(0.001))).finish()\n"
        "    run.child('bad', params={{'x': Broken(), 'opt': Opt(1e-4)}}).finish()\n"
        "    run.log_metric('opt', 0.5)\n"
    )
    _, err = alone.run(source.format(lr=0.5))
    assert err == "radt: the parameter 'x' is not recorded: ValueError\n"
    alone.run(CONFIG.format(lr=0.01) + "radt.init(name='min', config={'opt': {'min': 0, 'lr': 1}})")
    reader = alone.reader
    assert {run.name for run in reader.runs()} == {"big", "small", "bad", "min"}
    source_of_runs = CachedStore(StoreAddress.of(alone.home / "radt.db"))
    try:
        for text, names in (
            ("opt.lr<0.1", {"small", "bad"}),
            ("opt.lr:0.5", {"big"}),
            ("opt.min=0", {"min"}),  # not the metric "opt"
        ):
            found = find(source_of_runs, text)
            assert found.problems == ()
            assert {run.record.name for run in found.runs or ()} == names, text
    finally:
        source_of_runs.close()
