"""What all built-in listeners measure, side by side: names mean one thing."""

from __future__ import annotations

import re
from itertools import groupby

import pytest

from radt.listeners import registry
from radt.listeners.api import Listener, Metric, Profiler

LISTENERS = sorted(registry.load().listeners.values(), key=lambda kind: kind.name)
METRICS = sorted(
    (metric for kind in LISTENERS for metric in kind.metrics()), key=lambda metric: metric.name
)
UNITS = {"1", "By", "By/s", "J", "W", "Hz", "Cel", "s", "g", "cores"}
COUNTED = {"{threads}", "{processes}", "{tasks}", "{requests}", "{core}", "{bits}"}


def test_everything_that_is_built_in_can_be_loaded() -> None:
    found = registry.load()
    assert found.broken == {}
    assert set(found.names) >= {
        *("amdsmi", "carbon", "dcgm", "free", "gpm", "iostat", "net", "ps", "rapl"),
        *("smi", "top", "torch", "torchprof"),
        *("nsys", "nsysraw", "ncu", "ncuraw", "ncuattach"),
    }


@pytest.mark.parametrize(
    ("name", "metrics"),
    [(name, list(same)) for name, same in groupby(METRICS, lambda metric: metric.name)],
)
def test_a_name_has_one_unit_and_one_kind(name: str, metrics: list[Metric]) -> None:
    """Charts put series of one name onto one axis, whichever listener they come from."""
    assert re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+)+", name)
    assert len({(metric.unit, metric.kind) for metric in metrics}) == 1
    assert metrics[0].unit in UNITS | COUNTED


@pytest.mark.parametrize("kind", LISTENERS)
def test_what_is_estimated_says_by_which_rule(kind: type[Listener]) -> None:
    names = [metric.name for metric in kind.metrics()]
    assert len(names) == len(set(names))
    assert [
        metric.name for metric in kind.metrics() if metric.estimated and not metric.method
    ] == []


@pytest.mark.parametrize(
    "kind", [*LISTENERS, *registry.load().profilers.values()], ids=lambda kind: kind.name
)
def test_a_listener_that_does_not_work_here_says_why_and_what_to_do(
    kind: type[Listener | Profiler],
) -> None:
    answer = kind.probe()
    assert answer.available or (answer.reason and answer.remedy)
