"""Listeners come in through entry points; a broken plug-in is reported and skipped."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from radt.listeners import registry

_PLUGIN = """
from radt.listeners.api import Availability, Listener, Metric, Reading
from radt.model import Scope

class Good(Listener):
    name = "good"
    @classmethod
    def probe(cls): return Availability(True)
    @classmethod
    def metrics(cls): return [Metric("good.value", "1", Scope.HOST)]
    def sample(self, targets): return [Reading("good.value", 1.0)]

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
    assert {"top", "smi", "good"} == set(found.listeners)
    assert found.listeners["top"].__module__ == "radt.listeners.top", "a plug-in took its name"
    reasons = found.broken
    assert "does not define" in reasons["unfinished"]
    assert "its name is not 'misnamed'" in reasons["misnamed"]
    assert "not a subclass" in reasons["number"]
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


def test_the_command_lists_what_can_be_measured(plugins: None) -> None:
    from click.testing import CliRunner

    from radt.cli.listeners import command

    shown = CliRunner().invoke(command, env={"COLUMNS": "80"})
    assert shown.exit_code == 0
    for text in ("system.cpu.utilization", "process.memory.rss", "gpu.power", "good.value"):
        assert text in shown.output
    assert "cannot be loaded" in shown.output
    assert all(len(line) <= 80 for line in shown.output.splitlines())
