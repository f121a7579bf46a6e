"""`SharedLoader` on a GPU, which is a memfd here: what is tested is all but the CUDA calls."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from radt.errors import LoaderError
from radt.loaders import SharedLoader
from radt.loaders.shared import cuda
from tests.support.fake_cuda import Fake, install, make_on_gpu
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
    fake: Fake, name: str = "", samples: int = 20, workers: int = 0, **options: Any
) -> SharedLoader:
    arguments = {
        "log": str(fake.log),
        "seen": fake.seen_by_server,
        "samples": samples,
        "workers": workers,
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
    copies = [call for call in fake.calls if call.name == "copy"]
    views = [call for call in fake.calls if call.name == "view"]
    assert len(copies) == 20, "once, and not for each consumer"
    assert len(views) == 40


def test_a_place_is_filled_again_when_every_gpu_has_done_with_it(fake: Fake) -> None:
    with shared(fake) as loader:
        server = server_of(loader)
        for _ in range(2):
            epoch_of(loader)
    filled: dict[int, str] = {}
    for call in fake.calls:
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
    ("options", "why"),
    [({"seen_by_server": False}, "it is not visible"), ({"mappable": False}, "another instance")],
)
def test_without_places_each_process_copies_its_own_and_says_so_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    options: dict[str, bool],
    why: str,
) -> None:
    fake = Fake(tmp_path / "calls", **options)
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
    assert len([call for call in fake.calls if call.name == "copy"]) < 20


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
    memory = cuda.Memory(torch.device("cuda", 0), 5000)
    assert driver.calls == NEW + MAPPED
    assert memory.nbytes == 1 << 21
    assert open_descriptors() == before + 1
    opened = cuda.Memory(torch.device("cuda", 0), memory.nbytes, os.dup(memory.descriptor))
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
        cuda.Memory(torch.device("cuda", 0), 5000)
    gc.collect()
    assert open_descriptors() == before
    assert driver.calls.count("Release") == (fails != "Create")
    assert driver.calls.count("AddressReserve") == driver.calls.count("AddressFree")
    assert driver.calls.count("Unmap") == (fails == "SetAccess")


def open_descriptors() -> int:
    """How many of the driver's this process has open."""
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the listing, and what others close
            count += "memfd:exported" in os.readlink(link)
    return count
