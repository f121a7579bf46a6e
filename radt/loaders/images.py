"""Open images no larger than needed, to decode and resize less (``radt[images]``: Pillow)."""

from __future__ import annotations

import os
from typing import IO

from radt.errors import LoaderError, MissingPackageError, described

try:
    from PIL import Image
except ImportError as error:
    raise MissingPackageError(
        "radt.loaders.images needs Pillow, which is not installed", "pip install 'radt[images]'"
    ) from error


def open_at(source: str | os.PathLike[str] | IO[bytes], size: int) -> Image.Image:
    """Return an RGB image whose shorter edge has at least ``size`` pixels, if the file's edge has.

    libjpeg can skip the finest frequencies of a JPEG: it decodes to 1/2, 1/4 or 1/8 of each edge
    with much less work. This is used where the result is still large enough; other formats are
    decoded in full. The image is neither resized nor rotated.

    A random crop that keeps a share ``s`` of the edge needs ``open_at(path, ceil(size / s))``.

    Args:
        source: Path of the file, or a file open for reading bytes.
        size: Number of pixels needed along the shorter edge.

    Raises:
        LoaderError: The file cannot be read, or is not an image.
    """
    if size < 1:
        raise LoaderError(f"an image cannot have {size} pixels", "Give a size of 1 or more")
    try:
        with Image.open(source) as image:
            image.draft("RGB", (size, size))
            return image.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        name = getattr(source, "name", "an image") if hasattr(source, "read") else source
        raise LoaderError(
            f"cannot open {name}: {described(error)}", "Replace the file or leave it out"
        ) from error
