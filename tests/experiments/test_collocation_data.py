"""Data of the collocation study: made up the same way everywhere, or read as published."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

FOLDER = Path(__file__).parents[2] / "experiments" / "collocation"
sys.path.insert(0, str(FOLDER))  # as for `python train.py`

from study.data import PUBLISHED, Data, Place, Sizes, batches, open_clicks, open_images  # noqa: E402
from study.draws import uniform  # noqa: E402
from study.files import cifar10, imagenet64  # noqa: E402
from study.generated import GeneratedClicks, GeneratedImages  # noqa: E402


def test_draws_are_uniform_and_unrelated() -> None:
    samples = np.arange(100_000)
    first, second, other = (
        uniform(*key) for key in ((0, samples, 0), (0, samples, 1), (1, samples, 0))
    )
    for values in (first, second, other):
        assert values.min() >= 0
        assert values.max() < 1
        counts, _ = np.histogram(values, bins=20, range=(0, 1))
        assert abs(counts - 5000).max() < 5 * np.sqrt(5000), "five standard deviations"
    for one, two in ((first, second), (first, other), (first[:-1], first[1:])):
        assert abs(np.corrcoef(one, two)[0, 1]) < 0.02


def test_generated_images_are_the_same_however_they_are_asked_for() -> None:
    data = GeneratedImages(1000, 10, 32, seed=3)
    images, labels = data.__getitems__([5, 900, 7])
    again, label = GeneratedImages(1000, 10, 32, seed=3)[900]
    assert torch.equal(images[1], again)
    assert labels[1] == label
    assert images.shape == (3, 3, 32, 32)
    assert images.dtype == torch.uint8
    assert not torch.equal(images[0], GeneratedImages(1000, 10, 32, seed=4)[5][0])
    after = GeneratedImages(100, 10, 32, seed=3, first=900)
    assert torch.equal(after[0][0], images[1]), "validation goes on where training ends"


def test_generated_images_can_be_told_apart() -> None:
    data = GeneratedImages(3000, 10, 16, seed=0)
    images, labels = data.__getitems__(range(3000))
    assert set(labels.tolist()) == set(range(10))
    means = torch.stack([images[:2000][labels[:2000] == one].float().mean(0) for one in range(10)])
    distances = torch.cdist(images[2000:].float().flatten(1), means.flatten(1))
    assert (distances.argmin(1) == labels[2000:]).float().mean() > 0.95


def test_generated_clicks_stay_within_their_tables_and_can_be_learned() -> None:
    data = GeneratedClicks(10**9, [1000, 3, 1], seed=0)
    dense, categories, clicked = data.__getitems__(range(20_000))
    assert dense.shape == (20_000, 13)
    assert categories.min() >= 0
    assert (categories.max(0).values < torch.tensor([1000, 3, 1])).all()
    assert 0.3 < clicked.mean() < 0.7
    slope = torch.linalg.lstsq(dense[:10_000], clicked[:10_000, None] - 0.5).solution
    right = ((dense[10_000:] @ slope)[:, 0] > 0) == (clicked[10_000:] > 0.5)
    assert right.float().mean() > 0.7
    assert torch.equal(data[10**9 - 1][1], data.__getitems__([10**9 - 1])[1][0])


def test_batches_are_the_same_with_workers_and_without() -> None:
    data = GeneratedImages(500, 10, 16, seed=0)
    made = [
        [
            (images.sum().item(), labels.tolist())
            for images, labels in batches(
                data, 32, samples=100, seed=1, workers=workers, pinned=False
            )
        ]
        for workers in (0, 2)
    ]
    assert made[0] == made[1]
    assert [len(labels) for _, labels in made[0]] == [32, 32, 32], (
        "the smaller last one is left out"
    )


@pytest.mark.parametrize(
    ("samples", "batch_size", "seed", "sizes"),
    [
        (1000, 300, 0, [300, 300, 300]),  # all of them, shuffled
        (5000, 300, 0, [300, 300, 300]),  # there are no more
        (10, 32, 0, [10]),  # less than a batch
        (700, 300, None, [300, 300, 100]),  # validation leaves none out
    ],
)
def test_sizes_of_batches(
    samples: int, batch_size: int, seed: int | None, sizes: list[int]
) -> None:
    loader = batches(
        GeneratedImages(1000, 10, 8, seed=0),
        batch_size,
        samples=samples,
        seed=seed,
        workers=0,
        pinned=False,
    )
    assert [len(labels) for _, labels in loader] == sizes
    assert len(loader) == len(sizes)


def test_epochs_differ_and_runs_do_not() -> None:
    def epochs() -> list[list[int]]:
        data = GeneratedImages(1000, 1000, 8, seed=0)
        loader = batches(data, 50, samples=50, seed=2, workers=0, pinned=False)
        return [labels.tolist() for _ in range(2) for _, labels in loader]

    first, second = epochs()
    assert first != second
    assert [first, second] == epochs()


def test_a_huge_data_set_takes_no_memory() -> None:
    split = open_clicks(PUBLISHED[Data.CLICKS], 1000, seed=0)
    loader = batches(split.train, 64, samples=128, seed=0, workers=0, pinned=False)
    assert len(split.train) == 209_715_200  # type: ignore[arg-type]
    assert [len(clicked) for _, _, clicked in loader] == [64, 64]


# Files -----------------------------------------------------------------------------------------


def _cifar_binary(folder: Path, name: str, labels: list[int], rows: np.ndarray) -> None:
    column = np.array(labels, dtype=np.uint8)[:, None]
    (folder / f"{name}.bin").write_bytes(np.hstack([column, rows]).tobytes())


def _cifar_python(folder: Path, name: str, labels: list[int], rows: np.ndarray) -> None:
    content = {b"data": rows, b"labels": labels, b"batch_label": name.encode()}
    (folder / name).write_bytes(pickle.dumps(content, protocol=2))


@pytest.mark.parametrize("write", [_cifar_binary, _cifar_python])
def test_cifar10_as_published(
    tmp_path: Path, write: Callable[[Path, str, list[int], np.ndarray], None]
) -> None:
    random = np.random.default_rng(0)
    names = [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]
    rows = {name: random.integers(0, 256, (4, 3072), dtype=np.uint8) for name in names}
    for place, name in enumerate(names):
        write(tmp_path, name, [place, 1, 2, 9], rows[name])
    split, sizes = open_images(Place(Data.CIFAR10, tmp_path), PUBLISHED[Data.CIFAR10], seed=0)
    assert sizes == Sizes(20, 4, 10, 32)
    images, labels = split.train.__getitems__([8])  # type: ignore[attr-defined]
    assert labels.tolist() == [2]
    # A thousand red bytes, row by row, then the green ones, then the blue ones.
    assert images[0, 1, 2, 3] == rows["data_batch_3"][0, 1024 + 2 * 32 + 3]
    assert split.validation[3][1] == 9


def test_a_batch_that_would_run_code_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps({b"data": Path("x")}))
    with pytest.raises(ValueError, match="not a batch of CIFAR-10: it asks for pathlib"):
        cifar10(tmp_path, train=True)
    with pytest.raises(ValueError, match=r"neither test_batch nor test_batch\.bin"):
        cifar10(tmp_path, train=False)


def _imagenet64(folder: Path) -> np.ndarray:
    random = np.random.default_rng(0)
    data = random.integers(0, 256, (30, 3 * 8 * 8), dtype=np.uint8)
    labels = np.arange(1, 31)
    for number, part in enumerate((slice(0, 20), slice(20, 30)), start=1):
        np.savez(folder / f"train_data_batch_{number}.npz", data=data[part], labels=labels[part])
    np.savez(folder / "val_data.npz", data=data[:5], labels=labels[:5])
    return data


def _sum_of(folder: Path) -> int:
    stored = imagenet64(folder, 8, train=True)
    return int(stored.__getitems__(range(len(stored)))[0].sum(dtype=torch.int64))


def test_imagenet64_is_unpacked_once_however_many_begin_at_once(tmp_path: Path) -> None:
    data = _imagenet64(tmp_path)
    with get_context("fork").Pool(4) as pool:
        sums = pool.map(_sum_of, [tmp_path] * 4)
    assert sums == [int(data.sum())] * 4
    assert not list(tmp_path.glob("*.partial"))
    split, sizes = open_images(Place(Data.IMAGENET64, tmp_path), Sizes(1, 1, 1000, 8), seed=0)
    assert (sizes.train, sizes.validation) == (30, 5)
    images, label = split.train[25]
    assert label == 25, "they are numbered from 1 in the files"
    assert images.flatten().tolist() == data[25].tolist()
    with pytest.raises(ValueError, match="no images of 64×64 pixels"):
        imagenet64(tmp_path, 64, train=True)


def test_imagenet64_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no train_data\*\.npz"):
        imagenet64(tmp_path, 64, train=True)
    with pytest.raises(ValueError, match="is no folder"):
        imagenet64(tmp_path / "missing", 64, train=True)


def test_imagenet_folders_are_decoded_and_resized(tmp_path: Path) -> None:
    for part, count in (("train", 3), ("val", 1)):
        for label, (name, colour) in enumerate({"n01": "red", "n02": "blue"}.items()):
            (folder := tmp_path / part / name).mkdir(parents=True)
            for number in range(count):
                mode = "L" if number == 1 else "RGB"  # ImageNet has grey ones
                picture = Image.new("RGB", (30 + label, 20), colour).convert(mode)
                picture.save(folder / f"{name}_{number}.JPEG")
    (tmp_path / "train" / "n01" / "notes.txt").touch()
    split, sizes = open_images(Place(Data.IMAGENET, tmp_path), Sizes(1, 1, 1000, 16), seed=0)
    assert sizes == Sizes(6, 2, 2, 16)
    loader = batches(split.train, 6, samples=6, seed=0, workers=1, pinned=False)
    ((images, labels),) = loader
    assert images.shape == (6, 3, 16, 16)
    assert sorted(labels.tolist()) == [0, 0, 0, 1, 1, 1]
    image, label = split.train[5]
    assert label == 1
    assert image[2].min() > 200
    assert image[0].max() < 50
    (tmp_path / "empty" / "train").mkdir(parents=True)
    with pytest.raises(ValueError, match="no folders with JPEG or PNG"):
        open_images(Place(Data.IMAGENET, tmp_path / "empty"), Sizes(1, 1, 2, 16), seed=0)


def test_places() -> None:
    assert Place.parse("imagenet") == Place(Data.IMAGENET, None)
    assert Place.parse("cifar10=/data/a=b") == Place(Data.CIFAR10, Path("/data/a=b"))
    with pytest.raises(ValueError, match="no data set 'mnist'; there are cifar10"):
        Place.parse("mnist")
    with pytest.raises(ValueError, match="only be generated"):
        Place.parse("clicks=/data")
