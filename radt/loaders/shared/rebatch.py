"""Batches of another size: views where they lie in one of the loader's, else copies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from radt.errors import LoaderError
from radt.loaders.layout import mapped

_REMEDY = (
    "Leave batch_size out, or have the loader's batches consist of tensors, arrays and lists whose "
    "first dimension is the sample"
)


def rows_of(batch: Any) -> int:
    """Return the number of samples of a batch, by the first tensor or array in it.

    Raises:
        LoaderError: It has none.
    """
    found: list[int] = []
    mapped(
        batch, lambda t: found.append(len(t)) if t.ndim else None, lambda a: found.append(len(a))
    )
    if not found:
        raise LoaderError("a batch without tensors cannot be cut into batches", _REMEDY)
    return found[0]


def cut(batch: Any, begin: int, end: int) -> Any:
    """Return the samples from `begin` to `end` of a batch, as views.

    Raises:
        LoaderError: Something in it has another number of samples.
    """
    return _cut(batch, begin, end, rows_of(batch))


def _cut(part: Any, begin: int, end: int, rows: int) -> Any:
    if isinstance(part, (torch.Tensor, np.ndarray)):
        if part.ndim == 0 or len(part) != rows:
            raise LoaderError(
                f"a tensor of shape {tuple(part.shape)} in a batch of {rows} samples", _REMEDY
            )
        return part[begin:end]
    if isinstance(part, dict):
        return {key: _cut(value, begin, end, rows) for key, value in part.items()}
    if isinstance(part, (tuple, list)):
        if any(isinstance(value, (torch.Tensor, np.ndarray, tuple, list, dict)) for value in part):
            return type(part)(_cut(value, begin, end, rows) for value in part)
        if len(part) != rows:
            raise LoaderError(f"{len(part)} values in a batch of {rows} samples", _REMEDY)
        return part[begin:end]
    return part  # of the whole batch


def joined(parts: list[Any]) -> Any:
    """Return batches one after another as one batch, copied."""
    first = parts[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(parts)
    if isinstance(first, np.ndarray):
        return np.concatenate(parts)
    if isinstance(first, dict):
        return {key: joined([part[key] for part in parts]) for key in first}
    if isinstance(first, (tuple, list)):
        nested = (torch.Tensor, np.ndarray, tuple, list, dict)
        if any(isinstance(value, nested) for value in first):
            return type(first)(joined(list(values)) for values in zip(*parts, strict=True))
        return type(first)(value for part in parts for value in part)
    return first


def copied(batch: Any) -> Any:
    """Return a batch with tensors and arrays of its own."""
    return mapped(batch, torch.Tensor.clone, np.ndarray.copy)


@dataclass(frozen=True, slots=True)
class _Piece:
    """What is left of the loader's batch of a number, from a row on."""

    number: int
    row: int
    rows: int
    batch: Any


class Pieces:
    """Turns batches of the loader into batches of a consumer's size.

    Args:
        size: Samples of a batch; as they come if None.
        start: Number of the first batch, and its first row that is needed.
    """

    def __init__(self, size: int | None, start: tuple[int, int] = (0, 0)) -> None:
        self._size, self._start = size, start
        self._pieces: list[_Piece] = []
        self._finished = False
        #: Number of the batch and row in it that come next.
        self.position = start

    @property
    def empty(self) -> bool:
        return not self._pieces

    @property
    def complete(self) -> bool:
        """Whether a batch can be taken, or the end has come."""
        if self._size is None:
            return bool(self._pieces) or self._finished
        return self._finished or self._rows >= self._size

    @property
    def _rows(self) -> int:
        return sum(piece.rows - piece.row for piece in self._pieces)

    def add(self, number: int, batch: Any) -> None:
        """Add the loader's next batch.

        Raises:
            LoaderError: It cannot be cut, and has to be.
        """
        row = self._start[1] if number == self._start[0] else 0
        rows = 0 if self._size is None and not row else rows_of(batch)
        if self._pieces and not self.complete:
            # Slots that are waited in would be missing to the loader.
            last = self._pieces[-1]
            kept = copied(cut(last.batch, last.row, last.rows))
            self._pieces[-1] = _Piece(last.number, 0, last.rows - last.row, kept)
        self._pieces.append(_Piece(number, row, rows, batch))

    def finish(self) -> None:
        """No batch comes any more: the last one is as small as it is."""
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
