"""The amdsmi listener against a stand-in for AMD's Python library."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from radt.listeners.amdsmi import AmdsmiListener
from radt.listeners.api import Target
from radt.model import MissingReason, Scope

#: The functions that radt calls, which check what they are given as AMD's do; what they answer
#: stands in cards.json: for each card, an answer by function, or the number of an error.
_FAKE = """
import enum, json, pathlib
from amdsmi import amdsmi_wrapper

FOLDER = pathlib.Path({folder!r})
_initialised = 0

class AmdSmiException(Exception): pass
class AmdSmiParameterException(AmdSmiException): pass
class AmdSmiLibraryException(AmdSmiException):
    def __init__(self, err_code):
        super().__init__(err_code)
        self.err_code = err_code
    def __str__(self): return f"Error code:\\n\\t{{self.err_code}} | of the library"

AmdSmiMemoryType = enum.IntEnum("AmdSmiMemoryType", "VRAM VIS_VRAM GTT")
AmdSmiTemperatureType = enum.IntEnum("AmdSmiTemperatureType", "EDGE HOTSPOT VRAM")
AmdSmiTemperatureMetric = enum.IntEnum("AmdSmiTemperatureMetric", "CURRENT MAX")
AmdSmiClkType = enum.IntEnum("AmdSmiClkType", "SYS GFX MEM")

class Handle:
    def __init__(self, index): self.index = index

def _note(*words):
    with (FOLDER / "calls").open("a") as file: print(*words, file=file)

def _cards():
    return json.loads((FOLDER / "cards.json").read_text())

def amdsmi_init():
    global _initialised
    _note("init")
    if (FOLDER / "broken").exists(): raise AmdSmiLibraryException(34)
    _initialised += 1

def amdsmi_shut_down():
    global _initialised
    _note("shut_down")
    _initialised = 0

def amdsmi_get_processor_handles():
    if not _initialised: raise AmdSmiLibraryException(32)
    return [Handle(index) for index in range(len(_cards()))]

def _function(name, *types):
    def function(handle, *given):
        if not isinstance(handle, Handle): raise AmdSmiParameterException(handle)
        if [type(one) for one in given] != list(types): raise AmdSmiParameterException(given)
        _note(name, handle.index, *(one.name for one in given))
        if not _initialised: raise AmdSmiLibraryException(32)
        key = " ".join([name, *(one.name for one in given)])
        answer = _cards()[handle.index][key]
        if isinstance(answer, list): raise AmdSmiLibraryException(answer[0])
        return answer
    globals()["amdsmi_get_" + name] = function

_function("gpu_activity")
_function("power_info")
_function("energy_count")
_function("gpu_memory_usage", AmdSmiMemoryType)
_function("gpu_memory_total", AmdSmiMemoryType)
_function("temp_metric", AmdSmiTemperatureType, AmdSmiTemperatureMetric)
_function("clock_info", AmdSmiClkType)
"""
_WRAPPER = """
AMDSMI_STATUS_NOT_SUPPORTED = 2
AMDSMI_STATUS_NOT_YET_IMPLEMENTED = 3
AMDSMI_STATUS_NO_PERM = 10
AMDSMI_STATUS_NOT_INIT = 32
AMDSMI_STATUS_DRIVER_NOT_LOADED = 34
"""
#: An MI300X with a library of ROCm 7.
_NEW_CARD: dict[str, Any] = {
    "gpu_activity": {"gfx_activity": 97, "umc_activity": 30, "mm_activity": "N/A"},
    "power_info": {"current_socket_power": 612, "average_socket_power": "N/A"},
    "energy_count": {"energy_accumulator": 2_000_000, "counter_resolution": 15.5, "timestamp": 9},
    "gpu_memory_usage VRAM": 4_000_000_000,
    "gpu_memory_total VRAM": 206_000_000_000,
    "temp_metric HOTSPOT CURRENT": 71,
    "clock_info GFX": {"clk": 2100, "min_clk": 132, "max_clk": 2100},
    "clock_info MEM": {"clk": 1300, "min_clk": 900, "max_clk": 1300},
}
#: An MI210 with a library of ROCm 6.0.
_OLD_CARD: dict[str, Any] = _NEW_CARD | {
    "gpu_activity": {"gfx_activity": 5, "umc_activity": "N/A"},
    "power_info": {"current_socket_power": "N/A", "average_socket_power": 41},
    "energy_count": {"power": 1_000_000, "counter_resolution": 15.3, "timestamp": 9},
    "clock_info GFX": {"cur_clk": 800, "max_clk": 1700},
    "clock_info MEM": {"clk": 2**32 - 1},
}


class FakeAmdsmi:
    """Says what the cards answer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def cards(self, *cards: dict[str, Any]) -> None:
        (self.folder / "cards.json").write_text(json.dumps(cards))

    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def amdsmi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAmdsmi]:
    package = tmp_path / "site" / "amdsmi"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(_FAKE.format(folder=str(tmp_path)))
    (package / "amdsmi_wrapper.py").write_text(_WRAPPER)
    monkeypatch.syspath_prepend(str(package.parent))
    fake = FakeAmdsmi(tmp_path)
    fake.cards(_NEW_CARD)
    yield fake
    for name in ("amdsmi", "amdsmi.amdsmi_wrapper"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


@pytest.fixture
def listener(amdsmi: FakeAmdsmi) -> Iterator[AmdsmiListener]:
    listener = AmdsmiListener()
    listener.open()
    yield listener
    listener.close()


def _sample(listener: AmdsmiListener, runs: Sequence[str] = ("a",)) -> dict[tuple[str, str], Any]:
    readings = list(listener.sample([Target(run) for run in runs]))
    assert all(one.gpu is None and one.run_id is None for one in readings)
    return {(one.metric, one.entity): one.value for one in readings}


def test_values_arrive_in_si_units(listener) -> None:
    assert _sample(listener) == {
        ("gpu.utilization", "amd0"): pytest.approx(0.97),
        ("gpu.memory.utilization", "amd0"): pytest.approx(0.3),
        ("gpu.memory.used", "amd0"): 4e9,
        ("gpu.memory.total", "amd0"): 206e9,
        ("gpu.power", "amd0"): 612,
        ("gpu.energy", "amd0"): pytest.approx(31.0),
        ("gpu.temperature", "amd0"): 71,
        ("gpu.clock.sm", "amd0"): 2.1e9,
        ("gpu.clock.memory", "amd0"): 1.3e9,
    }


def test_older_versions_and_cards_are_read_too(amdsmi, listener) -> None:
    amdsmi.cards(_OLD_CARD)
    values = _sample(listener)
    assert values["gpu.power", "amd0"] == 41
    assert values["gpu.energy", "amd0"] == pytest.approx(15.3)
    assert values["gpu.clock.sm", "amd0"] == 0.8e9
    assert values["gpu.memory.utilization", "amd0"] is MissingReason.UNSUPPORTED
    assert values["gpu.clock.memory", "amd0"] is MissingReason.UNSUPPORTED


def test_each_card_is_read_once_however_many_runs(amdsmi) -> None:
    amdsmi.cards(_NEW_CARD, _OLD_CARD)
    listener = AmdsmiListener()
    listener.open()
    values = _sample(listener, runs=("a", "b", "c"))
    listener.close()
    assert {entity for _, entity in values} == {"amd0", "amd1"}
    read = [call for call in amdsmi.calls() if call.startswith("power_info")]
    assert read == ["power_info 0", "power_info 1"]
    assert amdsmi.calls()[0] == "init"
    assert amdsmi.calls()[-1] == "shut_down"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (2, MissingReason.UNSUPPORTED),
        (3, MissingReason.UNSUPPORTED),
        (10, MissingReason.PERMISSION),
        (31, MissingReason.LOST),
    ],
)
def test_an_error_is_a_missing_value_with_its_reason(
    amdsmi, listener, code: int, reason: MissingReason
) -> None:
    amdsmi.cards(_NEW_CARD | {"temp_metric HOTSPOT CURRENT": [code]})
    values = _sample(listener)
    assert values["gpu.temperature", "amd0"] is reason
    assert values["gpu.power", "amd0"] == 612, "the others are read all the same"


@pytest.mark.parametrize("code", [32, 34])
def test_an_error_of_the_whole_library_is_raised(amdsmi, listener, code: int) -> None:
    amdsmi.cards(_NEW_CARD | {"temp_metric HOTSPOT CURRENT": [code]})
    with pytest.raises(Exception, match=str(code)):
        _sample(listener)


def test_probing_and_a_second_listener_leave_the_first_one_its_library(amdsmi, listener) -> None:
    assert AmdsmiListener.probe().available
    second = AmdsmiListener()
    second.open()
    second.close()
    assert amdsmi.calls() == ["init"]
    assert _sample(listener)["gpu.power", "amd0"] == 612
    listener.close()
    listener.close()  # harmless
    assert amdsmi.calls()[-1] == "shut_down"
    assert amdsmi.calls().count("shut_down") == 1


def test_opening_in_vain_lets_go(amdsmi) -> None:
    (amdsmi.folder / "cards.json").write_text("[]")
    module = importlib.import_module("amdsmi")
    module.amdsmi_get_processor_handles = lambda: (_ for _ in ()).throw(
        module.AmdSmiLibraryException(10)
    )
    with pytest.raises(module.AmdSmiException):
        AmdsmiListener().open()
    assert amdsmi.calls() == ["init", "shut_down"]


def test_probe_lets_go_and_says_what_is_wrong(amdsmi) -> None:
    assert AmdsmiListener.probe().available
    assert amdsmi.calls() == ["init", "shut_down"]
    amdsmi.cards()
    assert AmdsmiListener.probe().reason == "no AMD GPU"
    (amdsmi.folder / "broken").touch()
    answer = AmdsmiListener.probe()
    assert answer.reason == "amdsmi: Error code: 34 | of the library"
    assert answer.remedy


def test_a_library_that_cannot_be_imported_is_said_quietly(amdsmi, capsys) -> None:
    """Without libamd_smi.so, the real module prints and then fails with a KeyError."""
    (amdsmi.folder / "site" / "amdsmi" / "amdsmi_wrapper.py").write_text(
        "print('Unable to find libamd_smi.so')\n{}['libamd_smi.so']\n"
    )
    answer = AmdsmiListener.probe()
    assert not answer.available
    assert "libamd_smi.so" in answer.reason
    assert capsys.readouterr().out == ""


def test_an_error_without_words_is_named(amdsmi) -> None:
    (amdsmi.folder / "site" / "amdsmi" / "amdsmi_wrapper.py").write_text("raise RuntimeError\n")
    assert AmdsmiListener.probe().reason == "amdsmi: RuntimeError"


def test_without_the_library_there_is_no_doubt() -> None:
    if importlib.util.find_spec("amdsmi") is not None:
        pytest.skip("amdsmi is installed here")
    answer = AmdsmiListener.probe()
    assert answer.reason == "the Python package amdsmi is not installed"


def test_the_module_is_light() -> None:
    code = "import sys, radt.listeners.amdsmi; print('amdsmi' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_what_runs_cannot_tell_apart_is_the_machines() -> None:
    assert {metric.scope for metric in AmdsmiListener.metrics()} == {Scope.HOST}
