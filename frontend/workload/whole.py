"""What all parts of the Workload page need, read once for all of them."""

from __future__ import annotations

from dataclasses import dataclass

from radt.frontend.charts.spec import Window
from radt.frontend.metrics import series_of
from radt.frontend.source import Source
from radt.frontend.workload.life import Life, lives, whole_window
from radt.frontend.workload.readings import Summaries, summaries_of
from radt.frontend.workload.strips import Strip, strips_of
from radt.frontend.workload.subject import Subject


@dataclass(frozen=True)
class Reading:
    """What is read of a workload for all parts of the page."""

    subject: Subject
    summaries: Summaries
    lives: tuple[Life, ...]
    strips: tuple[Strip, ...]

    @property
    def several_hosts(self) -> bool:
        return len(self.subject.workload.hosts) > 1

    @property
    def whole(self) -> Window:
        return whole_window(self.lives)


def read_all(source: Source, subject: Subject) -> Reading:
    """Read what all parts need, once for all of them.

    Raises:
        StoreError: The store cannot be read.
    """
    key = ("workload", subject.workload_id, subject.run_ids)
    return source.remember(key, lambda _: _read_all(source, subject))


def _read_all(source: Source, subject: Subject) -> Reading:
    run_ids = subject.run_ids
    summaries = summaries_of(source, run_ids)
    found = lives(source, subject, summaries.values())
    # What was declared and never read has no curve.
    known = {
        metric: tuple(one for one in records if (one.run_id, one.series_no) in summaries)
        for metric, records in series_of(source, run_ids).items()
    }
    strips = strips_of(subject, {metric: records for metric, records in known.items() if records})
    return Reading(subject, summaries, found, strips)
