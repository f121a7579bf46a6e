"""PyTorch, if the script has loaded it. radt itself never does."""

from __future__ import annotations

import sys
from typing import Any


def loaded_torch() -> Any:
    """The module; None while there is none, or while another thread is still importing it."""
    torch = sys.modules.get("torch")
    if torch is None or getattr(getattr(torch, "__spec__", None), "_initializing", False):
        return None
    return torch
