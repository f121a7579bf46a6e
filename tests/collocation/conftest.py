"""A fake driver inside the test's own process, and a fake MPS on its PATH."""

from tests.support.fake_mps import mps
from tests.support.nvml import nvml, nvml_here, nvml_library

__all__ = ["mps", "nvml", "nvml_here", "nvml_library"]
