"""Experiments with known numbers, repeated in rounds as the runner does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.frontend.report_support import Planted, Study

COMMIT_A, COMMIT_B = "a1b2c3d" + "0" * 33, "b9f8e7d" + "0" * 33


def rounds(
    study: Study,
    epochs_s: Mapping[str, Sequence[float]],
    *,
    rows: Mapping[str, int] | None = None,
    tags: Mapping[str, str] | None = None,
    host: str = "gpu-01",
    **planted: Any,
) -> None:
    """Workloads in turns: the first repeat of each, then the second of each.

    Args:
        study: Where they are written.
        epochs_s: Seconds of an epoch in each repeat, by the workload's label.
        rows: Runs at once, one unless it is given.
        tags: Of all runs.
        host: Where all ran.
        planted: Further attributes of `Planted`.
    """
    count = max(map(len, epochs_s.values()))
    for number in range(count):
        for label, values in epochs_s.items():
            if number >= len(values):
                continue
            series = {"radt.series": f"{study.experiment} {label}"}
            repeat = {"radt.repeat": f"{number + 1}/{number + 1}"}
            letters = "abcdefg"[: (rows or {}).get(label, 1)]
            epoch_s = values[number]
            study.workload(
                label,
                [
                    Planted(letter, epoch_s, **{"samples_per_s": 1000 / epoch_s} | planted)
                    for letter in letters
                ],
                tags=series | repeat | dict(tags or {}),
                host=host,
            )


def store_of(tmp_path: Path) -> Path:
    """The store of a data folder."""
    folder = tmp_path / "radt-data"
    folder.mkdir(exist_ok=True)
    return folder / "radt.db"
