"""Train one model of the collocation study, on a GPU or on CPUs.

Runs by itself (``python train.py --model resnet26``) and under radt, as the rows of the CSV files
beside it have it; the lines that mention ``run`` are all that is needed for either.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

import radt
from study.data import batches, open_clicks, open_images
from study.models import image_model, parameter_count, recommender, timm_model
from study.options import Options, parse
from study.tasks import Classes, Clicks, Task

_MOMENTUM, _WEIGHT_DECAY = 0.9, 1e-4


@dataclass(frozen=True, slots=True)
class Training:
    """All that a run needs, on its device."""

    model: nn.Module
    task: Task
    optimiser: torch.optim.Optimizer
    train: DataLoader[Any]
    validation: DataLoader[Any]
    options: Options

    def scores(self, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """The model's, in reduced precision where that was asked for."""
        with torch.autocast(
            self.options.device.type, dtype=torch.bfloat16, enabled=self.options.amp
        ):
            scores: torch.Tensor = self.model(*inputs)
        return scores.float()


def prepared(options: Options) -> Training:
    """Model and data.

    Raises:
        ValueError: Model, data and sizes do not fit together, or files are missing.
    """
    torch.manual_seed(options.seed)
    sizes = options.sizes
    if options.model.sees_images:
        data, sizes = open_images(options.place, sizes, options.seed)
        make = timm_model if options.timm else image_model
        with options.device:  # weights come into being where they are used
            model = make(options.model, sizes.classes, sizes.pixels)
        task: Task = Classes(options.device)
    else:
        if options.timm:
            raise ValueError("timm has no recommender: leave --timm out")
        data = open_clicks(sizes, options.max_rows, options.seed)
        with options.device:
            model = recommender(options.max_rows)
        task = Clicks(options.device)
    samples = min(options.samples or sizes.train, sizes.train)
    share = max(1, round(sizes.validation * samples / sizes.train))
    loader: dict[str, Any] = {
        "workers": options.workers,
        "pinned": options.device.type == "cuda",
    }
    return Training(
        model=torch.compile(model) if options.compile else model,  # type: ignore[arg-type]
        task=task,
        optimiser=_optimiser(model, options),
        train=batches(data.train, options.batch_size, samples=samples, seed=options.seed, **loader),
        validation=batches(
            data.validation,
            options.batch_size,
            samples=options.validation_samples or share,
            seed=None,
            **loader,
        ),
        options=options,
    )


def _optimiser(model: nn.Module, options: Options) -> torch.optim.Optimizer:
    if not options.model.sees_images:  # sparse gradients allow neither momentum nor decay
        return torch.optim.SGD(model.parameters(), options.lr)
    return torch.optim.SGD(
        model.parameters(),
        options.lr,
        momentum=_MOMENTUM,
        weight_decay=_WEIGHT_DECAY,
        nesterov=True,
    )


def train_epoch(training: Training, run: radt.Run, step: int) -> int:
    """One pass over the training samples of an epoch; the number of the step that comes next."""
    training.model.train()
    for batch in run.batches(training.train):
        inputs, target = training.task.inputs(batch, train=True)
        loss = training.task.loss(training.scores(inputs), target)
        training.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        training.optimiser.step()
        if step % training.options.log_every == 0:  # each value makes the CPU wait for the GPU
            run.log_metric("loss", loss.item(), step)
        step += 1
    if training.options.device.type == "cuda":
        torch.cuda.synchronize()  # the epoch ends when the GPU has done what was asked for
    return step


def accuracy(training: Training) -> float:
    """Share of the validation samples that the model gets right."""
    training.model.eval()
    right, total = torch.zeros((), dtype=torch.long, device=training.options.device), 0
    with torch.no_grad():
        for batch in training.validation:
            inputs, target = training.task.inputs(batch, train=False)
            right += training.task.right(training.scores(inputs), target)
            total += len(target)
    return right.item() / total


def main() -> None:
    """Train and record."""
    options = parse()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    try:
        training = prepared(options)
    except (ValueError, OSError) as error:
        sys.exit(f"train.py: {error}")
    with radt.Run() as run:
        run.log_params(
            {
                "device": torch.cuda.get_device_name()
                if options.device.type == "cuda"
                else f"{len(os.sched_getaffinity(0))} CPUs",
                "parameters": parameter_count(training.model),
                "samples_per_epoch": len(training.train) * options.batch_size,
                "torch": torch.__version__,
            }
        )
        step = 0
        for epoch in run.epochs(options.epochs):
            with run.span("train"):
                step = train_epoch(training, run, step)
            with run.span("validate"):
                right = accuracy(training)
            run.log_metric("accuracy", right, epoch)
            print(f"epoch {epoch}/{options.epochs}  accuracy {right:.3f}", flush=True)


if __name__ == "__main__":
    main()
