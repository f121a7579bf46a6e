"""Models and ``evaluate`` functions for tests of validators, importable by their processes."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from radt.training import Sums

SAMPLES = 37


class Net(nn.Module):
    """Dropout, batch norm, a tied layer, and a buffer that ``state_dict`` leaves out."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.3)
        self.hidden = nn.Linear(8, 8)
        self.tied = self.hidden
        self.head = nn.Linear(8, 5)
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        features = self.drop(torch.relu(self.norm(self.conv(images)))).mean((2, 3))
        out: Tensor = self.head(self.tied(torch.relu(self.hidden(features))))
        return out + 0.01 * self.calls


def data(seed: int) -> tuple[Tensor, Tensor]:
    """Return images and labels."""
    chance = torch.Generator().manual_seed(seed)
    images = torch.randn(SAMPLES, 3, 8, 8, generator=chance)
    return images, torch.randint(0, 5, (SAMPLES,), generator=chance)


def made(seed: int = 0) -> tuple[Net, torch.optim.Optimizer]:
    """Return a model and its optimiser; seeds the global generators."""
    torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)
    model = Net()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    """Train for an epoch; return the losses."""
    images, labels = data(1)
    losses = []
    model.train()
    for rows in torch.randperm(SAMPLES).split(8):
        loss = functional.cross_entropy(model(images[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def evaluate(model: nn.Module, part: int, parts: int) -> Sums:
    """Validate every ``parts``-th batch; parts differ in size."""
    images, labels = data(2)
    batches = list(zip(images.split(8), labels.split(8), strict=True))[part::parts]
    return _sums(model, batches)


def evaluate_loaded(model: nn.Module, part: int, parts: int) -> Sums:
    """As `evaluate`, through a loader that draws from the global generator."""
    dataset = TensorDataset(*data(2))
    return _sums(model, list(DataLoader(dataset, 8))[part::parts])


def evaluate_loaded_apart(model: nn.Module, part: int, parts: int) -> Sums:
    """As `evaluate_loaded`, through a loader with a generator and a worker of its own."""
    loader = DataLoader(
        TensorDataset(*data(2)), 8, generator=torch.Generator(), num_workers=1, shuffle=False
    )
    return _sums(model, list(loader)[part::parts])


def evaluate_drawing(model: nn.Module, part: int, parts: int) -> Sums:
    """Draw global random numbers of all kinds; they are among the metrics."""
    drawn = torch.rand(1), random.random(), np.random.rand()
    sums = evaluate(model, part, parts)
    return Sums(count=sums.count, **sums.sums, drawn=sum(map(float, drawn)) * sums.count)


def _sums(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> Sums:
    assert not model.training and not torch.is_grad_enabled()
    loss = torch.zeros((), dtype=torch.float64)
    right = count = 0
    for images, labels in batches:
        scores = model(images)
        loss += functional.cross_entropy(scores, labels, reduction="sum")
        right += int((scores.argmax(1) == labels).sum())
        count += len(labels)
    return Sums(count=count, val_loss=loss, val_accuracy=right)


class Gated:
    """An ``evaluate`` that notes what it is at in a folder, and waits for ``go EPOCH`` there.

    The model's single weight is the epoch. ``begun EPOCH`` has the process id.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, model: nn.Module, part: int, parts: int) -> Sums:
        epoch = self._epoch(model)
        self._note(f"begin {epoch}")
        (self.folder / f"begun {epoch}.{part}").write_text(str(os.getpid()))
        while not (self.folder / f"go {epoch}").exists():
            time.sleep(0.005)
        self._note(f"end {self._epoch(model)}")
        return Sums(count=1, epoch=epoch)

    def go(self, epoch: int) -> None:
        """Let the validation of an epoch end."""
        (self.folder / f"go {epoch}").touch()

    def begun(self, epoch: int, part: int = 0) -> int:
        """Return the process that validates an epoch; 0 if none does yet."""
        path = self.folder / f"begun {epoch}.{part}"
        return int(path.read_text() or 0) if path.exists() else 0

    def notes(self) -> list[str]:
        """Return what happened, in order."""
        return (self.folder / "notes").read_text().splitlines()

    def _note(self, text: str) -> None:
        with (self.folder / "notes").open("a") as file:
            file.write(f"{text}\n")

    def _epoch(self, model: nn.Module) -> int:
        return int(next(model.parameters()).item())


class Fails:
    """An ``evaluate`` that fails in some epochs, in its last part; the weight is the epoch."""

    def __init__(self, how: dict[int, str]) -> None:
        self.how = how

    def __call__(self, model: nn.Module, part: int, parts: int) -> Sums:
        epoch = int(next(model.parameters()).item())
        match self.how.get(epoch) if part == parts - 1 else None:
            case "raises":
                self.raise_deep_inside()
            case "exits":
                raise SystemExit(3)
            case "is killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "is gone":
                os._exit(5)
            case "returns nothing":
                return None  # type: ignore[return-value]
        return Sums(count=1, epoch=epoch, pid=os.getpid())

    def raise_deep_inside(self) -> None:
        raise ZeroDivisionError("the picture is broken")


def counter() -> nn.Module:
    """Return a model whose weight tests set to the epoch."""
    return nn.Linear(1, 1, bias=False)


def set_epoch(model: nn.Module, epoch: int) -> None:
    """Train, so to speak."""
    with torch.no_grad():
        next(model.parameters()).fill_(epoch)


def evaluate_in_training_mode(model: nn.Module, part: int, parts: int) -> Sums:
    """Forget ``model.eval()``, as scripts do; batch norm then changes its buffers."""
    model.train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.eval()
    images, labels = data(2)
    return Sums(count=len(labels), loss=functional.cross_entropy(model(images), labels))


PRECISIONS = ("none", "ieee", "tf32", "bf16")


def precisions() -> dict[str, str]:
    """Return PyTorch's precisions of operations in float32."""
    backends: Any = torch.backends
    places = {
        "cuda.matmul": backends.cuda.matmul, "cudnn.conv": backends.cudnn.conv,
        "cudnn.rnn": backends.cudnn.rnn, "mkldnn.matmul": backends.mkldnn.matmul,
    }  # fmt: skip
    return {name: place.fp32_precision for name, place in places.items()}


def said_precisions(model: nn.Module, part: int, parts: int) -> Sums:
    """Return them as numbers."""
    del model, part, parts
    return Sums(count=1, **{name: PRECISIONS.index(each) for name, each in precisions().items()})
