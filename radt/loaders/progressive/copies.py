"""Pre-resized copies of image files on disk, so that small images are cheap to read and decode.

::

    copies = write(paths, "/scratch/copies", sizes=range(128, 320, 32))
    ...
    image = open_at(copies.nearest(index, size), size)
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from radt.errors import LoaderError, described
from radt.files import locked, whole_file
from radt.loaders.images import open_at

#: Number of files per task of a thread.
_CHUNK = 64
#: Decode originals at this multiple of the copy's size or more, if they have enough pixels. The
#: copy then looks like one made from all pixels.
_OVERSAMPLING = 2


@dataclass(frozen=True, slots=True)
class _Written:
    """The file name of an image's copies, and which sizes exist."""

    name: str
    made: list[bool]


class Copies:
    """The locations of copies of a list of images, as returned by `write`.

    Args:
        paths: The originals.
        folders: The folder of each size.
        sizes: Edges of the copies in pixels, ascending.
        written: The existing copies of each original.
    """

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        folders: Sequence[Path],
        sizes: Sequence[int],
        written: Sequence[_Written],
    ) -> None:
        self._paths, self._folders, self._sizes = paths, folders, sizes
        # Arrays, because forked workers would soon copy the pages of millions of Python objects.
        self._names = np.array([one.name for one in written], dtype=np.bytes_)
        made = np.array([one.made for one in written], dtype=bool)
        self._made = made.reshape(len(paths), len(sizes))

    def __len__(self) -> int:
        return len(self._paths)

    def nearest(self, index: int, size: int) -> str | os.PathLike[str]:
        """Return the path of the smallest copy whose shorter edge has at least ``size`` pixels.

        Without such a copy, return the original's path.
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
    """Write a JPEG copy of each image in each size, unless it already exists.

    A copy's shorter edge has ``size`` pixels; an image that is not larger gets none. Copies are
    complete or absent at any time: after an interruption, call it again. A name depends on the
    original's path, length and modification time, and on the quality, so that a changed original
    gets new copies. The old ones stay; delete the folder to remove them. Processes that call it at
    the same time take turns.

    Args:
        paths: The originals, in the order of the dataset.
        folder: Folder for the copies; created if missing.
        sizes: Edges in pixels.
        quality: JPEG quality, 1 to 95.

    Raises:
        LoaderError: An original cannot be read, or a copy cannot be written.
    """
    place, ascending = Path(folder), sorted(set(sizes))
    if not ascending or ascending[0] < 1:
        raise LoaderError(f"expected sizes of 1 pixel or more, got {list(sizes)}")
    if not 1 <= quality <= 95:
        raise LoaderError(f"expected a quality from 1 to 95, got {quality}")
    folders = [place / f"{size}-q{quality}" for size in ascending]
    originals = [paths[begin : begin + _CHUNK] for begin in range(0, len(paths), _CHUNK)]

    def write_some(some: Sequence[str | os.PathLike[str]]) -> list[_Written]:
        return [_write_one(path, folders, ascending, quality) for path in some]

    try:
        for one in folders:
            one.mkdir(parents=True, exist_ok=True)
        # Pillow releases the GIL while it decodes, resizes and encodes. Other processes that write
        # here wait.
        with locked(place / "lock"), ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
            written = [one for some in threads.map(write_some, originals) for one in some]
    except OSError as error:
        raise LoaderError(
            f"cannot write copies to {place}: {described(error)}", "Choose another folder"
        ) from error
    return Copies(paths, folders, ascending, written)


def _write_one(
    path: str | os.PathLike[str], folders: Sequence[Path], sizes: Sequence[int], quality: int
) -> _Written:
    """Write the missing copies of one image."""
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
                copy = folder / name
                # A file left by an interrupted call has the same name, and is overwritten.
                with whole_file(copy, temporary=copy.with_suffix(".part")) as part:
                    _resized(image, size).save(part, "JPEG", quality=quality)
                made[place] = True
    return _Written(name, made)


def _resized(image: Image.Image, size: int) -> Image.Image:
    ratio = size / min(image.size)
    width, height = (max(size, round(edge * ratio)) for edge in image.size)
    return image.resize((width, height), Image.Resampling.LANCZOS)
