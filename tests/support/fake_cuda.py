"""The CUDA calls of a shared loader, on a GPU that is a memfd; notes in a file what it is asked.

`install` puts them in the place of `radt.loaders.shared.cuda`, in a test and in its server.
"""

from __future__ import annotations

import json
import mmap
import os
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from radt.loaders.shared import cuda
from tests.support.shared_loading import make_planned
from tests.support.waiting import wait_until

GPU = "GPU-of-the-test"


@dataclass(frozen=True)
class Call:
    """What a process asked for: ``copy``, ``finish``, ``view``, ``gone``, ``mark``, ``done``.

    ``place`` is the first byte of the batch on the GPU.
    """

    process: int
    name: str
    place: int = -1


@dataclass
class Fake:
    """A GPU.

    Args:
        log: Where calls are noted.
        seen_by_server: Whether the server sees it.
        mappable: Whether consumers can map the server's memory.
    """

    log: Path
    seen_by_server: bool = True
    mappable: bool = True

    def note(self, name: str, place: int = -1) -> None:
        line = json.dumps(asdict(Call(os.getpid(), name, place))) + "\n"
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(log, line.encode())
        os.close(log)

    @property
    def calls(self) -> list[Call]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [Call(**json.loads(line)) for line in lines]

    @property
    def busy(self) -> Path:
        """While there is this file, the GPU has not come to the end of its work."""
        return self.log.with_suffix(".busy")


class _Mark:
    def __init__(self, fake: Fake, place: int) -> None:
        self._fake, self._place = fake, place
        fake.note("mark", place)

    def query(self) -> bool:
        if self._fake.busy.exists():
            return False
        self._fake.note("done", self._place)
        return True

    def synchronize(self) -> None:
        wait_until(lambda: not self._fake.busy.exists(), "the GPU")
        self._fake.note("done", self._place)


def install(fake: Fake, patch: Callable[[Any, str, Any], None] = setattr) -> None:
    """Replace the CUDA calls of this process."""
    last_gone = [-1]

    class Memory:
        def __init__(self, device: torch.device, nbytes: int, descriptor: int = -1) -> None:
            self.nbytes, self.descriptor = nbytes, -1
            self._is_server = descriptor < 0
            if descriptor < 0:
                descriptor = self.descriptor = os.memfd_create("fake-gpu")
                weakref.finalize(self, os.close, descriptor)
                os.ftruncate(descriptor, nbytes)
            elif not fake.mappable:
                os.close(descriptor)
                raise cuda.CudaError("it is another instance")
            self._map = mmap.mmap(descriptor, nbytes)
            if not self._is_server:
                os.close(descriptor)

        def view(
            self, begin: int, nbytes: int, gone: Callable[[], None] | None = None
        ) -> torch.Tensor:
            fake.note("copy" if self._is_server else "view", begin)
            view = memoryview(self._map)[begin : begin + nbytes]
            if gone is not None:
                weakref.finalize(view, _gone, begin, gone).atexit = False
            return torch.frombuffer(view, dtype=torch.uint8)

    def _gone(place: int, gone: Callable[[], None]) -> None:
        fake.note("gone", place)
        last_gone[0] = place
        gone()

    def device_of(gpu: str) -> torch.device:
        if gpu != GPU or not fake.seen_by_server:
            raise cuda.CudaError("it is not visible")
        return torch.device("cuda")

    replaced: dict[str, Any] = {
        "Memory": Memory,
        "identity": lambda device: GPU,
        "device_of": device_of,
        "moved": lambda tensor, device: tensor.clone(),
        "finish": lambda device: fake.note("finish"),
        "stream": lambda device: None,
        "mark": lambda work: _Mark(fake, last_gone[0]),
    }
    for name, function in replaced.items():
        patch(cuda, name, function)


def make_on_gpu(log: str, seen: bool, samples: int, workers: int) -> DataLoader[Any]:
    """Called in the server: the loader, and a GPU for the server."""
    install(Fake(Path(log), seen_by_server=seen))
    return make_planned(samples, 2, workers)
