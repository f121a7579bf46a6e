"""The macmon listener against a fake macmon on PATH."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from radt.errors import ListenerError
from radt.listeners.api import Reading, Target
from radt.listeners.macmon import MacmonListener
from radt.model import MissingReason

#: Notes how it was called and its end; writes what the test puts into "next", ends when told.
_FAKE = """#!{python}
import os, pathlib, signal, sys, time
folder = pathlib.Path({folder!r})
with (folder / "calls").open("a") as file: file.write(" ".join(sys.argv[1:]) + "\\n")
def ended(*_):
    (folder / "ended").touch()
    os._exit(0)
signal.signal(signal.SIGTERM, ended)
(folder / "up").touch()
while True:
    if (folder / "next").exists():
        text = (folder / "next").read_text()
        (folder / "next").unlink()
        if text == "die":
            print("no Apple silicon", file=sys.stderr, flush=True)
            sys.exit(3)
        sys.stdout.write(text)
        sys.stdout.flush()
        (folder / "written").touch()
    time.sleep(0.005)
"""

#: As macmon 0.8's readme shows it.
_NEW = {
    "temp": {"cpu_temp_avg": 43.5, "gpu_temp_avg": 36.5},
    "memory": {"ram_total": 25769803776, "ram_usage": 20985479168, "swap_usage": 2602434560},
    "cpu_scaled_ratio": 0.036,
    "cpu_active_ratio": 0.092,
    "ecpu_freq_mhz": 1100,
    "ecpu_scaled_ratio": 0.08,
    "ecpu_active_ratio": 0.18,
    "pcpu_freq_mhz": 1800,
    "pcpu_scaled_ratio": 0.015,
    "pcpu_active_ratio": 0.04,
    "gpu_freq_mhz": 461,
    "gpu_scaled_ratio": 0.02,
    "gpu_active_ratio": 0.09,
    "cpu_power": 0.2,
    "gpu_power": 0.017,
    "ane_power": 0.0,
    "all_power": 0.22,
    "sys_power": 5.8,
    "ram_power": 0.11,
}
#: As versions up to 0.7 wrote it.
_OLD = {
    "temp": {"cpu_temp_avg": 43.5, "gpu_temp_avg": 0.0},
    "memory": {"ram_total": 25769803776, "ram_usage": 20985479168, "swap_usage": 0},
    "ecpu_usage": [1181, 0.08],
    "pcpu_usage": [1974, 0.015],
    "gpu_usage": [461, 0.02],
    "cpu_power": 0.2,
    "gpu_power": 0.017,
    "ane_power": 0.0,
    "all_power": 0.22,
    "sys_power": 0.0,
    "ram_power": 0.11,
}


def _until(condition: Callable[[], Any]) -> Any:
    """The condition's first true value; fails if there is none for half a minute."""
    deadline = time.monotonic() + 30
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)
    return value


class FakeMacmon:
    """Steers the fake."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, text: str) -> None:
        (self.folder / "written").unlink(missing_ok=True)
        self._order(text)
        _until((self.folder / "written").exists)

    def document(
        self, fields: dict[str, Any], *, age_s: float | None = 0.0, end: str = "\n"
    ) -> None:
        more = {}
        if age_s is not None:
            written = datetime.now(UTC) - timedelta(seconds=age_s)
            more = {"timestamp": written.isoformat()}
        self.write(json.dumps(fields | more) + end)

    def die(self) -> None:
        self._order("die")

    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()

    def _order(self, text: str) -> None:
        (self.folder / "new").write_text(text)
        (self.folder / "new").rename(self.folder / "next")


@pytest.fixture
def macmon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMacmon:
    program = tmp_path / "bin" / "macmon"
    program.parent.mkdir()
    program.write_text(_FAKE.format(python=sys.executable, folder=str(tmp_path)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    return FakeMacmon(tmp_path)


@pytest.fixture
def listener(macmon: FakeMacmon) -> Iterator[MacmonListener]:
    listener = MacmonListener()
    listener.interval_s = 0.5
    listener.open()
    _until((macmon.folder / "up").exists)
    yield listener
    listener.close()


def _sample(listener: MacmonListener) -> dict[tuple[str, str], Any]:
    return {(one.metric, one.entity): one.value for one in _readings(listener)}


def _readings(listener: MacmonListener) -> list[Reading]:
    return list(listener.sample([Target("a"), Target("b")]))


def _arrived(listener: MacmonListener) -> dict[tuple[str, str], Any]:
    """What the first sample with values says; the pipe may need a moment."""
    return dict(_until(lambda: _sample(listener)))


def test_it_is_asked_for_the_listeners_interval(macmon, listener) -> None:
    assert macmon.calls() == ["pipe --interval 500"]


def test_what_version_08_writes_arrives_in_si_units(macmon, listener) -> None:
    assert _sample(listener) == {}, "it has not written anything yet"
    macmon.document(_NEW)
    assert _arrived(listener) == {
        ("gpu.utilization", ""): 0.09,
        ("gpu.scaled", ""): 0.02,
        ("gpu.clock", ""): 461e6,
        ("cpu.clock", "ecpu"): 1100e6,
        ("cpu.clock", "pcpu"): 1800e6,
        ("cpu.active", "ecpu"): 0.18,
        ("cpu.active", "pcpu"): 0.04,
        ("cpu.scaled", "ecpu"): 0.08,
        ("cpu.scaled", "pcpu"): 0.015,
        ("cpu.power", ""): 0.2,
        ("gpu.power", ""): 0.017,
        ("ane.power", ""): 0.0,
        ("soc.power", ""): 0.22,
        ("memory.power", ""): 0.11,
        ("system.power", ""): 5.8,
        ("cpu.temperature", ""): 43.5,
        ("gpu.temperature", ""): 36.5,
        ("system.memory.used", ""): 20985479168,
        ("system.swap.used", ""): 2602434560,
    }
    assert _sample(listener) == {}, "each document counts once"


def test_what_older_versions_write_is_read_too(macmon, listener) -> None:
    macmon.document(_OLD)
    values = _arrived(listener)
    assert values["gpu.clock", ""] == 461e6
    assert values["cpu.scaled", "pcpu"] == 0.015
    assert values["gpu.scaled", ""] == 0.02
    assert values["gpu.utilization", ""] is MissingReason.UNSUPPORTED, "they had it scaled only"
    assert values["ane.power", ""] == 0.0
    assert values["system.power", ""] is MissingReason.UNSUPPORTED, "0 W is what no sensor says"
    assert values["gpu.temperature", ""] is MissingReason.UNSUPPORTED


def test_of_several_documents_the_newest_counts_and_half_a_one_waits(macmon, listener) -> None:
    macmon.document(_NEW | {"cpu_power": 1.0})
    macmon.document(_NEW | {"cpu_power": 2.0})
    macmon.document(_NEW | {"cpu_power": 3.0}, end="")
    assert _arrived(listener)["cpu.power", ""] == 2.0
    assert _sample(listener) == {}
    macmon.write("\n")
    assert _arrived(listener)["cpu.power", ""] == 3.0


def test_values_carry_the_time_at_which_macmon_wrote_them(macmon, listener) -> None:
    macmon.document(_NEW, age_s=1.0)
    readings = _until(lambda: _readings(listener))
    ages_s = {(time.monotonic_ns() - (one.at_ns or 0)) / 1e9 for one in readings}
    assert len(ages_s) <= len(readings)
    assert all(1.0 <= age_s < 1.9 for age_s in ages_s)


def test_a_document_without_a_time_is_of_now(macmon, listener) -> None:
    macmon.document(_OLD, age_s=None)
    assert _arrived(listener)["cpu.power", ""] == 0.2


def test_a_document_that_waited_in_the_pipe_is_no_value_of_now(macmon, listener) -> None:
    """While no run is there nobody reads; what was written then is none of the next run's."""
    macmon.document(_NEW, age_s=60.0)
    for _ in range(20):
        assert _sample(listener) == {}
    macmon.document(_NEW)
    assert _arrived(listener)["cpu.power", ""] == 0.2


def test_a_macmon_that_falls_silent_is_a_loss(macmon, listener, monkeypatch) -> None:
    monkeypatch.setattr("radt.listeners.macmon._MIN_STALE_S", 0.0)
    listener.interval_s = 0.0
    values = _sample(listener)
    assert set(values.values()) == {MissingReason.LOST}
    assert len(values) == 19


def test_a_macmon_that_ends_is_an_error_with_its_last_words(macmon, listener) -> None:
    macmon.die()
    with pytest.raises(ListenerError, match="ended with exit code 3: no Apple silicon"):
        _until(lambda: _sample(listener))


@pytest.mark.parametrize("line", ["warming up\n", "[1]\n"])
def test_what_is_no_document_is_an_error(macmon, listener, line: str) -> None:
    macmon.write(line)
    with pytest.raises(ListenerError, match="no JSON object"):
        _until(lambda: _sample(listener))


def test_closing_ends_it(macmon) -> None:
    listener = MacmonListener()
    listener.open()
    _until((macmon.folder / "up").exists)
    listener.close()
    assert (macmon.folder / "ended").exists()
    listener.close()  # harmless


def test_probe(macmon, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MacmonListener.probe().available
    monkeypatch.setenv("PATH", "")
    answer = MacmonListener.probe()
    assert not answer.available
    assert "PATH" in answer.reason
    assert answer.remedy


def test_it_is_no_default() -> None:
    assert not MacmonListener.by_default
