"""Listeners come in through entry points; a broken plug-in is reported and skipped."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from radt.cli.listeners import command
from radt.errors import UsageError
from radt.listeners import registry
from radt.listeners.api import Availability, Listener, Metric, Reading, Registry, Target

_PLUGIN = """
from radt.listeners.api import Availability, Listener, Metric, Reading
from radt.model import Scope, SeriesKind

class Good(Listener):
    name = "good"
    @classmethod
    def probe(cls): return Availability(True)
    @classmethod
    def metrics(cls): return [Metric("good.value", "1", Scope.HOST)]
    def sample(self, targets): return [Reading("good.value", 1.0)]

class Elsewhere(Good):
    "Something \\x1b[2J else."
    name = "elsewhere"
    by_default = True
    default_interval_s = 180
    accepts = {"fast": "without the slow part"}
    @classmethod
    def probe(cls): return Availability(False, "no such bus", "Plug it in")
    @classmethod
    def metrics(cls):
        return [Metric("elsewhere.value", "J", Scope.GPU, SeriesKind.COUNTER, "what it says",
                       "counted by hand", estimated=True, wraps_at=64.0)]

class Top(Good):
    name = "top"

class Unfinished(Listener):
    name = "unfinished"

class Misnamed(Good):
    name = "other"

not_a_class = 3
"""

_ENTRY_POINTS = """[radt.listeners]
good = some_plugin:Good
elsewhere = some_plugin:Elsewhere
top = some_plugin:Top
unfinished = some_plugin:Unfinished
misnamed = some_plugin:Misnamed
number = some_plugin:not_a_class
missing = some_plugin:Missing
unimportable = some_plugin_that_is_not_there:Listener
"""


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "some_plugin.py").write_text(_PLUGIN)
    info = tmp_path / "some_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(_ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    registry.load.cache_clear()
    yield
    registry.load.cache_clear()
    sys.modules.pop("some_plugin", None)


def test_built_in_listeners_are_there() -> None:
    assert {"top", "smi"} <= set(registry.load().listeners)


def test_a_plugin_joins_them_and_broken_ones_are_reported(plugins: None) -> None:
    found = registry.load()
    assert {"top", "smi", "good"} <= set(found.listeners)
    assert not {"unfinished", "misnamed", "number", "missing"} & set(found.names)
    assert found.listeners["top"].__module__ == "radt.listeners.top", "a plug-in took its name"
    reasons = found.broken
    assert "does not define" in reasons["unfinished"]
    assert "its name is not 'misnamed'" in reasons["misnamed"]
    assert "subclass neither of" in reasons["number"]
    assert "no attribute 'Missing'" in reasons["missing"]
    assert "ModuleNotFoundError" in reasons["unimportable"]
    assert "taken already" in reasons["some_plugin:Top"]
    assert len(reasons) == 6


def test_looking_listeners_up_imports_nothing_heavy() -> None:
    code = (
        "import json, sys; from radt.listeners.registry import load; load();"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"psutil", "pynvml", "numpy", "sqlalchemy", "mlflow"} & set(json.loads(done.stdout))


def test_all_built_in_ones_can_be_loaded() -> None:
    assert registry.load().broken == {}


def _listed(*arguments: str, width: int = 80) -> str:
    shown = CliRunner().invoke(command, arguments, env={"COLUMNS": str(width), "NO_COLOR": "1"})
    assert shown.exit_code == 0, shown.output
    return shown.output


def test_the_command_lists_what_can_be_measured(plugins: None) -> None:
    shown = _listed()
    for text in ("✔  top", "cpu.utilization cores", "memory.rss By", "✔  good", "good.value"):
        assert text in shown
    assert "cannot be loaded" in shown
    assert "it does not define" in shown
    assert "profilers" in shown
    assert "torchprof" in shown.partition("profilers")[2]
    assert "torchprof" not in shown.partition("profilers")[0]


def test_what_does_not_work_here_says_why(plugins: None) -> None:
    shown = _listed()
    block = shown.partition("–  elsewhere")[2].partition("\n  –")[0]
    assert "default no such bus. Plug it in" in " ".join(block.split())
    assert "elsewhere.value" not in shown
    assert "elsewhere.value" in _listed("--verbose")


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("arguments", [[], ["--verbose"], ["smi"], ["gpm"], ["torchprof"]])
def test_lines_fit(plugins: None, width: int, arguments: list[str]) -> None:
    lines = _listed(*arguments, width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert all(line == line.rstrip() for line in lines)


def test_one_is_shown_in_full(plugins: None) -> None:
    shown = " ".join(_listed("elsewhere").split())
    assert "here no such bus Plug it in" in shown
    assert "interval 3 min by default; elsewhere@30s changes it" in shown
    assert "yes: runs that name no listener use it where it works" in shown
    assert "fast without the slow part" in shown
    assert "elsewhere.value J+ 1 what it says; counts up; apportioned, not measured" in shown
    assert "how the values are measured 1 counted by hand" in shown


def test_json_has_everything(plugins: None) -> None:
    one = json.loads(_listed("elsewhere", "--json"))
    assert one["remedy"] == "Plug it in"
    assert one["series"][0] == {
        "name": "elsewhere.value",
        "unit": "J",
        "scope": "gpu",
        "kind": "counter",
        "description": "what it says",
        "method": "counted by hand",
        "estimated": True,
        "wraps_at": 64.0,
        "regular": True,
    }
    everything = {entry["name"]: entry for entry in json.loads(_listed("--json"))["listeners"]}
    assert everything["elsewhere"].items() < one.items()
    assert everything["nsys"]["kind"] == "profiler"
    assert everything["top"]["kind"] == "listener"
    assert everything["unimportable"]["failure"]


@pytest.mark.parametrize(
    ("name", "remedy"), [("topp", "'top'"), ("zzzz", "radt listeners"), ("Elsewere", "'elsewhere'")]
)
def test_an_unknown_name_is_an_error_with_the_nearest(
    plugins: None, name: str, remedy: str
) -> None:
    shown = CliRunner().invoke(command, [name])
    assert isinstance(shown.exception, UsageError)
    assert name in shown.exception.message
    assert remedy in (shown.exception.remedy or "")


def test_names_are_known_in_any_case_and_by_the_originals_word(plugins: None) -> None:
    assert _listed("TOP") == _listed("top")
    assert _listed("dcgmi") == _listed("dcgm")


def test_what_a_plugin_says_cannot_steer_the_terminal(plugins: None) -> None:
    assert "\x1b" not in _listed("--verbose") + _listed("elsewhere")
    assert "\\x1b[2J" in _listed("elsewhere")


def test_a_default_that_works_later_is_found_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector lives for days; within a minute, nothing is looked at twice."""
    now_s, works, asked = [0.0], [False], []

    class Driver(Listener):
        name = "driver"
        by_default = True

        @classmethod
        def probe(cls) -> Availability:
            asked.append(now_s[0])
            return Availability(works[0], "not loaded")

        @classmethod
        def metrics(cls) -> Sequence[Metric]:
            return ()

        def sample(self, targets: Sequence[Target]) -> Sequence[Reading]:
            return ()

    monkeypatch.setattr("radt.listeners.api.time.monotonic", lambda: now_s[0])
    found = Registry({"driver": Driver})
    assert found.defaults == found.defaults == ()
    works[0], now_s[0] = True, 61.0
    assert [str(choice) for choice in found.defaults] == ["driver"]
    assert asked == [0.0, 61.0]
