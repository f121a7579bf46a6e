"""Train on images that are decoded anew for each use, or used several times (data echoing).

The arms have equal numbers of steps, apart from ``fresh-short``, which decodes as much as
``finetune``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import images
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

import radt
from radt.loaders import EchoLoader


class Arm(Enum):
    """What is compared."""

    FRESH = "fresh"
    FRESH_SHORT = "fresh-short"
    ECHO = "echo"
    FINETUNE = "finetune"
    #: As `FINETUNE`, but echoed samples are not augmented anew.
    IMMEDIATE = "immediate"


@dataclass(frozen=True)
class Stage:
    """Epochs with a learning rate that rises to a peak and falls."""

    repeats: int
    uses_of_each_sample: int
    peak: float


def stages(arm: Arm, args: argparse.Namespace) -> list[Stage]:
    """Return what an arm trains; ``--echo-epochs`` E, ``--repeats`` R, ``--fresh-epochs`` F."""
    echoed = args.echo_epochs * args.repeats
    if arm is Arm.FRESH:
        return [Stage(1, echoed + args.fresh_epochs, args.lr)]
    if arm is Arm.FRESH_SHORT:
        return [Stage(1, args.echo_epochs + args.fresh_epochs, args.lr)]
    if arm is Arm.ECHO:
        return [Stage(args.repeats, echoed + args.fresh_epochs, args.lr)]
    return [
        Stage(args.repeats, echoed, args.lr),
        Stage(1, args.fresh_epochs, args.finetune_lr),
    ]


def network(width: int) -> nn.Module:
    """Three blocks of two convolutions, and a linear layer."""

    def block(before: int, behind: int) -> list[nn.Module]:
        return [
            nn.Conv2d(before, behind, 3, padding=1, bias=False),
            nn.BatchNorm2d(behind),
            nn.ReLU(),
            nn.Conv2d(behind, behind, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(behind),
            nn.ReLU(),
        ]

    return nn.Sequential(
        *block(3, width),
        *block(width, 2 * width),
        *block(2 * width, 4 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, images.CLASSES),
    )


def accuracy(model: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    """Return the share of validation samples that the model gets right."""
    model.eval()
    with torch.no_grad():
        right = sum(
            int((model(some).argmax(1) == which).sum())
            for some, which in zip(inputs.split(500), labels.split(500), strict=True)
        )
    model.train()
    return right / len(labels)


def stacked(dataset: images.Jpegs, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return all samples, decoded and unaugmented, and their labels."""
    decoded = [images.plain(dataset[at]) for at in range(len(dataset))]
    labels = torch.tensor([label for _, label in decoded], device=device)
    return torch.stack([image for image, _ in decoded]).to(device), labels


class Unaugmented(Dataset[Any]):
    """Samples that are augmented when they are decoded: every reuse is the same."""

    def __init__(self, dataset: Dataset[Any], augment: Callable[..., Any], seed: int) -> None:
        self.dataset, self.augment, self.seed, self.calls = dataset, augment, seed, 0

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Any:
        self.calls += 1
        chance = np.random.default_rng((self.seed, index, self.calls))
        return self.augment(self.dataset[index], chance)


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arm", type=Arm, choices=list(Arm), default=Arm.FINETUNE)
    parser.add_argument("--data", default="generated", help="or cifar10=FOLDER")
    parser.add_argument("--samples", type=int, default=600, help="generated ones to train on")
    parser.add_argument("--validation-samples", type=int, default=1000)
    parser.add_argument(
        "--test-samples", type=int, default=0, help="generated ones, for a last accuracy"
    )
    parser.add_argument("--edge", type=int, default=128, help="pixels of a generated image")
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--buffer", type=int, default=1, help="batches in a fill")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--echo-epochs", type=int, default=8)
    parser.add_argument("--fresh-epochs", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--finetune-lr", type=float, default=0.05)
    parser.add_argument(
        "--one-cycle", action="store_true", help="one cycle of the rate over both stages"
    )
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    """Train and record."""
    args = options()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    if args.data == "generated":
        train = images.generated(args.samples, args.edge, seed=0)
        validation = images.generated(args.validation_samples, args.edge, seed=1)
        augment = images.augment
    else:
        train, validation = images.cifar10(Path(args.data.removeprefix("cifar10=")))
        augment = images.augment_and_mirror
    is_immediate = args.arm is Arm.IMMEDIATE
    dataset = Unaugmented(train, augment, args.seed) if is_immediate else train
    inputs, labels = stacked(validation, device)
    model = network(args.width).to(device)
    plan = stages(args.arm, args)

    with radt.Run() as run, EchoLoader(
        dataset,
        None if is_immediate else augment,
        batch_size=args.batch_size,
        repeats=plan[0].repeats,
        buffer=args.buffer * args.batch_size,
        num_workers=args.workers,
        seed=args.seed,
        pin_memory=device.type == "cuda",
    ) as loader:  # fmt: skip
        told = {"arm": args.arm.value, "seed": args.seed, "one_cycle": args.one_cycle}
        run.log_params({**told, "device": str(device)})
        epochs = 0
        all_steps = [stage.uses_of_each_sample * len(train) // args.batch_size for stage in plan]
        for number, (stage, steps) in enumerate(zip(plan, all_steps, strict=True)):
            if number:
                loader.finetune()
            if not number or not args.one_cycle:
                optimiser = torch.optim.SGD(
                    model.parameters(), stage.peak, momentum=0.9, weight_decay=5e-4
                )
                length = sum(all_steps) if args.one_cycle else steps
                schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, stage.peak, length)
            done = 0
            while done < steps:
                epochs += 1
                with run.epoch(epochs):
                    for batch, which in run.batches(loader):
                        scores = model(batch.to(device, non_blocking=True))
                        loss = functional.cross_entropy(scores, which.to(device))
                        optimiser.zero_grad()
                        loss.backward()
                        optimiser.step()
                        schedule.step()
                        done += 1
                        if done == steps:  # echoing alone ends in the middle of an epoch
                            break
                    value = accuracy(model, inputs, labels)
                run.log_metrics({"accuracy": value, "loss": loss.item()}, step=epochs)
                print(f"epoch {epochs}  accuracy {value:.3f}  loss {loss.item():.3f}", flush=True)
        print(f"decoded {loader.decoded}  echoed {loader.echoed}  accuracy {value:.4f}")
        if args.test_samples:
            test = stacked(images.generated(args.test_samples, args.edge, seed=2), device)
            value = accuracy(model, *test)
            run.log_metrics({"test_accuracy": value}, step=epochs)
            print(f"test accuracy {value:.4f}")


if __name__ == "__main__":
    main()
