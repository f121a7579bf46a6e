"""Measure the CPU time that loading an image at a size takes, in three ways.

Full decode and resize, scaled decode (`radt.loaders.images`), pre-resized copies
(`radt.loaders.progressive.copies`). The ways take turns, image by image, so that other work on the
machine meets all three; CPU time of the thread counts, not wall time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from radt.loaders.images import open_at
from radt.loaders.progressive.copies import Copies, write


def photograph(path: Path, width: int, height: int, seed: int) -> None:
    """Write a JPEG with detail at all scales, as photographs have: about 2.8 bits a pixel."""
    chance = np.random.default_rng(seed)
    image = np.zeros((height, width, 3), np.float32)
    for cells in (4, 16, 64, 256):
        grid = chance.normal(0, 1, (cells * height // width + 1, cells, 3))
        for channel in range(3):
            layer = Image.fromarray(grid[..., channel].astype(np.float32))
            image[..., channel] += np.asarray(layer.resize((width, height))) * 40 / cells**0.25
    Image.fromarray(np.clip(image + 127, 0, 255).astype(np.uint8)).save(path, quality=90)


def ways(paths: list[Path], copies: Copies) -> dict[str, Callable[[int, int], Image.Image]]:
    """Return each way of loading as a function of an image's number and a size."""

    def full(index: int, size: int) -> Image.Image:
        with Image.open(paths[index]) as image:
            return image.convert("RGB").resize(_fitting(image.size, size))

    def scaled(index: int, size: int) -> Image.Image:
        image = open_at(paths[index], size)
        return image.resize(_fitting(image.size, size))

    def copied(index: int, size: int) -> Image.Image:
        image = open_at(copies.nearest(index, size), size)
        return image if min(image.size) == size else image.resize(_fitting(image.size, size))

    return {"full decode": full, "scaled decode": scaled, "copy": copied}


def _fitting(edges: tuple[int, int], size: int) -> tuple[int, int]:
    ratio = size / min(edges)
    return round(edges[0] * ratio), round(edges[1] * ratio)


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--sizes", type=int, nargs="+", default=[96, 128, 160, 224])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.jpg" for number in range(options.images)]
        for number, path in enumerate(paths):
            photograph(path, 500, 375, number)
        print(f"500×375 JPEG, {np.mean([one.stat().st_size for one in paths]) / 1000:.0f} kB")
        loading = ways(paths, write(paths, Path(folder) / "copies", options.sizes))
        print("| edge | full decode | scaled decode | copy |\n|---|---:|---:|---:|")
        for size in options.sizes:
            rounds = [_round(loading, size, options.images) for _ in range(options.rounds + 1)][1:]
            means = {name: np.median([one[name] for one in rounds]) for name in loading}
            base = means["full decode"]
            cells = [f"{base:.2f} ms"]
            cells += [f"{means[name]:.2f} ms ({means[name] / base:.2f})" for name in loading][1:]
            print(f"| {size} | {' | '.join(cells)} |", flush=True)


def _round(
    loading: dict[str, Callable[[int, int], Image.Image]], size: int, count: int
) -> dict[str, float]:
    """Milliseconds of CPU time an image, of each way."""
    spent_s = dict.fromkeys(loading, 0.0)
    for index in range(count):
        for name, load in loading.items():
            began_s = time.thread_time()
            np.asarray(load(index, size))
            spent_s[name] += time.thread_time() - began_s
    return {name: value / count * 1000 for name, value in spent_s.items()}


if __name__ == "__main__":
    main()
