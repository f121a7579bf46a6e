"""Which of two ways to train on several machines sends less: full copies or a pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from radt.errors import UsageError


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a global batch sends over the network (Atom, section 3.1).

    A pipeline sends the activations at each cut forward and their gradients back. Full copies send
    each parameter about twice: an all-reduce moves 2·P·(W−1)/W bytes per replica.

    Args:
        parameter_bytes: Of the whole model.
        activation_bytes: At a cut, of one micro-batch.
        micro_batches: Of a global batch, in all replicas.
        machines: Replicas, or stages of the pipeline.

    Raises:
        UsageError: A value is too small.
    """

    parameter_bytes: int
    activation_bytes: int
    micro_batches: int
    machines: int = 2

    def __post_init__(self) -> None:
        smallest = min(self.parameter_bytes, self.activation_bytes, self.micro_batches)
        if smallest < 1 or self.machines < 2:
            raise UsageError(f"{self} sends nothing", "Expected 1 or more each, 2 machines or more")

    @property
    def pipeline_bytes(self) -> int:
        """Bytes over all cuts of a pipeline with one stage per machine."""
        return 2 * self.micro_batches * self.activation_bytes * (self.machines - 1)

    @property
    def copies_bytes(self) -> int:
        """Bytes that a replica sends for one average."""
        return round(2 * self.parameter_bytes * (self.machines - 1) / self.machines)

    @property
    def break_even(self) -> float:
        """Micro-batches of a global batch above which full copies send less."""
        return self.parameter_bytes / (self.machines * self.activation_bytes)

    @property
    def copies_win(self) -> bool:
        """Whether full copies send less; if not, average less often or take the pipeline."""
        return self.micro_batches > self.break_even
