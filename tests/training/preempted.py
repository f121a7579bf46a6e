"""A small training with all that interruptions could disturb, and somebody who interrupts it."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from radt.training import Job
from radt.training.lease import DeviceLease

LIMIT_S = 180.0
Batch = tuple[Tensor, Tensor]


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a state."""
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"in vain: {what}"
        os.sched_yield()


def is_waited_for(lease: DeviceLease) -> bool:
    """Return whether the other priority waits for a lease that is held."""
    return lease._marks[lease._other] != 0


class Net(nn.Module):
    """Statistics of batches, random numbers of three kinds, writing in place, a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4))
        self.act = nn.ReLU(inplace=True)
        self.second = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Dropout())
        self.head = nn.Linear(4 * 36, 3)

    def forward(self, images: Tensor) -> Tensor:
        noise = random.random() + np.random.normal()
        found = self.act(self.first(images * (1 + noise)))
        found = self.act(self.second(found) + found)
        result: Tensor = self.head(found.flatten(1))
        return result


def batches(steps: int) -> list[Batch]:
    """Return the batches of an epoch."""
    generator = torch.Generator().manual_seed(5)
    return [
        (torch.randn(4, 1, 6, 6, generator=generator), torch.randint(3, (4,), generator=generator))
        for _ in range(steps)
    ]


class Recording:
    """A loss function that keeps the losses of steps that reached the optimiser."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def job(self, name: str, steps: int, *, seed: int, priority: int = 0, epochs: int = 2) -> Job:
        """Return a job that records."""
        torch.manual_seed(seed)
        model = Net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        last = 0.0

        def loss(output: Tensor, target: Tensor) -> Tensor:
            nonlocal last
            result = nn.functional.cross_entropy(output, target)
            last = result.item()
            return result

        def keep(*_: object) -> None:
            self.losses.append(last)

        optimizer.register_step_post_hook(keep)
        return Job(
            name,
            model,
            optimizer,
            loss,
            batches(steps),
            epochs=epochs,
            priority=priority,
            seed=seed,
        )


def is_same(one: Job, other: Job) -> bool:
    """Return whether parameters, buffers and optimiser states are equal, bit by bit."""
    state, expected = one.state_dict(), other.state_dict()
    pairs = [(state["model"][key], value) for key, value in expected["model"].items()]
    for key, values in expected["optimizer"]["state"].items():
        pairs += [(state["optimizer"]["state"][key][name], v) for name, v in values.items()]
    return len(pairs) > 20 and all(torch.equal(a, b) for a, b in pairs)


class Thief:
    """A thread that uses devices at high priority.

    Args:
        draws: Whether it draws random numbers meanwhile, which are the process's: a job that goes
            on at another device at the same time would miss them.
    """

    def __init__(self, *, draws: bool) -> None:
        self._draws = draws
        self._leases: dict[torch.device, DeviceLease] = {}
        self._asked = threading.Semaphore(0)
        self._device: torch.device | None = None
        self._thread = threading.Thread(target=self._steal)
        self._thread.start()

    def come(self, lease: DeviceLease) -> None:
        """Return when the thief waits for the device of a lease that is held."""
        self._device = lease.device
        self._asked.release()
        until(lambda: is_waited_for(lease), "the thief")

    def _steal(self) -> None:
        while True:
            self._asked.acquire()
            if self._device is None:
                break
            lease = self._leases.get(self._device)
            if lease is None:
                lease = self._leases[self._device] = DeviceLease(self._device, "high")
            with lease:
                if self._draws:
                    random.random()
                    np.random.normal()
                    torch.rand(3)
        for lease in self._leases.values():
            lease.close()

    def leave(self) -> None:
        """End the thread."""
        self._device = None
        self._asked.release()
        self._thread.join(LIMIT_S)


@contextmanager
def thief(*, draws: bool = True) -> Iterator[Thief]:
    """Return a thief, whose thread ends with the block."""
    somebody = Thief(draws=draws)
    try:
        yield somebody
    finally:
        somebody.leave()
