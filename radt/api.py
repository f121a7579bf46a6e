"""Experiments from Python: what ``radt FILE`` does, as a function.

Nothing but the standard library is imported here: ``import radt`` imports this module, and
training scripts must not pay for pandas or the runner.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def run_experiment(
    source: pd.DataFrame | Path | str,
    *,
    home: Path | str | None = None,
    tracking_uri: str | None = None,
    **options: object,
) -> pd.DataFrame:
    """Run an experiment file (CSV or YAML) or a table of runs, and return its table."""
    raise NotImplementedError
