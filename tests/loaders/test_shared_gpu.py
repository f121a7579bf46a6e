"""`SharedLoader` on a GPU, which is a memfd here: what is tested is all but the CUDA calls."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from radt.errors import LoaderError
from radt.loaders import SharedLoader
from radt.loaders.shared import cuda
from tests.support.fake_cuda import GPUS, Fake, install, make_on_gpu
from tests.support.shared_loading import (
    Taker,
    epoch_of,
    expected,
    message_waits,
    name_of_its_own,
    server_of,
)
from tests.support.waiting import wait_until


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake(tmp_path / "calls")
    install(made, monkeypatch.setattr)
    return made


def shared(
    fake: Fake, name: str = "", workers: int = 0, made_there: bool = False, **options: Any
) -> SharedLoader:
    arguments = {
        "log": str(fake.log),
        "fails": fake.fails,
        "samples": 20,
        "workers": workers,
        "linked": fake.linked,
        "made_there": made_there,
    }
    options = {"device": "cuda", "linger_s": 0.1} | options
    return SharedLoader(make_on_gpu, name=name or name_of_its_own(), arguments=arguments, **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_consumers_on_a_gpu_and_beside_it_get_the_same_batches(fake: Fake, workers: int) -> None:
    name = name_of_its_own()
    devices = ["cuda", "cuda", None]
    takers = [Taker(shared(fake, name, workers=workers, device=device), 2) for device in devices]
    for taker in takers:
        taker.start()
    for taker in takers:
        assert taker.result() == [expected(20, 2), expected(20, 2, epoch=1)]
    assert len(fake.copies()) == 20, "once, and not for each consumer"
    assert {call.source for call in fake.copies()} == {"pinned"}
    names = [call.name for call in fake.calls]
    assert names.count("view") == 40
    assert names.count("pin") == 1


@pytest.mark.parametrize(
    ("linked", "made_there", "sources"),
    [
        (True, False, ["pinned", GPUS[0]]),
        (False, False, ["pinned", "pinned"]),
        (True, True, ["made there", GPUS[0]]),
        (False, True, ["made there", "pinned"]),
    ],
)
def test_a_batch_goes_to_each_gpu_from_where_it_is_near(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    linked: bool,
    made_there: bool,
    sources: list[str],
) -> None:
    fake = Fake(tmp_path / "calls", linked=linked)
    install(fake, monkeypatch.setattr)
    name = name_of_its_own()
    devices = ["cuda:0", "cuda:1", None]
    takers = [Taker(shared(fake, name, made_there=made_there, device=each)) for each in devices]
    for taker in takers:
        taker.start()
    for taker in takers:
        assert taker.result() == [expected(20, 2)]
    for gpu, source in zip(GPUS, sources, strict=True):
        assert {call.source for call in fake.copies() if call.gpu == gpu} == {source}
    assert {call.gpu for call in fake.calls if call.name == "finish"} == set(GPUS)


def test_a_place_is_filled_again_when_every_gpu_has_done_with_it(fake: Fake) -> None:
    with shared(fake) as loader:
        server = server_of(loader)
        for _ in range(2):
            epoch_of(loader)
    filled: dict[int, str] = {}
    for call in fake.calls:
        if call.name == "pin":
            continue
        if call.name == "finish":
            (place,) = (place for place, state in filled.items() if state == "copy")
            filled[place] = "finish"
        else:
            before = {"copy": (None, "done"), "view": ("finish",), "gone": ("view",)}
            before |= {"mark": ("gone",), "done": ("mark",)}
            assert filled.get(call.place) in before[call.name], call
            filled[call.place] = call.name
        assert (call.process == server) == (call.name in ("copy", "finish"))
    assert len(filled) <= 3  # buffer + 1
    assert set(filled.values()) == {"done"}


def test_nothing_is_freed_while_the_gpu_is_at_it(fake: Fake) -> None:
    name = name_of_its_own()
    with shared(fake, name) as loader:
        other = Taker(shared(fake, name, device=None))
        other.start()
        batches, got = iter(loader), []
        fake.busy.touch()
        for _ in range(3):  # buffer + 1
            wait_until(lambda: message_waits(loader), "the next batch")
            got.append(next(batches)[1].tolist())
        other.wait_for(3)
        fake.note("idle")
        fake.busy.unlink()
        assert got + epoch_of(batches) == expected(20, 2)
        assert other.result() == [expected(20, 2)]
    names = [call.name for call in fake.calls]
    while_busy = names[: names.index("idle")]
    assert "done" not in while_busy
    assert while_busy.count("mark") == while_busy.count("copy") == 3


def test_views_of_a_batch_that_must_not_be_written_and_copies_of_those_kept(fake: Fake) -> None:
    with shared(fake, mutable=False) as loader:
        batches = list(loader)
        assert [batch[1].tolist() for batch in batches] == expected(20, 2)
    assert [batch[0][:, 0].tolist() for batch in batches] == expected(20, 2)


def test_what_was_kept_of_a_closed_loader_stays(fake: Fake) -> None:
    name = name_of_its_own()
    taker = Taker(shared(fake, name))
    with shared(fake, name, mutable=False) as loader:
        taker.start()
        kept = next(iter(loader))
    assert taker.result() == [expected(20, 2)]
    assert kept[1].tolist() == expected(20, 2)[0]


@pytest.mark.parametrize(
    ("fails", "why"),
    [
        ("see", "it is not visible"),
        ("map", "another instance"),
        ("read", "the address is not valid"),
        ("copy", "an illegal memory access"),
    ],
)
def test_without_places_each_process_copies_its_own_and_says_so_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    fails: str,
    why: str,
) -> None:
    fake = Fake(tmp_path / "calls", fails)
    install(fake, monkeypatch.setattr)
    with shared(fake) as loader:
        assert [epoch_of(loader), epoch_of(loader)] == [
            expected(20, 2),
            expected(20, 2, epoch=1),
        ]
    said = capfd.readouterr().err
    assert said.count("keeps no batches on the GPU") == 1
    assert why in said
    # The server learns of it, and copies no more.
    assert len(fake.copies()) < 20


def test_the_next_batch_is_loaded_while_one_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake(tmp_path / "calls", "hurry")
    install(fake, monkeypatch.setattr)
    with shared(fake, made_there=True) as loader:
        assert epoch_of(loader) == expected(20, 2)
    assert fake.count("load") == fake.count("finish") == 10


def test_memory_that_cannot_be_pinned_is_copied_from_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fake = Fake(tmp_path / "calls", "pin")
    install(fake, monkeypatch.setattr)
    with shared(fake) as loader:
        assert epoch_of(loader) == expected(20, 2)
    assert {call.source for call in fake.copies()} == {"host"}
    assert "cannot be pinned: operation not supported" in capfd.readouterr().err


def test_wrong_devices_are_refused() -> None:
    for device, message in (("tpu", "device is 'tpu'"), ("meta", "device is 'meta'")):
        with pytest.raises(LoaderError, match=message):
            SharedLoader(make_on_gpu, name=name_of_its_own(), device=device)
    if not torch.cuda.is_available():
        with pytest.raises(LoaderError, match="there is no cuda"):
            SharedLoader(make_on_gpu, name=name_of_its_own(), device="cuda")


class Driver:
    """NVIDIA's driver; one of its functions may fail."""

    def __init__(self, fails: str = "") -> None:
        self.calls: list[str] = []
        self.fails = fails

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.calls.append(name.removeprefix("cuMem"))
            if name == self.fails:
                return 1
            if name == "cuMemGetAllocationGranularity":
                arguments[0]._obj.value = 1 << 21
            elif name == "cuMemExportToShareableHandle":
                arguments[0]._obj.value = os.memfd_create("exported")
            return 0

        return call


NEW = ["sync", "GetAllocationGranularity", "Create", "ExportToShareableHandle"]
MAPPED = ["AddressReserve", "Map", "SetAccess", "Release"]
GONE = ["sync", "Unmap", "AddressFree"]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(cuda, "_driver", lambda: made)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: made.calls.append("sync"))
    return made


def test_memory_is_made_mapped_and_given_back_in_the_drivers_order(driver: Driver) -> None:
    assert ctypes.sizeof(cuda._Properties) == 32  # of cuda.h
    assert ctypes.sizeof(cuda._Access) == 12
    gc.collect()
    before = open_descriptors()
    memory = cuda.GpuMemory(torch.device("cuda", 0), 5000)
    assert driver.calls == NEW + MAPPED
    assert memory.nbytes == 1 << 21
    assert open_descriptors() == before + 1
    opened = cuda.GpuMemory(torch.device("cuda", 0), memory.nbytes, os.dup(memory.descriptor))
    assert driver.calls == [*NEW, *MAPPED, "sync", "ImportFromShareableHandle", *MAPPED]
    del opened, memory
    assert driver.calls[-6:] == GONE * 2
    assert open_descriptors() == before


@pytest.mark.parametrize("fails", ["Create", "ExportToShareableHandle", "Map", "SetAccess"])
def test_memory_that_cannot_be_had_leaves_nothing(driver: Driver, fails: str) -> None:
    driver.fails = f"cuMem{fails}"
    gc.collect()
    before = open_descriptors()
    with pytest.raises(cuda.CudaError, match=f"cuMem{fails} failed"):
        cuda.GpuMemory(torch.device("cuda", 0), 5000)
    gc.collect()
    assert open_descriptors() == before
    assert driver.calls.count("Release") == (fails != "Create")
    assert driver.calls.count("AddressReserve") == driver.calls.count("AddressFree")
    assert driver.calls.count("Unmap") == (fails == "SetAccess")


def test_what_pytorch_raises_is_an_error_of_the_gpu(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server or a consumer goes on without the GPU."""
    current: list[torch.device] = []
    gone: list[str] = []

    @contextlib.contextmanager
    def as_current(device: torch.device) -> Iterator[None]:
        current.append(device)
        yield

    def as_tensor(region: Any, device: torch.device) -> torch.Tensor:
        assert current == [device]
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "device", as_current)
    monkeypatch.setattr(torch, "as_tensor", as_tensor)
    second = torch.device("cuda", 1)
    memory = cuda.GpuMemory(second, 5000, peers=[torch.device("cuda", 0)])
    with pytest.raises(cuda.CudaError, match="illegal memory access"):
        memory.view(0, 100, lambda: gone.append("gone"))
    gc.collect()
    assert not gone, "the batch is read from the machine's memory, and released after that"
    with pytest.raises(cuda.CudaError, match="must match the size"):
        cuda.copy(torch.empty(3, device="meta"), torch.empty(2, device="meta"))
    if not torch.cuda.is_available():
        for call in (lambda: cuda.pin(memoryview(bytearray(8))), lambda: cuda.side_stream(second)):
            with pytest.raises(cuda.CudaError):
                call()


def open_descriptors() -> int:
    """How many of the driver's this process has open."""
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the listing, and what others close
            count += "memfd:exported" in os.readlink(link)
    return count
