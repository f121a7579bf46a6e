"""Random states that several trainings of one process swap, so that each draws its own numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from radt.loaders.randomness import RandomState


class OwnRandomness:
    """The random states of one training among several. ``with own.in_use():`` swaps them in.

    Args:
        state: The initial states; the current ones if None.
    """

    def __init__(self, state: RandomState | None = None) -> None:
        self.state = RandomState.current() if state is None else state
        self._is_in_use = False

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Draw from these states within the block, and restore the previous ones at its end.

        A nested block of the same states continues to draw from them.
        """
        if self._is_in_use:
            yield
            return
        outside = RandomState.current()
        self.state.restore()
        self._is_in_use = True
        try:
            yield
        finally:
            self._is_in_use = False
            self.state = RandomState.current(self.state.cuda_seed)
            outside.restore()
