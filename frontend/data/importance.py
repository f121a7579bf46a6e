"""Compute how much a metric depends on each param: permutation importance in a random forest.

Each tree of the forest predicts the runs that it was not trained on (Breiman, Random Forests, 2001,
sections 3.1 and 10). The importance of a param is the decrease in the R² of these predictions when
the param's values are shuffled among the runs; it may be more than 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from radt.errors import UsageError
from radt.frontend.data.explore import ExploreColumn
from radt.store.records import Float64Array

#: Minimum number of runs for a meaningful result.
MIN_RUNS = 20
_TREES = 100
_SHUFFLES = 3
_SEED = 0


@dataclass(frozen=True, slots=True)
class ParamImportance:
    """Decrease in R² without a param: the mean of several shuffles, and its deviation."""

    param: str
    mean: float
    deviation: float


@dataclass(frozen=True, slots=True)
class Importance:
    """The importance of params for a metric, the highest first.

    ``r2`` is the share of the variance that the forest explains for unseen runs. ``run_count`` runs
    were used; ``left_out`` runs have no value of the metric.
    """

    run_count: int
    left_out: int
    r2: float
    params: tuple[ParamImportance, ...]


def importance_of(params: Mapping[str, ExploreColumn], target: ExploreColumn) -> Importance:
    """Compute the importance of params for a metric.

    Raises:
        UsageError: Fewer than `MIN_RUNS` runs have the metric, no param differs among them, or the
            metric is the same in all.
    """
    # Importing it takes a second, and few visitors need it.
    from sklearn.ensemble import RandomForestRegressor

    values = _array(target.values)
    known = np.isfinite(values)
    count = int(known.sum())
    if count < MIN_RUNS:
        raise UsageError(f"importance needs at least {MIN_RUNS} runs with this metric, got {count}")
    y = values[known]
    columns = {name: _array(column.values)[known] for name, column in params.items()}
    columns = {name: of_runs for name, of_runs in columns.items() if _differs(of_runs)}
    if not columns:
        raise UsageError("no param differs between the runs with this metric")
    if not _differs(y):
        raise UsageError("this metric is the same in all runs")
    x = np.column_stack(list(columns.values())).astype(np.float32)
    forest = RandomForestRegressor(
        _TREES,
        min_samples_leaf=3,
        max_features=max(1, math.ceil(x.shape[1] / 3)),
        random_state=_SEED,
    )
    forest.fit(x, y)
    unseen = [
        (tree.tree_, np.setdiff1d(np.arange(count), drawn))
        for tree, drawn in zip(forest.estimators_, forest.estimators_samples_, strict=True)
    ]

    def explained(rows: npt.NDArray[np.float32]) -> float:
        total, trees = np.zeros(count), np.zeros(count)
        for tree, places in unseen:
            total[places] += tree.predict(rows[places])[:, 0]
            trees[places] += 1
        met = trees > 0
        residual = y[met] - total[met] / trees[met]
        return float(1 - (residual**2).sum() / ((y[met] - y[met].mean()) ** 2).sum())

    r2 = explained(x)
    rng = np.random.default_rng(_SEED)
    found = []
    for place, name in enumerate(columns):
        lost = []
        for _ in range(_SHUFFLES):
            shuffled = x.copy()
            rng.shuffle(shuffled[:, place])
            lost.append(r2 - explained(shuffled))
        found.append(ParamImportance(name, float(np.mean(lost)), float(np.std(lost))))
    found.sort(key=lambda each: -each.mean)
    return Importance(count, len(values) - count, r2, tuple(found))


def _array(values: Sequence[float | None]) -> Float64Array:
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def _differs(values: Float64Array) -> bool:
    """Return whether there are two values. A missing value counts as one."""
    return len(np.unique(values)) > 1
