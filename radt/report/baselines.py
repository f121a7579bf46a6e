"""What runs are measured against: the same run alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from radt.report.attempts import Attempt
from radt.report.estimates import Estimate
from radt.report.recording import Epochs, RunRecording
from radt.store.records import RunRecord


class BaselineKey(NamedTuple):
    """What runs have in common that do the same work on the same hardware."""

    file: str
    params: str
    devices: str
    host: str

    @classmethod
    def of(cls, run: RunRecord, params: Mapping[str, str]) -> BaselineKey:
        """Of a run with these parameters."""
        return cls(params.get("File", ""), params.get("Params", ""), run.devices, run.host)


@dataclass(frozen=True, slots=True)
class Baseline:
    """A run that had no neighbours, and its repeats.

    Attributes:
        label: Its workload's.
        collocation: How its device was divided all the same (MPS, a MIG instance); empty if it
            was not.
        is_standing: It is in the report itself; else it is of an earlier start, of a row that the
            experiment no longer has like that.
        created_ns: When the newest repeat was recorded.
        run_ids: Of its repeats.
        time_per_epoch: In seconds, None without epochs.
        durations_s: From start to end, one a repeat; None where it is not known.
        epochs: Those that ended, one a repeat.
    """

    label: str
    collocation: str
    is_standing: bool
    created_ns: int
    run_ids: tuple[str, ...]
    time_per_epoch: Estimate | None = None
    durations_s: tuple[float | None, ...] = ()
    epochs: tuple[Epochs, ...] = ()

    @property
    def text(self) -> str:
        """How it ran, in words: ``alone``, ``alone under MPS``, ``alone on 7g.40gb``."""
        if not self.collocation:
            return "alone"
        word = "under" if self.collocation.upper().startswith("MPS") else "on"
        return f"alone {word} {self.collocation}"


def ran_alone(repeats: Sequence[Attempt]) -> bool:
    """Whether a workload may be a baseline: one run, that no profiler slowed down."""
    return all(attempt.solo and not attempt.is_profiled for attempt in repeats)


def is_undivided(repeats: Sequence[Attempt]) -> bool:
    """Whether its runs had no mere part of their devices."""
    return not any(attempt.collocation for attempt in repeats)


def baseline_of(
    repeats: Sequence[Attempt],
    time_per_epoch: Estimate | None,
    recordings: Mapping[str, RunRecording],
    *,
    is_standing: bool,
) -> Baseline:
    """The baseline that a workload of one run is.

    Args:
        repeats: Its starts.
        time_per_epoch: What was measured.
        recordings: Of its runs, by id.
        is_standing: As `Baseline.is_standing`.
    """
    newest = repeats[-1]
    return Baseline(
        newest.label,
        newest.collocation,
        is_standing,
        newest.created_ns,
        tuple(run.run_id for attempt in repeats for run in attempt.runs),
        time_per_epoch,
        tuple(attempt.makespan_s for attempt in repeats),
        tuple(recordings[run.run_id].epochs for attempt in repeats for run in attempt.runs),
    )


def chosen(found: Iterable[tuple[BaselineKey, Baseline]]) -> dict[BaselineKey, Baseline]:
    """The one that counts of each key.

    One whose device was not divided goes before others, one of the report before one of an earlier
    start, one with epochs before one without; then the newest counts.
    """
    best: dict[BaselineKey, Baseline] = {}
    for key, baseline in found:
        known = best.get(key)
        if known is None or _rank(baseline) >= _rank(known):
            best[key] = baseline
    return best


def _rank(baseline: Baseline) -> tuple[bool, bool, bool, int]:
    return (
        not baseline.collocation,
        baseline.is_standing,
        baseline.time_per_epoch is not None,
        baseline.created_ns,
    )
