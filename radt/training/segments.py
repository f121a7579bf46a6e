"""Blocks and segments of a model: the units between which it can be interrupted or swapped."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Block:
    """One call of a module of the model, as measured.

    Attributes:
        name: The module's name in the model: ``layers.3``.
        forward_s: Duration of its forward pass.
        backward_s: Duration of its backward pass.
        parameter_bytes: Bytes of its parameters and buffers.
        output_bytes: Bytes of its output for the sample batch.
    """

    name: str
    forward_s: float
    backward_s: float
    parameter_bytes: int
    output_bytes: int


@dataclass(frozen=True, slots=True)
class Segment:
    """Successive blocks between two boundaries."""

    blocks: tuple[Block, ...]

    @property
    def forward_s(self) -> float:
        """Duration of the forward pass."""
        return sum(block.forward_s for block in self.blocks)

    @property
    def backward_s(self) -> float:
        """Duration of the backward pass."""
        return sum(block.backward_s for block in self.blocks)

    @property
    def parameter_bytes(self) -> int:
        """Bytes of the parameters and buffers."""
        return sum(block.parameter_bytes for block in self.blocks)

    @property
    def output_bytes(self) -> int:
        """Bytes that the last block hands to the next segment."""
        return self.blocks[-1].output_bytes
