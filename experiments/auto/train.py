"""Train a network on generated data, as one of four kinds that need different parts of a machine.

``single`` computes with one thread and ``double`` with two. ``waiting`` has a slow source of data,
for which it waits most of the time. ``large`` keeps data in more than half of the memory.

Runs by itself (``python train.py --kind single``) and under radt. The work of a kind is always the
same, whatever runs beside it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

import radt
from radt.devices.host import Host

CLASSES, FEATURES = 10, 1024
#: Samples in a block of data, which has 16 MiB.
BLOCK = 4096
RATE = 0.01

Batch = tuple[NDArray[np.float32], NDArray[np.int64]]


@dataclass(frozen=True)
class Kind:
    """Resources that a training uses.

    Attributes:
        threads: That multiply matrices.
        width: Of the hidden layers.
        batch_size: Samples in a batch.
        steps: Batches in an epoch.
        wait_s: Until the source has the next batch.
        memory: Share of the memory that the data fill; 0 for one block.
    """

    threads: int
    width: int
    batch_size: int
    steps: int
    wait_s: float = 0.0
    memory: float = 0.0


KINDS = {
    "single": Kind(threads=1, width=1024, batch_size=256, steps=16),
    "double": Kind(threads=2, width=2048, batch_size=512, steps=3),
    "waiting": Kind(threads=1, width=128, batch_size=64, steps=12, wait_s=0.04),
    "large": Kind(threads=1, width=1024, batch_size=256, steps=8, memory=0.6),
}


class Network:
    """Two hidden layers with ReLU. NumPy has no gradients, so they are written out."""

    def __init__(self, width: int, chance: Generator) -> None:
        self.layers = [
            chance.standard_normal((before, after), np.float32) * np.float32((2 / before) ** 0.5)
            for before, after in pairwise((FEATURES, width, width, CLASSES))
        ]

    def step(self, inputs: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
        """Train on a batch, and return its loss."""
        active = [inputs]
        for layer in self.layers[:-1]:
            active.append(np.maximum(active[-1] @ layer, 0))
        scores = active[-1] @ self.layers[-1]
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        right = np.arange(len(labels)), labels
        loss = -np.log(shares[right] + 1e-9).mean()
        shares[right] -= 1
        gradient = shares / len(labels)
        for place in reversed(range(len(self.layers))):
            change = active[place].T @ gradient
            if place:
                gradient = (gradient @ self.layers[place].T) * (active[place] > 0)
            self.layers[place] -= RATE * change
        return float(loss)


class Source:
    """Samples in memory: noise around the centre of their class."""

    def __init__(self, kind: Kind, chance: Generator) -> None:
        self._kind = kind
        self._chance = chance
        self._labels = np.arange(BLOCK) % CLASSES
        centres = chance.standard_normal((CLASSES, FEATURES), np.float32)
        noise = 8 * chance.standard_normal((BLOCK, FEATURES), np.float32)
        self._blocks = copies(centres[self._labels] + noise, kind.memory)

    def batches(self) -> Iterator[Batch]:
        """Yield the batches of an epoch."""
        for _ in range(self._kind.steps):
            time.sleep(self._kind.wait_s)
            block = self._chance.integers(len(self._blocks))
            rows = self._chance.integers(BLOCK, size=self._kind.batch_size)
            yield self._blocks[block, rows], self._labels[rows]


def copies(block: NDArray[np.float32], share: float) -> NDArray[np.float32]:
    """Return as many copies of a block as fill a share of the memory, and at least one.

    Raises:
        MemoryError: The machine has hardly any memory left. Without this, the kernel would kill
            a process of its choice.
    """
    host = Host.detect()
    limits = (host.available_bytes, host.memory_limit_bytes)
    usable_bytes = min((limit for limit in limits if limit is not None), default=0)
    blocks = np.empty(
        (max(1, round(share * usable_bytes / block.nbytes)), *block.shape), np.float32
    )
    for number, place in enumerate(blocks):
        if number % 32 == 0:
            left_bytes = Host.detect().available_bytes
            if left_bytes is not None and left_bytes < 0.1 * usable_bytes:
                raise MemoryError(f"only {left_bytes / 1e9:.1f} GB are left")
        place[:] = block
    return blocks


def main() -> None:
    """Train and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    kind, chance = KINDS[args.kind], np.random.default_rng(args.seed)
    with threadpool_limits(kind.threads), radt.Run() as run:
        source, network = Source(kind, chance), Network(kind.width, chance)
        for epoch in run.epochs(args.epochs):
            for inputs, labels in run.batches(source.batches()):
                loss = network.step(inputs, labels)
            run.log_metric("loss", loss, epoch)
            print(f"epoch {epoch}/{args.epochs}  loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
