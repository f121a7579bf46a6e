"""Validation beside training by `OverlappedValidator`, or by Ray Train 2.60.

python -m benchmarks.training.validation_peer radt|ray

Both train the same network on the JPEGs of experiments/overlapped-validation, whose folder must be
in PYTHONPATH. What they took is written as JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

EPOCHS, TRAINED, VALIDATED = 6, 640, 320
_BATCH, _WIDTH, _CLASSES = 32, 2048, 10
_FILE = "model.pt"


@dataclass(slots=True)
class Measured:
    """What a side took.

    Attributes:
        total_s: From the first epoch, or the making of the validator, to the last result.
        stopped_s: How long each validation stopped training.
        latency_s: From the end of each epoch to its validation's end.
        written_bytes: Bytes in files, all validations together.
        val_loss: Of the last epoch.
    """

    total_s: float = 0.0
    stopped_s: list[float] = field(default_factory=list)
    latency_s: list[float] = field(default_factory=list)
    written_bytes: int = 0
    val_loss: float = 0.0


def network() -> nn.Module:
    """Return a network with 34 MB of parameters that computes less than decoding takes."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 8, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(256, _WIDTH),
        nn.ReLU(),
        nn.Linear(_WIDTH, _WIDTH),
        nn.ReLU(),
        nn.Linear(_WIDTH, _WIDTH),
        nn.ReLU(),
        nn.Linear(_WIDTH, _CLASSES),
    )


def loader(count: int, seed: int) -> DataLoader[Any]:
    """Return a loader that decodes in its own loop."""
    jpegs = importlib.import_module("data").Jpegs(count, seed)
    return DataLoader(jpegs, _BATCH, generator=torch.Generator())


@cache
def validation_loader() -> DataLoader[Any]:
    """Return this process's loader of validation samples."""
    torch.set_num_threads(1)
    return loader(VALIDATED, seed=1)


def loss_of(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Return the sum of the losses."""
    scores = model(images.float() / 64 - 2)
    return functional.cross_entropy(scores, labels, reduction="sum")


def validation_loss(model: nn.Module) -> Tensor:
    """Return the sum of the losses of all validation samples."""
    total = torch.zeros((), dtype=torch.float64)
    with torch.no_grad():
        for images, labels in validation_loader():
            total += loss_of(model, images, labels)
    return total


class Training:
    """The plain loop."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.model = network()
        self._optimizer = torch.optim.SGD(self.model.parameters(), 0.01)
        self._loader = loader(TRAINED, seed=0)

    def epoch(self) -> None:
        """Train once on all samples."""
        for images, labels in self._loader:
            self._optimizer.zero_grad()
            (loss_of(self.model, images, labels) / len(labels)).backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()


def evaluate(model: nn.Module, _part: int, _parts: int) -> Any:
    """Validate for `OverlappedValidator`."""
    from radt.training import Sums

    return Sums(count=VALIDATED, val_loss=validation_loss(model))


def with_radt() -> Measured:
    """Train with this library's validator."""
    from radt.training import OverlappedValidator

    training, measured = Training(), Measured()
    began_s = time.monotonic()
    with OverlappedValidator(evaluate, training.model) as validator:
        for epoch in range(EPOCHS):
            training.epoch()
            ended_s = time.monotonic()
            validator.submit(epoch)
            measured.stopped_s.append(time.monotonic() - ended_s)
    measured.total_s = time.monotonic() - began_s
    both = zip(measured.stopped_s, validator.timing.validation_s, strict=True)
    measured.latency_s = [stopped_s + validation_s for stopped_s, validation_s in both]
    measured.val_loss = validator.finished()[-1].metrics["val_loss"]
    return measured


def validate_checkpoint(checkpoint: Any, ended_s: float) -> dict[str, float]:
    """Validate for Ray Train, in a task of its own."""
    model = network()
    with checkpoint.as_directory() as folder:
        model.load_state_dict(torch.load(Path(folder) / _FILE))
    val_loss = validation_loss(model.eval()).item() / VALIDATED
    return {"val_loss": val_loss, "latency_s": time.monotonic() - ended_s}


def train_in_a_worker(options: dict[str, str]) -> None:
    """Train, as Ray Train's guide "Validating checkpoints asynchronously" has it."""
    train = importlib.import_module("ray.train")
    training, measured = Training(), Measured()
    began_s = time.monotonic()
    for _ in range(EPOCHS):
        training.epoch()
        ended_s = time.monotonic()
        folder = tempfile.mkdtemp(dir=options["folder"])
        file = Path(folder) / _FILE
        torch.save(training.model.state_dict(), file)
        measured.written_bytes += file.stat().st_size
        train.report(
            {},
            checkpoint=train.Checkpoint.from_directory(folder),
            checkpoint_upload_mode=train.CheckpointUploadMode.ASYNC,
            validation=train.ValidationTaskConfig(fn_kwargs={"ended_s": ended_s}),
        )
        measured.stopped_s.append(time.monotonic() - ended_s)
    reported = train.get_all_reported_checkpoints(train.CheckpointConsistencyMode.VALIDATED)
    measured.total_s = time.monotonic() - began_s
    for each in reported:
        measured.latency_s.append(each.metrics["latency_s"])
        measured.val_loss = each.metrics["val_loss"]
        uploaded = Path(each.checkpoint.path).rglob("*")
        measured.written_bytes += sum(path.stat().st_size for path in uploaded if path.is_file())
    Path(options["result"]).write_text(json.dumps(asdict(measured)), encoding="utf-8")


def with_ray() -> Measured:
    """Train with Ray Train, which has a cluster of this machine's two cores."""
    ray, train, for_torch = map(importlib.import_module, ("ray", "ray.train", "ray.train.torch"))
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=folder)
        try:
            for_torch.TorchTrainer(
                train_in_a_worker,
                train_loop_config={"folder": folder, "result": str(result)},
                validation_config=train.ValidationConfig(fn=validate_checkpoint),
                scaling_config=train.ScalingConfig(num_workers=1),
                run_config=train.RunConfig(name="validation", storage_path=folder),
            ).fit()
        finally:
            ray.shutdown()
        return Measured(**json.loads(result.read_text(encoding="utf-8")))


def main() -> None:
    """Train one way, and write what it took."""
    print(json.dumps(asdict(with_ray() if sys.argv[1] == "ray" else with_radt())))


if __name__ == "__main__":  # imported, so that other processes import what they are given
    importlib.import_module("benchmarks.training.validation_peer").main()
