"""One process of the benchmark of `MultiTrainer`.

python -m benchmarks.training.trainer_arm three lenet,resnet,mlp 2 : train these for two epochs
python -m benchmarks.training.trainer_arm fuse mlp 16 1000 3       : equal models, 1,000 steps in
                                                                     each way, three times in turns
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from radt.training import Job, MultiTrainer
from radt.training.fusion import Trial, Way

#: Plain loops, one after another; the trainer's loop; fused; whichever the trainer chooses.
HOW = ("plain", Way.LOOP, Way.FUSED, "auto")
_SAMPLES, _BATCH = 640, 32


def _network(name: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    if name == "mlp":
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    width = {"cnn": 16, "small": 16, "middle": 24, "large": 32}[name]
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, 10),
    )


def _data(name: str) -> TensorDataset:
    chance = torch.Generator().manual_seed(0)
    shape = (64,) if name == "mlp" else (3, 32, 32)
    inputs = torch.randn(_SAMPLES, *shape, generator=chance)
    return TensorDataset(inputs, torch.randint(0, 10, (_SAMPLES,), generator=chance))


def _job(name: str, seed: int, loader: Iterable[Any], epochs: int) -> Job:
    model = _network(name, seed)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    return Job(
        f"{name} {seed}",
        model,
        optimizer,
        functional.cross_entropy,
        loader,
        epochs=epochs,
        seed=seed,
    )


def _loader(name: str) -> DataLoader[tuple[torch.Tensor, ...]]:
    order = torch.Generator().manual_seed(0)
    return DataLoader(_data(name), _BATCH, shuffle=True, generator=order)


def three(names: Sequence[str], epochs: int) -> None:
    """Train networks; none for no epochs, which is what starting costs."""
    loader = _loader(names[0])
    jobs = [_job(name, 0, loader, max(epochs, 1)) for name in names]
    if epochs:
        with MultiTrainer(jobs, policy="round_robin") as trainer:
            for job in trainer.run():
                assert job.failure is None, job.failure


def fuse(name: str, count: int, steps: int, rounds: int) -> None:
    """Train equal networks, and print the CPU time of a step of all of them, each way in turns."""
    times: dict[str, list[float]] = {how: [] for how in HOW}
    chosen = set()
    for number in range(rounds + 1):
        for how, values in times.items():
            step_s, way = _step_s(name, count, how, steps if number else steps // 10)
            if number:  # the first round warms up
                values.append(step_s)
                if how == "auto":
                    chosen.add(way)
    print(json.dumps({"step_s": times, "chosen": sorted(chosen)}))


def _step_s(name: str, count: int, how: str, steps: int) -> tuple[float, str]:
    """Return the CPU time of a step of all networks, and the way in which they trained."""
    epochs = steps * _BATCH // _SAMPLES
    # Batches that are there already: what is timed are the steps.
    batches = list(_loader(name))
    jobs = [_job(name, seed, batches, epochs) for seed in range(count)]
    if how == "plain":
        began_s = time.process_time()
        for job in jobs:
            with job.randomness.in_use():
                for _ in range(epochs):
                    for batch in batches:
                        job.step(batch)
        way = how
    else:
        with MultiTrainer(jobs, share_input=True, fuse="auto") as trainer:
            trial = Trial(None if how == "auto" else Way(how))
            trainer.ways[tuple(job.name for job in jobs)] = trial
            began_s = time.process_time()
            for job in trainer.run():
                assert job.failure is None, job.failure
        way = str(trial.chosen)
    return (time.process_time() - began_s) / (epochs * len(batches)), way


def main(arguments: Sequence[str]) -> None:
    """Do what the arguments say, with one thread."""
    torch.set_num_threads(1)
    match arguments:
        case ["three", names, epochs]:
            three(names.split(","), int(epochs))
        case ["fuse", name, count, steps, rounds]:
            fuse(name, int(count), int(steps), int(rounds))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
