"""tensorsocket 0.0.5 in an environment of its own, by its README's example.

python -m benchmarks.loaders.tensorsocket_peer producer FOLDER WORKERS CHUNK
python -m benchmarks.loaders.tensorsocket_peer consumer
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from benchmarks.loaders import data
from benchmarks.loaders.processes import report


class _Tuples:
    """Batches as tuples, which it expects."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return ((batch,) for batch in self._loader)


def produce(folder: str, workers: int, chunk: int) -> None:
    """Load for all consumers until killed."""
    TensorProducer = importlib.import_module("tensorsocket").TensorProducer  # noqa: N806

    batches = _Tuples(data.decoding(folder, workers, data.Pixels.FLOATS))
    producer = TensorProducer(batches, producer_batch_size=chunk)
    while True:
        for _ in producer:
            pass


def consume() -> None:
    """Take batches until standard input is closed."""
    TensorConsumer = importlib.import_module("tensorsocket").TensorConsumer  # noqa: N806

    for batch in TensorConsumer(batch_size=data.BATCH):
        images = next(part for part in batch if isinstance(part, torch.Tensor))
        if report(data.look_at(images)):
            break


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "producer":
        produce(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        consume()
