"""Use each decoded image three times, in one of several ways; print what it took as JSON.

    python -m benchmarks.loaders.echo_ways WAY

The interpreter needs torch and pillow, radt for `Way.ECHO`, and MONAI for its ways.
"""

from __future__ import annotations

import importlib
import io
import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

USES = 3
SAMPLES, BATCH, FILL, WORKERS = 240, 20, 60, 2
#: Different files; their content does not matter.
_FILES = 20

Item = tuple[Tensor, int]
Use = tuple[Tensor, int, float]


class Way(StrEnum):
    """How samples are used again."""

    PLAIN = "DataLoader"
    ECHO = "EchoLoader"
    THREAD = "MONAI ThreadDataLoader"
    SMART = "MONAI SmartCacheDataset"


class Decoding(Dataset[Item]):
    """JPEGs in memory, decoded and resized; counts decodings in all processes.

    Args:
        height: Of the files.
        width: Of the files.
        edge: Of the decoded images.
        samples: How many.
    """

    def __init__(self, height: int, width: int, edge: int, samples: int) -> None:
        chance = np.random.default_rng(0)
        self._files = [_jpeg(chance, height, width) for _ in range(_FILES)]
        self._edge, self._samples = edge, samples
        self.decoded = multiprocessing.Value("q", 0)
        self.cpu_s = 0.0  # of this process

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> Item:
        began_s = time.process_time()
        with Image.open(io.BytesIO(self._files[index % _FILES])) as image:
            small = image.convert("RGB").resize((self._edge, self._edge), Image.Resampling.BILINEAR)
        pixels = torch.from_numpy(np.array(small)).permute(2, 0, 1).contiguous()
        self.cpu_s += time.process_time() - began_s
        with self.decoded.get_lock():
            self.decoded.value += 1
        return pixels, index


def _jpeg(chance: np.random.Generator, height: int, width: int) -> bytes:
    coarse = chance.normal(0, 1, (height // 8, width // 8, 3)).repeat(8, 0).repeat(8, 1)
    image = 128 + 40 * coarse + 10 * chance.normal(size=coarse.shape)
    file = io.BytesIO()
    pixels = np.clip(image, 0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(file, "JPEG", quality=90)
    return file.getvalue()


def augmented(item: Item, chance: np.random.Generator) -> Use:
    """Change the brightness; the factor tells uses apart."""
    pixels, index = item
    brightness = float(chance.uniform(0.8, 1.2))
    return pixels.float().mul_(brightness / 64), index, brightness


class _Augmented(Dataset[Use]):
    """Decoded and augmented in one, as scripts do it for a plain loader."""

    def __init__(self, dataset: Decoding) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Use:
        return augmented(self._dataset[index], np.random.default_rng())


def _plain(dataset: Decoding) -> Iterator[Any]:
    loader = DataLoader(
        _Augmented(dataset), BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True
    )
    for _ in range(USES):
        yield from loader


def _echo(dataset: Decoding) -> Iterator[Any]:
    from radt.loaders import EchoLoader

    with EchoLoader(
        dataset, augmented, batch_size=BATCH, repeats=USES, buffer=FILL, num_workers=WORKERS
    ) as loader:
        yield from loader


def _thread(dataset: Decoding) -> Iterator[Any]:
    yield from importlib.import_module("monai.data").ThreadDataLoader(
        _Augmented(dataset), batch_size=BATCH, shuffle=True, num_workers=WORKERS, repeats=USES
    )


def _smart(dataset: Decoding) -> Iterator[Any]:
    """Train the cache's samples, then replace a third of them; decodings run in threads."""
    data, transforms = (importlib.import_module(f"monai.{name}") for name in ("data", "transforms"))

    class Decode(transforms.Transform):  # type: ignore[misc, name-defined]
        def __call__(self, index: int) -> dict[str, Item]:
            return {"item": dataset[index]}  # MONAI maps transforms over tuples

    class Augment(transforms.RandomizableTransform):  # type: ignore[misc, name-defined]
        def __call__(self, decoded: dict[str, Item]) -> Use:
            return augmented(decoded["item"], np.random.default_rng())

    cache = data.SmartCacheDataset(
        list(range(SAMPLES)),
        transforms.Compose([Decode(), Augment()]),
        replace_rate=1 / USES,
        cache_num=FILL,
        num_init_workers=WORKERS,
        num_replace_workers=WORKERS,
        progress=False,
    )
    cache.start()
    for _ in range(SAMPLES * USES // FILL):
        yield from DataLoader(cache, BATCH, shuffle=True)  # threads of the cache decode
        cache.update_cache()
    cache.shutdown()


WAYS: dict[Way, Callable[[Decoding], Iterator[Any]]] = {
    Way.PLAIN: _plain,
    Way.ECHO: _echo,
    Way.THREAD: _thread,
    Way.SMART: _smart,
}
_MODULES = {
    Way.PLAIN: (),
    Way.ECHO: ("radt.loaders",),
    Way.THREAD: ("monai.data",),
    Way.SMART: ("monai.data", "monai.transforms"),
}


def main() -> None:
    """Load, and print what it took, imports not included."""
    way = Way(sys.argv[1])
    for name in _MODULES[way]:
        importlib.import_module(name)
    torch.set_num_threads(1)
    dataset = Decoding(376, 504, 224, SAMPLES)
    seen: set[tuple[int, float]] = set()
    indices: list[int] = []
    began_s, began_cpu_s = time.perf_counter(), _cpu_s()
    for pixels, index, brightness in WAYS[way](dataset):
        pixels[:, :, ::32, ::32].sum()
        indices += index.tolist()
        seen |= set(zip(index.tolist(), brightness.tolist(), strict=True))
    found = {
        "uses": len(indices),
        "samples": len(set(indices)),
        "decoded": dataset.decoded.value,
        "different": len(seen),
        "wall_s": time.perf_counter() - began_s,
        "cpu_s": _cpu_s() - began_cpu_s,
    }
    print(json.dumps(found))


def _cpu_s() -> float:
    """Return the CPU time of this process and of its children that ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


if __name__ == "__main__":
    main()
