"""Scripts that train with a real library, as `tests.run` starts them."""

from tests.run.conftest import alone, joined

__all__ = ["alone", "joined"]
