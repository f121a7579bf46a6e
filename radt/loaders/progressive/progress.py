"""The size of each sample: updated from epoch to epoch, saved and loaded."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from radt.errors import LoaderError
from radt.loaders.progressive.schedule import PlannedBatch, Schedule, Select, planned, upgraded


class Progress:
    """Steps of all samples in one epoch after another, and the plan of each.

    With ``select="random"``, steps depend only on the epoch; with ``"loss"``, also on losses.

    Args:
        schedule: Sizes, batches, and which samples move up.
        samples: Number of samples.
    """

    def __init__(self, schedule: Schedule, samples: int) -> None:
        self._schedule, self._samples = schedule, samples
        self._plan: list[PlannedBatch] | None = None
        self._losses = np.full(samples, np.nan, np.float32)
        self._begin()

    def _begin(self) -> None:
        self._epoch, self._steps = 0, np.zeros(self._samples, np.uint8)

    @property
    def _by_loss(self) -> bool:
        return self._schedule.select is Select.LOSS

    def check(self, epoch: int) -> None:
        """Refuse an epoch whose steps are no longer known.

        Raises:
            LoaderError: Steps depend on losses, and those of this epoch are gone.
        """
        if self._by_loss and epoch < self._epoch:
            raise LoaderError(
                f"cannot go back from epoch {self._epoch} to {epoch}: with select='loss', sizes "
                "depend on the losses of that time",
                "Load a state_dict of that epoch",
            )

    def steps(self, epoch: int) -> np.ndarray:
        """Return the step of each sample in an epoch, uint8, from 0 for the smallest size."""
        self.check(epoch)
        if epoch != self._epoch:
            self._plan = None
        if epoch < self._epoch:
            self._begin()
        losses = self._losses if self._by_loss else None
        while self._epoch < epoch:
            self._steps = upgraded(self._schedule, self._steps, self._epoch, losses)
            self._epoch += 1
        return self._steps

    def plan(self, epoch: int) -> list[PlannedBatch]:
        """Return the batches of an epoch, of all ranks."""
        steps = self.steps(epoch)
        if self._plan is None:
            self._plan = planned(self._schedule, steps, epoch)
        return self._plan

    def report(self, indices: np.ndarray, losses: np.ndarray) -> None:
        """Update the last loss of some samples.

        Raises:
            LoaderError: The schedule does not choose by loss, or a sample has no loss.
        """
        if not self._by_loss:
            raise LoaderError("losses are not used", "Make the loader with select='loss'")
        if len(indices) != len(losses):
            raise LoaderError(
                f"expected a loss for each of the {len(indices)} samples of the last batch, got "
                f"{len(losses)}",
                "Use a loss with reduction='none'",
            )
        self._losses[indices] = losses

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the schedule does not determine, as JSON values."""
        if not self._by_loss:
            return {}
        return {
            "steps_epoch": self._epoch,
            "steps": _packed(self._steps),
            "losses": _packed(self._losses),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of another object with the same schedule and samples."""
        self._plan = None
        if self._by_loss:
            self._epoch = int(state["steps_epoch"])
            self._steps = _unpacked(state["steps"], np.uint8)
            self._losses = _unpacked(state["losses"], np.float32)


def _packed(values: np.ndarray) -> str:
    return base64.b64encode(zlib.compress(values.tobytes(), 1)).decode("ascii")


def _unpacked(text: str, dtype: type[np.generic]) -> np.ndarray:
    return np.frombuffer(bytearray(zlib.decompress(base64.b64decode(text))), dtype)
