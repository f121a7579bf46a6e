"""radt.loaders.EchoLoader when data are bad or processes end: one clear error, nothing left."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import Dataset

from radt.errors import LoaderError
from radt.loaders import EchoLoader
from tests.support.waiting import TIMEOUT_S, alive, wait_until

either = pytest.mark.parametrize("workers", [0, 2])


class Samples(Dataset[Any]):
    """Whose samples a function makes of the index."""

    def __init__(self, sample: Callable[[int], Any], count: int = 20) -> None:
        self.sample, self.count = sample, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.sample(index)


def loader_of(sample: Callable[[int], Any], workers: int, **arguments: Any) -> EchoLoader:
    defaults = {"batch_size": 2, "repeats": 3, "buffer": 4, "num_workers": workers}
    return EchoLoader(Samples(sample), **{"augment": None} | defaults | arguments)


def consume(loader: EchoLoader) -> int:
    return sum(len(batch) for batch in loader)


class BrokenSampleError(Exception):
    """Of a dataset."""


def broken_at_7(index: int) -> torch.Tensor:
    if index == 7:
        raise BrokenSampleError("not a JPEG")
    return torch.tensor(index)


@either
def test_a_dataset_that_raises_is_named_with_the_sample(workers: int) -> None:
    """The next epoch fails in the same way: nobody waits for the sample that never came."""
    with loader_of(broken_at_7, workers) as loader:
        for _ in range(3):
            message = "sample 7 cannot be decoded: BrokenSampleError: not a JPEG"
            with pytest.raises(LoaderError, match=message) as caught:
                consume(loader)
            assert "broken_at_7" in caught.value.__notes__[0], "the dataset's own traceback"
            decoded = loader.decoded
            loader.set_epoch(1)
        assert loader.decoded == decoded


@either
def test_an_augmentation_that_raises_is_named_with_the_sample(workers: int) -> None:
    def augment(sample: torch.Tensor, chance: np.random.Generator) -> torch.Tensor:
        raise BrokenSampleError("too small to crop")

    with (
        loader_of(torch.tensor, workers, augment=augment) as loader,
        pytest.raises(LoaderError, match=r"sample \d+ cannot be augmented: BrokenSampleError"),
    ):
        consume(loader)


@either
def test_samples_that_do_not_collate_are_an_error(workers: int) -> None:
    with (
        loader_of(lambda index: torch.zeros(index), workers, max_bytes=1000) as loader,
        pytest.raises(LoaderError, match="a batch of epoch 0 cannot be made: RuntimeError"),
    ):
        consume(loader)


@either
def test_what_cannot_be_kept_is_refused_with_the_sample(workers: int) -> None:
    with (
        loader_of(lambda index: (torch.tensor(index), lambda: index), workers) as loader,
        pytest.raises(LoaderError, match=r"sample \d+ cannot be buffered: .*\[1\], a function,"),
    ):
        consume(loader)


@either
def test_a_sample_larger_than_the_first_is_refused_with_its_index(workers: int) -> None:
    def growing(index: int) -> torch.Tensor:
        return torch.zeros(1000 if index == 5 else 10)

    def one(batch: list[torch.Tensor]) -> list[torch.Tensor]:
        return batch

    with loader_of(growing, workers, collate_fn=one) as loader:
        message = r"sample 5 cannot be buffered: it has [\d,]+ bytes, .* max_bytes=\d+"
        with pytest.raises(LoaderError, match=message):
            consume(loader)
    with loader_of(growing, workers, collate_fn=one, max_bytes=5000) as loader:
        sizes = sorted(len(sample) for batch in loader for sample in batch)
    assert sizes == [10] * 57 + [1000] * 3


def test_samples_of_many_shapes_come_back_as_they_were() -> None:
    def sample(index: int) -> dict[str, Any]:
        return {
            "image": torch.arange(index * 3.0).reshape(index, 3).to(torch.bfloat16),
            "mask": np.arange(index) % 2 == 0,
            "last": torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
            "more": (index, [index / 3, None, f"nummer {index} – ✓"], True),
        }

    def unchanged(batch: list[Any]) -> list[Any]:
        return batch

    with loader_of(sample, 1, collate_fn=unchanged, max_bytes=3000) as loader:
        for made in (made for batch in loader for made in batch):
            index = made["more"][0]
            expected = sample(index)
            assert made["more"] == expected["more"]
            assert torch.equal(made["image"], expected["image"])
            assert made["image"].dtype == torch.bfloat16
            assert np.array_equal(made["mask"], expected["mask"])
            assert made["last"].is_contiguous(memory_format=torch.channels_last)


@either
def test_a_buffer_that_does_not_fit_is_refused_with_the_sizes(workers: int) -> None:
    with (
        loader_of(torch.tensor, workers, max_bytes=2**50) as loader,
        pytest.raises(LoaderError, match=r"The buffer needs .* \(8 samples of .* are available"),
    ):
        consume(loader)


def test_a_second_loop_ends_the_first_and_closing_ends_both() -> None:
    with loader_of(torch.tensor, 1) as loader:
        first = iter(loader)
        next(first)
        second = iter(loader)
        next(second)
        with pytest.raises(LoaderError, match="The loop has ended"):
            next(first)
        next(second)
    with pytest.raises(LoaderError, match="The loop has ended"):
        next(second)
    with pytest.raises(LoaderError, match="The loader is closed"):
        iter(loader)


def descriptors() -> set[str]:
    """Return what this process has open that an echo buffer may have left."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            found.add(f"{link.name} {os.readlink(link)}")
        except FileNotFoundError:  # the one of the listing itself
            continue
    return {name for name in found if "radt-echo" in name}


def mappings() -> int:
    return Path("/proc/self/maps").read_text(encoding="utf-8").count("radt-echo")


@either
def test_nothing_is_left_after_it_is_closed(workers: int) -> None:
    gc.collect()  # errors of other tests
    children = set(psutil.Process().children(recursive=True))
    for _ in range(3):
        with loader_of(torch.tensor, workers) as loader:
            batches = iter(loader)
            next(batches)  # and the loop is left in the middle of a fill
            assert descriptors()
        # What tests before this one have left may go meanwhile.
        assert set(psutil.Process().children(recursive=True)) <= children
        assert not descriptors()
        assert not mappings()


def workers_of(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


@pytest.mark.parametrize("told_late", [False, True])
def test_a_worker_that_is_killed_is_an_error_and_the_next_loop_has_new_ones(
    told_late: bool, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """torch's handler raises wherever the main thread is: here never, or while they are stopped."""
    before = {process.pid for process in workers_of(os.getpid())}
    with loader_of(torch.tensor, 2) as loader:
        batches = iter(loader)
        next(batches)
        (victim, *_) = [p for p in workers_of(os.getpid()) if p.pid not in before]
        handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        request.addfinalizer(lambda: signal.signal(signal.SIGCHLD, handler))
        stop_loop = loader._stop_loop

        def tell() -> None:
            monkeypatch.setattr(loader, "_stop_loop", stop_loop)
            raise RuntimeError(f"DataLoader worker (pid {victim.pid}) is killed by signal: Killed.")

        if told_late:
            monkeypatch.setattr(loader, "_stop_loop", tell)
        victim.send_signal(signal.SIGKILL)
        with pytest.raises(LoaderError, match="The next batch did not come"):
            list(batches)
        loader.set_epoch(0)
        assert consume(loader) == 60
    wait_until(
        lambda: {process.pid for process in workers_of(os.getpid())} <= before, "no workers left"
    )


_STUCK = """\
import os, time, torch
from torch.utils.data import Dataset
from radt.loaders import EchoLoader
from radt.loaders.echo.fills import Epoch, EpochPlan, Sizes

(first, *_) = EpochPlan(Sizes(12, 2, 6, 0, False), Epoch(0, 3, 0)).actions(0)

class Stuck(Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        state = "hangs" if index == first.index else "waits"
        os.write(1, f"{state} {os.getpid()}\\n".encode())
        if index == first.index:
            time.sleep(3600)
        return torch.tensor(index)

for batch in EchoLoader(Stuck(), None, batch_size=2, repeats=3, buffer=6, num_workers=2):
    pass
"""


def test_workers_end_with_the_process_of_the_loader() -> None:
    """One hangs in its dataset, the other waits for the size of the sample that it decodes."""
    script = subprocess.Popen([sys.executable, "-c", _STUCK], stdout=subprocess.PIPE, text=True)
    assert script.stdout is not None
    pids = dict(script.stdout.readline().split() for _ in range(2))
    assert pids.keys() == {"hangs", "waits"}
    script.send_signal(signal.SIGKILL)
    script.wait(TIMEOUT_S)
    os.kill(int(pids["hangs"]), signal.SIGKILL)  # no loader can end a dataset's code
    wait_until(lambda: not alive(int(pids["waits"])), "the other worker has ended")


@pytest.fixture(autouse=True)
def no_children_left() -> Iterator[None]:
    yield
    assert not [p for p in workers_of(os.getpid()) if "radt-echo" in _maps(p)]


def _maps(process: psutil.Process) -> str:
    try:
        return Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8")
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return ""
