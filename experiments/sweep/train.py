"""Train a small fully connected network on scikit-learn's handwritten digits.

Runs by itself (``python train.py --lr 0.1``) and under radt; the lines that mention radt are all
that is needed for either.
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import radt


def main() -> None:
    """Train and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=64, help="units of the hidden layer")
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    digits = load_digits()
    parts = train_test_split(digits.data, digits.target, test_size=0.2, random_state=0)
    train_x, valid_x = (torch.tensor(x, dtype=torch.float32, device=device) / 16 for x in parts[:2])
    train_y, valid_y = (torch.tensor(y, device=device) for y in parts[2:])
    model = nn.Sequential(nn.Linear(64, args.hidden), nn.ReLU(), nn.Linear(args.hidden, 10))
    model.to(device)
    optimiser = torch.optim.SGD(model.parameters(), lr=args.lr)

    with radt.Run() as run:
        for epoch in run.epochs(args.epochs):
            for batch in torch.randperm(len(train_x), device=device).split(args.batch_size):
                loss = nn.functional.cross_entropy(model(train_x[batch]), train_y[batch])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            with run.span("validate"), torch.no_grad():
                right = (model(valid_x).argmax(1) == valid_y).float().mean().item()
            run.log_metric("loss", loss.item(), epoch)
            run.log_metric("accuracy", right, epoch)
        print(f"lr {args.lr:g}, batch size {args.batch_size}: {right:.1%} right")


if __name__ == "__main__":
    main()
