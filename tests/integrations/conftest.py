"""Scripts that train with a real library, as `tests.run` starts them."""

from __future__ import annotations

import pytest

from tests.run.conftest import alone, joined

__all__ = ["alone", "joined"]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models are no faster with more, and other tests have the other cores."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
