"""Pre-resized copies: complete or absent, made once, and the smallest that is large enough."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from radt.errors import LoaderError
from radt.loaders.images import open_at
from radt.loaders.progressive.copies import write
from tests.support.waiting import wait_until


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Images of several sizes, the second one small."""
    chance = np.random.default_rng(0)
    made = []
    for number, (width, height) in enumerate([(300, 200), (60, 48), (200, 320), (128, 128)]):
        path = tmp_path / f"{number}.jpg"
        pixels = chance.integers(0, 255, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path, quality=90)
        made.append(path)
    return made


def files_in(folder: Path) -> dict[Path, int]:
    """Each copy with its inode: a file that was written again has another."""
    return {path: path.stat().st_ino for path in folder.rglob("*") if path.parent != folder}


def test_the_smallest_copy_that_is_large_enough_is_read(tmp_path: Path, paths: list[Path]) -> None:
    copies = write(paths, tmp_path / "copies", [128, 64])
    assert len(copies) == 4
    edges = {
        (index, size): min(open_at(copies.nearest(index, size), size).size)
        for index in range(4)
        for size in (32, 64, 65, 128, 129)
    }
    # Copies have the shape of their original; one that is no larger than a copy has none.
    assert [edges[0, size] for size in (64, 65, 128)] == [64, 128, 128]
    assert copies.nearest(0, 129) == paths[0]
    assert {copies.nearest(1, size) for size in (32, 64, 128)} == {paths[1]}
    assert copies.nearest(3, 65) == paths[3]
    with Image.open(copies.nearest(2, 64)) as image:
        assert image.size == (64, 102)
    assert min(edges[index, size] for index, size in edges if size <= 128 and index != 1) >= 32


@given(st.lists(st.integers(1, 400), min_size=1, max_size=5), st.integers(1, 500))
def test_nearest_follows_the_sizes_there_are(sizes: list[int], wanted: int) -> None:
    from radt.loaders.progressive.copies import Copies, _Written

    ascending = sorted(set(sizes))
    written = [_Written("0.jpg", [size < 300 for size in ascending])]
    folders = [Path(str(size)) for size in ascending]
    copies = Copies(["original.jpg"], folders, ascending, written)
    enough = [size for size in ascending if wanted <= size < 300]
    expected = Path(str(enough[0])) / "0.jpg" if enough else "original.jpg"
    assert copies.nearest(0, wanted) == expected


def test_a_copy_shows_what_the_original_shows(tmp_path: Path) -> None:
    rows, columns = np.mgrid[0:400, 0:600]
    smooth = np.stack([rows * 0.6, columns * 0.4, (rows + columns) * 0.25], 2).astype(np.uint8)
    path = tmp_path / "smooth.jpg"
    Image.fromarray(smooth).save(path, quality=95)
    copies = write([path], tmp_path / "copies", [100])
    with Image.open(copies.nearest(0, 100)) as copy:
        pixels = np.asarray(copy, float)
    expected = Image.fromarray(smooth).resize((150, 100), Image.Resampling.LANCZOS)
    assert np.abs(pixels - np.asarray(expected, float)).mean() < 2


def test_a_second_call_writes_only_what_is_missing(tmp_path: Path, paths: list[Path]) -> None:
    folder = tmp_path / "copies"
    first = write(paths, folder, [64, 128])
    before = files_in(folder)
    assert len(before) == 5
    Path(first.nearest(2, 64)).unlink()
    again = write(paths, folder, [64, 128])
    after = files_in(folder)
    assert set(after) == set(before)
    changed = {path for path in after if after[path] != before[path]}
    assert changed <= {Path(again.nearest(2, 64))}


@pytest.mark.parametrize("change", ["content", "time", "quality"])
def test_copies_of_another_original_or_quality_are_not_used(
    tmp_path: Path, paths: list[Path], change: str
) -> None:
    folder, quality = tmp_path / "copies", 90
    before = write(paths, folder, [64], quality).nearest(0, 64)
    status = paths[0].stat()
    if change == "content":  # with the same time
        Image.new("RGB", (300, 200), "red").save(paths[0])
        os.utime(paths[0], ns=(status.st_atime_ns, status.st_mtime_ns))
    elif change == "time":
        os.utime(paths[0], ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    else:
        quality = 50
    after = write(paths, folder, [64], quality).nearest(0, 64)
    assert after != before
    if change == "content":
        assert np.asarray(open_at(after, 64)).mean(axis=(0, 1))[1] < 10  # no green in red


_WRITER = """
import sys
from pathlib import Path
from radt.loaders.progressive.copies import write

folder = Path(sys.argv[1])
write(sorted(folder.glob("*.jpg")), folder / "copies", [32, 64])
"""


def test_nothing_is_broken_or_left_behind_by_a_kill(tmp_path: Path) -> None:
    Image.effect_noise((600, 600), 60).convert("RGB").save(tmp_path / "0.jpg")
    for number in range(1, 200):
        (tmp_path / f"{number}.jpg").write_bytes((tmp_path / "0.jpg").read_bytes())
    folder = tmp_path / "copies"
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)])
    wait_until(lambda: len(list(folder.rglob("*.jpg"))) > 10, "some copies are there")
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    some = list(folder.rglob("*.jpg"))
    assert len(some) < 400, "the writer was done before it was killed"
    for path in some:
        Image.open(path).load()
    # Two at once finish it.
    writers = [subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)]) for _ in range(2)]
    assert [writer.wait() for writer in writers] == [0, 0]
    left = [path for path in folder.rglob("*") if path.is_file() and path.name != "lock"]
    assert len(left) == 400
    assert {path.suffix for path in left} == {".jpg"}
    for path in left:
        Image.open(path).load()


def test_errors_name_the_file(tmp_path: Path, paths: list[Path]) -> None:
    with pytest.raises(LoaderError, match="sizes of 1 pixel or more"):
        write(paths, tmp_path / "copies", [])
    with pytest.raises(LoaderError, match="quality from 1 to 95, got 100"):
        write(paths, tmp_path / "copies", [64], 100)
    with pytest.raises(LoaderError, match=r"missing\.jpg: FileNotFoundError"):
        write([*paths, tmp_path / "missing.jpg"], tmp_path / "copies", [64])
    (tmp_path / "text.jpg").write_text("not an image")
    with pytest.raises(LoaderError, match=r"text\.jpg: UnidentifiedImageError"):
        write([*paths, tmp_path / "text.jpg"], tmp_path / "copies", [64])
    with pytest.raises(LoaderError, match=r"cannot write copies to .*0\.jpg"):
        write(paths, paths[0], [64])


def test_an_empty_list_has_no_copies(tmp_path: Path) -> None:
    assert len(write([], tmp_path / "copies", [64])) == 0
