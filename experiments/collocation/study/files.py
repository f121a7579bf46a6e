"""Data sets as they are published: CIFAR-10, ImageNet64 and ImageNet."""

from __future__ import annotations

import codecs
import fcntl
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

_CIFAR_PIXELS = 32
_CIFAR_BYTES = 3 * _CIFAR_PIXELS * _CIFAR_PIXELS
_CIFAR_BATCHES = {True: tuple(f"data_batch_{n}" for n in range(1, 6)), False: ("test_batch",)}
#: What pickled arrays are made with.
_MAKES_ARRAYS = {
    ("_codecs", "encode"): codecs.encode,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
}
_SUFFIXES = frozenset({".jpeg", ".jpg", ".png"})


class StoredImages(Dataset[tuple[Tensor, Tensor]]):
    """Images that stand in memory, or in a file that is mapped into it.

    Args:
        images: Bytes, shape (N, 3, pixels, pixels).
        labels: Their classes from 0, shape (N,).
    """

    def __init__(self, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> None:
        self._images, self._labels = images, labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        images, labels = self.__getitems__([number])
        return images[0], labels[0]

    def __getitems__(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """A batch: shapes (N, 3, pixels, pixels) and (N,)."""
        places = np.asarray(numbers)
        return torch.from_numpy(self._images[places]), torch.from_numpy(self._labels[places])


class ImageFolder(Dataset[tuple[Tensor, Tensor]]):
    """Images in a folder for each class, decoded when they are asked for.

    They are resized to a square by the nearest pixel, as in the study.

    Args:
        folder: It.
        pixels: Height and width.

    Raises:
        ValueError: There are no images.
    """

    def __init__(self, folder: Path, pixels: int) -> None:
        self._pixels = pixels
        classes = sorted(path for path in folder.iterdir() if path.is_dir())
        found = [
            (path, label)
            for label, of_class in enumerate(classes)
            for path in sorted(of_class.iterdir())
            if path.suffix.lower() in _SUFFIXES
        ]
        if not found:
            raise ValueError(f"{folder} has no folders with JPEG or PNG images, one for each class")
        self.classes = len(classes)
        # Arrays, as a list of a million paths would be copied into every worker, page by page.
        self._paths = np.array([str(path) for path, _ in found])
        self._labels = np.array([label for _, label in found])

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        images, labels = self.__getitems__([number])
        return images[0], labels[0]

    def __getitems__(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """A batch: shapes (N, 3, pixels, pixels) and (N,)."""
        images = np.stack([self._decoded(str(self._paths[number])) for number in numbers])
        return torch.from_numpy(images), torch.from_numpy(self._labels[np.asarray(numbers)])

    def _decoded(self, path: str) -> NDArray[np.uint8]:
        from PIL import Image

        with Image.open(path) as image:
            size = (self._pixels, self._pixels)
            resized = image.convert("RGB").resize(size, Image.Resampling.NEAREST)
            return np.asarray(resized).transpose(2, 0, 1)


def cifar10(folder: Path, *, train: bool) -> StoredImages:
    """CIFAR-10's batches, in its Python version or its binary one.

    Raises:
        ValueError: They are not there.
    """
    images, labels = [], []
    for name in _CIFAR_BATCHES[train]:
        if (binary := folder / f"{name}.bin").is_file():
            rows = np.fromfile(binary, dtype=np.uint8).reshape(-1, 1 + _CIFAR_BYTES)
            labels.append(rows[:, 0].astype(np.int64))
            images.append(rows[:, 1:])
        elif (pickled := folder / name).is_file():
            with pickled.open("rb") as file:
                batch = _ArraysOnly(file, encoding="bytes").load()
            labels.append(np.asarray(batch[b"labels"], dtype=np.int64))
            images.append(np.asarray(batch[b"data"], dtype=np.uint8))
        else:
            raise ValueError(f"{folder} has neither {name} nor {name}.bin of CIFAR-10")
    shape = (-1, 3, _CIFAR_PIXELS, _CIFAR_PIXELS)
    return StoredImages(np.concatenate(images).reshape(shape), np.concatenate(labels))


class _ArraysOnly(pickle.Unpickler):
    """Reads what CIFAR-10's batches hold; a file that asks for anything else is refused."""

    def __init__(self, file: IO[bytes], *, encoding: str) -> None:
        super().__init__(file, encoding=encoding)

    def find_class(self, module: str, name: str) -> Any:
        if (module.replace("_core", "core"), name) not in _MAKES_ARRAYS:
            raise ValueError(f"not a batch of CIFAR-10: it asks for {module}.{name}")
        return _MAKES_ARRAYS[module.replace("_core", "core"), name]


def imagenet64(folder: Path, pixels: int, *, train: bool) -> StoredImages:
    """ImageNet64's published archives: ``train_data_batch_1.npz`` to ``_10``, ``val_data.npz``.

    The first process that reads them unpacks them beside themselves, 16 GB for all images; others
    wait for it. All map the same file, so that memory holds it once however many runs share it.

    Raises:
        ValueError: They are not there, or have another size.
    """
    part = "train" if train else "val"
    data, labels = folder / f"{part}_data.npy", folder / f"{part}_labels.npy"
    if not labels.exists():  # it is written last
        if not folder.is_dir():
            raise ValueError(f"{folder} is no folder")
        with (folder / f".{part}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not labels.exists():
                _unpack(folder, part, data, labels)
    images = np.load(data, mmap_mode="r")
    if images.shape[1] != 3 * pixels * pixels:
        raise ValueError(f"{folder} has no images of {pixels}×{pixels} pixels")
    return StoredImages(images.reshape(-1, 3, pixels, pixels), np.load(labels))


def _unpack(folder: Path, part: str, data: Path, labels: Path) -> None:
    archives = sorted(folder.glob(f"{part}_data*.npz"))
    if not archives:
        raise ValueError(f"{folder} has no {part}_data*.npz of ImageNet64")
    found = []
    for archive in archives:
        with np.load(archive) as content:  # allow_pickle stays off
            found.append(np.asarray(content["labels"], dtype=np.int64))
            size = content["data"].shape[1]
    partial = data.with_suffix(".partial")
    whole = np.lib.format.open_memmap(
        partial, mode="w+", dtype=np.uint8, shape=(sum(map(len, found)), size)
    )
    start = 0
    for archive, of_archive in zip(archives, found, strict=True):
        with np.load(archive) as content:
            whole[start : start + len(of_archive)] = content["data"]
        start += len(of_archive)
    whole.flush()
    partial.replace(data)
    with (partial := labels.with_suffix(".partial")).open("wb") as file:
        np.save(file, np.concatenate(found) - 1)  # they are numbered from 1
    partial.replace(labels)
