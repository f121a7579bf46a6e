"""Check techniques on the device: each must train as the plain loop does there."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from functools import partial
from io import StringIO
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.gpu_check.model import Result, Setting
from radt.loaders import SharedLoader
from radt.training import (
    DeviceLease,
    Job,
    OverlappedValidator,
    Sums,
    offload,
    preemptible,
)

_WIDTH, _CLASSES, _LAYERS = 256, 10, 16
_BATCHES, _BATCH_SIZE = 12, 64
_EPOCHS = 3
#: Half of the parameters fit, with a layer's gradients and the activations.
_BUDGET_BYTES = 3_000_000
_WAIT_S = 20.0
#: The optimiser of offloaded parameters works on the host, whose sums may be rounded otherwise.
_ROUNDING = 1e-5

Batch = tuple[Tensor, Tensor]


@dataclass
class Training:
    """The losses of a training, and its parameters afterwards."""

    losses: list[Tensor] = field(default_factory=list)
    parameters: dict[str, Tensor] = field(default_factory=dict)

    def ended(self, model: nn.Module) -> Training:
        self.parameters = {name: one.detach().clone() for name, one in model.named_parameters()}
        return self

    def deviation(self, other: Training) -> float:
        """Return the largest difference of a loss or parameter; infinite if some are missing."""
        if (
            len(self.losses) != len(other.losses)
            or self.parameters.keys() != other.parameters.keys()
        ):
            return math.inf
        pairs = [(one, other.parameters[name]) for name, one in self.parameters.items()]
        pairs += zip(self.losses, other.losses, strict=True)
        return max(float((a.cpu() - b.cpu()).abs().max()) for a, b in pairs)


def _batches(device: torch.device) -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(_BATCH_SIZE, _WIDTH, generator=generator).to(device),
            torch.randint(_CLASSES, (_BATCH_SIZE,), generator=generator).to(device),
        )
        for _ in range(_BATCHES)
    ]


def _model(device: torch.device, dropout: float = 0.1) -> nn.Sequential:
    """Return the same model each time, with the random states after its initialisation."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(_LAYERS):
        layers += [nn.Linear(_WIDTH, _WIDTH), nn.ReLU(), nn.Dropout(dropout)]
    model = nn.Sequential(*layers, nn.Linear(_WIDTH, _CLASSES)).to(device)
    torch.manual_seed(2)
    return model


def _optimizer(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=0.05, momentum=0.9)


def _step(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
    inputs, target = batch
    optimizer.zero_grad()
    loss = cross_entropy(model(inputs), target)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.detach()


def _plain(device: torch.device, dropout: float = 0.1) -> Training:
    model = _model(device, dropout)
    optimizer = _optimizer(model)
    losses = [_step(model, optimizer, batch) for batch in _batches(device)]
    return Training(losses).ended(model)


def _compared(plain: Training, other: Training, allowed: float = 0.0) -> tuple[str, list[str]]:
    """Return the comparison in words, and as a problem if they deviate more than allowed."""
    deviation = plain.deviation(other)
    if deviation == 0:
        return f"{len(plain.losses)} losses and all parameters are equal bit by bit", []
    words = f"losses or parameters differ from plain training by up to {deviation:.2g}"
    return words, [words] if deviation > allowed else []


def job(setting: Setting) -> Result:
    """Train the first half as one job and the second half as another one with its state."""
    device = setting.torch_device()
    plain, training = _plain(device), Training()
    half = _BATCHES // 2
    state: dict[str, Any] = {}
    for part in (slice(0, half), slice(half, None)):
        model = _model(device)
        one = Job("check", model, _optimizer(model), cross_entropy)
        if state:
            one.load_state_dict(state)
        training.losses += [one.step(batch) for batch in _batches(device)[part]]
        state = one.state_dict()
    words, problems = _compared(plain, training.ended(model))
    return Result.of(words, problems)


def preemption(setting: Setting) -> Result:
    """Have another thread ask for the device while a step is under way."""
    device = setting.torch_device()
    plain, training = _plain(device), Training()
    model, batches = _model(device), _batches(device)
    optimizer = _optimizer(model)
    lease, urgent = DeviceLease(device, priority="low"), DeviceLease(device, priority="high")
    preemptible(model, lease, batches[0][0], max_segment_ms=0.001)
    torch.manual_seed(2)
    waits_s: list[float] = []
    within = 0

    def ask() -> None:
        begun_s = time.perf_counter()
        with urgent:
            waits_s.append(time.perf_counter() - begun_s)
            torch.ones(_WIDTH, _WIDTH, device=device).mm(torch.ones(_WIDTH, 1, device=device))

    def ask_within(*_: object) -> None:
        thread = threading.Thread(target=ask)
        thread.start()
        threads.append(thread)
        deadline_s = time.monotonic() + _WAIT_S
        while not lease.is_wanted and time.monotonic() < deadline_s:
            time.sleep(0)

    threads: list[threading.Thread] = []
    for number, batch in enumerate(batches):
        with lease:
            hook = model[0].register_forward_hook(ask_within) if number % 3 == 1 else None
            training.losses.append(_step(model, optimizer, batch))
            if hook is not None:
                hook.remove()
                within += len(waits_s) == len(threads)
    for thread in threads:
        thread.join(_WAIT_S)
    lease.close()
    urgent.close()
    words, problems = _compared(plain, training.ended(model))
    if within < len(threads):
        problems.append(f"{within} of {len(threads)} requests had the device within the step")
    longest_ms = max(waits_s, default=0.0) * 1e3
    return Result.of(f"{within} requests waited {longest_ms:.2g} ms at most; {words}", problems)


def offloading(setting: Setting) -> Result:
    """Train with a budget that is smaller than the model."""
    device = setting.torch_device()
    plain, training = _plain(device, dropout=0.0), Training()
    model, batches = _model(torch.device("cpu"), dropout=0.0), _batches(device)
    size_bytes = sum(one.numel() * one.element_size() for one in model.parameters())
    with offload(
        model,
        optimizer_class=partial(SGD, lr=0.05, momentum=0.9),
        loss=cross_entropy,
        sample=batches[0],
        device=device,
        memory=_BUDGET_BYTES,
        accumulate=1,
    ) as step:
        training.losses = [step([batch]).detach() for batch in batches]
        segments = len(step.plan.segments)
    allowed = _ROUNDING if setting.has_cuda else 0.0
    words, problems = _compared(plain, training.ended(model), allowed)
    if segments < 2:
        problems.append(f"the model was not divided: {step.plan}")
    budget = f"{size_bytes:,} bytes of parameters in {_BUDGET_BYTES:,} bytes, {segments} segments"
    return Result.of(f"{budget}; {words}", problems)


def _evaluate(model: nn.Module, part: int, parts: int) -> Sums:
    device = next(model.parameters()).device
    pairs = [(model(inputs), target) for inputs, target in _batches(device)[part::parts]]
    loss = sum(cross_entropy(scores, target, reduction="sum") for scores, target in pairs)
    correct = sum((scores.argmax(1) == target).sum() for scores, target in pairs)
    return Sums(count=sum(len(target) for _, target in pairs), loss=loss, accuracy=correct)


def validation(setting: Setting) -> Result:
    """Validate after each epoch, beside training and serially, in a process and in a thread."""
    device = setting.torch_device()
    trainings: dict[str, Training] = {}
    metrics: dict[str, dict[int, dict[str, float]]] = {}
    problems = []
    for where in ("serially", "process", "thread"):
        model, training = _model(device), Training()
        optimizer = _optimizer(model)
        validator = (
            None if where == "serially" else OverlappedValidator(_evaluate, model, where=where)
        )
        results = {}
        for epoch in range(_EPOCHS):
            training.losses += [_step(model, optimizer, batch) for batch in _batches(device)]
            if validator is None:
                results[epoch] = _serially(model)
            else:
                validator.submit(epoch)
        if validator is not None:
            results = {epoch: dict(validator.wait(epoch).metrics) for epoch in range(_EPOCHS)}
            validator.close()
        metrics[where], trainings[where] = results, training.ended(model)
    for where in ("process", "thread"):
        words, different = _compared(trainings["serially"], trainings[where])
        problems += different
        if metrics[where] != metrics["serially"]:
            problems.append(f"{where}: {metrics[where]}, serially {metrics['serially']}")
    return Result.of(f"{_EPOCHS} epochs, in a process and in a thread; {words}", problems)


def _serially(model: nn.Module) -> dict[str, float]:
    model.eval()
    with torch.no_grad():
        sums = _evaluate(model, 0, 1)
    model.train()
    return {name: float(value) / sums.count for name, value in sums.sums.items()}


def make_loader() -> DataLoader[Any]:
    """Return a loader that gives the same batches in every process."""
    generator = torch.Generator().manual_seed(3)
    data = torch.randn(_BATCHES * _BATCH_SIZE - 1, _WIDTH, generator=generator)
    return DataLoader(
        TensorDataset(data, torch.arange(len(data))),
        _BATCH_SIZE,
        shuffle=True,
        num_workers=2,
        generator=generator,
    )


def shared_loader(setting: Setting) -> Result:
    """Read an epoch with two consumers, and compare all batches with those of the plain loader."""
    device = setting.torch_device()
    expected = list(make_loader())
    said = StringIO()
    with (
        redirect_stderr(said),
        SharedLoader(make_loader, name="gpu-check", device=_asked(device)) as one,
        SharedLoader(make_loader, name="gpu-check", device=_asked(device)) as other,
        # Each in a thread of its own: an epoch begins once all consumers ask for it.
        ThreadPoolExecutor(2) as threads,
    ):
        got = list(zip(*threads.map(_copies, (one, other)), strict=True))
    problems = [f"{len(got)} batches, expected {len(expected)}"] * (len(got) != len(expected))
    for place, (batch, copies) in enumerate(zip(expected, got, strict=False)):
        for copy in copies:
            for is_, should_be in zip(copy, batch, strict=True):
                if is_.device.type != device.type or not torch.equal(is_.cpu(), should_be):
                    problems.append(f"batch {place} is another one, or on {is_.device}")
    if said.getvalue():
        problems.append(said.getvalue().strip())
    return Result.of(f"{len(got)} batches on {device} for each of two consumers", problems)


def _asked(device: torch.device) -> torch.device | None:
    return device if device.type == "cuda" else None


def _copies(loader: SharedLoader) -> list[tuple[Tensor, ...]]:
    return [tuple(part.clone() for part in batch) for batch in loader]
