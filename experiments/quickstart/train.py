"""Train a small convolutional network on scikit-learn's handwritten digits.

Runs by itself (``python train.py``) and under radt (``radt train.py``, or a row of an experiment);
the lines that mention radt are all that is needed for either.
"""

from __future__ import annotations

import argparse
import time

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import radt

SIZES = {"small": 12, "large": 24}


class DigitsNet(nn.Module):
    """Three convolutions and a linear layer for 1×16×16 images of ten digits."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(2 * width, 4 * width, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
        )
        self.classify = nn.Linear(16 * width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Class scores, shape (N, 10), of images, shape (N, 1, 16, 16)."""
        return self.classify(self.features(images).flatten(1))


def load_data(batch_size: int, seed: int) -> tuple[DataLoader[Tensor], DataLoader[Tensor]]:
    """Training and validation batches: 1,437 and 360 digits, enlarged from 8×8 to 16×16."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    images = functional.interpolate(images, scale_factor=2, mode="bilinear")
    labels = torch.tensor(digits.target)
    train, valid = train_test_split(
        torch.arange(len(labels)), test_size=0.2, random_state=seed, stratify=digits.target
    )
    order = torch.Generator().manual_seed(seed)
    return (
        DataLoader(
            TensorDataset(images[train], labels[train]), batch_size, shuffle=True, generator=order
        ),
        DataLoader(TensorDataset(images[valid], labels[valid]), 512),
    )


def accuracy(model: nn.Module, batches: DataLoader[Tensor], device: str) -> float:
    """Share of images whose highest score is the right class."""
    model.eval()
    with torch.no_grad():
        right = sum(
            int((model(images.to(device)).argmax(1) == labels.to(device)).sum())
            for images, labels in batches
        )
    return right / len(batches.dataset)  # type: ignore[arg-type]


def main() -> None:
    """Train and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--passes", type=int, default=4, help="passes over the digits in an epoch")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train, valid = load_data(args.batch_size, args.seed)
    model = DigitsNet(SIZES[args.size]).to(device)
    optimiser = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

    with radt.Run() as run:
        run.log_param("device", device)
        run.log_param("parameters", sum(p.numel() for p in model.parameters()))
        step = 0
        for epoch in run.epochs(args.epochs):
            model.train()
            started = time.perf_counter()
            samples = 0
            for _ in range(args.passes):
                for images, labels in train:
                    loss = functional.cross_entropy(model(images.to(device)), labels.to(device))
                    optimiser.zero_grad()
                    loss.backward()
                    optimiser.step()
                    run.log_metric("loss", loss.item(), step)
                    samples += len(labels)
                    step += 1
            run.log_metric("samples_per_s", samples / (time.perf_counter() - started), epoch)
            with run.span("validate"):
                run.log_metric("accuracy", accuracy(model, valid, device), epoch)
            print(f"epoch {epoch}/{args.epochs}  loss {loss.item():.3f}", flush=True)
        run.log_text(str(model), "model.txt")


if __name__ == "__main__":
    main()
