"""When to stop echoing: the validation metric has levelled off, or the budget is nearly used."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from radt.errors import LoaderError, UsageError


class Plateau:
    """Decides when a metric no longer grows, to switch to fine-tuning.

    Both rules are the paper's: a plateau of the validation accuracy or, with a fixed budget, its
    last quarter for fine-tuning (PerFect, section 4.4.1). For a loss, pass its negative.

    Args:
        patience: Number of values in a row that must not grow.
        min_delta: How much a value must exceed the previous best to count as growth.
        at_latest: Share of the budget after which to switch in any case, 0 to 1.

    Raises:
        UsageError: An argument is out of its range.
    """

    def __init__(
        self, patience: int = 3, min_delta: float = 0.002, at_latest: float = 0.75
    ) -> None:
        if patience < 1 or not min_delta >= 0 or not 0 <= at_latest <= 1:
            raise UsageError(
                "Expected patience ≥ 1, min_delta ≥ 0 and at_latest from 0 to 1, got "
                f"patience={patience}, min_delta={min_delta}, at_latest={at_latest}",
                "Plateau(patience=3, min_delta=0.002, at_latest=0.75)",
            )
        self.patience, self.min_delta, self.at_latest = patience, min_delta, at_latest
        self._best = -math.inf
        self._without_growth = 0
        self._reached = False

    def reached(self, value: float, spent: float) -> bool:
        """Add the metric of another epoch. Return True if it is time to switch, now or earlier.

        Args:
            value: The metric, larger is better. NaN counts as no growth.
            spent: Used share of the budget, 0 to 1, for example ``epoch / epochs``.
        """
        if value > self._best + self.min_delta:
            self._best, self._without_growth = value, 0
        else:
            self._without_growth += 1
        if self._without_growth >= self.patience or spent >= self.at_latest:
            self._reached = True
        return self._reached

    def state_dict(self) -> dict[str, Any]:
        """Return the state for `load_state_dict`, as JSON values."""
        best = None if math.isinf(self._best) else self._best
        return {"best": best, "without_growth": self._without_growth, "reached": self._reached}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state.

        Raises:
            LoaderError: It is not the state of a `Plateau`.
        """
        try:
            best = state["best"]
            without_growth, reached = int(state["without_growth"]), bool(state["reached"])
        except KeyError as error:
            raise LoaderError(
                f"Expected the state of a Plateau, but it has no {error}",
                "Pass what Plateau.state_dict() returned",
            ) from error
        self._best = -math.inf if best is None else float(best)
        self._without_growth, self._reached = without_growth, reached
