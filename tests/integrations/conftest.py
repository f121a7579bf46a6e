"""Scripts that train with a real library, as `tests.run` starts them."""

from __future__ import annotations

from tests.run.conftest import alone, joined

__all__ = ["alone", "joined"]
