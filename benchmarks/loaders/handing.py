"""Other ways to hand a batch to processes: ``python -m benchmarks.loaders.handing WAY K``.

The producer hands over one batch after another and waits for an answer of each consumer.
``pipe`` pickles the batch for each consumer. ``file_descriptor`` and ``file_system`` are the two
strategies of torch.multiprocessing: the batch is copied once into new shared memory (what a
DataLoader's worker does), and consumers get where it is.
"""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import Tensor

from benchmarks.loaders import data
from benchmarks.loaders.processes import report

PIPE = "pipe"


def consume(way: str, connection: Connection, queue: Any) -> None:
    """Take batches until there is None."""
    torch.set_num_threads(1)
    if way != PIPE:
        mp.set_sharing_strategy(way)  # type: ignore[no-untyped-call]
    while True:
        batch = connection.recv() if way == PIPE else queue.get()
        if batch is None:
            return
        value = data.look_at(torch.from_numpy(batch) if way == PIPE else batch)
        del batch
        connection.send(value)


def shared_copy(batch: Tensor) -> Tensor:
    """Return a copy in shared memory: one copy, as a worker's collate makes it."""
    storage = torch.UntypedStorage._new_shared(batch.nbytes)  # type: ignore[no-untyped-call]  # noqa: SLF001
    return torch.empty(0, dtype=batch.dtype).set_(storage).view(batch.shape).copy_(batch)


def main() -> None:
    """Hand over until standard input is closed."""
    torch.set_num_threads(1)
    way, count = sys.argv[1], int(sys.argv[2])
    if way != PIPE:
        mp.set_sharing_strategy(way)  # type: ignore[no-untyped-call]
    context = mp.get_context("spawn")
    ends, queues, consumers = [], [], []
    for _ in range(count):
        here, there = context.Pipe()
        queue = context.SimpleQueue()
        consumer = context.Process(target=consume, args=(way, there, queue))
        consumer.start()
        ends.append(here)
        queues.append(queue)
        consumers.append(consumer)
    for batch in data.ready():
        if way == PIPE:
            for end in ends:
                end.send(batch.numpy())
        else:
            shared = shared_copy(batch)
            for queue in queues:
                queue.put(shared)
            del shared
        values = {end.recv() for end in ends}
        if report(values.pop()):
            break
    for end, queue in zip(ends, queues, strict=True):
        (end.send if way == PIPE else queue.put)(None)
    for consumer in consumers:
        consumer.join()


if __name__ == "__main__":
    main()
