"""The paper's linear regression (PerFect, section 4.3): does reusing data overfit?

50,000 points around y = 7 + 3x + ε, stochastic gradient descent with a rate of 5e-5, one point a
step, half of the squared error. The paper does not say how x and ε are distributed nor where the
parameters begin: here x and ε are standard normal, and the parameters begin at 0.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

import radt
from radt.loaders import EchoLoader

POINTS = 50_000
RATE = 5e-5
INTERCEPT, SLOPE = 7.0, 3.0


class Line(Dataset[Any]):
    """Points around the line."""

    def __init__(self, seed: int) -> None:
        chance = np.random.default_rng(seed)
        self.x, noise = chance.normal(size=(2, POINTS))
        self.y = INTERCEPT + SLOPE * self.x + noise

    def __len__(self) -> int:
        return POINTS

    def __getitem__(self, index: int) -> tuple[float, float]:
        return float(self.x[index]), float(self.y[index])


def main() -> None:
    """Fit and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--buffer", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    line, unseen = Line(args.seed), Line(args.seed + 1)
    intercept = slope = 0.0
    path: list[tuple[float, float]] = []
    with radt.Run() as run, EchoLoader(
        line, None, batch_size=500, repeats=args.repeats, buffer=args.buffer, seed=args.seed
    ) as loader:  # fmt: skip
        for xs, ys in run.batches(loader):
            for x, y in zip(xs.tolist(), ys.tolist(), strict=True):
                error = intercept + slope * x - y
                intercept -= RATE * error
                slope -= RATE * error * x
                path.append((intercept, slope))
        variance = float(np.var(path, axis=0).sum())

        def loss(data: Line) -> float:
            return float(np.mean((intercept + slope * data.x - data.y) ** 2) / 2)

        found = {
            "variance": variance,
            "loss": loss(line),
            "loss_unseen": loss(unseen),
            "intercept": intercept,
            "slope": slope,
        }
        run.log_metrics(found)
        print(f"repeats {args.repeats}: " + "  ".join(f"{k} {v:.3f}" for k, v in found.items()))


if __name__ == "__main__":
    main()
