"""Loaders for tests to share, whose factories are called in servers, and a consumer's process."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from radt.loaders import SharedLoader, wire
from radt.loaders.plan import permutation
from radt.loaders.shared.factory import Factory
from radt.loaders.shared.server import LoaderServer
from radt.loaders.shared.starting import ServerOptions
from tests.support.waiting import TIMEOUT_S, wait_until

Indices = list[list[int]]
#: Processes are forked from one that has PyTorch already.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.support.shared_loading"])
_numbers = itertools.count()


class Numbered(Dataset[tuple[torch.Tensor, int]]):
    """Sample i is a tensor of four times i, and i.

    Args:
        samples: How many.
        bad: What the last sample does, a key of `_FAULTS`; empty for nothing.
    """

    def __init__(self, samples: int, bad: str = "") -> None:
        self.samples, self.bad = samples, bad

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if self.bad and index == self.samples - 1:
            return _FAULTS[self.bad](), index
        return torch.full((4,), float(index)), index


def _raise() -> Any:
    raise ZeroDivisionError("the picture is broken")


def _hang() -> Any:
    while True:
        time.sleep(3600)


def _die() -> Any:
    os.kill(os.getpid(), signal.SIGKILL)
    return _hang()


def _generator() -> Any:
    return (number for number in range(3))


_FAULTS = {"raises": _raise, "hangs": _hang, "dies": _die, "generator": _generator}


class Planned(Sampler[int]):
    """Another order in every epoch, as of a `DistributedSampler`."""

    def __init__(self, samples: int) -> None:
        self.samples, self.epoch = samples, 0

    def __iter__(self) -> Iterator[int]:
        return iter(permutation(self.samples, 0, self.epoch).tolist())

    def __len__(self) -> int:
        return self.samples

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def make_planned(
    samples: int, batch_size: int, workers: int = 0, drop_last: bool = False
) -> DataLoader[Any]:
    return DataLoader(
        Numbered(samples),
        batch_size,
        sampler=Planned(samples),
        num_workers=workers,
        drop_last=drop_last,
    )


def make_faulty(bad: str, samples: int = 9, batch_size: int = 2, workers: int = 0) -> Any:
    """The last of five batches is bad."""
    collate = list if bad == "generator" else None
    data = Numbered(samples, bad)
    return DataLoader(data, batch_size, num_workers=workers, collate_fn=collate)


def make_random(
    samples: int, batch_size: int, workers: int = 1, persistent: bool = False
) -> DataLoader[Any]:
    """Shuffled, with random augmentation; ``persistent`` workers live on after an epoch."""
    generator = torch.Generator().manual_seed(11)
    data = Noisy(samples)
    return DataLoader(
        *(data, batch_size),
        shuffle=True,
        generator=generator,
        num_workers=workers,
        persistent_workers=persistent,
    )


class Noisy(Numbered):
    """Samples with noise that differs in each epoch."""

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return torch.full((4,), float(index)) + torch.rand(4), index


def make_slow_to_begin(flag: str) -> Any:
    """Its first batch takes until there is a file."""
    return SlowToBegin(Path(flag))


class SlowToBegin:
    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def __len__(self) -> int:
        return 20

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(20):
            wait_until(self.flag.exists, "its file")
            yield torch.tensor([number])


def make_slow_to_leave(flag: str) -> Any:
    """A loop that is left says so with a file beside ``flag``, and takes until that is there."""
    return SlowToLeave(Path(flag))


class SlowToLeave:
    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def __iter__(self) -> Iterator[torch.Tensor]:
        try:
            for number in range(20):
                yield torch.tensor([number])
        finally:
            left_flag(self.flag).touch()
            wait_until(self.flag.exists, "its file")


def left_flag(flag: Path) -> Path:
    """Return the file that there is once the loop of `make_slow_to_leave` is left."""
    return flag.with_suffix(".left")


def make_nothing() -> None:
    """A factory that has forgotten its return."""


def make_error() -> Any:
    raise FileNotFoundError("no folder of pictures")


def make_huge() -> list[Any]:
    return [torch.zeros(1).expand(2**45)]


def make_growing() -> list[Any]:
    """Batches of growing size, of several kinds, with strings beside."""
    return [
        {
            "x": torch.arange(n * 1000, dtype=torch.int16).reshape(n, 1000),
            "names": [f"picture {i}" * n for i in range(n)],
            "n": n,
        }
        for n in (1, 2, 7, 3, 40, 1)
    ]


def make_mixed(
    samples: int,
    workers: int = 0,
    persistent: bool = False,
    context: str | None = None,
    epoch: int = 0,
) -> DataLoader[Any]:
    """One sample a batch, each of another size and content; one is much larger."""
    return DataLoader(
        Sized(samples),
        batch_size=1,
        sampler=_ByEpoch(samples, epoch),
        num_workers=workers,
        persistent_workers=persistent,
        multiprocessing_context=context,
    )


class Sized(Dataset[torch.Tensor]):
    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.arange(index * 100 + 90_000 * (index == 23))


class _ByEpoch(Planned):
    def __init__(self, samples: int, epoch: int) -> None:
        super().__init__(samples)
        self.epoch = epoch


def name_of_its_own() -> str:
    return f"{os.getpid()}-{next(_numbers)}"


def shared(samples: int, batch_size: int, **options: Any) -> SharedLoader:
    """A shared loader with a server of its own, unless a name is given.

    ``own_size`` is the consumer's own batch size.
    """
    options["batch_size"] = options.pop("own_size", None)
    options = {"name": name_of_its_own(), "linger_s": 0.1} | options
    arguments = {"samples": samples, "batch_size": batch_size} | options.pop("arguments", {})
    return SharedLoader(make_planned, arguments=arguments, **options)


def expected(samples: int, batch_size: int, epoch: int = 0, drop_last: bool = False) -> Indices:
    """The indices of a plain loader's batches."""
    loader = make_planned(samples, batch_size, drop_last=drop_last)
    loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
    return [batch[1].tolist() for batch in loader]


def epoch_of(loader: Iterable[Any]) -> Indices:
    return [batch[1].tolist() for batch in loader]


def flat(batches: Indices) -> list[int]:
    return [index for batch in batches for index in batch]


def server_of(loader: SharedLoader) -> int:
    assert loader._session is not None
    return loader._session.server_pid


def message_waits(loader: SharedLoader) -> bool:
    """Whether the server has sent something that the consumer has not read."""
    assert loader._session is not None
    return bool(select.select([loader._session._connection], [], [], 0)[0])


def start_forked_server(
    factory: Factory, options: ServerOptions, listening: socket.socket
) -> threading.Thread:
    """Do as `session.start_server`, in a process that need not import PyTorch for two seconds."""
    process = _CONTEXT.Process(
        target=_serve,
        args=(listening, dict(os.environ), factory.to_json(), asdict(options)),
        daemon=True,
    )
    process.start()
    listening.close()
    thread = threading.Thread(target=process.join, name=f"child-{process.pid}", daemon=True)
    thread.start()
    return thread


def _serve(
    listening: socket.socket,
    environment: dict[str, str],
    factory: dict[str, Any],
    options: dict[str, Any],
) -> None:
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    multiprocessing.current_process().daemon = False  # it may have workers
    multiprocessing.set_start_method("fork", force=True)  # which are forked, as anywhere
    inherited = wire.inherited_listener(listening.detach())
    chosen = Factory.from_json(factory), ServerOptions(**options)
    sys.exit(LoaderServer(*chosen, inherited, is_service=False).run())


class Taker(threading.Thread):
    """A consumer as a training loop, in a thread of this process.

    Args:
        loader: It is closed at the end.
        epochs: How many.
        keep: Which batches it keeps for good.
        batches: An epoch that has begun: the first of its epochs.
    """

    def __init__(
        self,
        loader: SharedLoader,
        epochs: int = 1,
        keep: frozenset[int] = frozenset(),
        batches: Iterator[Any] | None = None,
    ) -> None:
        super().__init__(daemon=True)
        self.loader, self.epochs, self.keep, self.batches = loader, epochs, keep, batches
        self.server = server_of(loader)
        self.indices: list[Indices] = []
        self.lengths: list[int] = []
        self.kept: list[tuple[Any, list[float]]] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with self.loader:
                for epoch in range(self.epochs):
                    batches = self.loader if epoch or self.batches is None else self.batches
                    self.lengths.append(len(self.loader))
                    self.indices.append([])
                    for number, (tensors, indices) in enumerate(batches):
                        assert tensors[:, 0].tolist() == indices.tolist()
                        self.indices[-1].append(indices.tolist())
                        if number in self.keep:
                            self.kept.append((tensors, tensors.flatten().tolist()))
                        else:
                            tensors.zero_()  # nobody else sees it
                            indices += 1
        except BaseException as error:  # noqa: BLE001 - raised by `result`
            self.error = error

    def wait_for(self, count: int) -> None:
        """Wait until it has been given so many batches of its first epoch."""
        wait_until(lambda: self.indices and len(self.indices[0]) == count, f"{count} batches")

    def result(self) -> list[Indices]:
        self.join(TIMEOUT_S)
        assert not self.is_alive(), "it hangs"
        if self.error is not None:
            raise self.error
        return self.indices


def cut(order: list[int], size: int) -> Indices:
    return [order[begin : begin + size] for begin in range(0, len(order), size)]


class Consumer:
    """A process that opens `shared` and does as it is told; it can be stopped and killed.

    Args:
        name: Of the shared loader.
        samples: Of the loader.
        batch_size: Of the loader.
    """

    def __init__(self, name: str, samples: int, batch_size: int) -> None:
        self._connection, theirs = _CONTEXT.Pipe()
        self.process = _CONTEXT.Process(
            target=_consume,
            args=(theirs, dict(os.environ), name, samples, batch_size),
            daemon=True,  # a test that fails does not wait for it
        )
        self.process.start()
        theirs.close()
        self.answer()

    def answer(self) -> list[int]:
        """Return the indices that it has been given; empty if there were none."""
        assert self._connection.poll(TIMEOUT_S), "it says nothing"
        indices: list[int] = self._connection.recv()
        return indices

    def tell(self, command: str) -> None:
        """``ask`` for an epoch, ``take`` a batch and hold it, ``drop`` it, ``fork``, ``close``.

        To fork is to begin to validate, say: its answer is the worker's process id.
        """
        self._connection.send(command)

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> None:
        self._connection.close()
        self.process.join()


def _consume(
    connection: Connection, environment: dict[str, str], name: str, samples: int, batch_size: int
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    multiprocessing.current_process().daemon = False  # it may have workers
    batches: Iterator[Any] = iter(())
    held = None
    validation = DataLoader(Numbered(4), num_workers=1, multiprocessing_context="fork")
    with shared(samples, batch_size, name=name) as loader:
        connection.send([])
        while True:
            try:
                command = connection.recv()
            except EOFError:
                break
            match command:
                case "ask":
                    batches = iter(loader)
                case "take":
                    held = next(batches, None)
                case "drop":
                    held = None
                case "fork":
                    own = iter(validation)
                    next(own)
                    connection.send([worker.pid for worker in multiprocessing.active_children()])
                    continue
                case "close":
                    loader.close()
            connection.send(held[1].tolist() if held else [])
