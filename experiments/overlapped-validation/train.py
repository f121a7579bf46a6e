"""Train with validation after each epoch, or beside the next one.

Arms ``thread`` and ``process`` differ from ``serial`` by the lines with ``validator``. Arm
``tuned`` is serial with the fastest of several numbers of threads, worker processes and samples in
a validation batch; it searches before its time begins.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import dataclass
from typing import Any

import torch
from data import CLASSES, InMemory, Jpegs
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Subset

import radt
from radt.training import OverlappedValidator, Sums

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class Load:
    """What an arm trains and validates.

    Args:
        kind: ``jpegs``, or ``memory`` for tensors in memory.
        train: Samples of an epoch.
        validation: Samples of a validation.
        workers: Worker processes of the training's loader; 0: it decodes in its own loop.
        width: Channels of the network.
        stride: Of its first layer; 8 makes it as cheap beside decoding as a GPU would.
        epochs: Epochs.
        batch: Samples of a batch.
    """

    kind: str
    train: int
    validation: int
    workers: int
    width: int
    stride: int
    epochs: int
    batch: int = 32


LOADS = {
    "decode": Load("jpegs", 640, 640, 0, 16, 8, 10),
    "busy": Load("jpegs", 640, 640, 2, 16, 8, 6),
    "compute": Load("memory", 1536, 3072, 0, 40, 1, 6),
    "small": Load("memory", 2048, 32, 0, 40, 1, 6),
    "tiny": Load("memory", 64, 48, 0, 4, 2, 2),
    "gpu-decode": Load("jpegs", 20_480, 10_240, 6, 64, 2, 10, 256),
    "gpu-compute": Load("memory", 102_400, 102_400, 4, 256, 1, 10, 512),
    "gpu-small": Load("memory", 102_400, 512, 4, 256, 1, 10, 512),
}


def samples(load: Load, count: int, seed: int) -> Any:
    """Return a data set."""
    return Jpegs(count, seed) if load.kind == "jpegs" else InMemory(count, seed)


def network(load: Load) -> nn.Module:
    """Return a few convolutions with batch norm, and dropout."""
    width = load.width
    return nn.Sequential(
        nn.Conv2d(3, width, 3, load.stride, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, 2, padding=1),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(2 * width, CLASSES),
    ).to(DEVICE)


def prepared(images: Tensor) -> Tensor:
    """Return bytes as numbers around 0, on the device."""
    return images.to(DEVICE, non_blocking=True).float() / 64 - 2


class Validation:
    """The ``evaluate`` of a validator: loads the validation samples and adds up.

    Args:
        dataset: The samples; they reach the validator's process as a pickle.
        batch: Samples of a batch.
        workers: Worker processes.
    """

    def __init__(self, dataset: Any, batch: int, workers: int) -> None:
        self.dataset, self.batch, self.workers = dataset, batch, workers
        self.loader: DataLoader[Any] | None = None

    def __call__(self, model: nn.Module, part: int = 0, parts: int = 1) -> Sums:
        if self.loader is None:  # in the process that validates
            self.loader = DataLoader(
                Subset(self.dataset, range(part, len(self.dataset), parts)),
                self.batch,
                num_workers=self.workers,
                persistent_workers=self.workers > 0,
                generator=torch.Generator(),  # else it draws from the training's
            )
        loss = torch.zeros((), dtype=torch.float64, device=DEVICE)
        right = torch.zeros((), dtype=torch.int64, device=DEVICE)
        count = 0
        for images, labels in self.loader:
            labels = labels.to(DEVICE)
            scores = model(prepared(images))
            loss += functional.cross_entropy(scores, labels, reduction="sum")
            right += (scores.argmax(1) == labels).sum()
            count += len(labels)
        return Sums(count=count, val_loss=loss, val_accuracy=right)


def serially(validation: Validation, model: nn.Module) -> dict[str, float]:
    """Validate here and now."""
    model.eval()
    with torch.no_grad():
        sums = validation(model)
    model.train()
    return {name: value / sums.count for name, value in sums.sums.items()}


class Training:
    """The plain loop."""

    def __init__(self, load: Load, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = network(load)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.02, momentum=0.9)
        self.loader = DataLoader(
            samples(load, load.train, seed=0),
            load.batch,
            shuffle=True,
            num_workers=load.workers,
            persistent_workers=load.workers > 0,
        )

    def epoch(self, run: radt.Run) -> float:
        """Train once on all samples; return the last loss."""
        for images, labels in run.batches(self.loader):
            loss = functional.cross_entropy(self.model(prepared(images)), labels.to(DEVICE))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()


def tuned(load: Load, dataset: Any, model: nn.Module) -> Validation:
    """Return the fastest serial validation, one setting after another; sets the threads.

    Each is tried on an eighth of the samples.
    """
    cores = len(os.sched_getaffinity(0))
    few = Subset(dataset, range(0, len(dataset), 8))
    best = Validation(few, load.batch, 0)
    best_s = validated_s(best, model, 1)
    threads = 1
    if DEVICE.type == "cpu" and (took_s := validated_s(best, model, cores)) < best_s:
        best_s, threads = took_s, cores
    candidates = [Validation(few, load.batch, workers) for workers in (cores // 2, cores)]
    for candidate in [*candidates, None]:
        tried = candidate or Validation(few, 4 * load.batch, best.workers)
        if (took_s := validated_s(tried, model, threads)) < best_s:
            best_s, best = took_s, tried
    torch.set_num_threads(threads)
    found = Validation(dataset, best.batch, best.workers)
    serially(found, model)  # starts its workers
    return found


def validated_s(validation: Validation, model: nn.Module, threads: int) -> float:
    """Return how long a validation takes once its workers run."""
    torch.set_num_threads(threads)
    serially(validation, model)
    began_s = time.perf_counter()
    serially(validation, model)
    return time.perf_counter() - began_s


def trained(arm: str, load: Load, args: argparse.Namespace, run: radt.Run) -> dict[str, float]:
    """Train an arm; return what it took in all, and what the validator says of it."""
    training = Training(load, args.seed)
    dataset = samples(load, load.validation, seed=1)
    validation = Validation(dataset, args.validation_batch or load.batch, args.validation_workers)
    if arm == "tuned":
        validation = tuned(load, dataset, network(load))
        torch.manual_seed(args.seed)
        chosen = {"workers": validation.workers, "batch": validation.batch}
        run.log_params({"threads": torch.get_num_threads()} | chosen)
    began_s = time.perf_counter()
    if arm in ("serial", "tuned"):
        for epoch in run.epochs(load.epochs):
            run.log_metric("loss", training.epoch(run), step=epoch)
            with run.span("validate"):
                metrics = serially(validation, training.model)
            run.log_metrics(metrics, step=epoch)
        return {"total": time.perf_counter() - began_s, **metrics}
    with OverlappedValidator(validation, training.model, parts=args.parts, where=arm) as validator:
        for epoch in run.epochs(load.epochs):
            run.log_metric("loss", training.epoch(run), step=epoch)
            validator.submit(epoch)
    total_s, timing = time.perf_counter() - began_s, validator.timing
    last = validator.finished()[-1]
    assert not last.failure, last.failure
    copy = max(timing.copy_s) / min(timing.training_s)
    return {"total": total_s, "bound": timing.bound_s, "copy": copy, **last.metrics}


def main() -> None:
    """Train and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arm", choices=["serial", "tuned", "thread", "process"], required=True)
    parser.add_argument("--load", choices=LOADS, default="decode")
    parser.add_argument("--parts", type=int, default=1, help="processes that share a validation")
    parser.add_argument("--validation-workers", type=int, default=0)
    parser.add_argument("--validation-batch", type=int, default=0, help="0: as in training")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with radt.Run() as run:
        run.log_params({"arm": args.arm, "load": args.load, "device": str(DEVICE)})
        found = trained(args.arm, LOADS[args.load], args, run)
        run.log_metrics({name: value for name, value in found.items() if "val_" not in name})
    print(json.dumps(found))


if __name__ == "__main__":
    main()
