"""Energy of processors, from a folder of files like the kernel's."""

from __future__ import annotations

import errno
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radt.collector.protocol import Registration
from radt.collector.routing import Numbering, PendingSamples, SortedReadings
from radt.collector.runs import RegisteredRun
from radt.errors import ListenerUnavailableError
from radt.listeners.api import Listener
from radt.listeners.carbon import CarbonListener
from radt.listeners.rapl import Meter, RaplListener, Zone, zones
from radt.model import MissingReason, SeriesKind
from radt.store.counters import increases
from tests.support.powercap import RANGE_UJ, SERVER, UJ, Powercap


@pytest.fixture
def powercap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Powercap:
    monkeypatch.setattr(RaplListener, "root", tmp_path / "powercap")
    return Powercap.with_zones(tmp_path / "powercap", SERVER)


def sampled(listener: RaplListener) -> dict[str, float | MissingReason]:
    return {reading.entity: reading.value for reading in listener.sample([])}


def opened(*words: str) -> RaplListener:
    listener = RaplListener()
    listener.options = dict.fromkeys(words)
    listener.open()
    return listener


def refuse(monkeypatch: pytest.MonkeyPatch, folder: str, number: int) -> None:
    """Reading this zone's energy fails so: root, who may run the tests, is refused nothing."""
    read = Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        if path.name == "energy_uj" and path.parent.name == folder:
            raise OSError(number, "refused")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)


def test_packages_and_memory_each_once_in_joules(powercap: Powercap) -> None:
    """Not the package that is there twice, nor its cores, nor the platform that holds it all."""
    powercap.set("intel-rapl:0", 123.456789)
    powercap.set("intel-rapl-mmio:0", 9.0)
    assert sampled(opened()) == {
        "dram-0": 100.0,
        "dram-1": 100.0,
        "package-0": 123.456789,
        "package-1": 100.0,
    }


def test_what_overlaps_is_another_metric(powercap: Powercap) -> None:
    readings = list(opened("domains").sample([]))
    overlapping = {one.entity for one in readings if one.metric == "cpu.domain.energy"}
    assert overlapping == {"core-0", "psys"}
    assert len(readings) == 6


def test_each_counter_says_where_it_wraps(powercap: Powercap) -> None:
    (powercap.root / "intel-rapl:0:1" / "max_energy_range_uj").write_text(f"{65_712 * UJ}\n")
    (powercap.root / "intel-rapl:1" / "max_energy_range_uj").unlink()
    wraps = {one.entity: one.wraps_at for one in opened().sample([])}
    assert wraps["package-0"] == RANGE_UJ / UJ
    assert wraps["dram-0"] == 65_712.0
    assert wraps["package-1"] is None
    assert {metric.kind for metric in RaplListener.metrics()} == {SeriesKind.COUNTER}


@pytest.mark.parametrize("kind", [RaplListener, CarbonListener])
def test_an_interval_in_which_a_counter_may_wrap_twice_is_refused(
    powercap: Powercap, monkeypatch: pytest.MonkeyPatch, kind: type[Listener]
) -> None:
    """262 kJ are 9 minutes at 500 W, of which only half can be told from a reset."""
    monkeypatch.setattr(CarbonListener, "root", powercap.root)
    listener = kind()
    listener.interval_s = 300.0
    with pytest.raises(ListenerUnavailableError, match="may wrap unnoticed within 300 s") as raised:
        listener.open()
    assert raised.value.remedy == "Choose an interval of 262 s at most"
    listener.close()
    listener.interval_s = 262.0
    listener.open()
    listener.close()


def test_a_zone_that_goes_is_lost_and_the_others_stay(powercap: Powercap) -> None:
    listener = opened()
    powercap.vanish("intel-rapl:1:0")
    found = sampled(listener)
    assert found["dram-1"] is MissingReason.LOST
    assert found["package-1"] == 100.0


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.EACCES, MissingReason.PERMISSION),
        (errno.EIO, MissingReason.LOST),
        (errno.ENODATA, MissingReason.UNSUPPORTED),
    ],
)
def test_why_a_zone_cannot_be_read(
    powercap: Powercap, monkeypatch: pytest.MonkeyPatch, number: int, reason: MissingReason
) -> None:
    refuse(monkeypatch, "intel-rapl:0:1", number)
    found = sampled(opened())
    assert found["dram-0"] is reason
    assert found["package-0"] == 100.0
    assert RaplListener.probe().available, "there is something to read"


def test_a_counter_that_stands_at_zero_counts_nothing(powercap: Powercap) -> None:
    powercap.set("intel-rapl:0:1", 0)
    listener = opened()
    assert sampled(listener)["dram-0"] is MissingReason.UNSUPPORTED
    powercap.set("intel-rapl:0:1", 1)
    assert sampled(listener)["dram-0"] == 1.0
    powercap.set("intel-rapl:0:1", 0)
    assert sampled(listener)["dram-0"] == 0.0, "it has just wrapped"


def test_half_written_file_is_no_number(powercap: Powercap) -> None:
    (powercap.root / "intel-rapl:0" / "energy_uj").write_text("")
    assert sampled(opened())["package-0"] is MissingReason.LOST


def test_probe_with_everything(powercap: Powercap) -> None:
    assert RaplListener.probe().available
    assert RaplListener.by_default


def test_probe_says_how_to_be_let_in(powercap: Powercap, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_bytes(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, "refused")

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    answer = RaplListener.probe()
    assert not answer.available
    assert "only root" in answer.reason
    assert "chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj" in answer.remedy
    assert "CVE-2020-8694" in answer.remedy


def test_probe_without_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for root in (tmp_path / "nothing", tmp_path):
        monkeypatch.setattr(RaplListener, "root", root)
        answer = RaplListener.probe()
        assert not answer.available
        assert "no energy counters" in answer.reason
        assert "modprobe" in answer.remedy
    assert list(opened().sample([])) == []


def test_probe_where_nothing_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Powercap.with_zones(tmp_path / "powercap", SERVER, energy_j=0)
    monkeypatch.setattr(RaplListener, "root", tmp_path / "powercap")
    answer = RaplListener.probe()
    assert (answer.available, answer.reason) == (False, "the energy counters stand still")


def test_amd_has_the_same_zones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"intel-rapl:0": "package-0", "intel-rapl:0:0": "core"}
    Powercap.with_zones(tmp_path / "powercap", names)
    monkeypatch.setattr(RaplListener, "root", tmp_path / "powercap")
    assert sampled(opened()) == {"package-0": 100.0}


def test_dies_of_one_package_are_packages(tmp_path: Path) -> None:
    names = {"intel-rapl:0": "package-0-die-1", "intel-rapl:0:0": "dram"}
    powercap = Powercap.with_zones(tmp_path / "powercap", names)
    assert [zone.entity for zone in zones(powercap.root)] == ["dram-0-die-1", "package-0-die-1"]
    assert all(isinstance(zone, Zone) and zone.apart for zone in zones(powercap.root))


@given(
    st.lists(st.integers(0, 120), min_size=1, max_size=40),
    st.sampled_from([None, 100.0, 121.0]),
)
def test_a_meter_counts_as_the_store_does(values: list[int], wraps_at: float | None) -> None:
    """Listeners may not import the store; the rule must be the same nevertheless."""
    meter = Meter(wraps_at)
    grown = [meter.grown(float(value)) for value in values]
    times = np.arange(len(values), dtype=np.int64)
    assert grown[0] == 0.0
    assert grown[1:] == increases(times, np.array(values, float), wraps_at).amounts.tolist()


def test_where_it_wraps_reaches_the_store(powercap: Powercap) -> None:
    """Each zone's own limit, also of one that could not be read at first."""
    (powercap.root / "intel-rapl:0:1" / "max_energy_range_uj").write_text(f"{65_712 * UJ}\n")
    (powercap.root / "intel-rapl:0:1" / "energy_uj").write_text("")
    registration = Registration("r" * 32, "/store", "/spool")
    run = RegisteredRun(registration, None, buffered_points=1000)
    run.expect("rapl", 1.0)
    run.started(1, time.monotonic_ns())
    listener = opened()
    metrics = {metric.name: metric for metric in listener.metrics()}

    def read() -> PendingSamples:
        readings = SortedReadings(listener.sample([]), metrics)
        run.record("rapl", 1.0, time.monotonic_ns(), 1, readings, metrics)
        return run.take()

    first = read()
    powercap.set("intel-rapl:0:1", 7.0)
    second = read()
    numbering = Numbering(run.run_id, (), ())
    for taken in (second, first):
        for missing in taken.missing:
            numbering.series(missing.key, missing.metric, missing.interval_s)
        for key, column in taken.columns.items():
            numbering.series(key, column.metric, column.interval_s, column.method)
    found = {one.entity: one.wraps_at for one in numbering.new_series()}
    assert (found["dram-0"], found["package-0"]) == (65_712.0, 262_143.0)
