"""Layout of tensors in a block of memory, for snapshots and offloaded models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from radt.errors import UsageError
from radt.loaders.layout import TensorAt

#: Alignment of tensors: a cache line, which suits every dtype.
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Piece(TensorAt):
    """One tensor in the block. Its strides may select kernels and thus affect the last bits.

    Attributes:
        name: Its first name in the model; a tied parameter has one piece.
        device: Its device in the model.
    """

    name: str
    device: str

    def empty(self, device: torch.device | str | None = None) -> Tensor:
        """Return an uninitialised tensor of this kind, on its device or another one."""
        where = self.device if device is None else device
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=where)

    def row(self, tensor: Tensor) -> Tensor:
        """Return the bytes of a tensor in this layout; of a copy if its strides differ."""
        dense = tensor.detach()
        if tuple(dense.stride()) != self.stride:
            dense = self.empty(dense.device).copy_(dense)
        return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)


@dataclass(frozen=True, slots=True)
class Layout:
    """Positions of tensors in a block of memory, one after another."""

    pieces: tuple[Piece, ...]
    byte_count: int

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], device: str | None = None) -> Layout:
        """Lay out tensors. Tensors with gaps become dense.

        Args:
            tensors: By name; their values do not matter.
            device: Device to record for all of them; their own if None.

        Raises:
            UsageError: A tensor is sparse, or has no shape yet.
        """
        pieces, offset = [], 0
        for name, tensor in tensors.items():
            has_shape = not isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer)
            if tensor.layout is not torch.strided or not has_shape:
                raise UsageError(
                    f"{name} of the model cannot be copied: it is sparse, or has no shape before "
                    "the first batch",
                    "Pass a model with dense tensors, after its first batch if it is lazy",
                )
            stride = torch.empty_like(tensor, device="meta").stride()
            shape, where = tuple(tensor.shape), device or str(tensor.device)
            pieces.append(Piece(tensor.dtype, shape, stride, offset, name, where))
            offset += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        return cls(tuple(pieces), offset)

    def tensors(self, flat: Tensor) -> list[Tensor]:
        """Return views of the tensors in the block."""
        return [piece.within(flat) for piece in self.pieces]

    def difference(self, other: Layout) -> list[str]:
        """Return, in words, the pieces that only one of two layouts has."""
        own, others = (
            {
                f"{piece.name}: {piece.dtype} {piece.shape} on {piece.device}"
                for piece in layout.pieces
            }
            for layout in (self, other)
        )
        return sorted(own ^ others)
