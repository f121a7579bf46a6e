"""Runs that are spread over several nodes: what is known of each node's part but the first's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from radt import units


@dataclass(frozen=True, slots=True)
class RunPart:
    """The part of a run on a node. The first node's clock is that of the whole run.

    ``number`` counts the nodes from 0, which is the first. ``offset_ns`` was added to the node's
    monotonic clock to have the first node's; ``error_ns`` is by how much the times of this part may
    be off: half of the shortest of many round trips, and what was found of drift. ``drift_ns`` is
    how far the clocks have moved apart since the run began, None while that is not known.
    """

    number: int
    node: str
    host: str
    offset_ns: int
    error_ns: int
    drift_ns: int | None = None

    @property
    def text(self) -> str:
        """What is known of its clock, for people."""
        drift = "" if self.drift_ns is None else f", drift {_duration(self.drift_ns)}"
        return (
            f"{self.node}: clock offset {_duration(self.offset_ns)}, "
            f"error {_duration(self.error_ns)}{drift}"
        )


def agreement(parts: Sequence[RunPart]) -> str:
    """Return on how many nodes runs with these parts were, and how well the clocks agree there."""
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
    """Return the value of the tag `radt.tags.CLUSTER_PARTS`."""
    return json.dumps([asdict(part) for part in parts])


def from_tag(value: str) -> tuple[RunPart, ...]:
    """Return what `to_tag` was given; nothing of a text that a user has written there."""
    try:
        return tuple(RunPart(**part) for part in json.loads(value))
    except (ValueError, TypeError):
        return ()
