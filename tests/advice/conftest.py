"""A store without any run, to plant measurements in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.advice.planting import Lab


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "home")
