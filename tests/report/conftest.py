"""An empty study in a store of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontend.report_support import Study


@pytest.fixture
def study(tmp_path: Path) -> Study:
    home = tmp_path / "radt-data"
    home.mkdir()
    return Study(home / "radt.db")
