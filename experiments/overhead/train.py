"""Train a small convolutional network for a fixed number of steps, tracked by radt or not.

The work is the same to the bit whoever looks on. With ``--untracked`` the training knows nothing of
radt: what it measured of itself is logged afterwards, when all epochs are over. The first epoch is
warm-up, and not logged.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

import radt

CLASSES, PIXELS = 10, 32


@dataclass(frozen=True)
class Epoch:
    """What an epoch took: wall time, and CPU time of this process, all of its threads."""

    number: int
    wall_s: float
    cpu_s: float
    samples: int

    def log(self, run: radt.Run) -> None:
        """Under the names that table.py looks for."""
        run.log_metric("epoch_s", self.wall_s, self.number)
        run.log_metric("epoch_cpu_s", self.cpu_s, self.number)
        run.log_metric("samples_per_s", self.samples / self.wall_s, self.number)


class SmallNet(nn.Module):
    """Four convolutions and a linear layer for 3×32×32 images of ten classes."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
        )
        self.classify = nn.Linear(4 * width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Class scores, shape (N, 10), of images, shape (N, 3, 32, 32)."""
        return self.classify(self.features(images).flatten(1))


class Training:
    """The network, its optimiser, and one batch that it sees again and again.

    Nothing is loaded, so that nothing but the work itself takes time.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        torch.set_num_threads(args.threads)
        torch.manual_seed(args.seed)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.steps, self.batch_size = args.steps, args.batch_size
        self.model = SmallNet().to(self.device)
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.images = torch.randn(args.batch_size, 3, PIXELS, PIXELS, device=self.device)
        self.labels = torch.randint(CLASSES, (args.batch_size,), device=self.device)
        self.step_number = 0

    def step(self) -> float:
        """One step; returns the loss, for which a GPU is waited for."""
        loss = functional.cross_entropy(self.model(self.images), self.labels)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        self.step_number += 1
        return loss.item()

    def epoch(self, number: int, run: radt.Run | None) -> Epoch:
        """A number of steps, each of which logs two values if there is a run."""
        begun_s, cpu_begun_s = time.perf_counter(), time.process_time()
        for _ in range(self.steps):
            loss = self.step()
            if run is not None:
                run.log_metric("loss", loss, self.step_number)
                run.step(samples=self.batch_size)
        return Epoch(
            number,
            time.perf_counter() - begun_s,
            time.process_time() - cpu_begun_s,
            self.steps * self.batch_size,
        )


def main() -> None:
    """Train, and record what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--untracked", action="store_true")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=150, help="in an epoch")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    training = Training(args)
    if args.untracked:
        epochs = [training.epoch(number, None) for number in range(1, args.epochs + 1)]
        with radt.Run() as run:
            for epoch in epochs[1:]:
                epoch.log(run)
        return
    with radt.Run() as run:
        for number in run.epochs(args.epochs):
            epoch = training.epoch(number, run)
            if number > 1:
                epoch.log(run)


if __name__ == "__main__":
    main()
