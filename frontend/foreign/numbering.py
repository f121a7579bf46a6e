"""Numbers for MLflow's metrics, which have only names: as the store numbers the series of a run."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from radt.frontend.foreign.system_metrics import meaning
from radt.model import Scope, SeriesKind
from radt.store.records import SeriesRecord


class Numbering:
    """Gives each metric of a run a number that it keeps, however many come later. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: dict[str, list[str]] = {}
        self._numbers: dict[str, dict[str, int]] = {}

    def key(self, run_id: str, series_no: int) -> str | None:
        """The metric of a number; None if there is none."""
        keys = self._keys.get(run_id, ())
        return keys[series_no] if 0 <= series_no < len(keys) else None

    def series(self, run_id: str, keys: Iterable[str], spot: str) -> dict[str, SeriesRecord]:
        """The series of a run by metric, in the order of their numbers.

        Args:
            run_id: The run.
            keys: Names of its metrics.
            spot: What tells the run from others of its workload; empty if it is alone. MLflow does
                not say on which machine a run ran, so values of machines are kept apart by it.
        """
        with self._lock:
            known = self._keys.setdefault(run_id, [])
            numbers = self._numbers.setdefault(run_id, {})
            for key in keys:
                if key not in numbers:
                    numbers[key] = len(known)
                    known.append(key)
            found = {key: numbers[key] for key in keys}
        return {
            key: _record(run_id, number, key, spot)
            for key, number in sorted(found.items(), key=lambda one: one[1])
        }


def _record(run_id: str, number: int, key: str, spot: str) -> SeriesRecord:
    means = meaning(key)
    entity = means.entity
    if spot and means.scope is not Scope.RUN:
        entity = f"{entity} {spot}".strip()
    return SeriesRecord(
        run_id,
        number,
        means.listener,
        means.metric,
        means.unit,
        means.scope,
        SeriesKind.GAUGE,
        entity,
        method=means.method,
    )
