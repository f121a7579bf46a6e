"""Runs that span several nodes: records of the parts on all nodes but the first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from radt import units


@dataclass(frozen=True, slots=True)
class RunPart:
    """Part of a run on a node other than the first. The first node's clock is the run's clock.

    ``number`` counts the nodes from 0, the first. ``offset_ns`` was added to the node's monotonic
    clock to obtain the first node's. ``error_ns`` bounds the error of this part's times: half of
    the shortest of many round trips, plus the measured drift. ``drift_ns`` is how far the clocks
    have moved apart since the run began, None if not yet known.
    """

    number: int
    node: str
    host: str
    offset_ns: int
    error_ns: int
    drift_ns: int | None = None

    @property
    def text(self) -> str:
        """Return the offset, error and drift of the node's clock, for display."""
        drift = "" if self.drift_ns is None else f", drift {_duration(self.drift_ns)}"
        return (
            f"{self.node}: clock offset {_duration(self.offset_ns)}, "
            f"error {_duration(self.error_ns)}{drift}"
        )


def agreement(parts: Sequence[RunPart]) -> str:
    """Describe the number of nodes of runs with these parts and the agreement of their clocks."""
    nodes = 1 + len({part.number for part in parts})
    worst = max(parts, key=lambda part: part.error_ns)
    drifts = [abs(part.drift_ns) for part in parts if part.drift_ns is not None]
    drift = f", after a drift of {_duration(max(drifts))}" if drifts else ""
    return (
        f"on {nodes} nodes, whose clocks agree within {_duration(worst.error_ns)} "
        f"({worst.node}{drift})"
    )


def _duration(ns: int) -> str:
    return f"{'−' if ns < 0 else ''}{units.duration(abs(ns) / 1e9)}"


def to_tag(parts: Sequence[RunPart]) -> str:
    """Encode parts as the value of the tag `radt.tags.CLUSTER_PARTS`."""
    return json.dumps([asdict(part) for part in parts])


def from_tag(value: str) -> tuple[RunPart, ...]:
    """Decode the value of `to_tag`; a text that a user has changed gives no parts."""
    try:
        return tuple(RunPart(**part) for part in json.loads(value))
    except (ValueError, TypeError):
        return ()
