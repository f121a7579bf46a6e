"""All that the System page looks at, each for itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from radt.frontend.source import Source
from radt.frontend.system.backlogs import Backlogs, read_backlogs
from radt.frontend.system.machine import (
    Collector,
    CollectorWatch,
    Devices,
    DevicesWatch,
    ListenerFacts,
    NoCollector,
    read_listeners,
    read_versions,
)
from radt.frontend.system.probes import Probe
from radt.frontend.system.stores import (
    Activity,
    StoreFacts,
    read_activity,
    read_facts,
    read_points,
)

_NOW_S = 2.0
_SOON_S = 10.0
_RARELY_S = 120.0


#: Of the machine, whichever store is shown; a process is started for it.
_LISTENERS: Probe[Sequence[ListenerFacts]] = Probe("listeners", read_listeners, _RARELY_S)


class System:
    """Of one dashboard; nothing is looked at before somebody asks."""

    def __init__(self, source: Source) -> None:
        path = source.address.path
        folder = None if path is None else path.parent
        watch = CollectorWatch()
        self.facts: Probe[StoreFacts] = Probe("store", lambda: read_facts(source), _NOW_S)
        self.points: Probe[int] = Probe("points", lambda: read_points(source), _SOON_S)
        self.activity: Probe[Activity] = Probe("activity", lambda: read_activity(source), _NOW_S)
        self.backlogs: Probe[Backlogs] = Probe("backlog", lambda: read_backlogs(folder), _NOW_S)
        self.collector: Probe[Collector | NoCollector] = Probe("collector", watch.read, _NOW_S)
        self.devices: Probe[Devices] = Probe("devices", DevicesWatch().read, _NOW_S)
        self.listeners = _LISTENERS
        self.versions = read_versions()

    def begin(self) -> None:
        """Start looking at all of it, waiting for nothing."""
        probes: tuple[Probe[Any], ...] = (
            *(self.facts, self.points, self.activity, self.backlogs),
            *(self.collector, self.devices, self.listeners),
        )
        for probe in probes:
            probe.look()
