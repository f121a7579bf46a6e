"""The CUDA calls of a shared loader, on GPUs that are memfds; notes in a file what they are asked.

`install` puts them in the place of `radt.loaders.shared.cuda`, in a test and in its server.
"""

from __future__ import annotations

import json
import mmap
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from radt.loaders.shared import cuda
from tests.support.shared_loading import make_planned
from tests.support.waiting import wait_until

#: The consumer's device ``cuda:N`` is the N-th of them.
GPUS = ["GPU-0", "GPU-1"]


@dataclass(frozen=True)
class Call:
    """What a process asked for: ``copy``, ``finish``, ``view``, ``gone``, ``mark``, ``done`` …

    ``place`` is the first byte of the batch on the GPU, ``source`` where a copy comes from:
    ``pinned``, ``host``, the UUID of a GPU, or ``made there``.
    """

    process: int
    name: str
    place: int = -1
    gpu: str = ""
    source: str = ""


class OnGpu(torch.Tensor):
    """A tensor that says that it is on the first GPU."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", 0)


@dataclass
class Fake:
    """GPUs.

    Args:
        log: Where calls are noted.
        fails: What the driver or PyTorch cannot do: ``see`` the GPU in the server, ``map`` the
            server's memory in a consumer, ``read`` it there, ``copy`` in the server from the third
            batch on, or ``pin``; or to ``hurry``: it copies a batch while the next one is loaded.
        linked: Whether GPUs read each other's memory.
    """

    log: Path
    fails: str = ""
    linked: bool = True
    #: By address: the GPU and the first byte of each view of its memory; the size of pinned memory.
    views: dict[int, tuple[str, int]] = field(default_factory=dict)
    pinned: dict[int, int] = field(default_factory=dict)
    last_gone: int = -1

    def note(self, name: str, place: int = -1, gpu: str = "", source: str = "") -> None:
        line = json.dumps(asdict(Call(os.getpid(), name, place, gpu, source))) + "\n"
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(log, line.encode())
        os.close(log)

    @property
    def calls(self) -> list[Call]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [Call(**json.loads(line)) for line in lines]

    def count(self, name: str) -> int:
        return sum(call.name == name for call in self.calls)

    def copies(self) -> list[Call]:
        return [call for call in self.calls if call.name == "copy"]

    @property
    def busy(self) -> Path:
        """While there is this file, the GPU has not come to the end of its work."""
        return self.log.with_suffix(".busy")

    # The calls of `radt.loaders.shared.cuda` ------------------------------------------------------

    def identity(self, device: torch.device) -> str:
        return GPUS[device.index or 0]

    def device_of(self, gpu: str) -> torch.device:
        if self.fails == "see":
            raise cuda.CudaError("it is not visible")
        return torch.device("cuda", GPUS.index(gpu))

    def can_access(self, device: torch.device, peer: torch.device) -> bool:
        return self.linked and device != peer

    def peers_of(self, device: torch.device) -> list[torch.device]:
        return []

    def pin(self, memory: memoryview) -> torch.Tensor:
        if self.fails == "pin":
            raise cuda.CudaError("operation not supported")
        flat = torch.frombuffer(memory, dtype=torch.uint8)
        self.note("pin")
        self.pinned[flat.data_ptr()] = len(flat)
        return flat

    def unpin(self, flat: torch.Tensor) -> None:
        del self.pinned[flat.data_ptr()]
        self.note("unpin")

    def moved(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        return tensor.clone()

    def side_stream(self, device: torch.device) -> str:
        return self.identity(device)

    def copy(self, target: torch.Tensor, source: torch.Tensor, *streams: str) -> None:
        gpu, place = self.views.get(target.data_ptr(), (streams[-1], -1))
        address = source.data_ptr()
        if isinstance(source, OnGpu):
            kind = "made there"
        elif address in self.views:
            kind = self.views[address][0]
            assert [kind, gpu] == list(streams), "a stream of each GPU"
        else:
            areas = self.pinned.items()
            kind = "pinned" if any(a <= address < a + size for a, size in areas) else "host"
        self.note("copy", place, gpu, kind)
        if self.fails == "copy" and len(self.copies()) > 2:
            raise cuda.CudaError("an illegal memory access was encountered")
        target.copy_(source)

    def finish(self, copies: str) -> None:
        if self.fails == "hurry":
            before = self.count("finish")
            wait_until(lambda: self.count("load") > min(before + 1, 9), "the next batch is loaded")
        self.note("finish", gpu=copies)

    def stream(self, device: torch.device) -> None:
        return None

    def mark(self, work: None) -> _Mark:
        return _Mark(self, self.last_gone)


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


class Memory:
    """As `cuda.GpuMemory`, of a fake."""

    def __init__(
        self,
        fake: Fake,
        device: torch.device,
        nbytes: int,
        descriptor: int = -1,
        peers: Sequence[torch.device] = (),
    ) -> None:
        self._fake, self.nbytes, self._gpu = fake, nbytes, fake.identity(device)
        self.descriptor = -1
        self._is_server = descriptor < 0
        if self._is_server:
            descriptor = self.descriptor = os.memfd_create("fake-gpu")
            weakref.finalize(self, os.close, descriptor)
            os.ftruncate(descriptor, nbytes)
        elif fake.fails == "map":
            os.close(descriptor)
            raise cuda.CudaError("it is another instance")
        self._map = mmap.mmap(descriptor, nbytes)
        if not self._is_server:
            os.close(descriptor)

    def view(self, begin: int, nbytes: int, gone: Callable[[], None] | None = None) -> torch.Tensor:
        if self._fake.fails == "read" and not self._is_server:
            raise cuda.CudaError("the address is not valid")
        view = memoryview(self._map)[begin : begin + nbytes]
        made = torch.frombuffer(view, dtype=torch.uint8)
        self._fake.views[made.data_ptr()] = self._gpu, begin
        if gone is not None:
            self._fake.note("view", begin, self._gpu)
            weakref.finalize(view, self._gone, begin, gone).atexit = False
        return made

    def _gone(self, place: int, gone: Callable[[], None]) -> None:
        self._fake.note("gone", place)
        self._fake.last_gone = place
        gone()


_METHODS = (
    *("identity", "device_of", "can_access", "peers_of", "pin", "unpin", "moved"),
    *("side_stream", "copy", "finish", "stream", "mark"),
)


def install(fake: Fake, patch: Callable[[Any, str, Any], None] = setattr) -> None:
    """Replace the CUDA calls of this process."""
    patch(cuda, "GpuMemory", partial(Memory, fake))
    for name in _METHODS:
        patch(cuda, name, getattr(fake, name))


def make_on_gpu(
    log: str, fails: str, samples: int, workers: int, linked: bool, made_there: bool
) -> Any:
    """Called in the server: the loader, and GPUs for the server."""
    fake = Fake(Path(log), fails, linked)
    install(fake)
    loader = make_planned(samples, 2, workers)
    return _Encoded(loader, fake) if made_there else loader


class _Encoded:
    """A loader that works on the GPU, as a frozen encoder does."""

    def __init__(self, loader: DataLoader[Any], fake: Fake) -> None:
        self._loader, self._fake = loader, fake
        self.sampler = loader.sampler

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Any:
        for batch in self._loader:
            self._fake.note("load")
            yield tuple(part.as_subclass(OnGpu) for part in batch)
