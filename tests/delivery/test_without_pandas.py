"""The processes that deliver and import do without pandas, which would double their memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("package", ["delivery/mlflow", "delivery/archive", "importers"])
def test_every_module_is_imported_without_pandas(package: str) -> None:
    folder = ROOT / "radt" / package
    modules = [f"radt.{package.replace('/', '.')}.{path.stem}" for path in folder.glob("[a-z]*.py")]
    assert len(modules) > 3
    program = (
        "import importlib, sys\n"
        "from radt.delivery.process import block_pandas\n"
        "block_pandas()\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
    )
    subprocess.run([sys.executable, "-c", program, *sorted(modules)], check=True)
