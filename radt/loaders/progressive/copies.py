"""Pre-resized copies of image files on disk, so that small images are cheap to read and decode.

::

    copies = write(paths, "/scratch/copies", sizes=range(128, 320, 32))
    ...
    image = open_at(copies.nearest(index, size), size)
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from radt.errors import LoaderError, described
from radt.loaders.images import open_at

#: Files of one task of a thread.
_CHUNK = 64
#: Copies are made of an image that was decoded at this many times their size or more, where the
#: original has so many pixels: it cannot be told from a copy of all pixels.
_OVERSAMPLING = 2


@dataclass(frozen=True, slots=True)
class _Written:
    """The file name of an image's copies, and which of the sizes it has."""

    name: str
    made: list[bool]


class Copies:
    """Where the copies of a list of images are; what `write` returns.

    Args:
        paths: The originals.
        folders: The folder of each size.
        sizes: Edges of the copies in pixels, ascending.
        written: What there is of each original.
    """

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        folders: Sequence[Path],
        sizes: Sequence[int],
        written: Sequence[_Written],
    ) -> None:
        self._paths, self._folders, self._sizes = paths, folders, sizes
        # Arrays: of millions of Python objects, forked workers would soon have copies of their own.
        self._names = np.array([one.name for one in written], dtype=np.bytes_)
        made = np.array([one.made for one in written], dtype=bool)
        self._made = made.reshape(len(paths), len(sizes))

    def __len__(self) -> int:
        return len(self._paths)

    def nearest(self, index: int, size: int) -> str | os.PathLike[str]:
        """Return the path of the smallest copy whose shorter edge has at least ``size`` pixels.

        The original's path where there is no such copy.
        """
        for place, one in enumerate(self._sizes):
            if one >= size and self._made[index, place]:
                name: bytes = self._names[index]
                return self._folders[place] / name.decode("ascii")
        return self._paths[index]


def write(
    paths: Sequence[str | os.PathLike[str]],
    folder: str | os.PathLike[str],
    sizes: Sequence[int],
    quality: int = 90,
) -> Copies:
    """Write a JPEG copy of each image in each size, unless it is there already.

    A copy's shorter edge has ``size`` pixels; an image that is not larger gets none. Copies are
    complete or absent at any time: after an interruption, call it again. A name depends on the
    original's path, length and time of change, and on the quality, so that a changed original gets
    new copies. The old ones stay; delete the folder to be rid of them. Processes that call it at
    the same time take turns.

    Args:
        paths: The originals, in the order of the dataset.
        folder: Where the copies go; made if missing.
        sizes: Edges in pixels.
        quality: Of JPEG, 1 to 95.

    Raises:
        LoaderError: An original cannot be read, or a copy not be written.
    """
    place, ascending = Path(folder), sorted(set(sizes))
    if not ascending or ascending[0] < 1:
        raise LoaderError(f"expected sizes of 1 pixel or more, got {list(sizes)}")
    if not 1 <= quality <= 95:
        raise LoaderError(f"expected a quality from 1 to 95, got {quality}")
    folders = [_folder_of(place, size, quality) for size in ascending]
    originals = [paths[begin : begin + _CHUNK] for begin in range(0, len(paths), _CHUNK)]
    work = partial(_write_some, folders=folders, sizes=ascending, quality=quality)
    try:
        for one in folders:
            one.mkdir(parents=True, exist_ok=True)
        # Pillow lets other threads run while it decodes, resizes and encodes.
        with _turn(place), ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
            written = [one for some in threads.map(work, originals) for one in some]
    except OSError as error:
        raise LoaderError(
            f"cannot write copies to {place}: {described(error)}", "Choose another folder"
        ) from error
    return Copies(paths, folders, ascending, written)


def _write_some(
    paths: Sequence[str | os.PathLike[str]],
    folders: Sequence[Path],
    sizes: Sequence[int],
    quality: int,
) -> list[_Written]:
    return [_write_one(path, folders, sizes, quality) for path in paths]


def _write_one(
    path: str | os.PathLike[str], folders: Sequence[Path], sizes: Sequence[int], quality: int
) -> _Written:
    """Write what is missing of one image's copies."""
    try:
        status = Path(path).stat()
    except OSError as error:
        raise LoaderError(f"cannot open {path}: {described(error)}") from error
    identity = f"{os.fspath(path)}\0{status.st_size}\0{status.st_mtime_ns}"
    name = f"{hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()}.jpg"
    made = [(folder / name).exists() for folder in folders]
    if not all(made):
        image = open_at(path, _OVERSAMPLING * sizes[-1])
        for place, (folder, size) in enumerate(zip(folders, sizes, strict=True)):
            if not made[place] and min(image.size) > size:
                _save(_resized(image, size), folder / name, quality)
                made[place] = True
    return _Written(name, made)


def _resized(image: Image.Image, size: int) -> Image.Image:
    ratio = size / min(image.size)
    width, height = (max(size, round(edge * ratio)) for edge in image.size)
    return image.resize((width, height), Image.Resampling.LANCZOS)


def _save(image: Image.Image, path: Path, quality: int) -> None:
    """A file of an interrupted call has the same name, and is overwritten by the next one's."""
    part = path.with_suffix(".part")
    image.save(part, "JPEG", quality=quality)
    part.replace(path)


def _folder_of(folder: Path, size: int, quality: int) -> Path:
    return folder / f"{size}-q{quality}"


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Wait for other processes that write here; the kernel frees the lock when one is killed."""
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
