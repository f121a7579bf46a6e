"""A fake driver inside the test's own process, and a fake MPS on its PATH."""

from __future__ import annotations

import ctypes

import pynvml
import pytest

from tests.support.fake_mps import mps
from tests.support.nvml import FakeNvml, nvml, nvml_library

__all__ = ["mps", "nvml", "nvml_library"]


@pytest.fixture
def nvml_here(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """The fake as this process's driver; LD_LIBRARY_PATH counts for new processes only."""
    for name, value in nvml.variables().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(nvml.library)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return nvml
