"""The net listener against traffic whose volume is known, and interfaces that are not here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from radt.listeners import net
from radt.listeners.host_files import LinkCounts, Links
from radt.listeners.net import NetListener
from radt.model import MissingReason
from tests.listeners.workloads import LOOPBACK, MB, Bench, all_and_each, bench, opened, sample

__all__ = ["bench"]

_COUNTERS = {
    "system.network.rx": "bytes_recv",
    "system.network.tx": "bytes_sent",
    "system.network.packets.rx": "packets_recv",
    "system.network.packets.tx": "packets_sent",
    "system.network.errors.rx": "errin",
    "system.network.errors.tx": "errout",
    "system.network.dropped.rx": "dropin",
    "system.network.dropped.tx": "dropout",
}


def test_50_mb_over_the_loopback(bench: Bench) -> None:
    workload = bench.start(LOOPBACK, 50)
    listener = opened(NetListener())
    before = sample(listener)
    workload.work()
    after = sample(listener)
    for metric in ("system.network.rx", "system.network.tx"):
        sent = after(metric, entity="lo") - (before.raw(metric, entity="lo") or 0)
        assert sent >= 50 * MB
        others = sum(
            after(metric, entity=name) for name in after.entities(metric) if name not in ("", "lo")
        )
        assert after(metric) <= others, "the loopback is not in the sum"


def test_interfaces_are_as_psutil_says() -> None:
    before = psutil.net_io_counters(pernic=True, nowrap=False)
    sampled = sample(opened(NetListener()))
    after = psutil.net_io_counters(pernic=True, nowrap=False)
    names = sampled.entities("system.network.rx") - {""}
    assert names or not any(counts.packets_recv for counts in before.values())
    for name in names:
        for metric, field in _COUNTERS.items():
            value = sampled(metric, entity=name)
            assert getattr(before[name], field) <= value <= getattr(after[name], field), metric


class _Machine:
    """Interfaces of a machine that is not here."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: dict[str, LinkCounts] = {}
        self._folder = folder
        monkeypatch.setattr(net, "Links", lambda: Links(folder))
        monkeypatch.setattr(net, "netdev", lambda: self.counts)
        self.listener = opened(NetListener())
        self.link("lo", 10**6)

    def link(
        self,
        name: str,
        rx_bytes: int,
        *,
        hardware: bool = False,
        over: tuple[str, ...] = (),
        master: str = "",
        peer: bool = False,
    ) -> None:
        folder = self._folder / name
        folder.mkdir()
        if hardware:
            (folder / "device").mkdir()
        for lower in over:
            (folder / f"lower_{lower}").symlink_to(self._folder / lower)
        if master:
            (folder / "master").symlink_to(f"../{master}")
        index = str(len(self.counts) + 1)
        (folder / "ifindex").write_text(f"{index}\n")
        # As the kernel has it: a VLAN names the interface below, a container's end the other one.
        (folder / "iflink").write_text("77\n" if peer or over else f"{index}\n")
        self.counts[name] = LinkCounts(rx_bytes, 1, 0, 0, 0, 0, 0, 0)

    def read(self) -> tuple[float, dict[str, float]]:
        """Bytes received in all, and by each."""
        return all_and_each(sample(self.listener), "system.network.rx")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Machine:
    return _Machine(tmp_path, monkeypatch)


def test_traffic_counts_once_however_many_interfaces_it_passes(machine: _Machine) -> None:
    machine.link("eth0", 1, hardware=True)
    machine.link("bond0", 6, over=("eth1", "eth2"))
    machine.link("eth1", 2, hardware=True, master="bond0")
    machine.link("eth2", 4, hardware=True, master="bond0")
    machine.link("bond0.7", 8, over=("bond0",))
    machine.link("docker0", 16, over=("veth12ab",))
    machine.link("veth12ab", 32, master="docker0", peer=True)
    machine.link("wg0", 64)
    total, links = machine.read()
    assert total == 1 + 2 + 4
    assert links == {
        "lo": 10**6,
        "eth0": 1,
        "eth1": 2,
        "eth2": 4,
        "bond0": 6,
        "bond0.7": 8,
        "docker0": 16,
        "wg0": 64,
    }


def test_two_sides_of_one_virtual_card_count_once(machine: _Machine) -> None:
    machine.link("eth0", 5, hardware=True)
    machine.link("enP1s1", 4, hardware=True, master="eth0")
    assert machine.read()[0] == 5


def test_in_a_container_its_end_of_the_pair_is_the_network(machine: _Machine) -> None:
    machine.link("eth0", 5, peer=True)
    machine.link("br-inner", 8, over=("veth1",))
    machine.link("veth1", 7, peer=True, master="br-inner")
    assert machine.read()[0] == 5
    assert set(machine.read()[1]) == {"lo", "eth0", "br-inner", "veth1"}


def test_interfaces_that_come_and_go_leave_the_sum_growing(machine: _Machine) -> None:
    machine.link("eth0", 100, hardware=True)
    assert machine.read()[0] == 100
    machine.link("usb0", 30, hardware=True)
    assert machine.read() == (130, {"lo": 10**6, "eth0": 100, "usb0": 30})
    gone = machine.counts.pop("usb0")
    assert machine.read()[0] == 130
    machine.counts["usb0"] = replace(gone, rx_bytes=4)
    machine.counts["eth0"] = replace(machine.counts["eth0"], rx_bytes=101)
    assert machine.read()[0] == 135


def test_one_that_was_never_used_has_no_series(machine: _Machine) -> None:
    machine.link("eth0", 1, hardware=True)
    machine.link("eth1", 0, hardware=True)
    machine.counts["eth1"] = LinkCounts(0, 0, 0, 0, 0, 0, 0, 0)
    assert set(machine.read()[1]) == {"lo", "eth0"}


def test_infiniband_counts_words_and_stops_at_the_end_of_its_counters(
    machine: _Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counters = tmp_path / "infiniband" / "mlx5_0" / "ports" / "1" / "counters"
    counters.mkdir(parents=True)
    monkeypatch.setattr(net, "_INFINIBAND", tmp_path / "infiniband")
    (counters / "port_rcv_data").write_text("1000\n")
    (counters / "port_xmit_data").write_text(f"{2**32 - 1}\n")
    listener = opened(NetListener())
    sampled = sample(listener)
    assert sampled("system.infiniband.rx", entity="mlx5_0/1") == 4000
    assert sampled.raw("system.infiniband.tx", entity="mlx5_0/1") is MissingReason.LOST
    (counters / "port_rcv_data").unlink()
    gone = sample(listener)
    assert gone.raw("system.infiniband.rx", entity="mlx5_0/1") is MissingReason.LOST


def test_without_proc_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net, "netdev", dict)
    assert not NetListener.probe().available
