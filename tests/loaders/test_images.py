"""Images opened no larger than needed."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from radt.errors import LoaderError
from radt.loaders.images import open_at


def jpeg(width: int, height: int, mode: str = "RGB") -> io.BytesIO:
    """A smooth picture: what a smaller version must look like is known."""
    rows, columns = np.mgrid[0:height, 0:width]
    grey = (127 + 60 * np.sin(columns / width * 6) + 60 * np.cos(rows / height * 6)).astype("u1")
    file = io.BytesIO()
    Image.fromarray(grey).convert(mode).save(file, "JPEG", quality=95)
    file.seek(0)
    return file


@given(st.integers(8, 400), st.integers(8, 400), st.integers(1, 500))
def test_an_image_is_the_smallest_that_is_large_enough(width: int, height: int, size: int) -> None:
    image = open_at(jpeg(width, height), size)
    assert image.mode == "RGB"
    assert min(image.size) >= min(size, width, height)
    # The smallest of what libjpeg decodes to: an eighth, a quarter, a half or all of each edge.
    part = max(one for one in (1, 2, 4, 8) if one == 1 or one * size <= min(width, height))
    assert image.size == (-(-width // part), -(-height // part))


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_smaller_image_shows_the_same(mode: str) -> None:
    full, half = open_at(jpeg(400, 240, mode), 240), open_at(jpeg(400, 240, mode), 120)
    assert half.size == (200, 120)
    expected = full.resize(half.size, Image.Resampling.BOX)
    difference = np.abs(np.asarray(half, float) - np.asarray(expected, float))
    assert difference.mean() < 2


def test_other_formats_are_opened_in_full(tmp_path: Path) -> None:
    Image.new("P", (80, 60), 3).save(tmp_path / "small.png")
    image = open_at(tmp_path / "small.png", 16)
    assert (image.size, image.mode) == ((80, 60), "RGB")


def test_errors_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(LoaderError, match=r"no\.jpg: FileNotFoundError"):
        open_at(tmp_path / "no.jpg", 16)
    (tmp_path / "text.jpg").write_text("not an image")
    with pytest.raises(LoaderError, match=r"text\.jpg: UnidentifiedImageError"):
        open_at(str(tmp_path / "text.jpg"), 16)
    (tmp_path / "cut.jpg").write_bytes(jpeg(200, 200).getvalue()[:1500])
    with pytest.raises(LoaderError, match=r"cut\.jpg: OSError"):
        open_at(tmp_path / "cut.jpg", 16)
    with pytest.raises(LoaderError, match="cannot have 0 pixels"):
        open_at(jpeg(20, 20), 0)
