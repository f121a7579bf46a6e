"""Lines of a chart, one per run: measured values over elapsed time, with gaps.

A value that describes the whole machine or a whole GPU is the same for all runs on it; it becomes
one line, named after the device, instead of several on top of each other.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from radt.analysis.baselines import ignored_params, plain_name
from radt.analysis.lines import (
    Curve,
    exponential_mean,
    moving_mean,
    pauses,
    reduced,
    union,
    with_gaps,
)
from radt.analysis.names import brief_names, distinct_names, joint_name
from radt.frontend.data.axes import Axis
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.catalog import RunEntry, Stroke, Tints
from radt.frontend.data.model import SCOPE_WORDS, NamedCurve
from radt.frontend.data.spec import ID_DIGITS, AxisRange
from radt.model import Scope
from radt.store.cells import GAP_INTERVALS, Cells
from radt.store.records import Float64Array, GapRecord, SeriesRecord
from radt.units import plural

#: Default width of lines in a wide chart, with two points per pixel.
WIDTH_PX = 800
LINE_POINTS = 2 * WIDTH_PX
#: Maximum number of points of all lines together, as browsers draw each one.
_CHART_POINTS = 16_000
_LEAST_POINTS = 400
_SHARED = (Scope.HOST, Scope.GPU, Scope.MIG)
_TOTAL = "total"


@dataclass(frozen=True, slots=True)
class SeriesGroup:
    """All series that become one line: of one process, or of one device in all its runs."""

    key: str
    label: str
    short: str
    stroke: Stroke
    listener: str
    parts: tuple[tuple[RunEntry, SeriesRecord], ...]

    @property
    def run(self) -> RunEntry:
        """The first run, which places a device's series on the x axis."""
        return self.parts[0][0]

    @property
    def is_total(self) -> bool:
        """True if it is the sum of single devices, if there are any.

        A run's series without an entity is its first process, not a sum of the others.
        """
        record = self.parts[0][1]
        return record.scope in _SHARED and not record.entity_there

    @property
    def whole(self) -> tuple[str, str, str]:
        """Key that the devices of one total share: their listener and location."""
        run, series = self.parts[0]
        return self.listener, run.record.workload_id, series.node or run.record.host

    @property
    def estimated(self) -> bool:
        return any(record.estimated for _, record in self.parts)


def series_groups(
    runs: Mapping[str, RunEntry], series: Iterable[SeriesRecord], tints: Tints | None = None
) -> tuple[SeriesGroup, ...]:
    """Sort the series of one metric into lines, in the order of the runs.

    With ``tints`` None they all have the same stroke.

    Readings of the same quantity by two listeners are two lines, named after the listeners. The sum
    of other series (all disks, besides each disk) is named total.
    """
    series = tuple(series)
    places = {run_id: place for place, run_id in enumerate(runs)}
    several = len({record.listener for record in series}) > 1
    own: list[SeriesGroup] = []
    shared: dict[tuple[str, str, str, str], list[tuple[RunEntry, SeriesRecord]]] = {}
    for record in series:
        run = runs[record.run_id]
        if record.scope in _SHARED:
            host = record.node or run.record.host
            key = (run.record.workload_id, host, record.entity_there, record.listener)
            shared.setdefault(key, []).append((run, record))
        else:
            suffix = f" {record.entity}" if record.entity else ""
            if several:
                suffix += f" {record.listener}"
            parts = ((run, record),)
            title = run.title + suffix
            own.append(
                SeriesGroup(
                    _key(f"r{run.run_id[:ID_DIGITS]}", record, several=several),
                    title,
                    run.short + suffix,
                    tints.run(run) if tints else Stroke(0),
                    record.listener,
                    parts,
                )
            )
    divided = {(workload, host, name) for workload, host, entity, name in shared if entity}
    hosts: dict[str, set[str]] = {}
    for workload, host, _, _ in shared:
        hosts.setdefault(workload, set()).add(host)
    for (workload, host, entity, listener), on_device in shared.items():
        on_device.sort(key=lambda part: places[part[0].run_id])
        first = on_device[0][0]
        device = entity or (_TOTAL if (workload, host, listener) in divided else "")
        if len(hosts[workload]) > 1:  # its runs are spread over several nodes
            device = f"{host} {device}".rstrip()
        owner = first.workload_name
        if first.label:
            owner = joint_name([run.short for run, _ in on_device])
        label = f"{owner}  {device or host or 'host'}"
        short = f"{owner} {device}".rstrip()
        suffix = f" {listener}" if several else ""
        stroke = Stroke(0)
        if tints:
            # Treat devices of MLflow runs as separate: MLflow does not record which are the same.
            alone = first.record.is_from_mlflow
            stroke = tints.run(first) if alone else tints.workload(first)
        own.append(
            SeriesGroup(
                _key(f"w{workload[:ID_DIGITS]}", on_device[0][1], several=several),
                label + suffix,
                short + suffix,
                stroke,
                listener,
                tuple(on_device),
            )
        )
    own.sort(key=lambda group: (places[group.run.run_id], group.label))
    return tuple(own)


def _key(stem: str, record: SeriesRecord, *, several: bool) -> str:
    entity = f"/{record.entity}" if record.entity else ""
    return stem + entity + (f"@{record.listener}" if several else "")


def without_parts(groups: Sequence[SeriesGroup]) -> Sequence[SeriesGroup]:
    """Return only the totals, if any: together with their parts, values would count twice."""
    totals = {group.whole for group in groups if group.is_total}
    return [group for group in groups if group.is_total or group.whole not in totals]


def read(
    source: CachedStore,
    group: SeriesGroup,
    axis: Axis,
    gaps: Sequence[GapRecord],
    window: AxisRange | None,
) -> Cells:
    """Read the cells of a group: every point near ``window``, unless there are too many.

    Raises:
        StoreError: The store cannot be read, or a chunk is damaged.
    """
    parts = []
    longest_s = math.inf
    first = group.run
    for run, record in group.parts:
        ask = axis.ask(first, record, window, run.pruned)
        cells = source.cells(ask, ended=run.record.status.ended, revision=run.revision)
        if holes_s := holes_of(record, gaps, first.origin_ns):
            cells = cells.broken_at(holes_s)
        parts.append(cells)
        if record.interval_s is not None:
            longest_s = GAP_INTERVALS * record.interval_s
    return union(parts, longest_s).shifted(axis.zero_of(first))


def holes_of(record: SeriesRecord, gaps: Sequence[GapRecord], origin_ns: int) -> list[float]:
    """Return the starts of the recorded gaps of a series, in seconds since an origin."""
    return [
        (gap.start_ns - origin_ns) / 1e9
        for gap in gaps
        if gap.run_id == record.run_id
        and gap.listener == record.counted_as
        and gap.series_no in (-1, record.series_no)
    ]


def run_line(group: SeriesGroup, cells: Cells, view: ViewWindow) -> NamedCurve | None:
    """Return the line of a group; None without points.

    If there are more points than fit, or if it is smoothed, the line is a mean, and its band spans
    the measured values.
    """
    shown = cells if view.window is None else _seen(cells, view.window)
    if not len(shown):
        return None
    visible = view.window or AxisRange(float(shown.first[0]), float(shown.last[-1]))
    span = visible.end - visible.start
    low = high = None
    bare = len(shown) <= view.max_points and bool((shown.count == 1).all())
    if bare and not view.is_smoothed:
        shown = replace(shown, gap=pauses(shown, span, view.max_points))
        x, values = with_gaps(shown, shown.mean)
    else:
        bare = False
        shown = reduced(shown, view.max_points // 2, span, zero=view.zero, log=view.log)
        shown = replace(shown, gap=pauses(shown, span, view.max_points))
        x, values, low, high = with_gaps(
            shown, _smoothed(shown, cells, view), shown.low, shown.high
        )
    return NamedCurve(
        group.key,
        group.label,
        group.short,
        group.stroke.hue,
        Curve(x, values),
        low,
        high,
        estimated=group.estimated,
        dash=group.stroke.dash,
        samples_each=1.0 if bare else float(shown.count.mean()),
    )


def _smoothed(drawn: Cells, cells: Cells, view: ViewWindow) -> Float64Array:
    """Return a value per cell: the mean of its values, or of those around or before it."""
    around = cells if view.surroundings is None else view.surroundings
    if view.smoothing_width > 0:
        return moving_mean(around, drawn.middle, view.smoothing_width)
    if view.ema > 0:
        averages = exponential_mean(around.mean, around.count, view.ema)
        return np.interp(drawn.last, around.last, averages)
    return drawn.mean


@dataclass(frozen=True, slots=True)
class ViewWindow:
    """The visible part of lines. ``window`` is None for all.

    A line is smoothed over ``smoothing_width`` units of the x axis, or exponentially with the
    weight ``ema``, using the data around the window in ``surroundings``. It is drawn with at most
    about ``max_points``, which are equally spaced on a ``log`` axis. ``zero`` is an edge of the
    cells of digests.
    """

    window: AxisRange | None = None
    smoothing_width: float = 0.0
    surroundings: Cells | None = None
    max_points: int = LINE_POINTS
    ema: float = 0.0
    log: bool = False
    zero: float = 0.0

    @property
    def is_smoothed(self) -> bool:
        return self.smoothing_width > 0 or self.ema > 0


def points_each(lines: int, width_px: int = WIDTH_PX) -> int:
    """Return the number of points per line. With fewer, cells get wider and keep their extremes."""
    most = min(LINE_POINTS, 2 * width_px)
    return max(_LEAST_POINTS, min(most, _CHART_POINTS // max(1, lines)))


def _seen(cells: Cells, window: AxisRange) -> Cells:
    """Return the cells in the window and one neighbour on either side."""
    return cells.between(window.start, window.end)


_MAX_TEXT = 32


def group_names(
    params: Mapping[str, Mapping[str, str]], runs: Mapping[str, RunEntry], group_by: str
) -> dict[str, str]:
    """Return the name of each run's group: its value of a parameter, or its repeats' name.

    Repeats have the same name and the same parameters, except for those that do not change the work
    (`radt.settings.IGNORED_PARAMS`).
    """
    if group_by:
        return {
            run_id: f"{group_by} {params.get(run_id, {}).get(group_by, 'none')}" for run_id in runs
        }
    of_work = without(params, ignored_params())
    return brief_names([run.record for run in runs.values()], of_work, most_params=None)


def without(
    params: Mapping[str, Mapping[str, str]], ignored: Collection[str]
) -> Mapping[str, Mapping[str, str]]:
    """Return the parameters of runs without some, which are in the form of `plain_name`."""
    return {
        run_id: {key: text for key, text in own.items() if plain_name(key) not in ignored}
        for run_id, own in params.items()
    }


def params_of(source: CachedStore, run_ids: tuple[str, ...]) -> Mapping[str, Mapping[str, str]]:
    """Return the parameters of runs.

    Raises:
        StoreError: The store cannot be read.
    """
    return source.remember(("params", run_ids), lambda reader: reader.params_of(run_ids))


class Facts:
    """Facts of the lines of one chart, a few words each."""

    def __init__(self, source: CachedStore, runs: Mapping[str, RunEntry]) -> None:
        run_ids = tuple(runs)
        records = [run.record for run in runs.values()]
        self._names = source.remember(
            ("names", run_ids), lambda _: distinct_names(records, params_of(source, run_ids))
        )

    def of_group(self, group: SeriesGroup) -> tuple[str, ...]:
        """Return the facts of a run or device."""
        run, record = group.parts[0]
        several = len(group.parts) > 1
        # The label of a run of a sweep consists of the same parameters.
        words = [] if several or run.label else self._names[run.run_id].split(", ")
        words += [placed(run), SCOPE_WORDS[record.scope]]
        if several:
            words.append(f"seen by {plural(len(group.parts), 'run')}")
        return _words([*words, *(["estimated"] if group.estimated else [])])

    def of_workload(self, groups: Sequence[SeriesGroup]) -> tuple[str, ...]:
        """Return the facts of a workload."""
        runs = list(dict.fromkeys(run.run_id for group in groups for run, _ in group.parts))
        names = dict.fromkeys(run.record.name for group in groups for run, _ in group.parts)
        scopes = dict.fromkeys(record.scope for group in groups for _, record in group.parts)
        words = [plural(len(runs), "run"), ", ".join(names), placed(groups[0].run)]
        words += [SCOPE_WORDS[scope] for scope in scopes]
        estimated = any(group.estimated for group in groups)
        return _words([*words, *(["estimated"] if estimated else [])])


def placed(run: RunEntry) -> str:
    """Return a run's devices and sharing: ``GPU 0 · mps``, ``cpu``, ``unknown``."""
    record = run.record
    devices = f"GPU {record.devices}" if record.devices[:1].isdigit() else record.devices
    return devices if record.collocation in ("", "-") else f"{devices} · {record.collocation}"


def _words(words: list[str]) -> tuple[str, ...]:
    short = (text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…" for text in words)
    return tuple(text for text in short if text)
