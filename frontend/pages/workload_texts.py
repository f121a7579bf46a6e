"""Texts of the Workload page: key figures, notes, labels of its rows, gaps, places of files."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlsplit

from radt import units
from radt.analysis.baselines import Slowdown, mean_ratio
from radt.analysis.footnotes import compared_elsewhere
from radt.analysis.quantities import Quantity
from radt.analysis.recording import TrackerOverhead
from radt.frontend.charts.layout import elapsed_label as clock
from radt.frontend.charts.timeline import life_px
from radt.frontend.data.catalog import RunEntry
from radt.frontend.data.run_files import FilesLocation, Listing
from radt.frontend.data.workload.lanes import Lane, lanes_of
from radt.frontend.data.workload.model import Life
from radt.frontend.data.workload.run_facts import MAX_GAPS, Entry, WorkloadLedger
from radt.frontend.data.workload.strips import WorkloadData
from radt.frontend.data.workload.subject import ShownWorkload
from radt.frontend.files import artifact_address, trace_address
from radt.frontend.pages.parts import KeyFigure
from radt.masking import masked
from radt.model import STATUS_WORDS
from radt.parts import agreement, from_tag
from radt.store.records import RunRecord
from radt.tags import CLUSTER_PARTS

_NAIVE = "-"
_LIKE_SOLO = 0.005
_PROFILES = "profiles/"
_ARCHIVE = "radt/"
_HTTP = ("http", "https")


def key_figures(
    reading: WorkloadData,
    ledger: WorkloadLedger,
    slowed: Mapping[str, Slowdown],
    overhead: TrackerOverhead,
) -> list[KeyFigure]:
    """Return the key figures of the workload, in one line."""
    subject = reading.subject
    record, took = subject.workload.record, _took(subject, reading.lives)
    status = subject.workload.status.value
    began = datetime.fromtimestamp(subject.origin_ns / 1e9).astimezone()
    facts = [
        KeyFigure("Status", _status_text(subject), status=status),
        KeyFigure("Started", began.strftime("%Y-%m-%d %H:%M:%S"), took),
        KeyFigure("Duration", took),
    ]
    imported = subject.is_from_mlflow
    if not imported:  # MLflow has no devices, barriers or ledgers
        facts.append(KeyFigure("Devices", devices_text(subject.whole)))
    if subject.workload.hosts:
        facts.append(KeyFigure("Machine", ", ".join(subject.workload.hosts)))
    if len(subject.whole) > 1 and not imported:
        skew_s = None if record.start_skew_ns is None else record.start_skew_ns / 1e9
        title = "Time between the first and the last process start at the barrier"
        facts.append(KeyFigure("Start skew", units.duration(skew_s), title))
    if len(subject.workload.trained) > 1:
        title = "Share of the time from the first start to the last end in which all runs ran"
        facts.append(KeyFigure("Overlap", units.percent(reading.overlap), title))
    if (mean := mean_ratio(slowed.values())) is not None:
        facts.append(KeyFigure("vs solo", f"{units.factor(mean)} time an epoch"))
    if not imported:
        why = ledger.why or ledger.text
        is_bad = not ledger.is_complete
        facts.append(KeyFigure("Completeness", ledger.text, why, is_bad=is_bad))
    if overhead.cpu_share is not None:
        text = f"{units.percent(overhead.cpu_share)} of a core"
        facts.append(KeyFigure("Tracker", text, Quantity.TRACKER_CPU.info.explanation))
    return facts


def notes(
    subject: ShownWorkload, tags: Mapping[str, Mapping[str, str]], slowed: Mapping[str, Slowdown]
) -> list[str]:
    """Return notes on limits to the reliability of the numbers."""
    lines = []
    profiled = [run for run in subject.workload.runs if run.profiled]
    if profiled:
        names = ", ".join(f"{run.letter_or_name} under {run.profiled}" for run in profiled)
        lines.append(f"Profiled ({names}): the profiler slowed down all runs of this workload.")
    pruned = [run for run in subject.workload.runs if run.pruned]
    if pruned:
        names = ", ".join(run.letter_or_name for run in pruned)
        lines.append(f"Samples of {names} were thinned later: {pruned[0].pruned}.")
    of_nodes = [tags.get(run.run_id, {}).get(CLUSTER_PARTS, "") for run in subject.workload.runs]
    if parts := [part for tag in of_nodes for part in from_tag(tag)]:
        lines.append(f"Ran {agreement(parts)}.")
    elsewhere: dict[str, list[str]] = {}
    for run_id, slowdown in slowed.items():
        run = subject.runs[run_id]
        if slowdown.alone.host != run.record.host:
            elsewhere.setdefault(slowdown.alone.host, []).append(run.letter_or_name)
    lines += [compared_elsewhere(host, names) for host, names in elsewhere.items()]
    if subject.left_out:
        lines.append(f"{units.plural(subject.left_out, 'more run')} of this workload not shown.")
    return lines


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """The labels of a run's row in the timeline: ``seat`` on its left, ``outcome`` on its right."""

    life: Life
    lanes: tuple[Lane, ...]
    height_px: int
    seat: str
    outcome: str


def rows_of(lives: Sequence[Life], slowed: Mapping[str, Slowdown]) -> list[TimelineRow]:
    """Return the rows of the timeline."""
    return [
        TimelineRow(
            *(life, lanes, life_px(len(lives), lanes), _seat(life.run)),
            life.reason or speed_text(life, slowed.get(life.run.run_id)),
        )
        for life, lanes in zip(lives, lanes_of(lives), strict=True)
    ]


def speed_text(life: Life, slowed: Slowdown | None) -> str:
    """Return the slowdown as text: ``1.42× slower than solo (4.2 s an epoch)``."""
    if slowed is not None:
        solo = f"solo ({units.duration(slowed.alone_s)} an epoch)"
        if abs(slowed.ratio - 1) < _LIKE_SOLO:
            return f"as fast as {solo}"
        if slowed.ratio >= 1:
            return f"{units.factor(slowed.ratio)} slower than {solo}"
        return f"{units.factor(1 / slowed.ratio)} faster than {solo}"
    if life.never_started:
        return "never started"
    if life.epoch_s is not None:
        return f"{units.duration(life.epoch_s)} an epoch"
    return units.duration(life.end_s - (life.start_s or 0.0))


def devices_text(runs: Sequence[RunEntry]) -> str:
    """Return the devices of runs: ``GPU 0 · 3× MPS``, ``CPU``, ``GPU 0 · 3g.20gb, 2× 1g.5gb``."""
    by_device: dict[str, Counter[str]] = {}
    for run in runs:
        device = device_name(run.record.devices)
        by_device.setdefault(device, Counter())[run.record.collocation] += 1
    texts = []
    for device, ways in by_device.items():
        words = [
            f"{count}× {way}" if count > 1 else way for way, count in ways.items() if way != _NAIVE
        ]
        texts.append(f"{device} · {', '.join(words)}" if words else device)
    return "; ".join(texts) or units.NO_VALUE


def device_name(devices: str) -> str:
    """Return the name of devices: ``GPU 0``, ``GPUs 1+2``, ``CPU``."""
    if devices.isdigit():
        return f"GPU {devices}"
    if devices.lower() == "cpu":
        return "CPU"
    return f"GPUs {devices}" if devices.replace("+", "").isdigit() else devices


def _seat(run: RunEntry) -> str:
    if run.parent is not None:
        return f"in {run.parent.letter_or_name}"
    way = "" if run.record.collocation == _NAIVE else run.record.collocation
    return " · ".join(part for part in (device_name(run.record.devices), way) if part)


def _status_text(subject: ShownWorkload) -> str:
    states = Counter(run.record.status for run in subject.whole)
    if len(states) == 1:
        (status, count), *_ = states.items()
        word = STATUS_WORDS[status]
        return word if count == 1 else f"{count} {word}"
    if not states:
        return STATUS_WORDS[subject.workload.record.status]
    return ", ".join(f"{states[s]} {word}" for s, word in STATUS_WORDS.items() if states[s])


def _took(subject: ShownWorkload, lives: Sequence[Life]) -> str:
    started = [life for life in lives if life.start_s is not None]
    if not started:
        return units.NO_VALUE
    first_s = min(life.start_s for life in started if life.start_s is not None)
    text = units.duration(max(life.end_s for life in started) - first_s)
    return f"{text} so far" if subject.is_live else text


def gap_texts(entry: Entry, origin_ns: int) -> list[str]:
    """Return the longest gaps of a listener as text, with the number of the others."""
    texts = []
    for gap in entry.gaps[:MAX_GAPS]:
        start_s, end_s = ((at_ns - origin_ns) / 1e9 for at_ns in (gap.start_ns, gap.end_ns))
        which = "gap" if gap.series_no < 0 else "gap of one series"
        why = ", ".join(filter(None, (gap.reason.value, gap.detail)))
        length = units.duration(end_s - start_s)
        texts.append(f"{which} {clock(start_s)} – {clock(end_s)} ({length}): {why}")
    if len(entry.gaps) > MAX_GAPS:
        texts.append(f"{len(entry.gaps) - MAX_GAPS:,} more gaps")
    return texts


def chosen_run(subject: ShownWorkload, wanted: str) -> RunEntry | None:
    """Return the run whose log was open; else the first that failed, else the first."""
    runs = subject.workload.runs
    chosen = [run for run in runs if wanted and run.run_id.startswith(wanted)]
    failed = [run for run in runs if run.record.end_reason or run.record.exit_code]
    return next(iter([*chosen, *failed, *runs]), None)


def listed_files(
    runs: Iterable[RunEntry], listings: Iterable[Listing], sampled: set[str]
) -> list[dict[str, Any]]:
    """Return the artifacts of each run with their addresses, profiles first, and links.

    ``listings`` has the artifacts of each run. ``sampled`` are the ids of runs with samples, for
    which there is a trace.
    """
    listed = []
    for run, listing in zip(runs, listings, strict=True):
        files = sorted(listing.files, key=lambda file: _rank(file.path))
        listed.append(
            {
                "run": run,
                "files": [(file, artifact_address(run.run_id, file.path)) for file in files],
                "left_out": listing.left_out,
                "place": files_place(run.record, listing),
                "mlflow": mlflow_address(run),
                "trace": trace_address(run.run_id) if run.run_id in sampled else "",
            }
        )
    return listed


def mlflow_address(run: RunEntry) -> str:
    """Return the address of the run's page in MLflow; "" unless MLflow is a server."""
    experiment = run.workload.mlflow_experiment_id
    parts = urlsplit(run.record.tracking_uri)
    if parts.scheme not in _HTTP or not run.record.mlflow_run_id or not experiment:
        return ""
    base = masked(parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()).rstrip("/")
    path = (
        f"experiments/{quote(experiment, safe='')}/runs/{quote(run.record.mlflow_run_id, safe='')}"
    )
    return f"{base}/#/{path}"


def files_place(run: RunRecord, listing: Listing) -> str:
    """Return the location of a run's files, unless it is the run's own folder on this machine."""
    if any(file.place is FilesLocation.DELIVERED for file in listing.files):
        return "from MLflow's artifacts in the data folder"
    if any(file.place is FilesLocation.REMOTE for file in listing.files):
        return f"from MLflow at {masked(run.tracking_uri)}"
    if listing.files:
        return ""
    if run.is_from_mlflow:
        return f"the artifacts of this run are in MLflow at {masked(run.tracking_uri)}"
    if run.mlflow_run_id:
        return f"not on this machine; the files are in MLflow at {masked(run.tracking_uri)}"
    if not run.spool:
        return "no files recorded"
    if run.host == platform.node():
        return f"no files: {run.spool} is gone or empty"
    return f"no files on this machine; they are in {run.spool} on {run.host}"


def _rank(path: str) -> tuple[int, str]:
    """Return a sort key: profiles first, the run's archive last."""
    return (0 if path.startswith(_PROFILES) else 2 if path.startswith(_ARCHIVE) else 1), path
