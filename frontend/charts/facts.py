"""What is said of a line to who points at it: model, devices, what sets it apart."""

from __future__ import annotations

from collections.abc import Mapping

from radt.frontend.catalog import RunEntry
from radt.frontend.charts.aggregate import Group
from radt.frontend.charts.lines import Feed
from radt.frontend.charts.quantity import SCOPE_WORDS, Quantity
from radt.frontend.source import Source
from radt.units import plural

_MAX_PARAMS = 4
_MAX_TEXT = 32


class Facts:
    """Facts of the lines of one chart, each a few words."""

    def __init__(self, source: Source, runs: Mapping[str, RunEntry], quantity: Quantity) -> None:
        run_ids = tuple(runs)
        self._params = source.remember(
            ("params", run_ids), lambda reader: reader.params_of(run_ids)
        )
        self._quantity = quantity
        self._telling = source.remember(("telling", run_ids), lambda _: telling(self._params, runs))

    def of_feed(self, feed: Feed) -> tuple[str, ...]:
        """Of a run or device."""
        run, record = feed.parts[0]
        several = len(feed.parts) > 1
        said = [] if several else [run.record.name, *self._apart(run)]
        said += [placed(run), SCOPE_WORDS[record.scope]]
        if several:
            said.append(f"seen by {plural(len(feed.parts), 'run')}")
        return _words([*said, *(["estimated"] if feed.estimated else [])])

    def of_group(self, group: Group) -> tuple[str, ...]:
        """Of a workload."""
        runs = list(dict.fromkeys(run.run_id for feed in group.feeds for run, _ in feed.parts))
        names = dict.fromkeys(run.record.name for feed in group.feeds for run, _ in feed.parts)
        scopes = dict.fromkeys(record.scope for feed in group.feeds for _, record in feed.parts)
        said = [plural(len(runs), "run"), ", ".join(names), placed(group.run)]
        said += [SCOPE_WORDS[scope] for scope in scopes]
        estimated = any(feed.estimated for feed in group.feeds)
        return _words([*said, *(["estimated"] if estimated else [])])

    def _apart(self, run: RunEntry) -> list[str]:
        own = self._params.get(run.run_id, {})
        return [f"{key}={own[key]}" for key in self._telling if key in own]


def telling(
    params: Mapping[str, Mapping[str, str]], runs: Mapping[str, RunEntry]
) -> tuple[str, ...]:
    """The parameters in which the runs differ, and not only as their names do."""
    keys = dict.fromkeys(key for own in params.values() for key in own)
    names = [run.record.name for run in runs.values()]
    found = []
    for key in keys:
        values = [params.get(run_id, {}).get(key) for run_id in runs]
        if len(set(values)) > 1 and values != names:
            found.append(key)
    return tuple(found[:_MAX_PARAMS])


def placed(run: RunEntry) -> str:
    """``GPU 0 · mps``, ``cpu``."""
    record = run.record
    devices = record.devices if record.devices == "cpu" else f"GPU {record.devices}"
    return devices if record.collocation in ("", "-") else f"{devices} · {record.collocation}"


def _words(said: list[str]) -> tuple[str, ...]:
    short = (text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…" for text in said)
    return tuple(text for text in short if text)
