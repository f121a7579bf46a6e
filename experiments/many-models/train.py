"""Train several models at once: in processes of their own, or as jobs of one process.

``--models`` names what this process trains. In the arms with one process for each model, the
file has a row for each; with ``--policy``, one process has them all. ``--sequential`` starts a
process for each model, one after another.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import radt
from radt.training import Job, MultiTrainer

CLASSES = 10


class Residual(nn.Module):
    """Two convolutions beside a connection that skips them."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(before, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.skip = nn.Conv2d(before, width, 1, stride, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the sum of both."""
        return functional.relu(self.inner(inputs) + self.skip(inputs))


class Attention(nn.Module):
    """A transformer over the patches of an image."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of the classes."""
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        scores: Tensor = self.head(self.layers(tokens).mean(1))
        return scores


def lenet(scale: int) -> nn.Module:
    """LeNet with max pooling."""
    return nn.Sequential(
        nn.Conv2d(3, 6 * scale, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6 * scale, 16 * scale, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400 * scale, 120),
        nn.ReLU(),
        nn.Linear(120, CLASSES),
    )


def resnet(scale: int, blocks: int) -> nn.Module:
    """Residual blocks of growing width."""
    widths = [8 * scale * 2 ** (number // max(1, blocks // 3)) for number in range(blocks)]
    before = [8 * scale, *widths]
    return nn.Sequential(
        nn.Conv2d(3, 8 * scale, 3, padding=1),
        *(Residual(a, b, 1 if a == b else 2) for a, b in zip(before, widths, strict=False)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(widths[-1], CLASSES),
    )


def vgg(scale: int) -> nn.Module:
    """Convolutions and pooling, and a wide linear layer."""
    layers: list[nn.Module] = []
    before = 3
    for width in (8 * scale, 16 * scale, 32 * scale):
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        before = width
    wide = 64 * scale
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(before * 16, wide), nn.ReLU(), nn.Linear(wide, CLASSES)
    )


def mlp(scale: int) -> nn.Module:
    """A small network, for which starting operations takes longer than computing them."""
    del scale
    return nn.Sequential(
        nn.AvgPool2d(8), nn.Flatten(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, CLASSES)
    )


NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "lenet": lenet,
    "resnet": lambda scale: resnet(scale, 3),
    "resnet-deep": lambda scale: resnet(scale, 6),
    "vgg": vgg,
    "transformer": lambda scale: Attention(32 * scale, 2),
    "transformer-deep": lambda scale: Attention(32 * scale, 4),
    "mlp": mlp,
}


def images(count: int) -> TensorDataset:
    """Return generated images: a grating whose direction is the class, below noise."""
    chance = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % CLASSES
    angles = labels * torch.pi / CLASSES
    rows, columns = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    along = angles.cos()[:, None, None] * rows + angles.sin()[:, None, None] * columns
    phases = torch.rand(count, 1, 1, generator=chance) * 2 * torch.pi
    grating = torch.sin(along * 0.8 + phases)[:, None].expand(-1, 3, -1, -1)
    return TensorDataset(grating + torch.randn(count, 3, 32, 32, generator=chance), labels)


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="lenet", help="NAME[*COUNT][=PRIORITY]+…")
    parser.add_argument("--policy", default="fcfs")
    parser.add_argument("--sequential", action="store_true")
    parser.add_argument("--share-input", action="store_true")
    parser.add_argument("--fuse", action="store_const", const="auto")
    parser.add_argument("--memory")
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--scale", type=int, default=1, help="of the widths of all networks")
    return parser.parse_args()


def jobs_of(args: argparse.Namespace) -> list[Job]:
    """Return the jobs that the command line names; equal in every arm."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataset = TensorDataset(*(part.to(device) for part in images(args.samples).tensors))

    def loader() -> DataLoader[tuple[Tensor, ...]]:
        order = torch.Generator().manual_seed(0)
        return DataLoader(dataset, args.batch_size, shuffle=True, generator=order)

    shared, jobs = loader(), []
    for entry in args.models.split("+"):
        label, _, priority = entry.partition("=")
        network, _, copies = label.partition("*")
        for copy in range(int(copies or 1)):
            torch.manual_seed(copy)
            model = NETWORKS[network](args.scale).to(device)
            jobs.append(
                Job(
                    f"{network}-{copy}" if copies else network,
                    model,
                    torch.optim.Adam(model.parameters(), 1e-3),
                    functional.cross_entropy,
                    shared if args.share_input else loader(),
                    epochs=args.epochs,
                    priority=int(priority or 0),
                    seed=copy,
                )
            )
    return jobs


def one_after_another(args: argparse.Namespace) -> None:
    """Start a process for each model."""
    given = sys.argv[1:]
    given.remove("--sequential")
    for model in args.models.split("+"):
        arguments = [model if value == args.models else value for value in given]
        subprocess.run([sys.executable, str(Path(__file__).resolve()), *arguments], check=True)


def checksum(model: nn.Module) -> float:
    """Return a number that differs if any bit of the parameters does, in all likelihood."""
    return sum(float(p.detach().double().abs().sum()) for p in model.parameters())


def main() -> None:
    """Train and record."""
    args = options()
    with radt.Run() as run:
        run.log_params({"models": args.models, "policy": args.policy})
        if args.sequential:
            one_after_another(args)
            return
        if not torch.cuda.is_available():
            torch.set_num_threads(1)  # the same sums, whoever else trains
        began_s = time.perf_counter()
        trainer = MultiTrainer(
            jobs_of(args),
            policy=args.policy,
            share_input=args.share_input,
            fuse=args.fuse,
            memory=args.memory,
        )
        with trainer:
            for job in trainer.run():
                took_s = time.perf_counter() - began_s
                value = checksum(job.model)
                print(f"{job.name} {job.status} {took_s:.2f} s  checksum {value!r}", flush=True)
                run.log_metrics({f"{job.name}/ended_s": took_s, f"{job.name}/checksum": value})
                if job.failure is not None:
                    sys.exit(job.failure.traceback)
        for names, trial in trainer.ways.items():
            way = trial.chosen or "undecided"
            print(f"{len(names)} jobs of equal structure: {way}", trial.reason)
            run.log_params({"way": way})


if __name__ == "__main__":
    main()
