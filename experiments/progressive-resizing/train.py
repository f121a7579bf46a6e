"""Train a convolutional network at one size, or progressively in one of several ways.

``--arm fixed`` is the plain loop. Its lines and those of ``--arm mixed`` differ by the loader and
by ``scaled.step``.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from data import CLASSES, Images, written
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader

import radt
from radt.loaders import BatchScaledLR, ProgressiveLoader
from radt.loaders.images import open_at
from radt.loaders.progressive.copies import Copies, write

ARMS = {
    "fixed": "full size from the first epoch",
    "small": "the smallest size in all epochs: what small images alone teach",
    "device": "composer's way: full size is loaded, and resized where the model is",
    "epoch": "as fastxtend: one size an epoch, the same batch and learning rate",
    "mixed": "ProgressiveLoader, strategy mixed",
    "exhaustive": "ProgressiveLoader, strategy exhaustive",
}


def network(width: int, blocks: int) -> nn.Module:
    """Return a residual network with global pooling: it takes images of any size."""
    layers: list[nn.Module] = [_convolution(3, width, 2), nn.ReLU()]
    for stage in range(4):
        channels = width * 2**stage
        layers += [_Residual(max(width, channels // 2), channels)]
        layers += [_Residual(channels, channels) for _ in range(blocks - 1)]
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, CLASSES)
    )


def _convolution(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.BatchNorm2d(outputs)
    )


class _Residual(nn.Module):
    """Two convolutions beside a shortcut; halves the edges where channels change."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.convolutions = nn.Sequential(
            _convolution(inputs, outputs, stride), nn.ReLU(), _convolution(outputs, outputs, 1)
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, images: Tensor) -> Tensor:
        return functional.relu(self.convolutions(images) + self.shortcut(images))


@dataclass
class Loading:
    """A sample as it is trained; counts the CPU time of it where it runs in this process.

    Args:
        copies: Of the training images, or None to decode the originals.
    """

    copies: Copies | None = None
    cpu_s: float = 0.0

    def __call__(self, sample: tuple[int, Path, int], size: int) -> tuple[Tensor, int]:
        began_s = time.thread_time()
        index, path, label = sample
        image = open_at(self.copies.nearest(index, size) if self.copies else path, size)
        pixels = np.asarray(image.resize((size, size)), np.float32)
        tensor = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
        self.cpu_s += time.thread_time() - began_s
        return tensor.div_(64).sub_(2), label


@dataclass(frozen=True)
class AtOneSize:
    """A data set for a plain `DataLoader`."""

    images: Images
    load: Callable[[tuple[int, Path, int], int], tuple[Tensor, int]]
    size: int

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.load(self.images[index], self.size)


def sizes_of_epochs(options: argparse.Namespace) -> list[int]:
    """Return the size of each epoch where all images of an epoch have one: as slow as mixed."""
    steps = (options.size - options.min_size) // options.step
    growing = max(1, round(steps / options.upgrade_rate))
    return [
        options.min_size + min(steps, epoch * steps // growing) * options.step
        for epoch in range(options.epochs)
    ]


class Training:
    """Data, model and the way of one arm."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        train = written(
            options.data,
            "train",
            options.samples,
            options.stored,
            options.wrong_labels,
            options.enlarged,
        )
        validation = written(options.data, "validation", options.validation, options.stored)
        sizes = range(options.min_size, options.size + 1, options.step)
        copies = write(train.paths, options.data / "copies", sizes) if options.copies else None
        self.loading, self.train = Loading(copies), train
        self.common: dict[str, Any] = {
            "num_workers": options.workers,
            "pin_memory": self.device.type == "cuda",
        }
        self.validation = DataLoader(
            AtOneSize(validation, Loading(), options.size),  # type: ignore[arg-type]
            2 * options.batch_size,
            persistent_workers=options.workers > 0,
            **self.common,
        )
        self.model = network(options.width, options.blocks).to(self.device)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), options.lr, momentum=0.9, weight_decay=5e-4, nesterov=True
        )
        self.scaled = BatchScaledLR(self.optimizer, options.batch_size)
        self.progressive = options.arm in ("mixed", "exhaustive")
        if self.progressive:
            self.loader: Any = ProgressiveLoader(
                train,
                self.loading,
                batch_size=options.batch_size,
                size=options.size,
                min_size=options.min_size,
                step=options.step,
                strategy=options.arm,
                upgrade_rate=options.upgrade_rate,
                seed=options.seed,
                **self.common,
            )
            self.loader.check(self.model)
        elif options.arm != "epoch":
            size = options.min_size if options.arm == "small" else options.size
            self.loader = self.plain(size)

    def plain(self, size: int) -> DataLoader[Any]:
        """Return a loader of the training images at one size."""
        return DataLoader(
            AtOneSize(self.train, self.loading, size),  # type: ignore[arg-type]
            self.options.batch_size,
            shuffle=True,
            drop_last=True,
            persistent_workers=self.options.workers > 0 and self.options.arm != "epoch",
            **self.common,
        )

    def batches(self, run: radt.Run, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Return an epoch's batches on the device."""
        size = sizes_of_epochs(self.options)[epoch]
        loader: Iterable[Any] = self.plain(size) if self.options.arm == "epoch" else self.loader
        for images, labels in run.batches(loader):
            placed = images.to(self.device, non_blocking=True)
            if self.options.arm == "device" and size != self.options.size:
                placed = functional.interpolate(
                    placed, (size, size), mode="bilinear", antialias=True
                )
            yield placed, labels.to(self.device, non_blocking=True)

    def step(self, images: Tensor, labels: Tensor) -> Tensor:
        """Train with one batch; its loss."""
        loss = functional.cross_entropy(self.model(images), labels)
        self.optimizer.zero_grad()
        loss.backward()
        if self.progressive:
            self.scaled.step(len(images))
        else:
            self.optimizer.step()
        return loss.detach()

    def estimate_statistics(self) -> None:
        """Take batch norm's statistics from training images at the size of the validation.

        Those of small images differ: resizing averages noise. Training does not use them.
        Touvron et al., *Fixing the train-test resolution discrepancy*, 2019.
        """
        if self.options.statistics:
            images = islice(self.plain(self.options.size), self.options.statistics)
            update_bn(images, self.model, self.device)

    @torch.no_grad()
    def accuracy(self) -> float:
        """Return the share of validation images that the model gets right, at full size."""
        self.model.eval()
        right = 0
        for images, labels in self.validation:
            scores = self.model(images.to(self.device))
            right += int((scores.argmax(1).cpu() == labels).sum())
        self.model.train()
        return right / len(self.validation.dataset)  # type: ignore[arg-type]


def main() -> None:
    """Train and record."""
    options = parsed()
    torch.set_num_threads(options.threads or torch.get_num_threads())
    torch.manual_seed(options.seed)
    np.random.seed(options.seed)
    training = Training(options)
    with radt.Run() as run:
        run.log_params(vars(options) | {"device": str(training.device)})
        step, train_s, train_cpu_s = 0, 0.0, 0.0
        for epoch in run.epochs(options.epochs):
            began_s, began_cpu_s = time.perf_counter(), time.process_time()
            losses = []
            with run.span("train"):
                for images, labels in training.batches(run, epoch - 1):
                    losses.append(training.step(images, labels))
                    step += 1
                loss = torch.stack(losses).mean().item()  # waits for the GPU
                training.estimate_statistics()
            train_s += time.perf_counter() - began_s
            train_cpu_s += time.process_time() - began_cpu_s
            with run.span("validate"):
                accuracy = training.accuracy()
            values = {"loss": loss, "train_s": train_s, "train_cpu_s": train_cpu_s}
            if not options.workers:
                values["loading_cpu_s"] = training.loading.cpu_s
            run.log_metrics({"accuracy": accuracy, "steps": step} | values, epoch)
            print(
                f"epoch {epoch}  loss {loss:.3f}  accuracy {accuracy:.3f}  {train_cpu_s:.1f} s CPU",
                flush=True,
            )
            if accuracy >= options.stop_at:
                break


def parsed() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arm", choices=ARMS, default="fixed")
    parser.add_argument("--copies", action="store_true", help="load pre-resized copies")
    parser.add_argument("--upgrade-rate", type=float, default=0.25)
    parser.add_argument("--size", type=int, default=96, help="edge at the end, in pixels")
    parser.add_argument("--min-size", type=int, default=48, help="edge at the beginning")
    parser.add_argument("--step", type=int, default=24)
    parser.add_argument("--stored", type=int, default=192, help="edge of the files")
    parser.add_argument("--enlarged", type=int, default=0, help="edge of the files to train on")
    parser.add_argument("--samples", type=int, default=960)
    parser.add_argument("--wrong-labels", type=float, default=0.3, help="share in training")
    parser.add_argument("--validation", type=int, default=360)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument(
        "--statistics", type=int, default=0, help="batches at full size for batch norm's statistics"
    )
    parser.add_argument("--stop-at", type=float, default=2.0, help="end at this accuracy")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.005)
    parser.add_argument("--width", type=int, default=8, help="channels of the first layer")
    parser.add_argument("--blocks", type=int, default=1, help="in each of four stages")
    parser.add_argument("--workers", type=int, default=0, help="processes that load")
    parser.add_argument("--threads", type=int, default=0, help="of PyTorch; 0 for its default")
    parser.add_argument("--data", type=Path, default=Path("data-progressive"))
    parser.add_argument("--seed", type=int, help="drawn unless given: each repeat has another")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = int.from_bytes(os.urandom(2))
    return options


if __name__ == "__main__":
    main()
