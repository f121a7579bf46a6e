"""JPEG files whose class lies in coarse and in fine structure.

A class is a tint (coarse: seen at any size) and a direction of stripes. Some images have a few
broad stripes, others so many that only large images show them. So small images teach both, and
large ones are needed. Number, phase and contrast of the stripes, shading and noise are random.
"""

from __future__ import annotations

import fcntl
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

TINTS = np.array([[0.65, 0.45, 0.4], [0.42, 0.62, 0.42], [0.42, 0.45, 0.65]], np.float32)
DIRECTIONS = 4
CLASSES = len(TINTS) * DIRECTIONS
#: Fewest and most stripes in an edge; spread evenly over their logarithm.
STRIPES = (4.0, 32.0)
#: Levels by which pixels of enlarged files differ at most: about 3 bits a pixel, as photographs.
GRAIN = 8


@dataclass(frozen=True)
class Images:
    """Paths of image files and the class of each."""

    paths: list[Path]
    labels: list[int]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[int, Path, int]:
        return index, self.paths[index], self.labels[index]


def written(
    folder: Path, part: str, count: int, edge: int, wrong: float = 0.0, enlarged: int = 0
) -> Images:
    """Return generated images of a part of the data (``train``, ``validation``).

    They are written by the first call; each depends only on its part and number. A share of the
    labels is ``wrong``: drawn at random. With ``enlarged``, files have this edge and grain: they
    show the same and take longer to decode.
    """
    place = folder / (f"{part}-{edge}-{enlarged}" if enlarged else f"{part}-{edge}")
    place.mkdir(parents=True, exist_ok=True)
    paths = [place / f"{number:06}.jpg" for number in range(count)]
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = [number for number, path in enumerate(paths) if not path.exists()]
        if missing:
            with ProcessPoolExecutor() as processes:
                work = partial(_write, paths, part, edge, enlarged)
                for _ in processes.map(work, missing, chunksize=16):
                    pass
    chance = np.random.default_rng(0)
    labels = np.arange(count) % CLASSES
    drawn_labels = np.where(
        chance.random(count) < wrong, chance.integers(0, CLASSES, count), labels
    )
    return Images(paths, drawn_labels.tolist())


def _write(paths: list[Path], part: str, edge: int, enlarged: int, number: int) -> None:
    chance = np.random.default_rng([number, *part.encode()])
    part_path = paths[number].with_suffix(".part")
    image = Image.fromarray(drawn(number % CLASSES, edge, chance))
    if enlarged:
        pixels = np.asarray(image.resize((enlarged, enlarged)), np.int16)
        grain = chance.integers(-GRAIN, GRAIN + 1, (enlarged, enlarged, 1), np.int16)
        image = Image.fromarray(np.clip(pixels + grain, 0, 255).astype(np.uint8))
    image.save(part_path, "JPEG", quality=90)
    part_path.replace(paths[number])


def drawn(label: int, edge: int, chance: np.random.Generator) -> np.ndarray:
    """Return an image of a class: uint8 of shape (edge, edge, 3)."""
    rows, columns = (grid / edge - 0.5 for grid in np.mgrid[0:edge, 0:edge].astype(np.float32))
    tint = TINTS[label % len(TINTS)] + chance.normal(0, 0.08, 3).astype(np.float32)
    angle = np.pi * (label // len(TINTS) + chance.uniform(-0.2, 0.2)) / DIRECTIONS
    count = np.exp(chance.uniform(*np.log(STRIPES)))
    across = np.cos(angle) * rows + np.sin(angle) * columns + chance.uniform()
    stripes = np.sin(2 * np.pi * count * across)
    contrast = chance.uniform(0.06, 0.2)
    slope = chance.uniform(-0.3, 0.3) * rows + chance.uniform(-0.3, 0.3) * columns
    image = tint + (contrast * stripes + slope)[..., None]
    image += chance.normal(0, 0.15, image.shape)
    return (np.clip(image, 0, 1) * 255).astype(np.uint8)
