"""Batches of another size: views if they lie within one of the loader's, else copies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from radt.errors import LoaderError
from radt.loaders.batches import Structure, leaves, mapped_leaves

#: Types with one sample per row.
_ROWS = (torch.Tensor, np.ndarray)
_REMEDY = (
    "Leave batch_size out, or have the loader's batches consist of tensors, arrays and lists whose "
    "first dimension is the sample"
)


def rows_of(batch: Any) -> int:
    """Return the number of samples of a batch, by the first tensor or array in it.

    Raises:
        LoaderError: It has none.
    """
    for leaf in leaves(batch):
        if isinstance(leaf, _ROWS) and leaf.ndim:
            return len(leaf)
    raise LoaderError("a batch without tensors cannot be cut into batches", _REMEDY)


def cut(batch: Any, begin: int, end: int) -> Any:
    """Return the samples from `begin` to `end` of a batch, as views.

    Raises:
        LoaderError: A part of it has another number of samples.
    """
    return _cut(batch, begin, end, rows_of(batch))


def _cut(part: Any, begin: int, end: int, rows: int) -> Any:
    if isinstance(part, _ROWS):
        if part.ndim == 0 or len(part) != rows:
            raise LoaderError(
                f"a tensor of shape {tuple(part.shape)} in a batch of {rows} samples", _REMEDY
            )
        return part[begin:end]
    structure = Structure.of(part)
    if structure is None:
        return part  # belongs to the whole batch
    if not _is_column(structure):
        return structure.rebuilt([_cut(each, begin, end, rows) for each in structure.parts])
    if len(part) != rows:
        raise LoaderError(f"{len(part)} values in a batch of {rows} samples", _REMEDY)
    return part[begin:end]


def joined(parts: list[Any]) -> Any:
    """Return batches one after another as one batch, copied."""
    first = parts[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(parts)
    if isinstance(first, np.ndarray):
        return np.concatenate(parts)
    structure = Structure.of(first)
    if structure is None:
        return first
    if _is_column(structure):
        return type(first)(value for part in parts for value in part)
    columns = zip(*(Structure.of(part).parts for part in parts), strict=True)  # type: ignore[union-attr]
    return structure.rebuilt([joined(list(column)) for column in columns])


def _is_column(structure: Structure) -> bool:
    """Return True for a list or tuple with one plain value per sample."""
    return type(structure.value) in (list, tuple) and not any(
        isinstance(part, _ROWS) or Structure.of(part) is not None for part in structure.parts
    )


def _copied(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.clone()
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


@dataclass(frozen=True, slots=True)
class _Piece:
    """The unused rows of one of the loader's batches, from ``row`` on."""

    number: int
    row: int
    rows: int
    batch: Any


class Pieces:
    """Converts batches of the loader to a consumer's size.

    Args:
        size: Samples in a batch; unchanged if None.
        start: Number of the first batch, and its first required row.
    """

    def __init__(self, size: int | None, start: tuple[int, int] = (0, 0)) -> None:
        self._size, self._start = size, start
        self._pieces: list[_Piece] = []
        self._finished = False
        #: Number of the next batch, and the next row in it.
        self.position = start

    @property
    def empty(self) -> bool:
        return not self._pieces

    @property
    def complete(self) -> bool:
        """Return True if a batch can be taken, or if the end has come."""
        if self._size is None:
            return bool(self._pieces) or self._finished
        return self._finished or self._rows >= self._size

    @property
    def _rows(self) -> int:
        return sum(piece.rows - piece.row for piece in self._pieces)

    def add(self, number: int, batch: Any) -> None:
        """Add the loader's next batch.

        Raises:
            LoaderError: It has to be cut, and cannot be.
        """
        row = self._start[1] if number == self._start[0] else 0
        rows = 0 if self._size is None and not row else rows_of(batch)
        if self._pieces and not self.complete:
            # Copy rows that wait: their slots would be missing to the loader.
            last = self._pieces[-1]
            kept = mapped_leaves(cut(last.batch, last.row, last.rows), _copied)
            self._pieces[-1] = _Piece(last.number, 0, last.rows - last.row, kept)
        self._pieces.append(_Piece(number, row, rows, batch))

    def finish(self) -> None:
        """Note the end: the last batch may be smaller."""
        self._finished = True

    def take(self) -> Any:
        """Return the next batch."""
        if self._size is None:
            piece = self._pieces.pop()
            self.position = (piece.number + 1, 0)
            return cut(piece.batch, piece.row, piece.rows) if piece.row else piece.batch
        parts, missing = [], self._size
        while self._pieces and missing:
            piece = self._pieces.pop(0)
            end = min(piece.rows, piece.row + missing)
            whole = piece.row == 0 and end == piece.rows
            parts.append(piece.batch if whole else cut(piece.batch, piece.row, end))
            missing -= end - piece.row
            self.position = (piece.number + 1, 0)
            if end < piece.rows:
                self._pieces.insert(0, replace(piece, row=end))
                self.position = (piece.number, end)
        return parts[0] if len(parts) == 1 else joined(parts)
