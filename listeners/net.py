"""Network traffic of the machine, by interface."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from radt.listeners.api import Availability, Listener, Metric, Reading, Target
from radt.listeners.host_files import LinkCounts, Links, netdev
from radt.listeners.host_trees import Growing
from radt.model import MissingReason, Scope, SeriesKind
from radt.procfs import read

_INFINIBAND = Path("/sys/class/infiniband")
#: The maximum, at which counters stay on ports without 64-bit counters.
_STUCK = 2**32 - 1
#: InfiniBand counts data in words of four bytes (IBTA, PortXmitData).
_WORD_BYTES = 4

_METHOD = (
    "/proc/net/dev; each interface by name; without a name the sum over network hardware, or, as in"
    " containers without any, over all but the loopback; not the traffic within containers"
)
_INFINIBAND_METHOD = "port_{}_data of each port, in words of four bytes; RDMA and IP together"


def _counter(name: str, unit: str, description: str, method: str = _METHOD) -> Metric:
    return Metric(name, unit, Scope.HOST, SeriesKind.COUNTER, description, method)


_METRICS = (
    _counter("system.network.rx", "By", "received"),
    _counter("system.network.tx", "By", "sent"),
    _counter("system.network.packets.rx", "1", "received"),
    _counter("system.network.packets.tx", "1", "sent"),
    _counter("system.network.errors.rx", "1", "receive errors"),
    _counter("system.network.errors.tx", "1", "transmit errors"),
    _counter("system.network.dropped.rx", "1", "received and dropped"),
    _counter("system.network.dropped.tx", "1", "dropped before they were sent"),
    _counter("system.infiniband.rx", "By", "received by a port", _INFINIBAND_METHOD.format("rcv")),
    _counter("system.infiniband.tx", "By", "sent by a port", _INFINIBAND_METHOD.format("xmit")),
)


#: In the order of `_columns`.
_LINK_NAMES = tuple(metric.name for metric in _METRICS[:8])


class NetListener(Listener):
    """Interfaces and InfiniBand ports of this machine (this container's, within one)."""

    name: ClassVar[str] = "net"
    reads: ClassVar[Sequence[Metric]] = _METRICS

    def __init__(self) -> None:
        self._links = Links()
        self._sum: Growing[str] = Growing(len(_LINK_NAMES), start_raw=True)
        self._ports: list[Path] = []

    @classmethod
    def probe(cls) -> Availability:
        if not netdev():
            return Availability(False, "/proc/net/dev is not readable", "Mount /proc")
        return Availability(True)

    def open(self) -> None:
        self._ports = sorted(_INFINIBAND.glob("*/ports/*"))

    def sample(self, targets: Sequence[Target]) -> Iterator[Reading]:  # noqa: ARG002 - host only
        interfaces = netdev()
        self._links.look(interfaces)
        counts = {name: _columns(link) for name, link in interfaces.items()}
        summed = {name: counts[name] for name in self._links.summed}
        for metric, total in zip(
            _LINK_NAMES, self._sum.update(summed, self._links.fresh), strict=True
        ):
            yield Reading(metric, float(total))
        for name in self._links.shown:
            if counts[name][2] or counts[name][3]:  # skip interfaces that were never used
                for metric, count in zip(_LINK_NAMES, counts[name], strict=True):
                    yield Reading(metric, float(count), name)
        for port in self._ports:
            yield from _port(port)


def _columns(link: LinkCounts) -> tuple[int, ...]:
    return (
        *(link.rx_bytes, link.tx_bytes, link.rx_packets, link.tx_packets),
        *(link.rx_errors, link.tx_errors, link.rx_dropped, link.tx_dropped),
    )


def _port(port: Path) -> Iterator[Reading]:
    """Yield the traffic of ``/sys/class/infiniband/mlx5_0/ports/1`` as entity ``mlx5_0/1``."""
    entity = f"{port.parent.parent.name}/{port.name}"
    for metric, name in (
        ("system.infiniband.rx", "port_rcv_data"),
        ("system.infiniband.tx", "port_xmit_data"),
    ):
        text = read(str(port / "counters" / name)).strip()
        # Ports without 64-bit counters stay at the maximum instead of wrapping.
        if text.isdigit() and int(text) != _STUCK:
            yield Reading(metric, float(int(text) * _WORD_BYTES), entity)
        else:
            yield Reading(metric, MissingReason.LOST, entity)
